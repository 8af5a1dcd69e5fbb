"""In a replay, sonde takes over at the script's first step: it restores, replays, experiments,
answers, and ends the process.

The script has built model, optimizer and data as usual. Nothing is written to the run except a
verdict. The three seams of the replay are kept states (or the checkpoint that the script itself has
loaded), kept batches, and the script's own step function, which makes the updates.

Every rank has the batches of all ranks, because their files are in one run, and receives the losses
of all rows; so all ranks of a replay draw the same conclusions and take the same steps. Each makes
updates from its own batches.
"""

import math
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn, cast

import torch
from torch import Tensor

from sonde import ranks
from sonde.errors import SettingError, SondeError
from sonde.forensics.diagnose import diagnose
from sonde.forensics.replay import replay_step
from sonde.forensics.seams import (
    BatchSource,
    Change,
    Losses,
    ModuleWatch,
    Name,
    Row,
    RunTexts,
    SampleLoss,
    Seams,
)
from sonde.forensics.verdict import write_verdict
from sonde.recorder.batch_file import KeptBatches, KeptUpdate
from sonde.recorder.batch_tree import named_rows, rebuild, token_rows, without_rows
from sonde.recorder.guard import ProcessEnds
from sonde.recorder.hooks import Observer, gradient_norm
from sonde.recorder.loaded_checkpoint import LoadedCheckpoint, check_batches, loaded_step
from sonde.recorder.losses import RowLosses, loss_in, mean_loss, returned_loss
from sonde.recorder.moment import Moment, back_at, in_float32
from sonde.recorder.numbers import exchange, read_numbers
from sonde.recorder.paired_rows import paired_rows
from sonde.recorder.training import Training
from sonde.recorder.update import Forward, Loss, MicroBatch, Update, noted
from sonde.records.journal import StepRecord, read_steps
from sonde.records.replay_order import ReplayOrder, order_of_process, write_answer
from sonde.train.settings import Precision
from sonde.train.step import StepResult

_PART_TOKENS: Final = 96
"""The rows of your own loop need not be documents, so they are read in parts of this many
tokens.
"""


def take_over(parts: Training, step_function: Callable[..., Any], batch: Any) -> NoReturn:
    """Do what this process was asked for, and end it. Every rank must call this."""
    order = order_of_process()
    assert order is not None  # the run is a shadow only in a process that has an order
    try:
        records = read_steps(Path(order.run)).by_number
        seams = seams_of(parts, step_function, batch, records)
        answer = _answer(order, _with_states(order, seams, parts))
    except SondeError as error:
        give_up(error)
    except Exception as error:  # noqa: BLE001
        # user code runs here: its error is returned as the answer
        traceback.print_exc()
        give_up(SondeError(f"the script failed in the replay: {type(error).__name__}: {error}"))
    if ranks.rank() == 0:
        write_answer(order, answer)
    raise ProcessEnds(0)


def give_up(error: SondeError) -> NoReturn:
    """Answer with an error, and end the process."""
    order = order_of_process()
    if order is not None:
        write_answer(order, error)
    raise ProcessEnds(1)


def seams_of(
    parts: Training,
    step_function: Callable[..., Any],
    template: Any,
    records: Mapping[int, StepRecord],
) -> Seams:
    """Return the seams of a recorded training. `template` is a batch of the script, `records` are
    the run's step records.
    """
    parts.step_function = step_function
    batches = RecordedBatches(parts, template)
    return Seams(states=parts, batches=batches, updater=ScriptUpdater(parts, batches, records))


def _with_states(order: ReplayOrder, seams: Seams, parts: Training) -> Seams:
    """Return the seams with the states that there are: those that were kept or, without one from
    before the step, the checkpoint that the script has loaded. Every rank must call this.
    """
    kept = ranks.found_by_rank_0(parts.steps)
    if any(order.step is None or step < order.step for step in kept):
        return seams
    loaded = loaded_step(parts, Path(order.run), order.step)
    if order.step is not None:
        assert isinstance(seams.batches, RecordedBatches)
        check_batches(seams.batches.known_steps(), loaded, order.step)
    goes_back = order.verb != "replay" or order.options.weights_from is not None
    return seams._replace(states=LoadedCheckpoint(parts, loaded, goes_back=goes_back))


