"""In a replay, sonde takes over at the script's first step: it restores, replays, experiments, answers, and ends the process.

The script has built model, optimizer and data as usual. Nothing is written to the run except a verdict. The three seams
of the replay are kept states, kept batches, and the script's own step function, which makes the updates.

Every rank has the batches of all ranks, because their files are in one run, and receives the losses of all rows; so all
ranks of a replay draw the same conclusions and take the same steps. Each makes updates from its own batches.
"""

import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn, cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from typing_extensions import override

from sonde import ranks
from sonde.errors import SettingError, SondeError
from sonde.flight.again import RowLosses, is_compiled, mean_loss, returned_loss, standing_still
from sonde.flight.batch_file import KeptBatches, KeptMicroBatch, KeptUpdate
from sonde.flight.batch_tree import named_rows, num_rows, rebuild, token_rows, tokens_of, without_rows
from sonde.flight.judgement import exchange, numbers_of
from sonde.flight.ring import Loss, MicroBatch, Moment, Update, back_at
from sonde.flight.training import Training, norm_of
from sonde.forensics.diagnose import diagnose
from sonde.forensics.losses import Losses, SampleLoss, sample_losses
from sonde.forensics.replay import ReplayOptions
from sonde.forensics.replayed_step import replay_step
from sonde.forensics.seams import Batches, Corpus, Name, Row, Seams
from sonde.forensics.tensor_watch import Watch
from sonde.forensics.verdict import Suspect, write_verdict
from sonde.records.replay_order import ReplayOrder, order_of_process, write_answer
from sonde.records.steps import StepRecord, read_steps
from sonde.train.settings import Precision
from sonde.train.step import StepResult
from sonde.train.task import StepOutput

_PART_TOKENS: Final = 96
"""The rows of your own loop need not be documents, so they are read in parts of this many tokens."""
_MAX_TEXT: Final = 400


def take_over(parts: Training, step_function: Callable[..., Any], batch: Any) -> NoReturn:
    """Do what this process was asked for, and end it. Every rank must call this."""
    order = order_of_process()
    assert order is not None  # the run is a shadow only in a process that has an order
    try:
        answer = _answer(order, seams_of(parts, step_function, batch, read_steps(Path(order.run)).by_number))
    except SondeError as error:
        give_up(error)
    except Exception as error:  # noqa: BLE001  user code runs here: its error is returned as the answer
        traceback.print_exc()
        give_up(SondeError(f"the script failed in the replay: {type(error).__name__}: {error}"))
    if ranks.rank() == 0:
        write_answer(order, answer)
    raise SystemExit(0)


def give_up(error: SondeError) -> NoReturn:
    """Answer with an error, and end the process."""
    order = order_of_process()
    if order is not None and ranks.rank() == 0:
        write_answer(order, {"error": [error.message, error.cause, error.hint]})
    raise SystemExit(1)


def seams_of(
    parts: Training, step_function: Callable[..., Any], template: Any, records: Mapping[int, StepRecord]
) -> Seams:
    """Return the seams of a recorded training. `template` is a batch of the script, `records` are the run's step records."""
    batches = FlightBatches(parts, template)
    return Seams(states=parts, batches=batches, updater=ScriptUpdater(parts, step_function, batches, records))


def _answer(order: ReplayOrder, seams: Seams) -> Mapping[str, Any]:
    run = Path(order.run)
    options = ReplayOptions(
        **{**order.options, "drop": tuple((str(name), int(number)) for name, number in order.options.get("drop", ()))}
    )
    if order.verb == "diagnose":
        verdict = diagnose(run, order.step, options=options, seams=seams)
        if ranks.rank() == 0:
            write_verdict(run, verdict)
        return {"verdict": asdict(verdict)}
    if order.step is None:
        raise SettingError("a replay needs a step")
    return {"replay": asdict(replay_step(run, order.step, options, dump=order.dump, seams=seams))}


class Fed(NamedTuple):
    """One kept micro-batch of one rank, possibly without some of its rows."""

    step: int
    place: int
    """Its position among the micro-batches of that rank."""
    rank: int
    micro: KeptMicroBatch
    dropped: frozenset[int] = frozenset()
    """The rows that are left out."""


