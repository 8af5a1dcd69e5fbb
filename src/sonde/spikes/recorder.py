"""`SpikeRecorder`: watches the loss, keeps the last steps in memory, and writes them to disk when
an event begins.

    recorder = SpikeRecorder(run.records("spikes"), rank=run.rank)
    for step, batch in enumerate(batches):
        …
        event = recorder.observe(step, loss, sample_ids=ids, sample_losses=losses,
            token_losses=per_token, lr=lr)

Without an event, a call costs 12 to 18 µs for 64 samples, plus 18 µs if their losses are watched,
and reads no tensor on a device: a loss on a device is copied to the host in the background and
judged when it has arrived, a step or two later. When an event begins, one record is written: the
event and the last `ring_steps` steps with all their samples. A thread writes it, so the step is not
delayed. When the event is over, a second, short record has its span. Nothing raises into the
training step.

All ranks decide alike if they are given the same loss (the mean over ranks, as in sonde's trainer).
If every rank has only its own loss, pass `agree`: a function that returns whether any rank answered
yes (for example an all-reduce of the maximum). It is called at every step on every rank, and all
ranks write the event if one of them sees it.

Single samples are watched besides the mean (sample_watch.py), on each rank its own: outliers are
written as separate records and available as `sample_event`. They are not events of the run: nothing
is skipped, stopped or healed because of one unless a caller reads that attribute and does so.
"""

import logging
import math
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

import numpy as np
from typing_extensions import Unpack

from sonde.errors import SettingError
from sonde.log.device import Copy, begin_copy
from sonde.records.append import RecordFile
from sonde.spikes.decoding import describe_datasets
from sonde.spikes.detectors import Event, EventDetector, Rule, Score
from sonde.spikes.held_values import is_tensor
from sonde.spikes.ledger import Ledger
from sonde.spikes.robust_rule import RobustRule
from sonde.spikes.sample_judge import CountCharacters, SampleJudge
from sonde.spikes.sample_watch import RISK, SampleEvent
from sonde.spikes.spike_records import SpikeWriter
from sonde.spikes.step_entry import StepDetails, StepEntry

SERIES: Final = "series"
"""The kind of an event that consists of many steps, each of which is harmless by itself."""
ELSEWHERE: Final = "elsewhere"
"""The kind of an event that another rank saw and this one did not."""
_MAX_PENDING: Final = 64
"""How many steps may wait for losses from a device before the recorder blocks on the oldest."""
_MAX_DURING: Final = 128
"""The number of steps in a long event whose samples are kept; after that, only those of the
peak.
"""

_MAX_SAMPLE_RECORDS: Final = 4096
"""The maximum number of sample records that one rank writes in a run; later ones are only
counted.
"""

_Judge: TypeAlias = Callable[[StepEntry], Event | None]
_Arriving: TypeAlias = tuple[_Judge, StepEntry, dict[str, Copy]]
"""What judges a step, the step, and those of its values that are being copied from a device."""

_logger = logging.getLogger("sonde")


def grad_norm_rule() -> Rule:
    """Return the default rule for logarithms of gradient norms: only large single jumps, because
    norms vary in healthy runs too.
    """
    return RobustRule(min_z=8.0, max_z=12.0, min_relative=0.0, drift_z=math.inf)


@dataclass(frozen=True, kw_only=True, slots=True)
class SpikeSettings:
    """What a recorder watches for and keeps.

    ```python
    from sonde.spikes import RobustRule, SpikeRecorder, SpikeSettings

    settings = SpikeSettings(rule=RobustRule(min_z=6), sample_risk=None)
    recorder = SpikeRecorder("spikes.jsonl", settings=settings)
    recorder.observe(1, 3.0)
    recorder.close()
    ```
    """

    rule: Rule = field(default_factory=RobustRule)
    """The rule for the loss."""
    grad_norm_rule: Rule | None = field(default_factory=grad_norm_rule)
    """The rule for logarithms of gradient norms; None disables it."""
    ring_steps: int = 16
    """The number of steps to record: the first step of the event and those before it."""
    worst_samples: int = 8
    """The number of samples of the event's first step whose token losses are recorded."""
    sample_risk: float | None = RISK
    """The probability per sample that noise alone makes it an outlier, if the losses of samples are
    given; None disables this.
    """

    def __post_init__(self) -> None:
        if self.ring_steps < 1 or self.worst_samples < 0:
            raise SettingError(
                f"ring_steps is 1 or more, not {self.ring_steps}; worst_samples 0 or more, not"
                f" {self.worst_samples}"
            )
        if self.sample_risk is not None and not 0 < self.sample_risk < 0.01:
            raise SettingError(
                f"sample_risk is a small probability per sample, not {self.sample_risk}"
            )


