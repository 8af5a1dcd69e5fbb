"""Ranks that part are told, and those that are independent on purpose are not."""

from sonde.spikes.rank_signs import RANK_LAGS, RANKS_DRIFT, RankLook, RankSigns


def looks(*digests: str, seconds: float | None = None) -> list[RankLook]:
    return [RankLook({"first": "same", "last": digest}, seconds) for digest in digests]


def test_replicas_that_differ_are_told_with_tensor_and_rank() -> None:
    found = RankSigns().observe(8, looks("a", "a", "b"), are_replicas=True)
    assert [finding.kind for finding in found] == [RANKS_DRIFT]
    assert "last" in found[0].sentence
    assert "rank 2" in found[0].sentence


def test_ranks_that_never_were_the_same_are_independent() -> None:
    signs = RankSigns()
    assert signs.observe(8, looks("a", "b"), are_replicas=False) == []
    assert signs.observe(200, looks("c", "d"), are_replicas=False) == []


def test_ranks_that_were_the_same_have_parted() -> None:
    signs = RankSigns()
    assert signs.observe(8, looks("a", "a"), are_replicas=False) == []
    assert signs.observe(200, looks("c", "d"), are_replicas=False) != []


def lags(*seconds: float) -> list[RankLook]:
    return [RankLook({}, value) for value in seconds]


def test_a_rank_that_lags_three_looks_in_a_row_is_told() -> None:
    signs = RankSigns()
    found = [signs.observe(step, lags(0.1, 0.11, 0.25), are_replicas=True) for step in (1, 2, 3)]
    assert [len(findings) for findings in found] == [0, 0, 1]
    assert found[2][0].kind == RANK_LAGS
    assert "rank 2" in found[2][0].sentence


def test_ranks_that_are_slow_in_turn_or_a_little_do_not_lag() -> None:
    signs = RankSigns()
    for step in range(12):
        seconds = [0.3 if rank == step % 3 else 0.1 for rank in range(3)]
        assert signs.observe(step, lags(*seconds), are_replicas=True) == []
        assert signs.observe(step, lags(0.1, 0.15, 0.1), are_replicas=True) == []
        assert signs.observe(step, lags(0.0001, 0.004), are_replicas=True) == []
