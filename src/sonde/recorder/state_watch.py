"""Watch the state of a training: record digests of it, and check a resume before its first update.

    start             the first update of this process begins: does it claim to go on from
                      somewhere?
    state_kept        a state was kept: its digest is recorded
    saved             a checkpoint was written: its digest is recorded
    begin_update      the update after that begins: its generators are read
    before_optimizer  … and its samples and rates are known: they are recorded. At a restart, the
                      resume report is told, and stops the training if that was asked for

On other steps nothing is done. Each rank writes its own digests and exchanges nothing, so that a
checkpoint may be written by one rank alone; at a restart the ranks put their reports together.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import torch

from sonde import ranks
from sonde.checkpoint import digest_log
from sonde.checkpoint.digest import (
    Live,
    generator_digests,
    mode_of,
    samples_seen,
    take_digest,
)
from sonde.checkpoint.digest_log import (
    DigestLog,
    NextUpdate,
    SamplesSeen,
    StateDigest,
    as_record,
)
from sonde.checkpoint.resume_comparison import Claim, compare, find_claim
from sonde.checkpoint.resume_course import Now
from sonde.checkpoint.resume_report import EVENT, PARTS, ResumeReport
from sonde.checkpoint.resume_report import merged as merged_reports
from sonde.errors import TrainingStopped, check_choice
from sonde.recorder import saves
from sonde.recorder.guard import Guard, guarded
from sonde.recorder.hooks import NOBODY
from sonde.recorder.keeper import Keeper
from sonde.recorder.moment import Moment, host_generators
from sonde.recorder.opening import make_visible
from sonde.recorder.resume_losses import ResumeLosses
from sonde.recorder.training import Training, is_initialised
from sonde.recorder.update import Update
from sonde.records.journal import StepRecord, read_steps
from sonde.records.layout import DIGESTS
from sonde.train.determinism import generators

_OWN_NAMES: Final = frozenset({"sonde", "healing", "data"})
"""Named objects whose state says nothing about the training."""
_NUM_LAST: Final = 4
"""How many of the last updates a digest names the samples of."""

_MAX_RANKS: Final = 1 << 16

_logger = logging.getLogger("sonde")


class _Resume(NamedTuple):
    """A resume that is to be checked."""

    claim: Claim
    log: DigestLog
    steps: Mapping[int, StepRecord]
    now: StateDigest
    parts: Sequence[StateDigest]
    """The digests of all ranks, if the state was sharded over another number of them."""


class StateWatch:
    """Records digests of one training, and checks its resume."""

    def __init__(
        self,
        training: Training,
        keeper: Keeper,
        recent: Callable[[], Sequence[Update]],
        guard: Guard,
    ) -> None:
        """`recent` returns the last updates."""
        self.guard = guard
        keeper.on_kept = self.state_kept
        self._recent = recent
        self.hears_saves = True
        """Whether calls of `torch.save` are noticed. A host knows better what it saves."""
        self._training = training
        self._run = training.run
        self._expected = set(training.options.expect)
        self._resume: _Resume | None = None
        self.losses: ResumeLosses | None = None
        self._following: int | None = None
        """The step of a state whose next update is to be recorded."""
        self.is_waiting = True
        """Whether the next update is of interest."""
        self._generators: Mapping[str, Any] | None = None
        self._digested = -1
        """The step of the last digest."""
        self._is_open = not training.run.is_replay
        self._thread = threading.get_ident()
        self._current_step: Callable[[], int | None] = lambda: None

    def expect(self, parts: Sequence[str]) -> None:
        """Accept that these parts of the state are not as they were."""
        for part in parts:
            check_choice(PARTS, part=part)
        self._expected |= set(parts)

    def listen(self, current_step: Callable[[], int | None]) -> None:
        """Notice what the script saves. `current_step` returns the number of updates made, or None
        if nothing is recorded now.
        """
        self._current_step = current_step
        if self._is_open:
            saves.listen(self._on_save)

    @guarded("the resume is not checked")
    def start(self, num_updates: int) -> None:
        """Find out at the first update of this process whether it is a resume."""
        if not self._is_open or not self._run.resumed:
            return
        root = self._run.layout.root
        log = digest_log.read_digests_of_rank(root, self._run.rank)
        if not log.states and not num_updates:
            return
        now = self._digest(num_updates, "resumed", "")
        claim = find_claim(log, now, num_updates=num_updates)
        if claim is None and self._run.rank == 0:
            make_visible()
            _logger.info("sonde: %s starts from the beginning", self._run.directory)
        if claim is not None:
            steps = read_steps(root).by_number
            self._resume = _Resume(claim, log, steps, now, self._other_parts(claim.step, now))
            self._following = num_updates

    @guarded("digests of states are not recorded")
    def state_kept(self, step: int, before: Update | None = None) -> None:
        """Record the digest of a state that was kept; `before` is the update at which an event
        began.
        """
        self._record(step, "kept")
        if before is not None:
            self._following = None  # its beginning is over

    @guarded("the digest of a checkpoint is not recorded")
    def saved(self, step: int, path: str, resume: Sequence[str] = ()) -> None:
        """Record the digest of a checkpoint that was written, and the words of a command line that
        resume from it.
        """
        self._record(step, "checkpoint", path, resume)

    @guarded("the digest of the last state is not recorded")
    def close(self, step: int | None) -> None:
        """Record the digest of the last state after `step` updates; None if there is none."""
        if not self._is_open:
            return
        saves.stop_listening(self._on_save)
        if step is not None and step > self._digested >= 0:
            self._record(step, "closed")
        self._is_open = False

    @guarded("the update after a checkpoint is not recorded")
    def begin_update(self, num_updates: int) -> None:
        """Read the generators if this update is compared with others."""
        is_new = self._digested < 0 and self._resume is None and self._is_open
        if is_new and is_initialised(self._training.model):
            self._record(num_updates, "started")
        if self._following is not None:
            self._generators = generators()

    def before_optimizer(self, update: Update) -> None:
        """Record this update, or report the resume, before the optimizer moves."""
        if self._following is None:
            return
        resume = self._resume
        following = self._next_update(update)
        self.is_waiting = False
        self._following = None
        self._generators = None
        self._resume = None
        if following is None:
            return
        if resume is not None:
            self._report(resume, following)
        elif following.step == self._digested:
            self._run.records(DIGESTS).append(as_record(following))

    def recorded(self, update: Update) -> None:
        """Compare the first losses after a resume with those before it."""
        if self.losses is None:
            return
        finding = self.losses.add(update)
        if not self.losses.is_over:
            return
        if finding is not None and self._run.rank == 0:
            _logger.warning("sonde: %s", finding.title)
            self._run.event("resume_losses", **finding._asdict())
        self.losses = None

    def _record(self, step: int, reason: str, path: str = "", resume: Sequence[str] = ()) -> None:
        """Record a digest of the state after `step` updates."""
        if not self._is_open or self._resume is not None:
            return  # what a resume begins with is recorded once it is known to be good
        digest = self._digest(step, reason, path)
        self._write(replace(digest, resume=list(resume)))

    def _write(self, digest: StateDigest) -> None:
        self._run.records(DIGESTS).append(as_record(digest))
        self._digested = digest.step
        self._following = digest.step
        self.is_waiting = True

    def _digest(self, step: int, reason: str, path: str) -> StateDigest:
        training = self._training
        named = {name: part for name, part in training.named.items() if name not in _OWN_NAMES}
        with training.hooks.observed_by(NOBODY):
            return take_digest(
                Live(training.model, training.optimizer, named),
                step,
                reason=reason,
                path=path,
                world_size=self._run.world_size,
                generators=generator_digests(generators()),
                last_samples=self._last_samples(step),
            )

    def _last_samples(self, step: int) -> list[SamplesSeen]:
        found = []
        for update in list(self._recent())[-_NUM_LAST:]:
            is_there = bool(update.micro) and all(micro.is_unchanged() for micro in update.micro)
            samples = samples_seen(update.names()) if is_there else None
            if samples is not None and update.step <= step:
                found.append(samples)
        return found

    @guarded("the update after a checkpoint is not recorded")
    def _next_update(self, update: Update) -> NextUpdate:
        assert self._following is not None
        digests = {} if self._generators is None else generator_digests(self._generators)
        moment = update.micro[0].moment if update.micro else None
        return NextUpdate(
            step=self._following,
            time=time.time(),
            samples=samples_seen(update.names()),
            rates=[float(rate) for rate in update.rates],
            generators=digests,
            draws=[] if moment is None else _drawn(moment, digests),
            mode=mode_of(self._training.model),
        )

    def _other_parts(self, step: int, now: StateDigest) -> list[StateDigest]:
        """Return the digests of all ranks after `step` updates, if the state is sharded now and was
        so over another number of ranks.
        """
        found: list[StateDigest] = []
        if not now.is_sharded:
            return found
        root = self._run.layout.root
        for rank in range(_MAX_RANKS):
            known = digest_log.read_digests(root, rank).states
            states = [state for state in known if state.step == step]
            if not states:
                break
            found.append(states[-1])
        is_complete = bool(found) and len(found) == found[0].world_size
        return found if is_complete and len(found) != now.world_size else []

    def _whole(self, resume: _Resume) -> StateDigest:
        """Return the whole state before, with this rank's own generators and samples."""
        before = digest_log.whole(resume.parts)
        if self._run.rank < len(resume.parts):
            own = resume.parts[self._run.rank]
            return replace(before, generators=own.generators, last_samples=own.last_samples)
        return replace(before, generators={}, last_samples=())

    def _report(self, resume: _Resume, following: NextUpdate) -> None:
        """Tell what the resume restored; stop if that was asked for."""
        report = self._compared(resume, following)
        if report is None:
            return
        self._training.resume_report = report
        if self._run.rank == 0:
            make_visible()
            level = logging.WARNING if report.lost else logging.INFO
            _logger.log(level, "sonde: %s", report.text())
            self._run.event(EVENT, **report.as_details())
        if not report.lost and resume.claim.before is None:
            self._write(resume.now)
            self._following = None
        self._digested = max(self._digested, following.step)
        self.losses = ResumeLosses(resume.steps, report.from_step)
        if report.lost and self._training.options.on_resume == "stop":
            raise TrainingStopped(
                f"the resume at step {report.from_step} did not restore everything",
                cause="; ".join(f"{found.what}: {found.text}" for found in report.lost),
                hint=(
                    "load what is missing before the first step; accept a change with"
                    " recorder.expect(…)"
                ),
            )

    def _compared(self, resume: _Resume, following: NextUpdate) -> ResumeReport | None:
        """Return what all ranks found. Every rank must call this."""
        own = self._own_report(resume, following)
        of_ranks = ranks.gather(None if own is None else own.as_details())
        known = [details for details in of_ranks if details is not None]
        return merged_reports(known).accepting(self._expected) if known else None

    @guarded("the resume is not checked")
    def _own_report(self, resume: _Resume, following: NextUpdate) -> ResumeReport:
        rates = {step: record.lr for step, record in resume.steps.items()}
        claim = resume.claim
        now = resume.now
        if resume.parts:
            claim = claim._replace(before=self._whole(resume))
            parts = [digest_log.from_record(part) for part in ranks.gather(as_record(now))]
            now = digest_log.with_hashes_of(digest_log.whole(parts), digest_log.whole(resume.parts))
        return compare(claim, resume.log, rates, Now(now, following))

    def _on_save(self, saved: Any, path: str) -> None:
        """Notice that the script has saved something."""
        step = self._current_step()
        if step is None or not self.hears_saves or threading.get_ident() != self._thread:
            return
        is_known = step == self._digested and self._following is not None
        if not is_known:
            self._note_save(saved, path, step)

    @guarded("checkpoints of the script are not noticed")
    def _note_save(self, saved: Any, path: str, step: int) -> None:
        training = self._training
        if saves.holds(saved, training.model, training.optimizer):
            self._record(step, "checkpoint", path)


def _drawn(moment: Moment, digests: Mapping[str, Any]) -> list[str]:
    """Return the generators that an update has drawn from since its beginning."""
    found = []
    if not torch.equal(moment.cpu, torch.default_generator.get_state()):
        found.append("torch")
    if moment.device is not None:
        # On a device there is one stream of numbers for each of them.
        found += [name for name in digests if name.startswith("cuda")]
    if moment.host is not None:
        python, numpy = moment.host
        python_now, numpy_now = host_generators()
        if python != python_now:
            found.append("python")
        if numpy != numpy_now:
            found.append("numpy")
    return found
