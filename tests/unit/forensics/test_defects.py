"""The defects of facts/diagnosis-in-the-wild.md, one test each; those of rollback (4 and 5) are in
test_rollback.py.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from replayed_runs import small_settings, train_small
from small_corpus import prepare_corpus

from sonde.errors import SettingError
from sonde.forensics.case import is_close
from sonde.forensics.causes import (
    changed_settings,
    corrupted_weights,
    duplicated_text,
    learning_rate,
    mismatched_pair,
    rules,
)
from sonde.forensics.causes.cause_rule import CauseFinding
from sonde.forensics.causes.mismatched_pair import PairTest, sources_mixed
from sonde.forensics.diagnose import diagnose
from sonde.forensics.evidence import Evidence
from sonde.forensics.readings import UsualSigns
from sonde.forensics.replay import Replay
from sonde.forensics.samples_seen import SeenSample, surprise
from sonde.forensics.seams import Losses, Row, SampleLoss
from sonde.forensics.tensor_test import (
    AdamSettings,
    TensorTest,
    fallen_moments,
    lost_steps,
    stale_checkpoint,
)
from sonde.forensics.verdict import Suspect
from sonde.records.journal import StepRecord
from sonde.run import Run
from sonde.spread import Spread
from sonde.texts.profile import profile_of
from sonde.texts.signs import Sign, find_signs
from sonde.train.session import train_run

ADAM = AdamSettings(beta1=0.9, beta2=0.98, weight_decay=0.0)


def record(step: int, loss: float = 3.0, lr: float = 1e-3) -> StepRecord:
    return StepRecord(step=step, epoch=1, loss=loss, weight=100.0, grad_norm=1.0, lr=lr)


def seen(
    number: int,
    *signs: Sign,
    z: float = 0.0,
    tail: float = -0.5,
    rarity: float = 0.0,
    bits_rarity: float = 0.0,
) -> SeenSample:
    sample = SampleLoss(sample_id=("train", number), loss=3.0 + z, num_tokens=20, token_losses=None)
    row = Row(("train", number), tuple(range(20)))
    rare: dict[str, Any] = {"tail": tail, "rarity": rarity, "bits_rarity": bits_rarity}
    return SeenSample(
        row=row, sample=sample, rank=0, z=z, bits_z=z, bits=2.0, excess=z, signs=signs, **rare
    )


def case(step: int, steps: Mapping[int, StepRecord], **values: Any) -> Any:
    losses = Spread([record.loss for number, record in steps.items() if number < step])
    own: dict[str, Any] = {
        "step": step,
        "steps": steps,
        "record": steps.get(step),
        "losses": losses,
        "is_loss_unusual": False,
        "is_calm": False,
        "run": Path("no-such-run"),
    }
    return SimpleNamespace(**{**own, **values})


def evidence(**values: Any) -> Evidence:
    """As much of it as a rule asks for."""
    own: dict[str, Any] = {
        "is_state_bad": False,
        "has_bad_tensors": False,
        "data_weight": 1.0,
        "recent_changes": [],
        "usual_signs": UsualSigns([Row(("train", 0), (1,) * 20)] * 2000, [None] * 2000),
        "batch_z": 0.0,
        "samples": [],
        "suspects": lambda some: [
            Suspect(dataset="train", sample=sample.row.name[1]) for sample in some
        ],
        "describe_rate": lambda: "the learning rate is as it is",
        "made": SimpleNamespace(differs=False, first_different=None),
        "tensors": [],
        "lab": SimpleNamespace(from_step=0),
        "diverged_at": None,
        "normal_before": lambda _: 3.0,
        "token_entropy": math.nan,
        "once": lambda _, make: make(),
    }
    return cast("Evidence", SimpleNamespace(**{**own, **values}))


def told_by(test: PairTest) -> dict[str, Any]:
    return {"once": lambda name, make: test if name == "pairs" else make()}


def test_defect_01_a_rate_that_is_too_high_is_named_and_no_weight_is_blamed() -> None:
    steps = {
        number: record(number, 3.0 if number < 60 else 3.0 + 0.1 * (number - 60))
        for number in range(1, 101)
    }
    replay = SimpleNamespace(optimizer=SimpleNamespace(), first_step=1)
    lab = SimpleNamespace(
        replay_with=lambda *_, **__: 3.1,
        replay=replay,
        from_step=75,
        remade_checkpoint=lambda: None,
    )
    test = TensorTest(
        before=50,
        after=75,
        weights=(),
        moments=(),
        fallen=(),
        num_moments=9,
        steps=None,
        stale=None,
        is_before_good=True,
    )
    found = evidence(case=case(100, steps), is_state_bad=True, lab=lab, tensors=[test])
    finding = learning_rate.RULE.judge(found)
    assert finding is not None
    assert finding.score >= 0.7
    assert "too high" in str(finding.title)
    assert corrupted_weights.RULE.judge(found) is None


def test_defect_02_a_target_that_is_merely_odd_is_no_mismatched_pair() -> None:
    usual = Spread([1.0, 1.1, 0.9, 1.2, 0.8, 1.0, 1.1, 0.9])
    odd, wrong, noise = (seen(number, z=6, tail=3) for number in (1, 2, 3))
    helps = {("train", 1): 0.9, ("train", 2): 0.0, ("train", 3): 0.0}
    test = PairTest(
        helps=helps, usual=usual, odd=frozenset({("train", 3)}), mixed={}, expected=0.01
    )
    found = mismatched_pair.RULE.judge(
        evidence(case=case(5, {}), samples=[odd, wrong, noise], **told_by(test))
    )
    assert found is not None
    assert [suspect.sample for suspect in found.suspects] == [2]


def test_defect_02_a_better_target_is_compared_with_its_own_source() -> None:
    rows = [Row(("train", number), (number,), (number,)) for number in range(3)]

    def losses(batches: list[list[Row]]) -> Losses:
        """Target 2 is easy after any source; targets 0 and 1 were swapped."""
        table = {(0, 1): 1.0, (1, 0): 1.0, (0, 2): 0.5, (1, 2): 0.5, (2, 2): 0.5}
        values = [table.get(((row.source or ())[0], row.target[0]), 5.0) for row in batches[0]]
        named = zip(batches[0], values, strict=True)
        return Losses(
            1.0,
            [
                [
                    SampleLoss(row.name, value, num_tokens=None, token_losses=None)
                    for row, value in named
                ]
            ],
        )

    lab: Any = SimpleNamespace(replay=SimpleNamespace(loss=losses))
    corpus: Any = SimpleNamespace(batch=lambda chosen: chosen)
    mixed = sources_mixed(lab, corpus, rows, rows[:2], usual=2.0)
    assert "target of sample train 1" in mixed["train", 0]
    assert "target of sample train 0" in mixed["train", 1]


@pytest.mark.parametrize(("rate", "is_blamed"), [(0.2, True), (2e-3, False)])
def test_defect_01_a_rate_that_moved_the_first_weights_by_more_than_their_size_is_named(
    rate: float, is_blamed: bool
) -> None:
    steps = {number: record(number, 6.0, rate) for number in range(1, 261)}
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))])
    lab = SimpleNamespace(replay=SimpleNamespace(optimizer=optimizer))
    found = learning_rate.RULE.judge(
        evidence(case=case(260, steps), lab=lab, once=lambda *_: [0.1, 0.12, 1.0])
    )
    assert (found is not None and found.score > 0.7) is is_blamed


def test_defect_03_learning_rate_is_not_blamed_on_nothing() -> None:
    losses = {number: 4.863 + 0.01 * (number % 5) for number in range(1, 61)}
    steps = {
        number: record(number, loss, 1e-3 if number < 40 else 2e-3)
        for number, loss in losses.items()
    }
    updater = SimpleNamespace(scheduled_rate=lambda _: None)
    replay = SimpleNamespace(
        seams=SimpleNamespace(updater=updater), optimizer=SimpleNamespace(), first_step=1
    )
    lab = SimpleNamespace(replay_with=lambda *_, **__: 4.863, replay=replay)
    found = learning_rate.RULE.judge(evidence(case=case(60, steps), lab=lab))
    assert found is not None
    assert found.score < 0.3


def test_defect_06_good_text_of_the_corpus_language_is_not_foreign() -> None:
    nouns = (
        "chien",
        "chat",
        "homme",
        "garçon",
        "cheval",
        "musicien",
        "pompier",
        "marchand",
        "vendeur",
        "touriste",
    )
    verbs = (
        "court",
        "dort",
        "joue",
        "attend",
        "mange",
        "travaille",
        "danse",
        "marche",
        "saute",
        "chante",
    )
    places = (
        "dans la rue",
        "sur la plage",
        "près de la maison",
        "devant un magasin",
        "à côté du pont",
    )
    texts = [f"Un {noun} {verb} {place}." for noun in nouns for verb in verbs for place in places]
    profile = profile_of(texts[::2])
    for text in (
        "Deux femmes âgées discutent devant une église.",
        "Une petite fille regarde les bateaux sur le lac.",
    ):
        assert [
            sign
            for sign in find_signs(text, profile)
            if sign.kind == "foreign_language" and sign.strength >= 0.5
        ] == []


def test_defect_07_what_was_read_is_said_although_the_loss_is_calm() -> None:
    bad = seen(3, Sign("garbled_text", 1.0, ("it reads as no language",)), z=-0.5, bits_rarity=3.0)
    found = rules()["garbled_text"].judge(
        evidence(case=case(5, {}), samples=[seen(1), seen(2), bad])
    )
    assert found is not None
    assert found.score > 0.5
    assert [suspect.sample for suspect in found.suspects] == [3]


def test_defect_08_many_mild_oddities_make_an_odd_batch() -> None:
    mild = [seen(number, Sign("garbled_text", 0.45), z=1.0) for number in range(12)]
    samples = [*mild, *(seen(number) for number in range(12, 32))]
    one = rules()["garbled_text"].judge(evidence(case=case(5, {}), samples=samples[11:]))
    many = rules()["garbled_text"].judge(evidence(case=case(5, {}), samples=samples, batch_z=5.0))
    assert many is not None
    assert many.score > 2 * (one.score if one else 0.0)
    assert len(many.suspects) == 12


def test_defect_09_tensors_are_looked_at_although_the_loss_is_calm() -> None:
    worst = SimpleNamespace(num_elements=4, name="w", ratio=30.0, before=0.1, worst=9.0)
    test: Any = SimpleNamespace(
        weights=(worst,), moments=(), stale=None, before=50, after=75, where="there"
    )
    found = corrupted_weights.RULE.judge(
        evidence(case=case(80, {}), tensors=[test], lab=SimpleNamespace(from_step=75))
    )
    assert found is not None
    assert (found.module, found.bad_checkpoint) == ("w", 75)
    assert found.score > 0.9


def test_defect_09_a_change_of_settings_is_tried_although_other_batches_are_calm() -> None:
    change = SimpleNamespace(
        step=90, what=("dropout was 0.1 and became 0.6",), settings=("dropout",)
    )
    steps = {number: record(number, 3.0 + 0.01 * (number % 3)) for number in range(1, 92)} | {
        92: record(92, 4.5)
    }
    tried = changed_settings.SettingsTried(now=4.5, before=3.0)
    found = changed_settings.RULE.judge(
        evidence(case=case(92, steps), recent_changes=[change], once=lambda *_: tried)
    )
    assert found is not None
    assert found.score > 0.9
    assert found.setting == "dropout"


@pytest.mark.parametrize("tried", [changed_settings.SettingsTried(now=3.2, before=3.0), None])
def test_a_setting_is_not_blamed_unless_the_new_ones_reproduce_the_step(
    tried: changed_settings.SettingsTried | None,
) -> None:
    change = SimpleNamespace(step=90, what=("max_steps became 9",), settings=("max_steps",))
    steps = {number: record(number, 3.0 + 0.01 * (number % 3)) for number in range(1, 92)} | {
        92: record(92, 4.5)
    }
    found = changed_settings.RULE.judge(
        evidence(case=case(92, steps), recent_changes=[change], once=lambda *_: tried)
    )
    assert found is not None
    assert found.score < 0.5


def test_an_infinite_loss_is_the_same_as_no_finite_one() -> None:
    assert is_close(3.0, 3.0000001)
    assert not is_close(3.1, math.inf)
    assert is_close(math.inf, math.inf)


def test_defect_10_lost_moments_and_earlier_weights_are_found() -> None:
    before = {"w": {"exp_avg_sq": torch.full((8,), 0.5), "step": torch.tensor(100.0)}}
    decayed = {"w": {"exp_avg_sq": torch.full((8,), 0.5 * 0.98**20), "step": torch.tensor(120.0)}}
    lost = {"w": {"exp_avg_sq": torch.zeros(8), "step": torch.tensor(3.0)}}
    assert fallen_moments(before, decayed, ADAM, 20) == []
    assert fallen_moments(before, lost, ADAM, 20) == [("w", 1.0)]
    assert lost_steps(before, decayed) is None
    assert lost_steps(before, lost) == (100.0, 3.0)
    weights = {0: 0.0, 20: 1.0, 40: 2.0, 60: 3.0, 80: 1.1}
    lab: Any = SimpleNamespace(
        replay=SimpleNamespace(
            checkpoints=lambda: list(weights),
            state_after=lambda step: {"model": {"w": torch.full((4,), weights[step])}},
        ),
        checkpoint=lambda step: {"model": {"w": torch.full((4,), weights[step])}},
    )
    assert stale_checkpoint(lab, 60, 80) == 20
    assert stale_checkpoint(lab, 40, 60) is None


def test_defect_11_a_long_phrase_is_a_repetition_and_other_punctuation_is_no_noise() -> None:
    texts = [
        f"The {noun} of the {other} is set when it is opened."
        for noun in "abcde"
        for other in ("file", "line", "page")
    ]
    profile = profile_of(texts)
    phrase = " ".join(f"word{chr(97 + number)}" for number in range(20))
    assert find_signs(" ".join([phrase] * 5), profile)[0].kind == "repetition"
    kinds = [sign.kind for sign in find_signs("これは、新しい本です。「はい」と言った。", profile)]
    assert kinds[0] == "other_script"
    assert "garbled_text" not in kinds


@pytest.fixture(scope="module")
def changed_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose last start changed its dropout after step 8."""
    data = prepare_corpus(tmp_path_factory.mktemp("pairs"))
    run = train_small(data, tmp_path_factory.mktemp("runs") / "a", max_updates=8)
    train_run(small_settings(data, dropout=0.5), run)
    return run