def _answer(order: ReplayOrder, seams: Seams) -> Mapping[str, Any]:
    run = Path(order.run)
    if order.verb == "diagnose":
        verdict = diagnose(run, order.step, options=order.options, seams=seams)
        if ranks.rank() == 0:
            write_verdict(run, verdict)
        return {"verdict": asdict(verdict)}
    assert order.step is not None  # `sonde replay` needs one
    return {
        "replay": asdict(replay_step(run, order.step, order.options, dump=order.dump, seams=seams))
    }


class Fed(NamedTuple):
    """One kept micro-batch of one rank, possibly without some of its rows."""

    rank: int
    place: int
    """Its position among the micro-batches of that rank."""
    batch: Any
    """The batch as the script makes it."""
    names: Sequence[Any] | None
    """The names of its rows, if the user gave some."""
    last: bool | None
    """The `last` argument that the step function received."""
    is_empty: bool = False
    """Whether all rows are left out. The batch is whole then, and its loss does not count."""


class RecordedBatches(BatchSource, RunTexts):
    """The batches that the ranks kept. Their texts are all that is known of the corpus."""

    def __init__(self, parts: Training, template: Any) -> None:
        self._template = template
        self._decode = parts.decode
        self._of_ranks = [
            KeptBatches(parts.run.layout.kept, rank) for rank in range(ranks.world_size())
        ]

    def update(self, step: int) -> KeptUpdate:
        """Return what this rank kept of an update."""
        return self._of_ranks[ranks.rank()].load(step)

    def at(self, step: int) -> list[Any]:
        found = [
            Fed(
                rank,
                place,
                rebuild(micro.tree, micro.tensors, self._template),
                micro.names,
                micro.last,
            )
            for rank, kept in enumerate(self._of_ranks)
            for place, micro in enumerate(kept.load(step).micro)
        ]
        return sorted(found, key=lambda kept: (kept.place, kept.rank))

    def rows(self, batch: Fed) -> list[Row]:
        names = [] if batch.is_empty else named_rows(batch.names, batch.batch)
        pairs = paired_rows(batch.batch)
        if len(pairs) == len(names):
            return [
                Row(name, tuple(pair.target), tuple(pair.source))
                for name, pair in zip(names, pairs, strict=True)
            ]
        tokens = token_rows(batch.batch)
        return [
            Row(name, tokens[row] if row < len(tokens) else ()) for row, name in enumerate(names)
        ]

    def without(self, batch: Fed, names: Collection[Name]) -> Fed:
        named = named_rows(batch.names, batch.batch)
        keep = [row for row, name in enumerate(named) if name not in names]
        if len(keep) == len(named) or not keep:
            return batch._replace(is_empty=batch.is_empty or len(keep) < len(named))
        given = None if batch.names is None else [batch.names[row] for row in keep]
        return batch._replace(batch=without_rows(batch.batch, keep), names=given)

    def known_steps(self) -> list[int]:
        """Return the updates whose batches every rank kept."""
        return sorted(set.intersection(*(set(rank.steps()) for rank in self._of_ranks)))

    @property
    def corpus(self) -> RunTexts | None:
        return None if self._decode is None else self

    def decode(self, tokens: Sequence[int]) -> str:
        assert self._decode is not None
        return str(self._decode(list(tokens)))

    def some(self, num: int) -> list[Row]:
        steps = self.known_steps()
        found = list[Row]()
        for step in steps[:: max(1, len(steps) // 64)]:
            for fed in self.at(step):
                found += map(_beginning, self.rows(fed))
        return found[:: max(1, len(found) // num)][:num]

    def parts(self, row: Row) -> list[tuple[int, int]]:
        size = len(row.target)
        return [(start, min(start + _PART_TOKENS, size)) for start in range(0, size, _PART_TOKENS)]


def _beginning(row: Row) -> Row:
    """Return the beginning of a row. Of a pair, each side would seem cut off beside the other."""
    return row if row.source is not None else row._replace(target=row.target[:_PART_TOKENS])


class ReplayedUpdate(Observer):
    """Receives what is seen while an update is replayed."""

    def __init__(
        self, update: Update, training: Training, loss_from: str, before_move: Callable[[], None]
    ) -> None:
        """`loss_from` says where the recorder took the loss from. `before_move` is called before
        the optimizer moves.
        """
        self._loss_from = loss_from
        self.update = update
        self.norm: Any = None
        """The gradient norm of the loop's own clipping."""
        self._training = training
        self._before_move = before_move
        self._is_reported = False

    def forward_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any], mode: bool) -> None:
        """Expect the loss of a forward pass."""
        del mode
        if not self._is_reported:
            moment = self.update.micro[-1].moment
            self.update.micro[-1].forwards.append(Forward(args, kwargs, moment))

    def forward_ends(self, output: Any) -> None:
        """Take the loss that the model returned."""
        forwards = self.update.micro[-1].forwards
        loss = None if self._is_reported or not forwards else loss_in(output)
        if loss is not None:
            forwards[-1].loss = noted(loss)

    def loss_reported(self, loss: Tensor, token_losses: Tensor | None = None) -> None:
        """Take the loss that the user reports."""
        del token_losses
        self._is_reported = True
        self.update.micro[-1].losses.append(noted(loss))

    def backward_begins(self, loss: Tensor) -> None:
        """Take the loss that backward is called on, if the recorder took that."""
        if self._loss_from == "backward":
            found = self._training.loss_of_backward(noted(loss))
            self.update.micro[-1].losses.append(found)

    def norm_seen(self, norm: Any) -> None:
        """Take the norm of the loop's clipping."""
        self.norm = norm

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Prepare the optimizer's step as it was recorded."""
        if optimizer is self._training.optimizer:
            self._before_move()


class LossesOnly(Observer):
    """Refuses to make an update while only losses are wanted."""

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Raise: the step function has come past its loss."""
        del optimizer
        raise SettingError("the step function came to its update without a loss being seen")


class ScriptUpdater:
    """Makes updates with the script's own step function."""

    def __init__(
        self, parts: Training, batches: RecordedBatches, records: Mapping[int, StepRecord]
    ) -> None:
        self._parts = parts
        self.model = parts.model
        """The model as the script calls it."""
        self.optimizer = parts.optimizer
        """The script's optimizer."""
        self._batches = batches
        self._records = records
        self._is_compiled = parts.is_compiled

    @property
    def precision(self) -> Precision:
        """The precision of the forward passes, as far as autocast shows."""
        steps = self._batches.known_steps()
        kept = self._batches.update(steps[-1]) if steps else None
        return cast(
            "Precision", "float32" if kept is None or kept.precision is None else kept.precision
        )

    def scheduled_rate(self, step: int) -> float | None:
        """Return None: the script's schedule is not known."""
        del step
        return None

    def update(
        self, step: int, batches: Sequence[Any], change: Change, watch: ModuleWatch | None
    ) -> StepResult:
        """Make the update with the recorded random state and learning rates."""
        parts = self._parts
        kept = self._kept(step)
        _check_groups(step, kept, self.optimizer)
        record = self._records.get(step)
        update = Update(step, had_gradients=kept.had_gradients)
        first = kept.rates[0]
        rates = kept.rates
        if change.lr is not None:
            rates = [change.lr * (rate / first if first else 1.0) for rate in rates]
        if not kept.had_gradients:
            self.optimizer.zero_grad(set_to_none=True)
        self._set_rates(rates)
        skipped = None if record is None or change.lr is not None else record.skipped
        returned = None

        def before_move() -> None:
            self._set_rates(rates)
            if replayed.norm is None:  # the loop does not clip, so the recorder computed it
                replayed.norm = gradient_norm(self.optimizer)
            if skipped is not None:
                self.optimizer.zero_grad(set_to_none=True)

        replayed = ReplayedUpdate(update, parts, kept.loss_from, before_move)
        with ExitStack() as stack:
            stack.enter_context(parts.hooks.observed_by(replayed))
            if change.precision == "float32":
                stack.enter_context(in_float32(self.model, parts.device_type))
            if watch is not None and not self._is_compiled and not parts.is_sharded:
                stack.enter_context(watch.on(self.model))
            own = self._own(kept, batches)
            for place, (fed, moment) in enumerate(own, 1):
                update.add(MicroBatch(fed.batch, moment, last=fed.last))
                with back_at(moment, parts.device_type):
                    returned = parts.call(fed.batch, fed.last, completes_update=place == len(own))
        losses = update.seen_losses()
        if not losses:
            found = returned_loss(returned)
            losses = [] if found is None else [found]
        numbers = read_numbers(exchange(losses, update.num_tokens, replayed.norm, in_time=True))
        return StepResult(
            loss=float("nan") if numbers.loss is None else numbers.loss,
            weight=numbers.num_tokens,
            grad_norm=numbers.grad_norm,
            skipped=skipped,
        )

    def losses(self, step: int, batches: Sequence[Any]) -> Losses:
        """Run the step function up to its loss, recording token losses."""
        parts = self._parts
        kept = self._kept(step)
        found: list[Any] = []
        with parts.standing_still(), parts.hooks.observed_by(LossesOnly()):
            for fed, moment in self._own(kept, batches):
                loss, rows = self._loss(fed, moment, kept.loss_from)
                samples = _samples([row.name for row in self._batches.rows(fed)], rows)
                found.append([fed.place, fed.rank, None if fed.is_empty else loss, samples])
        of_ranks = ranks.gather(found)
        means = [
            _number(mean_loss([loss for _, _, loss, _ in rank if loss is not None]))
            for rank in of_ranks
        ]
        everything = sorted(kept for rank in of_ranks for kept in rank)  # by place and rank
        of_batches = [
            [SampleLoss(tuple(name), *losses) for name, *losses in samples]
            for *_, samples in everything
        ]
        return Losses(sum(map(float, means)) / len(means), of_batches)

    def _loss(
        self, fed: Fed, moment: Moment, loss_from: str
    ) -> tuple[float | None, list[RowLosses]]:
        """Return the loss of a batch and its token losses.

        A compiled model runs a second forward for the token losses, because observing the first
        would recompile it with different rounding.
        """
        if loss_from == "step":
            raise SettingError(
                "the loss of a batch cannot be had without an update",
                cause="only the step function returned it, after the update",
                hint="call recorder.loss(loss) in the step function, before backward",
            )
        parts = self._parts
        seen = list[float | None]()

        def forward() -> None:
            seen.append(parts.run_to_loss(fed.batch, fed.last, moment, loss_from))

        if self._is_compiled:
            forward()
        rows = parts.rows_again(forward, fed.batch, moment)
        if not seen:
            forward()
        return seen[0], rows

    def _kept(self, step: int) -> KeptUpdate:
        """Return what was kept of an update, and take its loss as it was taken then."""
        kept = self._batches.update(step)
        self._parts.backward_factor = kept.loss_factor
        return kept

    def _own(self, kept: KeptUpdate, batches: Sequence[Fed]) -> list[tuple[Fed, Moment]]:
        """Return this rank's micro-batches with the random states of the step."""
        own = [batch for batch in batches if batch.rank == ranks.rank()]
        return [
            (fed, kept.micro[min(at, len(kept.micro) - 1)].moment) for at, fed in enumerate(own)
        ]

    def _set_rates(self, rates: Sequence[float]) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates, strict=False):
            if math.isnan(rate):
                continue  # a group without a rate of its own
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate


def _check_groups(step: int, kept: KeptUpdate, optimizer: torch.optim.Optimizer) -> None:
    """Raise if the loop had changed the optimizer's groups by this step: such a change is made
    outside of the step function, as when layers are unfrozen, and a replay does not make it.
    """
    num_groups = len(optimizer.param_groups)
    if len(kept.rates) != num_groups:
        raise SettingError(
            f"step {step} cannot be replayed: its optimizer had {len(kept.rates)} parameter groups,"
            f" and that of the script has {num_groups} when it starts",
            cause="the loop added or removed groups on its way, which a replay does not do",
            hint="name a step before the change",
        )


def _number(loss: Loss | None) -> Loss:
    return float("nan") if loss is None else loss


def _samples(names: Sequence[Name], rows: Sequence[RowLosses]) -> list[SampleLoss]:
    if len(rows) != len(names):
        return [SampleLoss(name, None, None, None) for name in names]
    return [
        SampleLoss(name, row.mean, len(row.losses), row.losses)
        for name, row in zip(names, rows, strict=True)
    ]