class FlightBatches(Batches):
    """The batches that the ranks kept."""

    def __init__(self, parts: Training, template: Any) -> None:
        self._template = template
        self._decode = parts.decode
        folder, world_size = parts.run.layout.flight, ranks.world_size()
        self._of_ranks = [KeptBatches(folder, rank) for rank in range(world_size)]

    def update(self, step: int) -> KeptUpdate:
        """Return what this rank kept of an update."""
        return self._of_ranks[ranks.rank()].load(step)

    @override
    def at(self, step: int) -> list[Any]:
        of_ranks = [kept.load(step).micro for kept in self._of_ranks]
        return [
            Fed(step=step, place=place, rank=rank, micro=micros[place])
            for place in range(max(map(len, of_ranks)))
            for rank, micros in enumerate(of_ranks)
            if place < len(micros)
        ]

    @override
    def rows(self, batch: Fed) -> list[Row]:
        whole = rebuild(batch.micro.tree, batch.micro.tensors, self._template)
        tokens = token_rows(whole)
        found = [
            Row(name, tokens[row] if row < len(tokens) else ())
            for row, name in enumerate(named_rows(batch.micro.names, whole))
        ]
        return [one for row, one in enumerate(found) if row not in batch.dropped]

    @override
    def without(self, batch: Fed, names: Collection[Name]) -> Fed:
        if not names:
            return batch
        rows = self.rows(batch._replace(dropped=frozenset()))
        return batch._replace(dropped=frozenset(at for at, row in enumerate(rows) if row.name in set(names)))

    def built(self, batch: Fed) -> tuple[Any, bool]:
        """Rebuild the batch as the script makes it, and return whether any row is left; if none is, return the whole batch."""
        whole = rebuild(batch.micro.tree, batch.micro.tensors, self._template)
        count = num_rows(whole)
        if not batch.dropped or len(batch.dropped) >= count:
            return whole, len(batch.dropped) < max(count, 1)
        keep = [row for row in range(count) if row not in batch.dropped]
        tree, tensors = without_rows(batch.micro.tree, batch.micro.tensors, keep, count)
        return rebuild(tree, tensors, self._template), True

    def known_steps(self) -> list[int]:
        """Return the updates whose batches every rank kept."""
        return sorted(set.intersection(*(set(one.steps()) for one in self._of_ranks)))

    @property
    @override
    def corpus(self) -> Corpus | None:
        return None if self._decode is None else KeptTexts(self, self._decode)


