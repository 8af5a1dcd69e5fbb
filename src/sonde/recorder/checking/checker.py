"""Runs every experiment of a check on the first batches, each on its own: one that fails becomes
"cannot tell", and one for which there is no time says so.
"""

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from torch import Tensor

from sonde import ranks
from sonde.checkpoint.weights import bare
from sonde.forensics.checks import CHECKS
from sonde.forensics.checks.check_report import CheckReport, RowPicture
from sonde.forensics.checks.check_rule import (
    Outcome,
    cannot_tell,
    result_of,
    without_consequences,
)
from sonde.forensics.checks.data_order import RankRows
from sonde.forensics.checks.influence import Influence
from sonde.forensics.checks.label_shift import ALIKE, LabelShift
from sonde.forensics.checks.one_batch import OneBatch
from sonde.forensics.checks.precision import Precision
from sonde.recorder.checking import influence, ordering, packing, padding, running, scaling, targets
from sonde.recorder.checking.accumulating import accumulation
from sonde.recorder.checking.batch_weight import batch_weight
from sonde.recorder.checking.bench import Bench, Feed
from sonde.recorder.checking.first_steps import FirstSteps, epsilon_of
from sonde.recorder.checking.forward_watch import Look
from sonde.recorder.checking.half_range import half_range
from sonde.recorder.checking.influence import Base
from sonde.recorder.checking.source_padding import source_padding
from sonde.recorder.checking.text_ends import end_of_text
from sonde.recorder.reach import moves_by_itself

_T = TypeVar("_T")

_NUM_SHOWN: Final = 40
"""How many positions of a row are kept for the picture."""
_NO_TIME: Final = "There was no time left for it."
_MIXED: Final = "Later tokens or other rows move predictions too: mend that first."
_CUT: Final = "The scores do not begin with the first token, so positions cannot be compared."
_DRAWS: Final = (
    "The step function draws its data from an iterator, so it cannot be run again: give it the"
    " batch as its argument."
)

_logger = logging.getLogger("sonde")


