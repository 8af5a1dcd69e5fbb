"""What the first updates of a training show by themselves: the mode, gradients that are left over,
parameters that no optimizer holds, rates, and rows that come again.

Every recorded training is looked at like this over its first updates, and again when its mode or
its parameter groups change; after that the cost is two comparisons an update. `sonde check` looks
more closely: it also keeps the batches, and which weights had gradients. Nothing is changed: hooks
on one parameter read whether its gradient was cleared (gradient_follower.py).
"""

from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from sonde.data.skip_list import CONTENT
from sonde.forensics.checks import (
    connection,
    counted_positions,
    data_order,
    precision,
    stale_casts,
    step_habits,
)
from sonde.forensics.checks.check_rule import Check, result_of
from sonde.recorder.batch_tree import named_rows, sample_names
from sonde.recorder.checking.bench import Feed, feed_of
from sonde.recorder.checking.cast_canary import CastCanary
from sonde.recorder.checking.gradient_follower import GradientFollower
from sonde.recorder.checking.value_clipping import ValueClipping
from sonde.recorder.guard import Guard
from sonde.recorder.hooks import gradient_norm
from sonde.recorder.memory import device_of
from sonde.recorder.training import Training
from sonde.recorder.update import MicroBatch, Update

NUM_UPDATES: Final = 8
"""How many updates are looked at."""
_NOISE: Final = 1e-6
"""A gradient that is smaller than this share of the largest may be rounding, as that of a bias
before batch normalisation: it need not move its weight.
"""
_MAX_FEEDS: Final = 64
_NORMS: Final = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_DROPOUTS: Final = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)


class _CountedRows(NamedTuple):
    """What the losses of rows show of one batch."""

    num_rows: int
    num_counted: int
    """The number of positions that count."""
    num_rows_without: int
    """The number of rows in which no position counts."""


