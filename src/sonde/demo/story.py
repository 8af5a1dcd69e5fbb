"""The demo's two stories, on a small real training run.

The first goes through the whole loop: a corpus with one bad document, a spike, its text, its cause, the way back, the
same document hidden in batches of 64, and the report. Every act calls the same code as the command of that name. Only
the first act knows what was planted; it is written down beside the run and compared with the verdict at the end. Costs
about a minute and a half on two cores.

The second is about healing: a weight is corrupted in memory in the middle of training, and the run repairs itself.
Nothing is told about the corruption: the loss raises the alarm, `sonde diagnose` finds the cause in a separate process,
and the run goes back and continues. At the end the demo shows the cost, and checks that the weights equal those of an
undisturbed training run.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from sonde.callbacks.base import Callback, Context
from sonde.checkpoint.folder import CheckpointFolder
from sonde.checkpoint.store import CheckpointStore
from sonde.data.binarise import Prepared, PrepareSettings, prepare
from sonde.data.tokenizer_files import train_subwords
from sonde.demo.scenario import SOURCE, TARGET, DemoFolder, Narrator, Planted, Scenario, plant
from sonde.forensics.diagnose import diagnose
from sonde.forensics.replay import replay_step
from sonde.forensics.rollback import apply_rollback, plan_rollback
from sonde.forensics.verdict import Verdict, write_verdict
from sonde.generate.translation import translation_quality
from sonde.heal.decision import Heal
from sonde.heal.history import counted, read_history, told
from sonde.heal.supervisor import train_healing
from sonde.models.transformer import Transformer
from sonde.records import disk
from sonde.records.files import write_file
from sonde.records.manifest import checkpoint_place
from sonde.records.values import encode
from sonde.report.facts import gather
from sonde.report.html import page
from sonde.spikes.decoding import SampleDecoder
from sonde.spikes.ledger_log import read_ledger, read_worst
from sonde.spikes.spike_log import RecordedSpike, read_spikes
from sonde.train.session import train_run
from sonde.train.settings import RecipeSettings, settings_of_run
from sonde.train.translation import open_translator

_NUM_THREADS: Final = 1
"""Number of torch threads. Two would be faster if both cores are free, and far slower if they are not."""
_NUM_SHOWN: Final = 5
_METRICS: Final = {"loss": "loss", "grad_norm": "gradient norm", "matched_loss": "loss for samples of these lengths"}
_NUM_UPDATES: Final = 160
_STRUCK: Final = 113


def play(make_scenario: Callable[[], Scenario], folder: DemoFolder, narrator: Narrator) -> tuple[int | None, bool]:
    """Play all acts in order. Returns the step of the spike, if one was detected, and whether the document was named."""
    torch.set_num_threads(_NUM_THREADS)
    narrator.act("The corpus")
    scenario = make_scenario()
    planted = _corpus(scenario, folder, narrator)
    spike = _training(scenario.recipe, folder, narrator)
    if spike is None:
        return None, False
    step = spike.event.first_step
    _text(spike, folder, narrator)
    _replay(step, folder, narrator)
    document = planted.beside(_diagnosis(step, folder, narrator))
    write_file(folder.verdict.absolute(), encode(document))
    told = "named correctly" if document["equal"] else "the verdict is wrong"
    narrator.tell(f"Planted was line {planted.line}, {planted.cause}: {told}.")
    _rollback(step, folder, narrator)
    if scenario.is_translation:
        _translations(scenario, folder, narrator)
    else:
        _hidden(scenario.recipe, planted, folder, narrator)
    _report(folder, narrator)
    return step, document["equal"]


def _corpus(scenario: Scenario, folder: DemoFolder, narrator: Narrator) -> Planted:
    planted, prepared = prepare_data(scenario, folder)
    counts = prepared.sidecars[len(scenario.train) - 1]
    narrator.tell(
        f"{counts.num_samples:,} {scenario.documents}: {counts.num_tokens:,} tokens by a BPE of "
        f"{counts.tokenizer.vocab_size:,} pieces; {len(next(iter(scenario.valid.values())))} more held out."
    )
    narrator.tell(f"One was garbled. Which one stands in {folder.planted}; nothing below reads it.")
    return planted


def _training(recipe: RecipeSettings, folder: DemoFolder, narrator: Narrator) -> RecordedSpike | None:
    narrator.act(f"Training, {recipe.max_updates} updates")
    started = time.monotonic()
    loss = train(recipe, folder)
    narrator.tell(f"Done in {time.monotonic() - started:.0f} s: loss {loss:.3f} on held-out text.")
    found = read_spikes(folder.run).spikes
    if not found:
        narrator.tell("The detector noticed nothing, so there is nothing to explain.")
        return None
    worst = max(found, key=lambda spike: spike.event.z)
    event = worst.event
    narrator.tell(
        f"The detector noticed {counted(len(found), 'event')}: at update {event.first_step} the {_METRICS[event.metric]} was "
        f"{event.value:.2f} where {event.baseline:.2f} was expected, {event.z:.0f} deviations off."
    )
    return worst


def _text(spike: RecordedSpike, folder: DemoFolder, narrator: Narrator) -> None:
    narrator.act("What it was reading")
    samples = spike.samples()
    worst = SampleDecoder(read_spikes(folder.run).datasets).decode(samples[:1], with_tokens=True)[0]
    others = [sample.loss for sample in samples[1:] if sample.loss is not None]
    beside = f"; the others average {sum(others) / len(others):.2f}" if others else ""
    narrator.tell(
        f"The worst of its {counted(len(samples), 'sample')} has a loss of {worst.ranked.loss or 0.0:.2f} per token{beside}:"
    )
    narrator.show(worst, calm_loss=spike.event.baseline if spike.event.metric == "loss" else None)


def _replay(step: int, folder: DemoFolder, narrator: Narrator) -> None:
    narrator.act(f"Replaying update {step}")
    made = replay_step(folder.run, step).replay
    recorded = "nothing" if made.recorded_loss is None else repr(made.recorded_loss)
    other = f"not the same: {'; '.join(made.differences) or 'why is not known'}"
    same = "the same, bit for bit" if made.reproduced else other
    start = f"From the checkpoint after {made.from_step}"
    narrator.tell(f"{start}: {made.replayed_loss!r}; recorded was {recorded}: {same}.")


def _diagnosis(step: int, folder: DemoFolder, narrator: Narrator) -> Verdict:
    narrator.act("Why")
    verdict = diagnose(folder.run, step)
    write_verdict(folder.run, verdict)
    cause = verdict.causes[0]
    place = "".join(f" It is line {one.line} of {one.file}." for one in cause.suspects[:1] if one.line is not None)
    tried = counted(len(verdict.experiments), "experiment")
    narrator.tell(f"{tried} in {verdict.seconds:.0f} s, {cause.confidence:.0%} sure: {cause.title}{place}")
    for one in dict.fromkeys((*cause.evidence[:2], *cause.evidence[-1:])):
        narrator.tell(f"· {one}")
    return verdict


def _rollback(step: int, folder: DemoFolder, narrator: Narrator) -> None:
    narrator.act("Rolling back and skipping it")
    plan = plan_rollback(folder.run, step)
    apply_rollback(plan)
    skipped = counted(len(plan.skip), "sample")
    narrator.tell(f"Back to the checkpoint after {plan.checkpoint}; {skipped} will be skipped.")
    resumed = time.time()
    settings = replace(settings_of_run(folder.run), skip_list=str(plan.skip_list))
    loss = train(settings, folder)
    again = [spike.event.first_step for spike in read_spikes(folder.run).spikes if spike.time > resumed]
    passed = f"another event at update {again[0]}" if again else "no spike this time"
    narrator.tell(f"Resumed to update {settings.max_updates}: {passed}, loss {loss:.3f} on held-out text.")


def _translations(scenario: Scenario, folder: DemoFolder, narrator: Narrator) -> None:
    narrator.act("Held-out sentences, by beam search")
    translator = open_translator(folder.run)
    sources, references = scenario.valid[SOURCE], scenario.valid[TARGET]
    found = [one.text for one in translator.translate(sources, translator.search(beam=5))]
    for source, reference, text in list(zip(sources, references, found, strict=True))[:_NUM_SHOWN]:
        right = "right" if text == reference else f"should be: {reference}"
        narrator.tell(source)
        narrator.tell(f"→ {text} ({right})")
    num_right = sum(text == reference for text, reference in zip(found, references, strict=True))
    bleu = f"; BLEU {translation_quality(found, references).bleu:.1f}" if find_spec("sacrebleu") else ""
    narrator.tell(f"{num_right} of {len(references)} are right to the letter{bleu}.")


def _hidden(recipe: RecipeSettings, planted: Planted, folder: DemoFolder, narrator: Narrator) -> None:
    narrator.act("The same text in batches of 64")
    smaller = replace(recipe, model_dim=64, ffn_dim=128, save_every_updates=None, validate_every_epochs=None)
    changed = replace(smaller, block_size=64, max_sentences=64, max_tokens=None, max_updates=None, max_epochs=1)
    with out_of_sight(folder.log):
        train_run(changed, folder.large_batches)
    log = read_spikes(folder.large_batches)
    narrator.tell(
        f"Trained again in pieces of {changed.block_size} tokens, {changed.max_sentences} per batch, so one hardly moves the mean. "
        f"The mean loss had {counted(len(log.spikes), 'event')}; {counted(len(log.samples), 'piece')} stood out."
    )
    worst = read_worst(folder.large_batches, 1).entries
    if worst:
        history, decoded = worst[0].history, worst[0].decoded
        narrator.tell(
            f"The worst of {len(read_ledger(folder.large_batches)):,}, {history.mean:.0f} deviations above pieces of its length, is from line "
            f"{decoded.line}{': the same document' if decoded.line == planted.line else ''}."
        )
        narrator.show(decoded, calm_loss=None)


def _report(folder: DemoFolder, narrator: Narrator) -> None:
    narrator.act("The report")
    write_file(folder.report.absolute(), page.render_html(gather(folder.run)).encode())
    narrator.tell(f"{folder.report}, one file that opens anywhere.")


def play_healing(make_scenario: Callable[[], Scenario], folder: DemoFolder, narrator: Narrator) -> bool:
    """Play all acts. Returns whether the run was healed and equals an undisturbed one."""
    torch.set_num_threads(_NUM_THREADS)
    narrator.act("The corpus")
    scenario = make_scenario()
    _, prepared = prepare_data(scenario, folder)
    narrator.tell(f"{prepared.sidecars[0].num_samples:,} {scenario.documents}.")
    recipe = replace(scenario.recipe, max_updates=_NUM_UPDATES)
    narrator.act(f"Training, {_NUM_UPDATES} updates, with --heal 3")
    narrator.tell(f"At update {_STRUCK} a column of one weight is overwritten in memory. The run is not told.")
    with out_of_sight(folder.log):
        train_healing(recipe, folder.run, Heal(max_times=3), callbacks=[Strike(_STRUCK)])
    narrator.act("What the run tells of it")
    for sentence in (one for chapter in told(folder.run) for one in chapter):
        narrator.tell(f"· {sentence}")
    narrator.act("The same training, and nothing happens to it")
    with out_of_sight(folder.log):
        train_run(recipe, folder.untouched)
    same = _weights(folder.run) == _weights(folder.untouched)
    narrator.tell(
        f"Loss on held-out text: {final_loss(folder.untouched):.3f}; the one that was mended has {final_loss(folder.run):.3f}. "
        f"Their weights are {'the same, bit for bit' if same else 'not the same'}."
    )
    return same and len(read_history(folder.run).acts) > 0


def _weights(run: Path) -> dict[str, Any]:
    store = CheckpointStore(checkpoint_place(run))
    return {name: value.tolist() for name, value in store.load(store.folder.steps()[-1])["model"].items()}


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
            with torch.no_grad():
                next(one for one in module.parameters() if one.ndim == 2)[:, 0] = 30.0


def prepare_data(scenario: Scenario, folder: DemoFolder) -> tuple[Planted, Prepared]:
    """Train a tokenizer on the clean text, garble one document, write the text and prepare it."""
    disk.make_directories(folder.corpus)
    tokenizer = train_subwords("bpe", scenario.train.values(), scenario.vocab_size)
    tokenizer_file = folder.corpus / tokenizer.file_name
    write_file(tokenizer_file.absolute(), tokenizer.payload)
    planted = plant(scenario.train, tokenizer, scenario.recipe, scenario.window)
    language = list(scenario.train)[-1]
    text = list(scenario.train[language])
    text[planted.line - 1] = planted.after
    splits: dict[str, dict[str, Path]] = {}
    for split, texts in (("train", {**scenario.train, language: text}), ("valid", scenario.valid)):
        splits[split] = {name: folder.corpus / f"{split}.{name}" for name in texts}
        for name, path in splits[split].items():
            write_file(path.absolute(), "".join(f"{line}\n" for line in texts[name]).encode())
    planted = replace(planted, file=str(splits["train"][language]))
    planted.write(folder.planted)
    return planted, prepare(PrepareSettings(splits=splits, out=folder.data, tokenizer=str(tokenizer_file)))


def train(settings: RecipeSettings, folder: DemoFolder) -> float:
    """Train or resume to the end and return the held-out loss."""
    with out_of_sight(folder.log):
        train_run(settings, folder.run)
    return final_loss(folder.run)


def final_loss(run: Path) -> float:
    """Return the held-out loss at the end of a run."""
    checkpoints = CheckpointFolder(checkpoint_place(run))
    return float(checkpoints.document(checkpoints.steps()[-1])["metrics"]["loss"])


@contextlib.contextmanager
def out_of_sight(log: Path) -> Iterator[None]:
    """Let training show its progress bar on a terminal; elsewhere, redirect its output to a file."""
    if sys.stderr.isatty():
        yield
        return
    with (
        log.open("a", encoding="utf-8") as file,
        contextlib.redirect_stdout(file),
        contextlib.redirect_stderr(file),
    ):
        yield
