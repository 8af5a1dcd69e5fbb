"""A run to report on, with everything in it: a spike with its samples, a restart, a verdict,
checkpoints, damage, and hostile text everywhere.

Made by hand, without training: what stands in it is known.
"""

import math
import random
from pathlib import Path
from typing import Any

from sonde.checkpoint.folder import About, CheckpointFolder, encode_document
from sonde.data.binarise import PrepareSettings, prepare
from sonde.data.datasets import open_pairs
from sonde.forensics.verdict import (
    Cause,
    Experiment,
    ModuleStatistics,
    ReplayResult,
    Suspect,
    Verdict,
    write_verdict,
)
from sonde.records.layout import RunLayout
from sonde.run import Run
from sonde.spikes.detectors import ThresholdRule
from sonde.spikes.recorder import SpikeRecorder, SpikeSettings

SPIKE_STEP = 300
BACK_TO = 260
NUM_STEPS = 420
HOSTILE = (
    "<script>document.title='owned'</script>",
    "</script><script>document.title='owned'</script>",
    '"><img src=x onerror="document.title=\'owned\'">',
    "[click](javascript:document.title='owned') | `code` | **bold** <b>x</b>",
    "<!-- --></style></textarea></title><svg onload=alert(1)>",
    "\u202eright to left\u202c \x1b[31m \x00 \x07",
)

_PARTS = ("norm", "attention", "ffn.inner", "ffn.outer")


def build_run(folder: Path) -> Path:
    """The run directory `folder`/run, and its data in `folder`/data."""
    run_directory = folder / 'run "><img onerror=x>'
    hostile = " ".join(HOSTILE)
    settings = {
        "lr": 0.003,
        "note": hostile,
        hostile: "value",
        "model": {"dim": 128, "layers": [1, 2]},
        "nan": math.nan,
    }
    draw = random.Random(1)
    with Run(
        run_directory, config=settings, seeds={"torch": 1}, data={"train": "sha256:0a1b"}
    ) as run:
        _write_log(run, draw)
        _write_steps(run, draw)
        _write_spikes(run, prepare_hostile_corpus(folder))
    layout = RunLayout(run_directory)
    for step in (200, BACK_TO, NUM_STEPS):
        about = About(metrics={"loss": 3.0}, distrusted=hostile if step == 200 else None)
        CheckpointFolder(layout.checkpoints).write(
            step, encode_document(step, {}, about), b"tensors"
        )
    layout.skip_list.write_text(f"# {hostile}\ntrain 3\n")
    write_verdict(run_directory, hostile_verdict(hostile))
    return run_directory


def prepare_hostile_corpus(folder: Path) -> Path:
    """Sentence pairs, the fourth of them hostile."""
    for name, word in (("t.en", "source"), ("t.de", "target")):
        lines = [f"{word} of line {line}" for line in range(1, 7)]
        lines[3] = " ".join(HOSTILE).replace("\x00", "")
        (folder / name).write_text("".join(f"{line}\n" for line in lines))
    splits = {"train": {"en": folder / "t.en", "de": folder / "t.de"}}
    prepare(PrepareSettings(splits=splits, out=folder / "data", tokenizer="word", vocab_size=None))
    return folder / "data"