class FirstSteps:
    """Collects what the first updates show."""

    def __init__(self, training: Training, *, is_thorough: bool = False) -> None:
        """`is_thorough`: also keep batches and look at every gradient, for `sonde check`."""
        self._training = training
        self.is_thorough = is_thorough
        self.num_updates = 0
        self.optimizers: dict[int, torch.optim.Optimizer] = {}
        """Every optimizer that moved."""
        self.with_gradient: set[Tensor] = set()
        """Parameters that had a gradient when an optimizer moved."""
        self.with_values: set[Tensor] = set()
        """Parameters whose gradient was not 0 in some update, if that was looked at."""
        self.pushed: dict[Tensor, Tensor | None] = {}
        """Parameters with a gradient other than 0 at a rate other than 0; for those in half
        precision also where.
        """
        self.casts = CastCanary(device_of(training.model))
        """Whether autocast casts the weights of now."""
        self.updates: list[list[Feed]] = []
        """The micro-batches, if they are kept."""
        self.norms: list[tuple[Any, Any, float]] = []
        """With a gradient scaler: the norm that was clipped, that of the update, and the scale."""
        self.numbers: list[int] = []
        """The numbers of the rows in their dataset, as they come, if the script gives any."""
        self._rates: list[float] = []
        self._modes: list[step_habits.TrainMode] = []
        self._mode_now = self._mode()
        self._follower: GradientFollower | None = None
        self._num_left = 0
        self._num_left_looked = 0
        self._num_micro_cleared = 0
        self._num_micro_kept = 0
        self._batches: list[tuple[list[int], int, int]] = []
        self._counts: list[_CountedRows] = []
        self._num_feeds = 0
        self._shape = self._shape_now()
        self._value_clipping = ValueClipping() if is_thorough else None

    @property
    def is_over(self) -> bool:
        """Whether all of the first updates have been looked at."""
        return self.num_updates >= NUM_UPDATES

    def before_step(self, optimizer: torch.optim.Optimizer, norm: Any = None) -> None:
        """Look at the gradients before an optimizer moves. `norm` is the one that was clipped."""
        self.optimizers[id(optimizer)] = optimizer
        self._mode_now = self._mode()
        self.note_gradients()
        held = _held_by(optimizer)
        follower = self._follower
        if follower is None:
            if optimizer is self._training.optimizer:
                self._follow(held)
        elif follower.parameter in held and follower.has_added:
            self._num_left_looked += 1
            self._num_left += not follower.is_cleared
        if self.is_thorough:
            self._look_closely(optimizer, norm)

    def note_gradients(self) -> None:
        """Note which parameters have a gradient."""
        for parameter in self._training.model.parameters():
            if parameter.grad is not None:
                self.with_gradient.add(parameter)

    def end_update(self, update: Update) -> None:
        """Take in an update that is over."""
        self.num_updates += 1
        self._shape = self._shape_now()
        self.casts.look()
        rates = [rate for rate in update.rates if rate == rate]
        self._rates.append(max(rates, key=abs) if rates else float("nan"))
        self._modes.append(self._mode_now)
        if self._follower is not None:
            self._note_clearing(update, self._follower)
            self._follower.begin_update()
        for micro in update.micro:
            self._note_batch(micro)
        if self.is_thorough:
            self._num_feeds += len(update.micro)
            if self._num_feeds <= _MAX_FEEDS and update.micro:
                self.updates.append([feed_of(micro) for micro in update.micro])
        if self.is_over:
            self.close()

    def close(self) -> None:
        """Remove the hooks."""
        if self._follower is not None:
            self._follower.close()
        if self._value_clipping is not None:
            self._value_clipping.close()

    def has_changed(self) -> bool:
        """Return whether the mode, the groups, or what is trained changed since the last look."""
        before = self._shape
        self._shape = self._shape_now()
        return self._shape != before

    def _shape_now(self) -> tuple[bool, int, int]:
        """Return the mode of the model, and how many groups and trained parameters there are."""
        model = self._training.model
        num_trained = sum(parameter.requires_grad for parameter in model.parameters())
        return model.training, len(self._training.optimizer.param_groups), num_trained

    # What was measured, for the judges.

    def left_over(self) -> step_habits.LeftOver:
        """Return how often gradients were left over."""
        return step_habits.LeftOver(num_updates=self._num_left_looked, num_left=self._num_left)

    @property
    def is_cleared_within(self) -> bool:
        """Whether gradients are cleared at each micro-batch of an update."""
        if len(self.optimizers) > 1 or self._num_micro_kept:
            return False
        return self._num_micro_cleared > 1

    def mode(self) -> step_habits.TrainMode:
        """Return the mode: the first that was not for training."""
        for mode in self._modes:
            if not mode.is_training:
                return mode
        return self._modes[0] if self._modes else self._mode()

    def mode_now(self) -> step_habits.TrainMode:
        """Return the mode of this moment."""
        return self._mode()

    def rates(self) -> step_habits.Rates:
        """Return the rates of the updates."""
        groups = self._training.optimizer.param_groups
        planned = [group["initial_lr"] for group in groups if "initial_lr" in group]
        return step_habits.Rates(
            rates=tuple(self._rates), planned=max(map(float, planned), default=0.0)
        )

    def members(self) -> connection.OptimizerMembers:
        """Return what the optimizers hold that moved, or that were named."""
        held: set[Tensor] = set()
        optimizers = [*self.optimizers.values(), self._training.optimizer]
        named = self._training.named.values()
        optimizers += [part for part in named if isinstance(part, torch.optim.Optimizer)]
        for optimizer in optimizers:
            held |= _held_by(optimizer)
        num_parameters = 0
        num_held = 0
        missing = []
        for name, parameter in self.named_parameters():
            if not parameter.requires_grad:
                continue
            num_parameters += parameter.numel()
            if parameter in held:
                num_held += parameter.numel()
            elif parameter in self.with_gradient:
                missing.append(name)
        return connection.OptimizerMembers(
            num_parameters=num_parameters,
            num_held=num_held,
            with_gradient_not_held=tuple(missing),
        )

    def repeated(
        self, *, is_contrastive: bool = False, has_classes: bool = False
    ) -> data_order.RepeatedRows:
        """Return how rows of the first batches repeat. What the loss is like is known only to a
        check.
        """
        num_same = 0
        num_twice = 0
        num_rows = 0
        pointers = set()
        before: list[int] | None = None
        for names, pointer, _ in self._batches:
            num_rows += len(names)
            num_twice += len(names) - len(set(names))
            num_same += int(before is not None and sorted(names) == sorted(before))
            pointers.add(pointer)
            before = names
        return data_order.RepeatedRows(
            num_batches=len(self._batches),
            num_rows=num_rows,
            row_length=max((size for _, _, size in self._batches), default=0),
            num_same_batches=num_same,
            num_again_before_new=_num_again_before_new(self.rows_of_updates()),
            has_classes=has_classes,
            is_same_memory=len(pointers) == 1,
            num_twice_in_batch=num_twice,
            is_contrastive=is_contrastive,
        )

    def counted(self) -> counted_positions.CountedPositions:
        """Return the positions that count, as far as the losses of rows were seen."""
        num_counted = sum(batch.num_counted for batch in self._counts)
        return counted_positions.CountedPositions(
            num_rows=sum(batch.num_rows for batch in self._counts),
            num_positions=num_counted,  # those that do not count are not seen here
            num_counted=num_counted,
            num_rows_without=sum(batch.num_rows_without for batch in self._counts),
            num_batches=len(self._counts),
            num_batches_without=sum(batch.num_counted == 0 for batch in self._counts),
        )

    def rows_of_updates(self) -> list[list[int]]:
        """Return the names of the rows of each batch."""
        return [names for names, _, _ in self._batches]

    def named_parameters(self) -> list[tuple[str, Tensor]]:
        """Return the parameters of the model with the names that its author gave them."""
        found: list[tuple[str, Tensor]] = []
        for name, parameter in self._training.model.named_parameters():
            found.append((name.replace("_orig_mod.", "").removeprefix("module."), parameter))
        return found

    # Inside.

    def _follow(self, held: set[Tensor]) -> None:
        """Follow the smallest parameter that gets a gradient."""
        trained = [parameter for parameter in held if parameter.grad is not None]
        trained = [parameter for parameter in trained if parameter.layout is torch.strided]
        if trained and not self._training.is_sharded:
            smallest = min(trained, key=lambda parameter: parameter.numel())
            self._follower = GradientFollower(smallest, keeps_all=self.is_thorough)

    def _look_closely(self, optimizer: torch.optim.Optimizer, norm: Any) -> None:
        if norm is None and self._value_clipping is not None:
            norm = self._value_clipping.take_norm()
        noise = _NOISE * _largest_gradient(optimizer)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                gradient = parameter.grad
                if gradient is None:
                    continue
                if gradient.layout is not torch.strided:
                    self.with_values.add(parameter)
                    continue
                where = gradient != 0
                if not bool(where.any()):
                    continue
                self.with_values.add(parameter)
                if group.get("lr", 1.0) == 0 or float(gradient.abs().max()) <= noise:
                    continue
                if parameter.dtype in (torch.bfloat16, torch.float16):
                    before = self.pushed.get(parameter)
                    self.pushed[parameter] = where if before is None else where | before
                else:
                    self.pushed[parameter] = None
        for scaler in self._training.scalers():
            if norm is not None:
                self.norms.append((norm, gradient_norm(optimizer), scaler.get_scale()))

    def _mode(self) -> step_habits.TrainMode:
        model = self._training.model
        num_dropouts = 0
        num_norms = 0
        for module in model.modules():
            if module.training:
                continue
            if isinstance(module, _DROPOUTS) and module.p > 0:
                num_dropouts += 1
            elif isinstance(module, _NORMS) and _is_trained(module):
                num_norms += 1
        return step_habits.TrainMode(
            is_training=model.training, num_dropouts=num_dropouts, num_norms=num_norms
        )

    def _note_clearing(self, update: Update, follower: GradientFollower) -> None:
        """Note whether the gradients of one micro-batch were there when the next one came."""
        seen = follower.take_backwards()
        # With more backward passes than micro-batches, some are not meant to add up.
        if len(seen) != len(update.micro) or len(seen) < 2:
            return
        are_there = [had for had, _ in seen[1:]]
        are_given = [gives for _, gives in seen[:-1]]
        if any(are_there) or not all(are_given):
            self._num_micro_kept += 1
        else:
            self._num_micro_cleared += 1

    def _note_batch(self, micro: MicroBatch) -> None:
        names = [number for _, number in sample_names(micro.batch)]
        if micro.names is not None:
            given = named_rows(micro.names, micro.batch)
            self.numbers += [number for dataset, number in given if dataset != CONTENT]
        sized = [tensor for tensor in micro.tensors if tensor.dim()]
        pointer = sized[0].data_ptr() if sized else 0
        length = max((tensor.numel() // max(len(tensor), 1) for tensor in sized), default=0)
        self._batches.append((names, pointer, length))
        if micro.rows is not None:
            counts = torch.as_tensor(micro.rows.counts)
            self._counts.append(
                _CountedRows(
                    num_rows=len(counts),
                    num_counted=int(counts.sum()),
                    num_rows_without=int((counts == 0).sum()),
                )
            )


def _largest_gradient(optimizer: torch.optim.Optimizer) -> float:
    """Return the largest absolute value of any gradient that is dense; 0 if there is none."""
    largest = 0.0
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is not None and gradient.layout is torch.strided and gradient.numel():
                largest = max(largest, float(gradient.abs().max()))
    return largest


def epsilon_of(optimizer: torch.optim.Optimizer) -> precision.Epsilon:
    """Return the epsilon of an optimizer: in the first precision of its weights in which it is
    0, if there is one.
    """
    found = precision.Epsilon(epsilon=None)
    for group in optimizer.param_groups:
        epsilon = group.get("eps")
        if not isinstance(epsilon, float) or not epsilon:
            continue
        for dtype in {parameter.dtype for parameter in group["params"]}:
            is_zero = not float(torch.tensor(epsilon, dtype=dtype))
            if found.epsilon is None or is_zero:
                name = str(dtype).removeprefix("torch.")
                found = precision.Epsilon(epsilon=epsilon, dtype=name, is_zero=is_zero)
    return found


def _num_again_before_new(batches: list[list[int]]) -> int:
    """Return how many batches have exactly the rows of an earlier one, up to the last batch whose
    rows are all new.
    """
    seen: set[int] = set()
    known: set[tuple[int, ...]] = set()
    num_again = 0
    num_until_new = 0
    for rows in batches:
        if tuple(sorted(rows)) in known:
            num_again += 1
        elif rows and not seen & set(rows):
            num_until_new = num_again
        known.add(tuple(sorted(rows)))
        seen |= set(rows)
    return num_until_new


def _held_by(optimizer: torch.optim.Optimizer) -> set[Tensor]:
    return {parameter for group in optimizer.param_groups for parameter in group["params"]}


def _is_trained(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


def tell_what_is_wrong(first: FirstSteps, training: Training, guard: Guard, since: int) -> None:
    """Tell in one line each what the first updates of this process, `since` a step, show to be
    wrong.
    """
    measured: list[tuple[Check, object]] = [
        (step_habits.MODE, first.mode()),
        (step_habits.LEFT_OVER, first.left_over()),
        (connection.MEMBERS, first.members()),
        (step_habits.RATES, first.rates()),
        (counted_positions.COUNTED, first.counted()),
        (data_order.REPEATED, first.repeated()),
        (precision.EPSILON, epsilon_of(training.optimizer)),
        (stale_casts.CHECK, first.casts.measured()),
    ]
    for check, numbers in measured:
        _tell(check, numbers, guard, since)


def tell_what_changed(first: FirstSteps, guard: Guard, since: int) -> None:
    """Tell if the mode, or what the optimizer holds, is wrong `since` a step."""
    _tell(step_habits.MODE, first.mode_now(), guard, since)
    _tell(connection.MEMBERS, first.members(), guard, since)


def _tell(check: Check, numbers: object, guard: Guard, since: int) -> None:
    result = result_of(check, numbers)
    if result.status == "wrong":
        guard.tell(f"check {check.name}", f"sonde: {result.text} {result.advice}", since=since)
