"""Which events pass by themselves: the watch waits, and calls for those that stay and for what is
not finite.
"""

import math
import random

from sonde.callbacks.context import Context, ContextValues
from sonde.heal.decision import Call, Heal
from sonde.heal.supervisor import HealCallback


def calls(losses: list[float], patience: int = 12) -> list[Call]:
    watch = HealCallback(Heal(max_times=1, patience=patience))
    found = [watch.judge(step, loss) for step, loss in enumerate(losses, 1)]
    return [call for call in found if call is not None]


def calm(num: int) -> list[float]:
    chance = random.Random(1)
    return [3.0 + chance.gauss(0.0, 0.02) for _ in range(num)]


def test_a_spike_that_comes_back_is_left_alone() -> None:
    assert calls([*calm(100), 9.0, 6.0, 4.0, *calm(50)]) == []


def test_a_loss_that_stays_up_is_called_after_the_patience() -> None:
    found = calls([*calm(100), *[9.0] * 20])[0]
    assert (found.first_step, found.step, found.value) == (101, 113, 9.0)
    assert abs(found.baseline - 3.0) < 0.1
    assert calls([*calm(100), *[9.0] * 20], patience=5)[0].step == 106


def test_a_loss_that_comes_back_and_leaves_again_is_called() -> None:
    assert calls([*calm(100), *[9.0] * 5, *calm(5), *[9.0] * 10])[0].first_step == 101


def test_a_loss_that_comes_back_half_of_the_way_is_called_though_no_update_is_an_event_now() -> (
    None
):
    lasting = [step + 0.07 for step in calm(30)]
    assert calls([*calm(100), 9.0, 9.0, *lasting])[0].step == 113
    assert calls([*calm(100), 9.0, 9.0, *[step + 0.02 for step in calm(30)]]) == []


def test_a_loss_that_is_not_finite_is_called_at_once() -> None:
    for bad in (math.nan, math.inf):
        found = calls([*calm(100), bad])[0]
        assert (found.kind, found.first_step, found.step) == ("nonfinite", 101, 101)
    assert calls([*calm(100), 9.0, 9.0, math.nan])[0].first_step == 101
    assert calls([*calm(100), 9.0, *calm(3), math.nan])[0].first_step == 105


def test_the_first_update_may_be_bad() -> None:
    assert calls([math.nan])[0].first_step == 1


class Shown:
    """A training that shows a callback its updates."""

    def __init__(self, watch: HealCallback) -> None:
        self._watch = watch
        self._values = ContextValues()
        self.context = Context(self._values)

    def update(self, step: int, loss: float, weight: float = 10.0) -> None:
        self._values.step = step
        self._values.tensors = {"loss": loss}
        self._values.weight = weight
        self._watch.on_step_end(self.context)


def test_a_call_gives_the_state_up_and_a_dry_run_does_not() -> None:
    for dry_run in (False, True):
        watch = HealCallback(Heal(max_times=1, dry_run=dry_run))
        shown = Shown(watch)
        for step in range(1, 4):
            shown.update(step, math.nan)
        assert len(watch.calls) == 1
        assert ("give up" in shown.context.requests) is not dry_run


def test_an_update_without_tokens_is_no_event() -> None:
    watch = HealCallback(Heal(max_times=1))
    shown = Shown(watch)
    shown.update(1, math.nan, weight=0.0)
    assert watch.calls == []


def test_checkpoints_are_distrusted_while_an_event_is_open() -> None:
    watch = HealCallback(Heal(max_times=1))
    shown = Shown(watch)
    for step, loss in enumerate([*calm(100), 9.0], 1):
        shown.update(step, loss)
    assert shown.context.distrusted == "the loss is unusual since step 101"
    for step, loss in enumerate(calm(20), 102):
        shown.update(step, loss)
    assert shown.context.distrusted is None


def test_a_resume_in_the_middle_of_the_wait_calls_at_the_same_update() -> None:
    losses = [*calm(100), *[9.0] * 20]
    for cut in (99, 101, 105, 108):
        one = HealCallback(Heal(max_times=1))
        other = HealCallback(Heal(max_times=1))
        for step, loss in enumerate(losses[:cut], 1):
            one.judge(step, loss)
        other.load_state_dict(one.state_dict())
        found = [other.judge(step, loss) for step, loss in enumerate(losses[cut:], cut + 1)]
        assert next(call for call in found if call is not None).step == 109