@pytest.mark.slow
def test_defect_12_a_step_before_a_change_is_replayed_with_the_settings_of_then(
    changed_run: Path,
) -> None:
    for step in (3, 8, 9, 12):
        replay = Replay(changed_run, settings_of=step)
        replay.go_to(step)
        recorded = replay.recorded(step)
        assert recorded is not None
        assert replay.update().loss == recorded.loss
    plain = Replay(changed_run)
    plain.go_to(3)
    assert "dropout" in " ".join(plain.differences())
    verdict = diagnose(changed_run, 6)
    assert verdict.replay is not None
    assert verdict.replay.reproduced


def test_with_nothing_recorded_a_diagnosis_is_refused_and_says_what_is_missing(
    tmp_path: Path,
) -> None:
    with Run(tmp_path / "run", config={"width": 3}):
        pass
    with pytest.raises(SettingError, match="recorded no steps") as raised:
        diagnose(tmp_path / "run", 4)
    assert "any-loop.md" in str(raised.value.hint)


def test_several_samples_far_out_are_rarer_than_one() -> None:
    assert 0.9 < surprise([2.5, *([0.0] * 31)], 32) < 1.1
    assert surprise([*([2.5] * 3), *([0.0] * 29)], 32) > 1.8


def test_four_rows_with_a_sign_that_hardly_any_sample_has_count_for_more_than_one() -> None:
    shouting = [seen(number, Sign("shouting", 1.0)) for number in range(4)]
    usual = UsualSigns(
        [Row(("train", 0), (1,) * 20)] * 2400, [("shouting", 1.0)] * 6 + [None] * 2394
    )
    rows = [*shouting, *(seen(number) for number in range(4, 64))]
    found = evidence(case=case(5, {}), samples=rows, usual_signs=usual)
    single = evidence(case=case(5, {}), samples=[rows[0], *rows[4:]], usual_signs=usual)
    many, one = (rules()["shouting"].judge(each) for each in (found, single))
    assert many is not None
    assert many.score > 2 * (one.score if one else 0.0)
    assert len(many.suspects) == 4


