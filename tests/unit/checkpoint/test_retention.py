"""Which checkpoints stay: pure."""

import pytest

from sonde.checkpoint.folder import About, Keep, steps_to_remove
from sonde.errors import SettingError


def entries(
    *steps: int, distrusted: tuple[int, ...] = (), losses: dict[int, float] | None = None
) -> dict[int, About]:
    return {
        step: About(
            distrusted="NaN" if step in distrusted else None,
            metrics={"loss": losses[step]} if losses and step in losses else {},
        )
        for step in steps
    }


def test_the_newest_stay() -> None:
    assert steps_to_remove(entries(1, 2, 3, 4), Keep(newest=2)) == [1, 2]
    assert steps_to_remove(entries(1, 2), Keep(newest=4)) == []


@pytest.mark.parametrize("newest", [0, -1])
def test_none_or_fewer_keeps_all(newest: int) -> None:
    assert steps_to_remove(entries(1, 2, 3), Keep(newest=newest)) == []


def test_a_distrusted_one_pushes_no_good_one_out() -> None:
    assert steps_to_remove(entries(1, 2, 3, 4, 5, distrusted=(3, 4, 5)), Keep(newest=2)) == [3]


def test_the_best_stays_and_a_nan_is_never_the_best() -> None:
    losses = {1: float("nan"), 2: 0.5, 3: 0.7, 4: 0.5, 5: 0.9}
    some = entries(1, 2, 3, 4, 5, losses=losses)
    assert steps_to_remove(some, Keep(newest=1, metric="loss")) == [1, 3, 4]
    assert steps_to_remove(some, Keep(newest=1, metric="loss", mode="max")) == [1, 2, 3, 4]
    assert steps_to_remove(some, Keep(newest=1, metric="bleu")) == [1, 2, 3, 4]


def test_a_protected_one_stays() -> None:
    assert steps_to_remove(entries(1, 2, 3), Keep(newest=1), protected={1}) == [2]


def test_a_mode_that_is_none_is_refused() -> None:
    with pytest.raises(SettingError, match="mode"):
        Keep(mode="best")  # type: ignore[arg-type]  # wrong on purpose