class KeptTexts(Corpus):
    """The texts of the kept batches, which are all that is known of the corpus."""

    def __init__(self, batches: FlightBatches, decode: Callable[[list[int]], str]) -> None:
        self._batches = batches
        self._decode = decode

    @override
    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._decode(list(tokens)))

    @override
    def some(self, num: int) -> list[Row]:
        steps, found = self._batches.known_steps(), list[Row]()
        for step in steps[:: max(1, len(steps) // 64)]:
            for fed in self._batches.at(step):
                found += [row._replace(target=row.target[:_PART_TOKENS]) for row in self._batches.rows(fed)]
        return found[:: max(1, len(found) // num)][:num]

    @override
    def parts(self, row: Row) -> list[tuple[int, int]]:
        return [
            (start, min(start + _PART_TOKENS, len(row.target))) for start in range(0, len(row.target), _PART_TOKENS)
        ]

    @override
    def suspect(self, row: Row, sample: SampleLoss, rank: int) -> Suspect:
        start, end = max(
            self.parts(row), key=lambda part: sum((sample.token_losses or ())[part[0] : part[1]]), default=(0, 0)
        )
        text = self.decode(row.target[start:end])
        return Suspect(dataset=row.name[0], sample=row.name[1], rank=rank, loss=sample.loss, text=text[:_MAX_TEXT])


class ScriptUpdater:
    """Makes updates with the script's own step function."""

    def __init__(
        self,
        parts: Training,
        step_function: Callable[..., Any],
        batches: FlightBatches,
        records: Mapping[int, StepRecord],
    ) -> None:
        self._parts = parts
        self.model = parts.model
        """The model as the script calls it."""
        self.optimizer = parts.optimizer
        """The script's optimizer."""
        self._step_function = step_function
        self._batches = batches
        self._records = records
        self._is_compiled = is_compiled(parts.model)

    @property
    def precision(self) -> Precision:
        """The precision of the forward passes, as far as autocast shows."""
        steps = self._batches.known_steps()
        kept = self._batches.update(steps[-1]) if steps else None
        return cast("Precision", "float32" if kept is None or kept.precision is None else kept.precision)

    def scheduled_rate(self, step: int) -> float | None:
        """Return None: the script's schedule is not known."""
        del step
        return None

    def update(
        self,
        step: int,
        batches: Sequence[Any],
        *,
        rate: float | None = None,
        precision: Precision | None = None,
        watch: Watch | None = None,
    ) -> StepResult:
        """Make the update with the recorded random state and learning rates."""
        parts, kept, record = self._parts, self._batches.update(step), self._records.get(step)
        update = Update(step, had_gradients=kept.had_gradients)
        first, rates = kept.rates[0], kept.rates
        if rate is not None:
            rates = [rate * (one / first if first else 1.0) for one in rates]
        if not kept.had_gradients:
            self.optimizer.zero_grad(set_to_none=True)
        self._set_rates(rates)
        drops = record is not None and record.skipped is not None and rate is None
        is_watched = watch is not None and not self._is_compiled and not parts.is_sharded
        returned = None

        def before_step() -> None:
            self._set_rates(rates)
            if record is not None and record.grad_norm is not None and parts.watch.norm is None:
                parts.watch.norm = norm_of(self.optimizer)  # the loop does not clip, so the recorder computed it
            if drops:
                self.optimizer.zero_grad(set_to_none=True)

        with ExitStack() as stack:
            stack.enter_context(parts.watch.making_again(update, before_step, in_float32=precision == "float32"))
            stack.enter_context(watch.on(self.model) if watch is not None and is_watched else nullcontext())
            for fed, moment in self._own(kept, batches):
                batch, _ = self._batches.built(fed)
                update.add(MicroBatch(batch, moment, last=fed.micro.last))
                with back_at(moment, parts.device_type):
                    returned = self._call(batch, fed.micro.last)
        losses = update.seen_losses() or [_number(returned_loss(returned))]
        table = exchange(losses, update.num_tokens, parts.watch.norm, in_time=True)
        loss, _, num_tokens, grad_norm = numbers_of(table)
        skipped = record.skipped if drops and record is not None else None
        return StepResult(loss=loss, weight=num_tokens, grad_norm=grad_norm, skipped=skipped)

    def losses(self, step: int, batches: Sequence[Any]) -> Losses:
        """Run the step function up to its loss, recording token losses."""
        parts, kept = self._parts, self._batches.update(step)
        found: list[dict[str, Any]] = []
        making = parts.watch.making_again(None, _no_loss, in_float32=False)
        with standing_still(parts.model, parts.optimizer), making:
            for fed, moment in self._own(kept, batches):
                batch, has_rows = self._batches.built(fed)
                loss, rows = self._loss(batch, fed.micro.last, moment, kept.loss_from)
                tokens = tokens_of(batch)
                own: dict[str, Any] = {"place": fed.place, "rank": fed.rank, "loss": loss if has_rows else None}
                own["weight"] = 1 if tokens is None else tokens.numel()
                own["rows"] = [one.losses for one in rows]
                own["names"] = [list(row.name) for row in self._batches.rows(fed)]
                found.append(own)
        of_ranks = ranks.gather(found)
        means = [_number(mean_loss([one["loss"] for one in rank if one["loss"] is not None])) for rank in of_ranks]
        everything = sorted((one for rank in of_ranks for one in rank), key=lambda one: (one["place"], one["rank"]))
        return Losses(sum(map(float, means)) / len(means), [sample_losses(_output(one)) for one in everything])

    def _loss(
        self, batch: Any, last: bool | None, moment: Moment, loss_from: str
    ) -> tuple[float | None, list[RowLosses]]:
        """Return the loss of a batch and its token losses.

        A compiled model runs a second forward for the token losses, because observing the first would recompile it with
        different rounding.
        """
        if loss_from == "step":
            raise SettingError(
                "the loss of a batch cannot be had without an update",
                cause="only the step function returned it, after the update",
                hint="call flight.loss(loss) in the step function, before backward",
            )
        again, seen = self._parts.again, list[float | None]()

        def forward() -> None:
            seen.append(mean_loss(again.to_loss(lambda: self._call(batch, last), moment, loss_from)))

        if self._is_compiled:
            forward()
        rows = again.rows_by(forward, batch, moment)
        if not seen:
            forward()
        return seen[0], rows

    def _call(self, batch: Any, last: bool | None) -> Any:
        return self._step_function(batch) if last is None else self._step_function(batch, last)

    def _own(self, kept: KeptUpdate, batches: Sequence[Fed]) -> list[tuple[Fed, Moment]]:
        """Return this rank's micro-batches with the random states of the step."""
        own = [one for one in batches if one.rank == ranks.rank()]
        return [(fed, kept.micro[min(at, len(kept.micro) - 1)].moment) for at, fed in enumerate(own)]

    def _set_rates(self, rates: Sequence[float]) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates, strict=False):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate


def _number(loss: Loss | None) -> Loss:
    return float("nan") if loss is None else loss


def _no_loss() -> None:
    raise SettingError("the step function came to its update without a loss being seen")


def _output(found: Mapping[str, Any]) -> StepOutput:
    rows = found["rows"]
    known: dict[str, Any] = {}
    if rows and len(rows) == len(found["names"]):
        known["sample_losses"] = torch.tensor([sum(row) / len(row) if row else 0.0 for row in rows])
        known["token_losses"] = pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
        known["token_counts"] = torch.tensor([len(row) for row in rows])
    return StepOutput(
        loss_sum=torch.tensor((found["loss"] or 0.0) * found["weight"]),
        weight=float(found["weight"]),
        sample_ids=[(str(name), int(number)) for name, number in found["names"]],
        **known,
    )