class Checker:
    """Makes one check."""

    def __init__(self, bench: Bench, first: FirstSteps) -> None:
        """`first` is what the first updates showed."""
        self._bench = bench
        self._first = first
        self._measured: dict[str, object] = {}

    def watch_updates(self, weights_before: Mapping[Tensor, Tensor]) -> None:
        """Measure what the updates did that were just made: the weights are those after them,
        `weights_before` those before.
        """
        first = self._first
        before = dict(weights_before)
        self._try("weights_move", lambda: running.weights_move(first, before))
        self._try("lost_updates", lambda: running.lost_updates(first, before))
        self._try("left_over_gradients", first.left_over)
        self._try("train_mode", first.mode)
        self._try("learning_rate", first.rates)
        self._try("optimizer_members", first.members)
        self._try("repeated_rows", first.repeated)
        self._try("rank_rows", self._rank_rows)
        scalers = self._bench.training.scalers()
        self._try("clipped_scaled", lambda: scaling.clipped_scaled(first, scalers))
        self._try("stale_casts", first.casts.measured)
        self._try("epsilon", lambda: epsilon_of(self._bench.training.optimizer))

    def run(self) -> CheckReport:
        """Make the experiments, with the weights from before the first update."""
        started = time.monotonic()
        bench = self._bench
        rows: tuple[RowPicture, ...] = ()
        self._try("tied_weights", lambda: running.tied_weights(bench))
        self._try("unregistered", lambda: running.unregistered(bench, self._first))
        function = bench.training.step_function
        draws = function is not None and moves_by_itself(function)
        if not ranks.any_rank(draws) and bench.updates:
            try:
                rows = self._experiment()
            except Exception as error:  # noqa: BLE001  the user's step may raise anything
                self._fill(cannot_tell(f"The step could not be run again: {_told(error)}"))
        self._fill(cannot_tell(_DRAWS if draws else "It was not measured."))
        results = [result_of(check, self._measured[check.name]) for check in CHECKS]
        return CheckReport(
            results=tuple(without_consequences(CHECKS, results)),
            rows=rows,
            num_updates=self._first.num_updates,
            seconds=time.monotonic() - started,
        )

    def _experiment(self) -> tuple[RowPicture, ...]:
        bench = self._bench
        _say("running the first batch twice")
        one, two = running.base_look(bench)
        self._try("determinism", lambda: running.determinism(bench, one, two))
        _say("looking at what the loss is given")
        feeds = [update[0] for update in bench.updates]
        looks = [one, *(bench.forward(feed) for feed in feeds[1:])]
        pairs = [targets.aligned(look) for look in looks]
        self._look_at_targets(feeds, looks, pairs)
        _say("changing later tokens, padding, other rows, other documents")
        is_training = self._first.mode().is_training
        with running.without_zeros(bench) as are_filled:
            filled, again = running.base_look(bench) if are_filled else (one, two)
            pair = targets.aligned(filled)
            base = Base(
                bench.first,
                filled,
                pair,
                is_repeatable=running.is_same(filled, again),
                more_ids=[later.ids for later in pairs[1:] if later is not None],
            )
            base = influence.with_layout(bench, base, targets.in_other_layout(filled, pair))
            pair = base.pair
            self._influence(base)
            self._try("dropout", lambda: running.dropout(bench, filled, is_training=is_training))
        _say("trying other random numbers, float32, and one batch by heart")
        self._try("evaluation_buffers", lambda: running.evaluation_buffers(bench))
        self._try("gradient_reach", lambda: running.gradient_reach(bench, self._first, one))
        is_next = pair is not None and pair.next_share >= ALIKE
        self._try("accumulation", lambda: accumulation(bench, self._first, is_next_token=is_next))
        self._try("batch_weight", lambda: batch_weight(bench, looks))
        self._try("scaler_bypassed", lambda: scaling.scaler_bypassed(bench))
        self._try("precision", lambda: running.precision(bench))
        self._try("overflow", lambda: half_range(bench, self._autocast_dtype()))
        self._try("one_batch", lambda: running.one_batch(bench, self._first))
        by_heart = self._measured["one_batch"]
        if isinstance(by_heart, OneBatch) and by_heart.is_rate_too_high:
            self._measured["learning_rate"] = replace(
                self._first.rates(), falls_if_divided_by=by_heart.divided_by
            )
        return () if pair is None else pictures(pair, bench.training.decode)

    def _look_at_targets(
        self,
        feeds: Sequence[Feed],
        looks: Sequence[Look],
        of_looks: Sequence[targets.Aligned | None],
    ) -> None:
        pairs = []
        paired = []
        for feed, pair in zip(feeds, of_looks, strict=True):
            if pair is not None:
                pairs.append(pair)
                paired.append(feed)
        rows_of = [feed.num_rows for feed in feeds]
        decode = self._bench.training.decode
        self._try("start_loss", lambda: targets.start_loss(looks))
        self._try("loss_inputs", lambda: targets.loss_inputs(looks[0]))
        self._try("counted_positions", lambda: targets.counted_positions(looks, feeds, of_looks))
        self._try("padding_in_loss", lambda: targets.padding_in_loss(paired, pairs))
        self._try(
            "end_of_text",
            lambda: end_of_text(decode, bare(self._bench.training.model), paired, pairs),
        )
        self._try("label_order", lambda: ordering.label_order(looks, rows_of))
        names = self._first.rows_of_updates()
        numbers = self._first.numbers
        self._try("row_order", lambda: ordering.row_order(feeds, looks, names, numbers))
        is_contrastive = ordering.is_contrastive(looks[0])
        has_classes = looks[0].main_loss() is not None
        self._try(
            "repeated_rows",
            lambda: self._first.repeated(is_contrastive=is_contrastive, has_classes=has_classes),
        )

    def _influence(self, base: Base) -> None:
        bench = self._bench
        ahead = self._attempt(lambda: influence.look_ahead(bench, base))
        if isinstance(ahead, Outcome):
            self._measured["label_shift"] = ahead
            self._measured["causality"] = ahead
        else:
            is_other = self._attempt(lambda: influence.are_in_other_order(bench, base)) is True
            self._measured["label_shift"] = replace(ahead.shift, is_in_other_order=is_other)
            self._measured["causality"] = ahead.causality
        is_next = base.pair is not None and base.pair.next_share > 0.9
        self._try("rows_apart", lambda: influence.rows(bench, base, is_next_token=is_next))
        self._try("padding_apart", lambda: self._padding(base))
        named = named_tensors(base.feed.batch())
        self._try("documents_apart", lambda: packing.documents(bench, base, named))

    def _padding(self, base: Base) -> Influence:
        unknown = ""
        for name in ("causality", "rows_apart"):
            before = self._measured[name]
            has_moved = isinstance(before, Influence) and before.num_moved > 0
            if ranks.any_rank(has_moved):
                unknown = _MIXED
        shift = self._measured["label_shift"]
        if ranks.any_rank(isinstance(shift, LabelShift) and shift.offset != 0):
            unknown = _CUT
        if ranks.any_rank(base.pair is None):
            return padding.row_padding(self._bench, base, unknown)
        measured = padding.padding(self._bench, base, unknown)
        if measured.unfit and not unknown and ranks.world_size() == 1:
            return source_padding(self._bench, base) or measured
        return measured

    def _autocast_dtype(self) -> str | None:
        """Return the precision of autocast, as it was measured; None without it."""
        measured = self._measured["precision"]
        return measured.dtype if isinstance(measured, Precision) else None

    def _rank_rows(self) -> RankRows:
        own = self._first.rows_of_updates()
        of_ranks = ranks.gather(own)
        num_shared = 0
        num_rows = 0
        for number, rows in enumerate(of_ranks[0]):
            elsewhere: set[int] = set()
            for other in of_ranks[1:]:
                elsewhere |= set(other[number]) if number < len(other) else set()
            num_rows += len(rows)
            num_shared += sum(row in elsewhere for row in rows)
        return RankRows(
            num_ranks=ranks.world_size(),
            num_rows=num_rows,
            num_shared=num_shared,
            shares_work=not self._bench.training.is_sharded,
        )

    def _try(self, name: str, measure: Callable[[], object]) -> None:
        """Measure for one check."""
        self._measured[name] = self._attempt(measure)

    def _attempt(self, measure: Callable[[], _T]) -> _T | Outcome:
        if not self._bench.has_time():
            return cannot_tell(_NO_TIME)
        try:
            return measure()
        except Exception as error:  # an experiment runs the user's code
            _logger.debug("an experiment failed:", exc_info=error)
            return cannot_tell(f"The experiment failed: {_told(error)}")

    def _fill(self, outcome: Outcome) -> None:
        for check in CHECKS:
            self._measured.setdefault(check.name, outcome)


