"""The demo's two stories, on a small real training run.

The first goes through the whole loop: a corpus with one bad document, a spike, its text, its cause,
the way back, the same document hidden in batches of 64, and the report. Every act calls the same
code as the command of that name. Only the first act knows what was planted; it is written down
beside the run and compared with the verdict at the end. Costs about a minute and a half on two
cores.

The second is about healing: a weight is corrupted in memory in the middle of training, and the run
repairs itself. Nothing is told about the corruption: the loss raises the alarm, `sonde diagnose`
finds the cause in a separate process, and the run goes back and continues. At the end the demo
shows the cost, and checks that the weights equal those of an undisturbed training run.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from sonde.callbacks.base import Callback
from sonde.callbacks.context import Context
from sonde.checkpoint.folder import CheckpointFolder
from sonde.checkpoint.store import CheckpointStore
from sonde.data.binarise import Prepared, PrepareSettings, prepare
from sonde.data.tokenizer_files import train_subwords
from sonde.demo.scenario import NUM_HELD_OUT, Narrator, Planted, Scenario, open_log, plant
from sonde.forensics.diagnose import diagnose
from sonde.forensics.replay import replay_step
from sonde.forensics.rollback import apply_rollback, plan_rollback
from sonde.forensics.verdict import Verdict, write_verdict
from sonde.heal.decision import Heal, describe, read_history
from sonde.heal.supervisor import train_healing
from sonde.models.transformer import Transformer
from sonde.records import disk
from sonde.records.files import write_file
from sonde.records.manifest import checkpoint_place
from sonde.records.values import encode
from sonde.report.facts import gather
from sonde.report.html import page
from sonde.report.wording import counted
from sonde.spikes.decoding import SampleDecoder
from sonde.spikes.ledger_log import read_ledger, read_worst
from sonde.spikes.spike_log import RecordedSpike, read_spikes
from sonde.train.session import train_run
from sonde.train.settings import RecipeSettings, settings_of_run
from sonde.train.translation import open_translator

_NUM_THREADS: Final = 1
"""Number of torch threads. Two would be faster if both cores are free, and far slower if they are
not.
"""
_NUM_SHOWN: Final = 5
_METRICS: Final = {
    "loss": "loss",
    "grad_norm": "gradient norm",
    "matched_loss": "loss for samples of these lengths",
}
_NUM_UPDATES: Final = 160
_STRUCK: Final = 113


def play(
    make_scenario: Callable[[], Scenario], folder: Path, narrator: Narrator
) -> tuple[int | None, bool]:
    """Play all acts in order. Returns the step of the spike, if one was detected, and whether the
    document was named.
    """
    torch.set_num_threads(_NUM_THREADS)
    run = folder / "run"
    narrator.act("The corpus")
    scenario = make_scenario()
    planted, prepared = prepare_data(scenario, folder)
    counts = prepared.sidecars[len(scenario.texts) - 1]
    narrator.tell(
        f"{counts.num_samples:,} {scenario.documents}: {counts.num_tokens:,} tokens by a BPE of "
        f"{counts.tokenizer.vocab_size:,} pieces; {NUM_HELD_OUT} more held out."
    )
    narrator.tell(
        f"One was garbled. Which one stands in {folder / 'planted.json'}; nothing below reads it."
    )
    spike = _training(scenario.recipe, run, narrator)
    if spike is None:
        return None, False
    step = spike.event.first_step
    _text(spike, run, narrator)
    _replay(step, run, narrator)
    document = planted.beside(_diagnosis(step, run, narrator))
    write_file((folder / "verdict.json").absolute(), encode(document))
    sentence = "named correctly" if document["equal"] else "the verdict is wrong"
    narrator.tell(f"Planted was line {planted.line}, {planted.cause}: {sentence}.")
    _rollback(step, run, narrator)
    if len(scenario.texts) == 2:
        _translations(scenario, run, narrator)
    else:
        _hidden(scenario.recipe, planted, folder / "run-of-64", narrator)
    narrator.act("The report")
    report = folder / "report.html"
    write_file(report.absolute(), page.render_html(gather(run)).encode())
    narrator.tell(f"{report}, one file that opens anywhere.")
    return step, document["equal"]


def _training(recipe: RecipeSettings, run: Path, narrator: Narrator) -> RecordedSpike | None:
    narrator.act(f"Training, {recipe.max_updates} steps")
    started = time.monotonic()
    loss = train(recipe, run)
    narrator.tell(f"Done in {time.monotonic() - started:.0f} s: loss {loss:.3f} on held-out text.")
    found = read_spikes(run).spikes
    if not found:
        narrator.tell("The detector noticed nothing, so there is nothing to explain.")
        return None
    worst = max(found, key=lambda spike: spike.event.z)
    event = worst.event
    narrator.tell(
        f"The detector noticed {counted(len(found), 'event')}: at step {event.first_step} the"
        f" {_METRICS[event.metric]} was {event.value:.2f} where {event.baseline:.2f} was expected,"
        f" {event.z:.0f} deviations off."
    )
    return worst


def _text(spike: RecordedSpike, run: Path, narrator: Narrator) -> None:
    narrator.act("What it was reading")
    samples = spike.samples()
    worst = SampleDecoder(read_spikes(run).datasets).decode(samples[:1], with_tokens=True)[0]
    others = [sample.loss for sample in samples[1:] if sample.loss is not None]
    beside = f"; the others average {sum(others) / len(others):.2f}" if others else ""
    narrator.tell(
        f"The worst of its {counted(len(samples), 'sample')} has a loss of"
        f" {worst.ranked.loss or 0.0:.2f} per token{beside}:"
    )
    narrator.show(worst, calm_loss=spike.event.baseline if spike.event.metric == "loss" else None)


def _replay(step: int, run: Path, narrator: Narrator) -> None:
    narrator.act(f"Replaying step {step}")
    replayed = replay_step(run, step).replay
    if replayed.reproduced:
        result = "the same, bit for bit"
    else:
        result = f"not the same: {'; '.join(replayed.differences) or 'why is not known'}"
    narrator.tell(
        f"From the checkpoint after {replayed.from_step}: {replayed.replayed_loss!r}; recorded was"
        f" {replayed.recorded_loss!r}: {result}."
    )


def _diagnosis(step: int, run: Path, narrator: Narrator) -> Verdict:
    narrator.act("Why")
    verdict = diagnose(run, step)
    write_verdict(run, verdict)
    cause = verdict.causes[0]
    place = ""
    if cause.suspects and cause.suspects[0].line is not None:
        suspect = cause.suspects[0]
        place = f" It is line {suspect.line} of {suspect.file}."
    tried = counted(len(verdict.experiments), "experiment")
    narrator.tell(
        f"{tried} in {verdict.seconds:.0f} s, {cause.confidence:.0%} sure: {cause.title}{place}"
    )
    for fact in dict.fromkeys((*cause.evidence[:2], *cause.evidence[-1:])):
        narrator.tell(f"· {fact}")
    return verdict


def _rollback(step: int, run: Path, narrator: Narrator) -> None:
    narrator.act("Rolling back and skipping it")
    plan = plan_rollback(run, step)
    apply_rollback(plan)
    skipped = counted(len(plan.skip), "sample")
    narrator.tell(f"Back to the checkpoint after {plan.checkpoint}; {skipped} will be skipped.")
    resumed = time.time()
    settings = replace(settings_of_run(run), skip_list=str(plan.skip_list))
    loss = train(settings, run)
    again = [spike.event.first_step for spike in read_spikes(run).spikes if spike.time > resumed]
    passed = f"another event at step {again[0]}" if again else "no spike this time"
    narrator.tell(
        f"Resumed to step {settings.max_updates}: {passed}, loss {loss:.3f} on held-out text."
    )


def _translations(scenario: Scenario, run: Path, narrator: Narrator) -> None:
    narrator.act("Held-out sentences, by beam search")
    translator = open_translator(run)
    sources, references = (lines[-NUM_HELD_OUT:] for lines in scenario.texts.values())
    translations = translator.translate(sources, translator.search(beam=5))
    num_right = 0
    rows = zip(sources, references, translations, strict=True)
    for number, (source, reference, translation) in enumerate(rows):
        is_right = translation.text == reference
        num_right += is_right
        if number < _NUM_SHOWN:
            judgement = "right" if is_right else f"should be: {reference}"
            narrator.tell(source)
            narrator.tell(f"→ {translation.text} ({judgement})")
    narrator.tell(f"{num_right} of {len(references)} are right to the letter.")


def _hidden(recipe: RecipeSettings, planted: Planted, run: Path, narrator: Narrator) -> None:
    narrator.act("The same text in batches of 64")
    changed = replace(
        recipe,
        # small rows, many to a batch
        block_size=64,
        max_sentences=64,
        max_tokens=None,
        # a smaller model, for one epoch, without checkpoints on the way
        model_dim=64,
        ffn_dim=128,
        max_updates=None,
        max_epochs=1,
        save_every_updates=None,
        validate_every_epochs=None,
    )
    train(changed, run)
    log = read_spikes(run)
    narrator.tell(
        f"Trained again in pieces of {changed.block_size} tokens, {changed.max_sentences} per"
        " batch, so one hardly moves the mean. The mean loss had"
        f" {counted(len(log.spikes), 'event')}; {counted(len(log.samples), 'piece')} stood out."
    )
    for worst in read_worst(run, 1).entries:
        same = ": the same document" if worst.decoded.line == planted.line else ""
        narrator.tell(
            f"The worst of {len(read_ledger(run)):,}, {worst.history.mean:.0f} deviations above"
            " pieces of its length, is from line "
            f"{worst.decoded.line}{same}."
        )
        narrator.show(worst.decoded, calm_loss=None)


def play_healing(make_scenario: Callable[[], Scenario], folder: Path, narrator: Narrator) -> bool:
    """Play all acts. Returns whether the run was healed and equals an undisturbed one."""
    torch.set_num_threads(_NUM_THREADS)
    run = folder / "run"
    untouched = folder / "run-untouched"
    narrator.act("The corpus")
    scenario = make_scenario()
    _, prepared = prepare_data(scenario, folder)
    narrator.tell(f"{prepared.sidecars[0].num_samples:,} {scenario.documents}.")
    recipe = replace(scenario.recipe, max_updates=_NUM_UPDATES)
    narrator.act(f"Training, {_NUM_UPDATES} steps, with --heal 3")
    narrator.tell(
        f"At step {_STRUCK} a column of one weight is overwritten in memory. The run does not know"
        " it."
    )
    with out_of_sight(folder):
        train_healing(recipe, run, Heal(max_times=3), callbacks=[Strike(_STRUCK)])
    narrator.act("What the run reports")
    for chapter in describe(run):
        for sentence in chapter:
            narrator.tell(f"· {sentence}")
    narrator.act("The same training without the fault")
    loss = train(recipe, untouched)
    same = _weights(run) == _weights(untouched)
    narrator.tell(
        f"Loss on held-out text: {loss:.3f}; the run that recovered has {final_loss(run):.3f}. "
        f"Their weights are {'the same, bit for bit' if same else 'not the same'}."
    )
    return same and len(read_history(run).acts) > 0


def _weights(run: Path) -> dict[str, Any]:
    store = CheckpointStore(checkpoint_place(run))
    state = store.load(store.folder.steps()[-1])
    return {name: tensor.tolist() for name, tensor in state["model"].items()}


class Strike(Callback):
    """Overwrites a column of a weight once, in the memory of this process, before an update."""

    def __init__(self, step: int) -> None:
        self._step = step
        self._is_now = False
        self._hook = nn.modules.module.register_module_forward_pre_hook(self._before_forward)

    def on_step_start(self, context: Context) -> None:
        """Note whether the next update is the one to strike."""
        self._is_now = context.step == self._step - 1

    def _before_forward(self, module: nn.Module, _: object) -> None:
        if self._is_now and isinstance(module, Transformer):
            self._hook.remove()
            matrices = [parameter for parameter in module.parameters() if parameter.ndim == 2]
            with torch.no_grad():
                matrices[0][:, 0] = 30.0


def prepare_data(scenario: Scenario, folder: Path) -> tuple[Planted, Prepared]:
    """Train a tokenizer on the clean text, garble one document, write the text and prepare it."""
    corpus = (folder / "corpus").absolute()
    disk.make_directories(corpus)
    clean = {language: lines[:-NUM_HELD_OUT] for language, lines in scenario.texts.items()}
    tokenizer = train_subwords("bpe", clean.values(), scenario.vocab_size)
    tokenizer_file = corpus / tokenizer.file_name
    write_file(tokenizer_file, tokenizer.payload)
    planted = plant(clean, tokenizer, scenario.recipe, scenario.window)
    *_, language = clean
    planted = replace(planted, file=str(folder / "corpus" / f"train.{language}"))
    write_file((folder / "planted.json").absolute(), encode(asdict(planted)))
    splits: dict[str, dict[str, Path]] = {"train": {}, "valid": {}}
    for name, lines in scenario.texts.items():
        text = list(lines)
        if name == language:
            text[planted.line - 1] = planted.after
        for split, part in (("train", text[:-NUM_HELD_OUT]), ("valid", text[-NUM_HELD_OUT:])):
            splits[split][name] = folder / "corpus" / f"{split}.{name}"
            write_file(corpus / f"{split}.{name}", "".join(f"{line}\n" for line in part).encode())
    return planted, prepare(
        PrepareSettings(splits=splits, out=folder / "data", tokenizer=str(tokenizer_file))
    )


def train(settings: RecipeSettings, run: Path) -> float:
    """Train or resume to the end and return the held-out loss."""
    with out_of_sight(run.parent):
        train_run(settings, run)
    return final_loss(run)


def final_loss(run: Path) -> float:
    """Return the held-out loss at the end of a run."""
    checkpoints = CheckpointFolder(checkpoint_place(run))
    return float(checkpoints.document(checkpoints.steps()[-1])["metrics"]["loss"])


@contextlib.contextmanager
def out_of_sight(folder: Path) -> Iterator[None]:
    """Let training show its progress bar on a terminal; elsewhere, redirect its output to a
    file.
    """
    if sys.stderr.isatty():
        yield
        return
    with (
        open_log(folder) as file,
        contextlib.redirect_stdout(file),
        contextlib.redirect_stderr(file),
    ):
        yield
