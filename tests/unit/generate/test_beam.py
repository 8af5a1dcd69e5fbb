"""Beam search: fairseq's own numbers, and every corner."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from sonde.errors import SettingError
from sonde.generate.search import beam_search, greedy, refilled
from sonde.generate.sequence_model import Frontier
from sonde.generate.settings import SearchSettings

EOS = 2
# fairseq's test model: probabilities of (eos, unk, w1, w2) per step, sentence and beam.
TABLE = [
    [[[0, 0, 0.9, 0.1]] * 2, [[0, 0, 0.7, 0.3]] * 2],
    [[[1, 0, 0, 0], [0, 0, 0.9, 0.1]], [[0.25, 0, 0.35, 0.4], [0, 0, 0.1, 0.9]]],
    [[[0, 0, 0.1, 0.9], [0.6, 0, 0.2, 0.2]], [[0.6, 0, 0.4, 0], [0.01, 0, 0, 0.99]]],
    [[[1, 0, 0, 0]] * 2, [[0.1, 0, 0.5, 0.4], [1, 0, 0, 0]]],
]


def fairseq_model(frontier: Frontier) -> Tensor:
    table = torch.tensor(TABLE[min(frontier.step, 3)])[frontier.sentences][
        :, : frontier.tokens.shape[1]
    ]
    if frontier.step > 3:
        table = torch.tensor([1.0, 0, 0, 0]).expand_as(table)
    return torch.nn.functional.pad(table, (2, 0)).log()


def bigram(rows: dict[int, list[float]], vocab_size: int = 6) -> Any:
    """A model whose next-token probabilities depend on the last token only; other tokens end at
    once.
    """
    table = torch.zeros(vocab_size, vocab_size)
    table[:, EOS] = 1.0
    for token, probabilities in rows.items():
        table[token] = torch.tensor(probabilities)
    return lambda frontier: table.log()[frontier.tokens[:, :, -1]]


FAIRSEQ_NUMBERS: list[tuple[dict[str, Any], list[list[tuple[list[int], float]]]]] = [
    (
        {},
        [
            [([4, 2], -0.05268), ([5, 4, 5, 2], -0.62833)],
            [([4, 5, 4, 2], -0.54731), ([4, 5, 2], -0.59460)],
        ],
    ),
    (
        {"length_penalty": 0.0},
        [
            [([4, 2], -0.10536), ([5, 4, 5, 2], -2.51331)],
            [([4, 5, 2], -1.78379), ([4, 5, 4, 2], -2.18926)],
        ],
    ),
    (
        {"length_penalty": 0.6},
        [
            [([4, 2], -0.06951), ([5, 4, 5, 2], -1.09398)],
            [([4, 5, 2], -0.92272), ([4, 5, 4, 2], -0.95293)],
        ],
    ),
    (
        {"length_penalty": 5.0},
        [
            [([5, 4, 5, 2], -0.00245), ([4, 2], -0.00329)],
            [([4, 5, 4, 2], -0.00214), ([4, 5, 2], -0.00734)],
        ],
    ),
    (
        {"max_len": 2},
        [
            [([4, 2], -0.05268), ([5, 5, 2], -1.70533)],
            [([4, 5, 2], -0.59460), ([5, 5, 2], -1.97150)],
        ],
    ),
    (
        {"min_len": 3},
        [
            [([5, 4, 5, 2], -0.62833), ([5, 4, 4, 2], -1.17763)],
            [([5, 5, 5, 4, 2], -0.40251), ([4, 5, 4, 2], -0.54731)],
        ],
    ),
]


@pytest.mark.parametrize(("changes", "expected"), FAIRSEQ_NUMBERS)
def test_the_fairseq_rule_gives_the_numbers_of_fairseqs_own_tests(
    changes: dict[str, Any], expected: list[list[tuple[list[int], float]]]
) -> None:
    found = beam_search(
        fairseq_model, 2, SearchSettings(beam=2, n_best=2, stop="fairseq", **changes)
    )
    assert [[token.tokens for token in sentence] for sentence in found] == [
        [tokens for tokens, _ in s] for s in expected
    ]
    for sentence, numbers in zip(found, expected, strict=True):
        for hypothesis, (_, score) in zip(sentence, numbers, strict=True):
            assert math.isclose(hypothesis.score, score, abs_tol=1e-5)


def test_diverse_groups_without_strength_repeat_one_another_as_in_fairseq() -> None:
    def model(frontier: Frontier) -> Tensor:
        steps = [
            [[0, 0, 0.9, 0.1], [0, 0, 0.7, 0.3]],
            [[0, 0, 0.6, 0.4], [0.25, 0, 0.35, 0.4]],
            [[1, 0, 0, 0], [0.9, 0, 0.1, 0]],
        ]
        rows = torch.tensor(steps[min(frontier.step, 2)])[frontier.sentences]
        return (
            torch.nn.functional.pad(rows, (2, 0))
            .log()[:, None]
            .repeat(1, frontier.tokens.shape[1], 1)
        )

    chosen = SearchSettings(beam=2, n_best=2, diverse_groups=2, diversity=0.0, stop="fairseq")
    found = beam_search(model, 2, chosen)
    assert [[hypothesis.tokens for hypothesis in sentence] for sentence in found] == [
        [[4, 4, 2]] * 2,
        [[4, 5, 2]] * 2,
    ]
    for sentence, probabilities in zip(found, [(0.9, 0.6, 1.0), (0.7, 0.4, 0.9)], strict=True):
        for token in sentence:
            assert [round(math.exp(score), 4) for score in token.token_scores] == list(
                probabilities
            )


def test_diverse_groups_avoid_what_earlier_groups_chose() -> None:
    model = bigram({EOS: [0, 0, 0, 0, 0.6, 0.4]})
    plain = beam_search(
        model, 1, SearchSettings(beam=2, n_best=2, diverse_groups=2, diversity=0.0)
    )[0]
    diverse = beam_search(
        model, 1, SearchSettings(beam=2, n_best=2, diverse_groups=2, diversity=1.0)
    )[0]
    assert [hypothesis.tokens for hypothesis in plain] == [[4, 2], [4, 2]]
    assert {tuple(hypothesis.tokens) for hypothesis in diverse} == {(4, 2), (5, 2)}


def test_diversity_is_hammings_where_fairseqs_penalties_add_up() -> None:
    # fairseq's own code gives the second group [4, 4, 5, 2] here: the penalty has grown to 3 x 0.9
    # by the third token. With its diversity_discount=0 it gives what is asserted here.
    model = bigram({token: [0, 0, 1e-13, 0, 0.9, 0.1] for token in (EOS, 4, 5)})
    chosen = SearchSettings(
        beam=2, n_best=2, diverse_groups=2, diversity=0.9, max_len=3, stop="fairseq"
    )
    found = beam_search(model, 1, chosen)[0]
    assert [hypothesis.tokens for hypothesis in found] == [[4, 4, 4, 2]] * 2
    penalised = math.log(0.9) - 0.9
    assert [round(score, 4) for score in found[1].token_scores[:3]] == [round(penalised, 4)] * 3


def test_exact_goes_on_while_an_open_hypothesis_can_still_win() -> None:
    # Greedy ends after [4]; the longer path costs more in all, but less per token.
    model = bigram({EOS: [0, 0, 0, 0, 0.6, 0.4], 5: [0, 0, 0.02, 0, 0, 0.98]})
    exact = beam_search(model, 1, SearchSettings(beam=2, max_len=40))[0][0]
    fairseq = beam_search(model, 1, SearchSettings(beam=1, max_len=40, stop="fairseq"))[0][0]
    assert exact.tokens == [5] * 40 + [EOS]
    assert fairseq.tokens == [4, EOS]


@pytest.mark.parametrize("stop", ["exact", "fairseq", "hf"])
def test_logits_of_minus_infinity_throughout_end_a_sentence_with_nothing(stop: Any) -> None:
    def model(frontier: Frontier) -> Tensor:
        logits = torch.zeros(*frontier.tokens.shape[:2], 6)
        logits[frontier.sentences == 0] = -torch.inf
        return logits

    found = beam_search(model, 2, SearchSettings(beam=2, max_len=3, stop=stop))
    assert found[0] == []
    assert found[1]


def test_a_sentence_that_dies_later_keeps_what_has_ended() -> None:
    model = bigram({EOS: [0, 0, 0.3, 0, 0.7, 0], 4: [0, 0, 0, 0, 0, 0]})
    assert [
        hypothesis.tokens
        for hypothesis in beam_search(model, 1, SearchSettings(beam=3, n_best=3))[0]
    ] == [[EOS]]


def test_a_nan_logit_is_never_chosen_and_leaves_the_others_alone() -> None:
    def model(frontier: Frontier) -> Tensor:
        logits = torch.log(torch.tensor([0.0, 0, 0.5, 0, 0, 0.5])).repeat(
            *frontier.tokens.shape[:2], 1
        )
        logits[..., 4] = torch.nan
        return logits

    best = beam_search(model, 1, SearchSettings(beam=2, max_len=3))[0][0]
    assert 4 not in best.tokens
    assert math.isclose(best.score, math.log(0.5), abs_tol=1e-6)


def test_rows_of_nan_are_rows_of_nothing() -> None:
    assert beam_search(lambda f: torch.full((*f.tokens.shape[:2], 6), torch.nan), 2) == [[], []]


def test_an_infinite_logit_is_certain() -> None:
    def model(frontier: Frontier) -> Tensor:
        logits = torch.zeros(*frontier.tokens.shape[:2], 6)
        logits[..., EOS if frontier.step else 5] = torch.inf
        return logits

    best = beam_search(model, 1, SearchSettings(beam=2))[0][0]
    assert best.tokens == [5, EOS]
    assert best.score == 0.0


@pytest.mark.parametrize(("stop", "tokens"), [("exact", [EOS]), ("fairseq", [EOS]), ("hf", [])])
def test_a_largest_length_of_zero_allows_the_end_token_alone(stop: Any, tokens: list[int]) -> None:
    model = bigram({EOS: [0, 0, 0.25, 0, 0.75, 0]})
    found = beam_search(model, 1, SearchSettings(beam=3, max_len=0, stop=stop))[0]
    assert [hypothesis.tokens for hypothesis in found] == [tokens]
    assert math.isclose(found[0].score, math.log(0.25) if tokens else 0.0, abs_tol=1e-6)


@pytest.mark.parametrize("stop", ["exact", "fairseq", "hf"])
def test_a_beam_larger_than_the_vocabulary_finds_all_there_is(stop: Any) -> None:
    model = bigram({EOS: [0.1, 0, 0.2, 0, 0.4, 0.3]})
    found = beam_search(
        model, 1, SearchSettings(beam=50, n_best=50, max_len=4, stop=stop, length_penalty=0.0)
    )[0]
    assert [hypothesis.tokens for hypothesis in found][:4] == [[4, 2], [5, 2], [2], [0, 2]]
    assert len(found) == 4


def test_an_end_token_at_the_first_step_is_a_result() -> None:
    found = beam_search(bigram({}), 3, SearchSettings(beam=4))
    assert [[token.tokens for token in sentence] for sentence in found] == [[[EOS]]] * 3


def test_live_beams_stay_at_beam_size_after_an_end_token() -> None:
    widths = []

    def model(frontier: Frontier) -> Tensor:
        widths.append(frontier.tokens.shape[1])
        if frontier.step:
            assert len({tuple(row) for row in frontier.tokens[0].tolist()}) == 3
        return (
            torch.tensor([0.1, 0, 0.5, 0.1, 0.2, 0.1]).log().repeat(*frontier.tokens.shape[:2], 1)
        )

    beam_search(model, 1, SearchSettings(beam=3, n_best=3, max_len=6, length_penalty=5.0))
    assert widths[:3] == [1, 3, 3]


def test_lengths_follow_each_sentences_own_source() -> None:
    model = bigram({EOS: [0, 0, 0, 0, 1, 0], 4: [0, 0, 0, 0, 1, 0]})
    never_ends = SearchSettings(beam=2, max_len=1, max_len_ratio=2.0)

    def softened(frontier: Frontier) -> Tensor:
        return torch.logaddexp(model(frontier), torch.tensor(-9.0))

    found = beam_search(softened, 3, never_ends, source_lengths=[1, 5, 2])
    assert [len(sentence[0].tokens) - 1 for sentence in found] == [3, 11, 5]
    ends_at_once = SearchSettings(beam=2, min_len=1, min_len_ratio=0.5)
    found = beam_search(
        lambda f: torch.logaddexp(bigram({})(f), torch.tensor(-9.0)),
        2,
        ends_at_once,
        source_lengths=[2, 6],
    )
    assert [len(sentence[0].tokens) - 1 for sentence in found] == [2, 4]


def test_prefix_tokens_come_first_and_are_scored_by_the_model() -> None:
    model = bigram({EOS: [0, 0, 0, 0, 0.9, 0.1], 5: [0, 0, 0.5, 0, 0.5, 0]})
    found = beam_search(
        model, 3, SearchSettings(beam=2, max_len=5), prefix_tokens=[[5, 4], [], [5]]
    )
    assert found[0][0].tokens == [5, 4, EOS]
    assert [round(math.exp(score), 4) for score in found[0][0].token_scores] == [0.1, 0.5, 1.0]
    assert found[1][0].tokens == [4, EOS]
    assert found[2][0].tokens[0] == 5


def test_prompts_stand_before_the_result_and_are_not_part_of_it() -> None:
    model = bigram({4: [0, 0, 0, 0, 0, 1.0], 5: [0.8, 0, 0.2, 0, 0, 0]})
    found = beam_search(model, 2, SearchSettings(beam=2, max_len=5), prompts=[[3, 3, 4], [5]])
    assert [sentence[0].tokens for sentence in found] == [[5, 0, EOS], [0, EOS]]


def test_forced_tokens_are_scored_by_the_model_and_as_zero_under_hf() -> None:
    model = bigram({EOS: [0, 0, 0, 0, 0.9, 0.1]})
    found = beam_search(model, 1, SearchSettings(beam=2, forced=((0, 5),)))[0][0]
    assert (found.tokens, round(math.exp(found.token_scores[0]), 4)) == ([5, EOS], 0.1)
    found = beam_search(model, 1, SearchSettings(beam=2, forced=((0, 5),), stop="hf"))[0][0]
    assert (found.tokens, found.token_scores[0]) == ([5, EOS], 0.0)


def test_a_start_token_of_ones_own_is_what_the_model_reads_first() -> None:
    model = bigram({4: [0, 0, 0, 0, 0, 1.0]})
    assert beam_search(model, 1, SearchSettings(start=4))[0][0].tokens == [5, EOS]
    assert beam_search(model, 1, SearchSettings())[0][0].tokens == [EOS]


def test_temperature_divides_logits() -> None:
    model = bigram({EOS: [0, 0, 0.2, 0, 0.8, 0]})
    scores = greedy(model, 1, SearchSettings(temperature=2.0))[0][0].token_scores
    assert math.isclose(math.exp(scores[0]), 0.8**0.5 / (0.8**0.5 + 0.2**0.5), rel_tol=1e-5)


def test_attention_follows_the_hypothesis() -> None:
    model = bigram({EOS: [0, 0, 0, 0, 0.5, 0.5], 4: [0, 0, 0, 0, 0, 1.0], 5: [1.0, 0, 0, 0, 0, 0]})

    def attending(frontier: Frontier) -> tuple[Tensor, Tensor]:
        return model(frontier), torch.nn.functional.one_hot(frontier.tokens[:, :, -1], 6).float()

    for hypothesis in beam_search(attending, 1, SearchSettings(beam=2, n_best=2))[0]:
        assert hypothesis.attention is not None
        assert hypothesis.attention.shape == (len(hypothesis.tokens), 6)
        assert hypothesis.attention.argmax(-1).tolist() == [EOS, *hypothesis.tokens[:-1]]
    assert greedy(model, 1)[0][0].attention is None


def test_finished_sentences_leave_the_batch() -> None:
    seen = []

    def model(frontier: Frontier) -> Tensor:
        seen.append(frontier.sentences.tolist())
        logits = torch.full((*frontier.tokens.shape[:2], 6), -20.0)
        ends = frontier.sentences <= frontier.step
        logits[ends, :, EOS] = 0.0
        logits[~ends, :, 5] = 0.0
        return logits

    found = beam_search(model, 4, SearchSettings(beam=2, length_penalty=0.0))
    assert [len(sentence[0].tokens) for sentence in found] == [1, 2, 3, 4]
    assert [sorted(rows) for rows in seen] == [[0, 1, 2, 3], [1, 2, 3], [2, 3], [3]]
    assert refilled([False, True, False, True, True]) == [4, 1, 3]


def test_no_sentences_is_no_work() -> None:
    assert beam_search(bigram({}), 0) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"source_lengths": [1]}, "source_lengths has 1 entries for 2 sentences"),
        ({"prefix_tokens": [[1]] * 3}, "prefix_tokens has 3 entries"),
        ({"prompts": [[4], []]}, "prompts has 2 entries for 2 sentences, the shortest of 0"),
        ({"settings": SearchSettings(max_len_ratio=1.0)}, "source_lengths is None"),
    ],
)
def test_arguments_that_do_not_fit_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        beam_search(bigram({}), 2, **arguments)