def test_a_sample_that_only_shares_the_sign_of_the_culprit_is_no_suspect() -> None:
    culprit = seen(1, Sign("garbled_text", 1.0), z=9.0, rarity=5.0, bits_rarity=5.0)
    other = seen(2, Sign("garbled_text", 0.3))
    found = rules()["garbled_text"].judge(
        evidence(case=case(5, {}), samples=[culprit, other, seen(3), seen(4)])
    )
    assert found is not None
    assert [suspect.sample for suspect in found.suspects] == [1]


def test_two_pairs_that_fit_each_other_are_less_of_a_mix_up_than_three() -> None:
    usual = Spread([1.0, 1.1, 0.9, 1.2, 0.8, 1.0, 1.1, 0.9])

    def score(num: int) -> float:
        rows = [seen(number, z=1.0) for number in range(num)]
        values = {row.row.name: "it fits another" for row in rows}
        test = PairTest(
            helps=dict.fromkeys(values, 0.0),
            usual=usual,
            odd=frozenset(),
            mixed=values,
            expected=0.01,
        )
        found = mismatched_pair.RULE.judge(
            evidence(case=case(5, {}), samples=rows, **told_by(test))
        )
        assert found is not None
        return found.score

    assert score(2) < 0.75 < score(3)


def test_a_few_texts_that_are_nearly_the_same_are_no_duplicates() -> None:
    def judged(rows: list[tuple[int, ...]]) -> CauseFinding | None:
        samples = [
            replace(seen(number), row=Row(("train", number), row))
            for number, row in enumerate(rows)
        ]
        plain = [Row(("train", 900), row) for row in others]
        lab = SimpleNamespace(other_batches=range(12), rows_of=lambda _: plain)
        return duplicated_text.RULE.judge(
            evidence(case=case(5, {}), samples=samples, lab=lab, corpus=None)
        )

    others = [tuple(range(100 * number, 100 * number + 60)) for number in range(1, 29)]
    text = tuple(range(60))
    nearly = [(*text[:50], *range(9000 + 10 * number, 9010 + 10 * number)) for number in range(4)]
    assert judged([*others, *[text] * 4]) is not None
    assert judged([*others, *[text] * 3]) is None
    assert judged([*others, *nearly]) is None