def hostile_verdict(hostile: str) -> Verdict:
    """A verdict about the spike: two causes, two experiments, forty tensors."""
    garbled = Cause(
        cause="garbled_text",
        title="Sample 3 of train is garbled text " + HOSTILE[0],
        confidence=0.93,
        evidence=(
            "Its loss is 17.2 where the others have 3.1.",
            "Without it the step has 3.08.",
            hostile,
        ),
        advice=("Skip train 3: `sonde rollback RUN --step 300`.", hostile),
        suspects=(
            Suspect(
                dataset="train", sample=3, loss=17.2, file=f"t.de {hostile}", line=4, text=hostile
            ),
        ),
    )
    rate = Cause(
        cause="learning_rate",
        title="The learning rate rose at this step",
        confidence=0.04,
        evidence=("It is 1.02 times what it was.",),
        setting="lr " + hostile,
        module="decoder.0",
        rank=1,
    )
    norms = [10.0 + place for place in range(17)]
    norms += [10.0 + 40 * place for place in range(17, 24)]
    norms[20] = math.inf
    modules = tuple(
        ModuleStatistics(
            module=f"decoder.layers.{place // 4}.{_PARTS[place % 4]}",
            kind="activation",
            norm=norm,
            max_abs=3.5,
            num_nonfinite=7 if math.isinf(norm) else 0,
            calm_norm=None if place == 3 else 11.0 + place,
        )
        for place, norm in enumerate(norms)
    )
    return Verdict(
        run_id="run",
        step=SPIKE_STEP,
        causes=(garbled, rate),
        experiments=(
            Experiment(
                question="data or state?",
                done="the same batch at the weights after update 200",
                found="the loss is as high there: " + hostile,
                numbers={"loss there": 8.9, "loss here": 9.25},
            ),
            Experiment(
                question="which samples?",
                done="left out one at a time",
                found="only sample 3 matters",
            ),
        ),
        modules=(
            *modules,
            ModuleStatistics(
                module=hostile, kind="gradient", norm=1.0, max_abs=1.0, num_nonfinite=0
            ),
        ),
        replay=ReplayResult(
            from_step=BACK_TO,
            recorded_loss=9.25,
            replayed_loss=9.25,
            reproduced=True,
            differences=(hostile,),
        ),
        time=1794790760.0,
        seconds=12.5,
    )


def _write_log(run: Run, draw: random.Random) -> None:
    for step in range(10, NUM_STEPS + 1, 10):
        data: dict[str, Any] = {
            "train.loss": 2 + 5 / math.sqrt(step),
            "train.ips": 3000 + draw.gauss(0, 100),
        }
        data |= {
            "train.data_time": 0.002,
            "train.fp_time": 0.2,
            "train.bp_time": 0.3,
            "train.grad_time": 0.05,
        }
        run.logger.log((1, step), data)
        if step % 50 == 0:
            run.logger.log((1, step), {"val.loss": 2.2 + 4 / math.sqrt(step)})


def _write_steps(run: Run, draw: random.Random) -> None:
    steps = run.records("steps")
    for step in (*range(1, SPIKE_STEP + 11), *range(BACK_TO + 1, NUM_STEPS + 1)):
        loss = 2 + 5 / math.sqrt(step) + draw.gauss(0, 0.05)
        grad_norm = 0.4 + abs(draw.gauss(0, 0.05))
        if step == SPIKE_STEP and len(steps.path.read_bytes().splitlines()) < SPIKE_STEP:
            loss = 9.25
            grad_norm += 5
        steps.append(
            {
                "type": "STEP",
                "step": step,
                "epoch": 1,
                "loss": math.nan if step == 350 else loss,
                "weight": 1024.0,
                "grad_norm": grad_norm,
                "lr": 0.003 * min(step / 100, 1),
                **({"skipped": "not finite"} if step == 350 else {}),
            }
        )
    with steps.path.open("ab") as file:
        file.write(b"{broken\n")


def _write_spikes(run: Run, data: Path) -> None:
    settings = SpikeSettings(rule=ThresholdRule(above=5.0), grad_norm_rule=None)
    with SpikeRecorder(
        run.records("spikes"), settings=settings, datasets={"train": open_pairs(data)}
    ) as recorder:
        samples = open_pairs(data)
        lengths = [len(samples[row].target) for row in range(5)]
        tokens = [[3.0] * length for length in lengths]
        tokens[3] = [3.0 + 11.0 * place / lengths[3] for place in range(lengths[3])]
        tokens[3][2] = math.nan
        for step, loss in ((SPIKE_STEP - 1, 2.3), (SPIKE_STEP, 9.25), (SPIKE_STEP + 1, 2.3)):
            recorder.observe(
                step,
                loss,
                sample_ids=[("train", row) for row in range(5)],
                sample_losses=[3.1, 3.0, 2.9, 17.2, 3.3] if loss > 5 else [2.3] * 5,
                token_losses=tokens,
                token_counts=lengths,
            )
