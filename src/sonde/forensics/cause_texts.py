"""What each cause is called in a sentence, and what to do about it."""

from collections.abc import Sequence
from typing import Final, TypedDict

from typing_extensions import Unpack

from sonde.forensics import verdict as names
from sonde.forensics.verdict import Cause, Suspect

_SKIP: Final = "Roll back and leave these samples out: `sonde rollback RUN --step {step} --apply`."
_TEXTS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    names.NOTHING: ("The step is like those around it.", ("Nothing: train on.",)),
    names.UNKNOWN: (
        "Something is wrong, and the experiments do not say what.",
        (
            "Look at the samples yourself: `sonde spikes RUN --step {step}`.",
            "Save checkpoints more often: it narrows the search.",
        ),
    ),
    names.GARBLED_TEXT: (
        "The batch holds garbled text.",
        (_SKIP, "Look for more of its kind in the file it came from before you train on."),
    ),
    names.DUPLICATED_TEXT: (
        "The batch holds the same text many times over.",
        (_SKIP, "Remove duplicates from the corpus and prepare it again."),
    ),
    names.REPETITION: (
        "The batch holds a text that repeats itself on and on.",
        (_SKIP, "Filter documents by how much of them repeats."),
    ),
    names.FOREIGN_LANGUAGE: (
        "The batch holds text in a language that the corpus is not in.",
        (_SKIP, "Filter the corpus by language."),
    ),
    names.MISMATCHED_PAIR: (
        "The batch holds targets that do not belong to their sources.",
        (_SKIP, "Check how the two sides of the corpus were aligned around these lines."),
    ),
    names.HARD_SAMPLE: (
        "A few samples did it; nothing is wrong with them that can be seen.",
        (_SKIP, "Read them: `sonde spikes RUN --step {step}`."),
    ),
    names.LEARNING_RATE: (
        "The learning rate jumped.",
        ("Go back to the checkpoint before the jump and resume with the rate as it was.",),
    ),
    names.BATCH_SIZE: (
        "The batch is of another size than those around it.",
        ("Check the batching: max_tokens, update_freq, the number of ranks, the last batch of an epoch.",),
    ),
    names.WEIGHTS: (
        "Weights moved farther than updates can move them.",
        (
            "Move the checkpoints after the last good one aside, and start the run again: it resumes from there.",
            "Test the memory and the disk of the machine, and whatever else writes to the weights.",
        ),
    ),
    names.OPTIMIZER_STATE: (
        "The optimiser's state holds values that no gradients can have made.",
        (
            "Move the checkpoints after the last good one aside, and start the run again: it resumes from there.",
            "Check what saves, loads, shards or converts the optimiser's state.",
        ),
    ),
    names.OVERFLOW: (
        "A number became too large for the precision.",
        (
            "Train in bfloat16 or float32, or keep the named module in float32.",
            "Watch its activations: they grow long before they overflow.",
        ),
    ),
    names.MACHINE: (
        "The same step made again gives another loss: the machine, or something that is not deterministic.",
        (
            "Resume from the checkpoint before; if it happens again, on the same rank, replace that machine.",
            "Test memory and processor of the named rank.",
        ),
    ),
    names.DATA_ORDER: (
        "A rank was fed other samples than its place in the data says.",
        (
            "Check the sampler, its seed and the rank it was given, on the named rank.",
            "Resume from the checkpoint before: the loader's position is good, what it was fed is not.",
        ),
    ),
    names.CHANGED_TOKENIZER: (
        "The data was made with another tokenizer than the run began with.",
        ("Put the tokenizer back and prepare the data again, or start a new run.",),
    ),
    names.CHANGED_DATA: (
        "The data is not what the run began with.",
        ("Put the data back that the run began with, or start a new run.",),
    ),
    names.CHANGED_CODE: (
        "The code or the packages changed between two starts of the run.",
        ("Replay the step with the code and the packages of the start before.",),
    ),
    names.CHANGED_SETTINGS: (
        "Settings changed between two starts of the run.",
        ("Resume from the checkpoint before with the settings as they were.",),
    ),
}


def make_cause(
    cause: str, confidence: float, evidence: Sequence[str], *, step: int, **where: Unpack["Pointers"]
) -> Cause:
    """A cause with its title and advice."""
    title, advice = _TEXTS[cause]
    return Cause(
        cause=cause,
        title=where.get("title", title),
        confidence=round(min(max(confidence, 0.01), 0.99), 2),
        evidence=tuple(evidence),
        advice=tuple(one.replace("{step}", str(step)) for one in advice),
        suspects=tuple(where.get("suspects", ())),
        module=where.get("module"),
        rank=where.get("rank"),
        setting=where.get("setting"),
        bad_checkpoint=where.get("bad_checkpoint"),
    )


class Pointers(TypedDict, total=False):
    """What a cause points at, and a title of its own; all of it may be missing."""

    title: str
    suspects: Sequence[Suspect]
    module: str | None
    rank: int | None
    setting: str | None
    bad_checkpoint: int | None
