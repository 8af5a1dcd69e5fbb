"""The decoder's memory: who sees which slot."""

import torch

from sonde.models.layers import DecoderState


def make_state(num_sentences: int = 2) -> DecoderState:
    return DecoderState(
        memory=torch.zeros(1, 2, num_sentences, 1, 0, 1),
        cross=torch.zeros(1, 2, num_sentences, 1, 0, 1),
        source_visible=torch.zeros(num_sentences, 1, 1, 0, dtype=torch.bool),
        visible=torch.zeros(num_sentences, 1, 0, dtype=torch.bool),
        lengths=torch.zeros(num_sentences, 1, dtype=torch.long),
    )


def feed(
    state: DecoderState, is_token: torch.Tensor, marks: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Extend the state and write `marks` [B, n] as one-dimensional keys."""
    positions, mask = state.extend(is_token)
    state.append(0, marks[:, None, :, None].float(), marks[:, None, :, None].float())
    return positions, mask


def seen(state: DecoderState, sentence: int, hypothesis: int) -> set[float]:
    keys = state.memory[0, 0]
    return set(
        keys[sentence, 0, : state.num_slots, 0][state.visible[sentence, hypothesis]].tolist()
    )


def test_a_prompt_is_causal_and_its_padding_is_seen_by_nobody_else() -> None:
    state = make_state()
    is_token = torch.tensor([[[False, True, True]], [[True, True, True]]])
    positions, mask = feed(state, is_token, torch.arange(6).view(2, 3))
    assert positions.tolist() == [[0, 0, 1], [0, 1, 2]]
    assert mask[0, 0].int().tolist() == [[1, 0, 0], [0, 1, 0], [0, 1, 1]]
    assert mask[1, 0].int().tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert seen(state, 0, 0) == {1, 2}
    assert state.lengths.tolist() == [[2], [3]]


def test_beams_share_the_prompt_and_inherit_from_their_parents() -> None:
    state = make_state(1)
    feed(state, torch.ones(1, 1, 2, dtype=torch.bool), torch.tensor([[0, 1]]))
    state.reorder(torch.tensor([[0, 0]]))
    feed(state, torch.ones(1, 2, 1, dtype=torch.bool), torch.tensor([[10, 11]]))
    state.reorder(torch.tensor([[1, 1]]))
    feed(state, torch.ones(1, 2, 1, dtype=torch.bool), torch.tensor([[20, 21]]))
    assert seen(state, 0, 0) == {0, 1, 11, 20}
    assert seen(state, 0, 1) == {0, 1, 11, 21}
    assert state.lengths.tolist() == [[4, 4]]


def test_reordering_moves_the_table_and_no_keys_or_values() -> None:
    state = make_state(1)
    feed(state, torch.ones(1, 1, 2, dtype=torch.bool), torch.tensor([[0, 1]]))
    state.reorder(torch.tensor([[0, 0]]))
    feed(state, torch.ones(1, 2, 1, dtype=torch.bool), torch.tensor([[10, 11]]))
    memory = state.memory
    before = memory[..., : state.num_slots, :].clone()
    cross = state.cross
    state.reorder(torch.tensor([[1, 0]]))
    assert state.memory is memory
    assert torch.equal(memory[..., : state.num_slots, :], before)
    assert state.cross is cross
    assert seen(state, 0, 0) == {0, 1, 11}
    assert seen(state, 0, 1) == {0, 1, 10}


def test_sentences_leave_and_change_places() -> None:
    state = make_state(4)
    feed(state, torch.ones(4, 1, 2, dtype=torch.bool), torch.arange(8).view(4, 2))
    state.keep(torch.tensor([3, 1]))
    assert seen(state, 0, 0) == {6, 7}
    assert seen(state, 1, 0) == {2, 3}
    state.keep(torch.tensor([1, 0]))
    assert seen(state, 0, 0) == {2, 3}
    assert seen(state, 1, 0) == {6, 7}


def test_slots_nobody_sees_are_dropped_and_the_seen_ones_kept() -> None:
    state = make_state(1)
    history: list[set[float]] = [set()]
    for step in range(40):
        marks = torch.arange(step * 4, step * 4 + 4)[None]
        state.reorder(torch.zeros(1, 4, dtype=torch.long))
        feed(state, torch.ones(1, 4, 1, dtype=torch.bool), marks)
        history = [history[0] | {float(mark)} for mark in marks[0]]
        assert [seen(state, 0, k) for k in range(4)] == history
    assert state.num_slots < 80