def named_tensors(batch: Any, prefix: str = "") -> dict[str, Tensor]:
    """Return the tensors of a batch with their names; those without a name have a number."""
    found: dict[str, Tensor] = {}
    if isinstance(batch, Tensor):
        found[prefix] = batch
    elif isinstance(batch, Mapping):
        for name, value in batch.items():
            found |= named_tensors(value, f"{prefix}.{name}" if prefix else str(name))
    elif isinstance(batch, tuple | list):
        for number, value in enumerate(batch):
            found |= named_tensors(value, f"{prefix}.{number}" if prefix else str(number))
    return found


def pictures(
    pair: targets.Aligned, decode: Callable[[list[int]], str] | None
) -> tuple[RowPicture, ...]:
    """Return the first two rows with their targets, from a little before the first that counts."""
    found = []
    for row in range(min(2, len(pair.ids))):
        counted = pair.counts[row].nonzero().flatten()
        begin = max(0, int(counted[0]) - 4) if len(counted) else 0
        end = begin + _NUM_SHOWN
        inputs = [_decoded(token, decode) for token in pair.ids[row, begin:end].tolist()]
        asked = []
        kept = pair.counts[row, begin:end].tolist()
        for token, counts in zip(pair.target[row, begin:end].tolist(), kept, strict=True):
            asked.append(_decoded(token, decode) if counts else "")
        found.append(RowPicture(inputs=tuple(inputs), targets=tuple(asked)))
    return tuple(found)


def _decoded(token: int, decode: Callable[[list[int]], str] | None) -> str:
    if decode is not None:
        try:
            text = str(decode([token]))
        except Exception:  # noqa: BLE001  a user's decoder may raise anything
            text = ""
        if text:
            return text
    return str(token)


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:200]


def _say(what: str) -> None:
    if ranks.rank() == 0:
        _logger.info("sonde check: %s", what)


def fits_in_memory(parameters: Sequence[Tensor]) -> bool:
    """Return whether a copy of some tensors fits into the memory of the host."""
    num_bytes = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return True
    return num_bytes * 2 < free