class SpikeRecorder:
    """Watches the steps of one rank. Call `observe` once per step, and `close` at the end (or use
    it as a context manager).

    ```python
    import math
    from sonde import SpikeRecorder

    with SpikeRecorder("spikes.jsonl") as recorder:
        for step in range(1, 301):
            loss = 9.0 if step == 250 else 3.0 + 0.05 * math.sin(step)
            recorder.observe(step, loss)
    assert recorder.num_events == 1
    ```
    """

    def __init__(
        self,
        file: RecordFile | str | os.PathLike[str],
        *,
        settings: SpikeSettings | None = None,
        rank: int = 0,
        world_size: int = 1,
        datasets: Mapping[str, Any] | None = None,
        agree: Callable[[bool], bool] | None = None,
        investigate: Callable[[Event, StepEntry], None] | None = None,
        ledger: Ledger | None = None,
        characters: CountCharacters | None = None,
    ) -> None:
        """Start watching.

        Args:
            file: Receives the records; a path is opened.
            settings: What to watch for, and what to keep.
            rank: The rank of this process.
            world_size: The number of ranks.
            datasets: The data sets by name; the file describes them, so that their text can be
                found later.
            agree: Returns whether any rank has an event, given whether this one has.
            investigate: Called when an event begins, before it is written; it may add details.
            ledger: Receives the history of every sample.
            characters: Counts the characters of some rows of a step. With it, rows that stand out
                by their bits per character are noticed too.
        """
        self.settings = settings or SpikeSettings()
        self.rank = rank
        self.num_events = 0
        """The number of events that have begun."""
        self._owns_file = not isinstance(file, RecordFile)
        self._file = file if isinstance(file, RecordFile) else RecordFile(os.fspath(file))
        data = describe_datasets(datasets or {})
        self._writer = SpikeWriter(
            self._file, rank=rank, worst_samples=self.settings.worst_samples, data=data
        )
        self._agree = agree
        self._is_alone = world_size == 1
        self._investigate = investigate
        self._loss = EventDetector(self.settings.rule)
        rule = self.settings.grad_norm_rule
        risk = self.settings.sample_risk
        self._grad_norm = None if rule is None else EventDetector(rule, "grad_norm")
        self._samples = None if risk is None else SampleJudge(risk, characters)
        # an event of the matched mean that no step has taken up yet
        self._matched: Event | None = None
        self.sample_event: SampleEvent | None = None
        """The outlying samples of the last judged step, if any."""
        self._num_sample_events = 0
        self._ledger = ledger
        self._event: Event | None = None
        self._during: list[StepEntry] = []
        self._ring: deque[StepEntry] = deque(maxlen=self.settings.ring_steps)
        self._arriving: deque[_Arriving] = deque()
        self._failed = False
        self._lock = threading.RLock()  # several threads may train into one recorder

    def observe(self, step: int, loss: Any, **details: Unpack[StepDetails]) -> Event | None:
        """Process one step and return the event that began, if any. Never raises for any value.

        `loss` is a number or a tensor with one element. `details`: sample_ids, sample_losses,
        token_losses, token_counts, lr, grad_norm, rng. All but `token_losses` are copied. They are
        kept by reference until they have been judged, so do not overwrite them before the next call
        (if you do, this is detected, and they are left out).
        """
        try:
            with self._lock:
                entry = StepEntry(step, loss, details)
                self.sample_event = begun = None
                if entry.sample_losses is not None and self._samples is not None:
                    # What an entry holds of a tensor on the CPU is no tensor, so tensors in it are
                    # on a device.
                    if is_tensor(entry.sample_losses) or is_tensor(entry.token_counts):
                        self._when_arrived(
                            self._judge_samples, entry, "sample_losses", "token_counts"
                        )
                    else:
                        self._judge_samples(entry)
                if (
                    type(loss) is not float
                    and self._agree is None
                    and is_tensor(loss)
                    and loss.device.type != "cpu"
                ):
                    self._when_arrived(self._judge, entry, "loss")
                else:
                    begun = self._judge(entry)
                return self._drain() or begun if self._arriving else begun
        except Exception:
            # A watcher must not stop what it watches: log once with the traceback, and do not
            # record this step.
            if not self._failed:
                self._failed = True
                _logger.warning(
                    "the spike recorder failed at step %s; training goes on", step, exc_info=True
                )
            return None

    def report(self, metric: str, step: int, value: float) -> None:
        """Write an event that somebody else noticed: it begins and ends with one step."""
        event = Event.beginning(metric, step, value, Score(SERIES, math.nan, 0.0))
        with self._lock:
            self.num_events += 1
            self._writer.begin(event, [])
            self._writer.end(event, [], over=True)

    def is_bad(self, step: int) -> bool:
        """Return whether a judged step is one of the bad steps of the open event."""
        return self._event is not None and self._event.last_step == step

    def flush(self) -> None:
        """Judge everything that is pending, waiting for the device, and wait until everything is
        written.
        """
        self._drain(wait=True)
        if self._ledger is not None:
            self._ledger.flush()
        self._writer.worker.flush()

    def close(self) -> None:
        """Stop watching. An event that is still open is written with what is known so far."""
        self.flush()
        if self._event is not None:
            self._end(over=False)
        self._writer.worker.close()
        if self._ledger is not None:
            self._ledger.close()
        if self._owns_file:
            self._file.close()

    def __enter__(self) -> "SpikeRecorder":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the detectors as plain data for a checkpoint, about 25 kB; the ledger
        is flushed to disk first.
        """
        samples = None
        if self._samples is not None:
            self._drain(wait=True)
            samples = {**self._samples.state_dict(), "num_events": self._num_sample_events}
            if self._ledger is not None:
                self._ledger.mark()
        return {
            "loss": self._loss.state_dict(),
            "grad_norm": self._grad_norm.state_dict() if self._grad_norm else None,
            "samples": samples,
            "event_is_open": self._event is not None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore from `state_dict`: the next step is judged as if there had been no
        interruption.
        """
        self._loss.load_state_dict(state["loss"])
        if self._grad_norm and state.get("grad_norm"):
            self._grad_norm.load_state_dict(state["grad_norm"])
        if self._samples and state.get("samples"):
            self._samples.load_state_dict(state["samples"])
            self._num_sample_events = int(state["samples"]["num_events"])
        self._event = self._open_event() if state["event_is_open"] else None

    def _when_arrived(self, judge: _Judge, entry: StepEntry, *names: str) -> None:
        """Start copying those of an entry's named values that are on a device, to judge it when
        they have arrived.
        """
        late = {name: getattr(entry, name) for name in names}
        copies = {name: begin_copy(value) for name, value in late.items() if is_tensor(value)}
        self._arriving.append((judge, entry, copies))

    def _drain(self, *, wait: bool = False) -> Event | None:
        """Judge the steps whose values have arrived; if too many are pending, wait for the oldest.
        Returns the event that began.
        """
        begun = None
        arriving = self._arriving
        while arriving and (
            wait
            or len(arriving) > _MAX_PENDING
            or all(copy.is_ready() for copy in arriving[0][2].values())
        ):
            judge, entry, copies = arriving.popleft()
            for name, copy in copies.items():
                setattr(entry, name, copy.value())
            begun = judge(entry) or begun
        return begun

    def _judge_samples(self, entry: StepEntry) -> None:
        """Judge the samples of a step, enter them in the ledger, and write the outliers, as often
        as the settings allow.
        """
        assert self._samples is not None
        if len(entry.sample_losses) == 1 and entry.is_filler:
            # nothing to enter, but it marks that this step is repeated
            if self._ledger is not None:
                self._ledger.add(entry.step, [], np.zeros(0))
            return
        judged = self._samples.judge(entry)
        self._matched = judged.begun or self._matched
        if self._ledger is not None:
            self._ledger.add(entry.step, entry.sample_ids, judged.z)
        if judged.outliers is not None:
            self.sample_event = judged.outliers
            self._num_sample_events += 1
            if self._num_sample_events <= _MAX_SAMPLE_RECORDS:
                self._writer.samples(judged.outliers, entry)

    def _judge(self, entry: StepEntry) -> Event | None:
        loss = entry.loss
        if type(loss) is not float:
            loss = loss[0] if isinstance(loss, list) else loss
            loss = entry.loss = float(loss.item() if hasattr(loss, "item") else loss)
        self._ring.append(entry)
        begun = self._begun(entry, loss)
        is_agreed = self._agree is not None and self._agree(begun is not None)
        if begun is not None:
            if self._event is not None:
                self._end(over=True)
            self._event = begun
            self._during.clear()
            self.num_events += 1
            if self._investigate is not None:
                self._investigate(begun, entry)
        elif is_agreed:
            begun = Event.beginning("loss", entry.step, loss, Score(ELSEWHERE, math.nan, 0.0))
        if begun is not None:
            entry.secure_tokens()
            self._writer.begin(begun, self._ring)
            return begun
        if self._event is not None:
            self._go_on(entry)
        entry.token_losses = None  # only the first step of a spike needs them, and they are large
        return None

    def _begun(self, entry: StepEntry, loss: float) -> Event | None:
        """Return the event that begins with a step, if none is open, or if it is far worse than
        that one.
        """
        ended, begun = self._loss.update(entry.step, loss)
        is_far_worse = ended is not None and begun is not None
        if self._grad_norm is not None and entry.grad_norm is not None:
            begun = begun or self._judge_grad_norm(entry)
        # The mean of one rank's own rows says nothing to the others, which must decide alike.
        matched = self._matched if self._is_alone or self._agree is not None else None
        self._matched = None
        if self._event is not None and not is_far_worse:
            return None  # the detectors report one event, not several
        return begun or matched

    def _judge_grad_norm(self, entry: StepEntry) -> Event | None:
        assert self._grad_norm is not None
        # Reading a tensor would wait for its device; pass a number to have it judged.
        norm = math.nan if is_tensor(entry.grad_norm) else float(entry.grad_norm)
        if norm == 0 or is_tensor(entry.grad_norm):
            return None
        # Norms vary by factors, so use the logarithm.
        begun = self._grad_norm.update(entry.step, math.log(norm))[1]
        return None if begun is None else _in_norms(begun)

    def _go_on(self, entry: StepEntry) -> None:
        """Continue an open event: record the bad steps that follow; it is over when all detectors
        are calm again.
        """
        now = self._open_event()
        if now is None:
            self._end(over=True)
            return
        assert self._event is not None
        leading = now if now.metric == self._event.metric else self._event
        self._event = replace(
            self._event,
            kind=leading.kind,
            last_step=max(self._event.last_step, now.last_step),
            num_bad=self._event.num_bad + (now.last_step == entry.step),
            peak=leading.peak,
            peak_step=leading.peak_step,
        )
        if len(self._during) < _MAX_DURING or self._event.peak_step == entry.step:
            del self._during[_MAX_DURING:]  # what was the peak before
            self._during.append(entry)

    def _open_event(self) -> Event | None:
        """Return the open event, preferably that of the loss."""
        if self._loss.open is not None:
            return self._loss.open
        if self._grad_norm and self._grad_norm.open:
            return _in_norms(self._grad_norm.open)
        return self._samples.open_event if self._samples else None

    def _end(self, *, over: bool) -> None:
        event = self._event
        self._event = None
        assert event is not None
        inside = [entry for entry in self._during if entry.step <= event.last_step]
        self._writer.end(event, inside, over=over)
        self._during.clear()


def _in_norms(event: Event) -> Event:
    """Convert an event of logarithms to norms."""
    return replace(
        event,
        value=math.exp(event.value),
        baseline=math.exp(event.baseline),
        peak=math.exp(event.peak),
    )
