"""Logs that were printed for people: Megatron, NeMo, nanoGPT, torchtitan, fairseq, a Trainer's
dicts, or a loop of one's own. Pure.

    rows_of_text(lines)     a row for every line with a loss
    dialect_of(lines)       which program prints lines like these, in words

One reader serves them all: whatever stands before a number is its name. Names are cut to the words
that mean something, so that `INFO - root - step:  7  loss: 3.1` has a step and a loss. A step that
stands on a line of its own (OLMo, Composer, a progress bar) belongs to the losses below it.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from sonde.curves.names import is_evaluation
from sonde.curves.points import Row

ANY_TEXT: Final = "a text log"
_MAX_LINE: Final = 4000
_BATCH: Final = "batch"
"""What the number of a progress bar is called."""
_THOUSANDS: Final = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?(?![,.]?\d)"
_NUMBER: Final = (
    rf"{_THOUSANDS}|[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:nan|inf)(?![a-z])"
)
_END: Final = r"(?!\w|%|\.\d|,\d{3}|:\d)"
"""After a number stands no unit, and neither the rest of a time nor of a longer number. The percent
of a progress bar is no step.
"""
_WORD: Final = r"[A-Za-z_][\w./-]*"
_PAIR: Final = re.compile(
    rf"(?<![\w.])(?P<name>{_WORD}(?:[ ]{_WORD}){{0,3}})(?:[ ]?\([^()]*\))?['\"]?"
    rf"(?:\s*[:=]|\s+is)\s*['\"]?(?:(?:tensor|np\.float\d+)\()?(?:\[\s*(?:[a-z]+:)?)?\s*(?P<value>{_NUMBER}){_END}",
    re.IGNORECASE,
)
"""`name: 1.5`, `name = 1.5`, `name is 1.5`, `'name': '1.5'`, `name (ms): 1.5`; not `12:30:59`."""
_BARE: Final = re.compile(
    r"(?<![\w./])(?P<name>"
    r"(?:(?:train|training|val|valid|validation|eval|test|lm|total|mean|avg)[ _])?"
    r"(?:loss|nll|xent|cost|gnorm|norm|lr|learning rate"
    r"|step|steps|iter|iters|iteration|update|up\.|batch|epoch))"
    rf"\s*[:=#]?\s+\[?\s*(?P<value>{_NUMBER}){_END}",
    re.IGNORECASE,
)
"""`loss 3.2`, `iteration     100/ 5000`: without a sign in between, only known words are names."""
_OF_EPOCH: Final = re.compile(
    r"(?:epoch|train)(?:\(train\))?\s*:?\s*\[?\s*(?P<epoch>\d+)"
    r"(?:\s*\]?[^\[\n]{0,12}\[\s*|\s\s+)(?P<batch>\d+)\s*/\s*\d+",
    re.IGNORECASE,
)
"""`Train Epoch: 1 [640/60000 (1%)]`, `Epoch [1][50/1000]`, `Train: 0 [  50/1251 (  4%)]`,
`Epoch(train)  [1][ 50/1000]`, `epoch 001  50 / 1000`.
"""
_IN_BRACKETS: Final = re.compile(r"(?:^|\]\s)\[(?P<step>\d+)\](?=\s)")
"""`[216]  train-logloss:0.3` of XGBoost, `logging_writer.py:48] [2170] loss=0.3` of T5X."""
_CELLS: Final = re.compile(rf"^\|\s*(?P<name>{_WORD})\s*\|\s*(?P<value>{_NUMBER})\s*\|\s*$")
"""`|    loss    | 3.2 |`: Stable-Baselines3 prints a table at every step."""
_KIND_AFTER_STEP: Final = re.compile(
    rf"^\s*(?P<step>\d+) (?P<kind>train|val) (?P<value>{_NUMBER})$"
)
"""`217 train 3.2`: the log of build-nanogpt."""
_BAR: Final = re.compile(r"(?:(?<![\w/.])(?=\d+/\d+\s*\[)|^\s*(?=\d+/\d+\b))(?P<step>\d+)/")
"""A progress bar, `500/5000 [01:02<10:00`, or a line that begins with `500/5000`."""
_OF_EVALUATION: Final = re.compile(
    r"(?<![a-z])(?:test|val|valid|validation|eval|evaluation)(?![a-z])"
)
_OTHER_LOSSES: Final = frozenset({"xent", "cost"})
"""What OpenNMT and Marian call the loss."""
_PLAIN_LOSSES: Final = frozenset({"loss", "avg loss", "average loss", "mean loss", "avg_loss"})
_ANSI: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|\x08")
_LIKELY: Final = re.compile(
    r"loss|nll|xent|cost |trl:|step|iter|update|epoch|batch|\d/\s*\d|^\s*\d+ (?:train|val) ",
    re.IGNORECASE,
)
_LOSS_WORDS: Final = frozenset(
    ("train", "training", "val", "valid", "validation", "eval", "test", "lm", "mtp", "aux", "total")
) | frozenset(("mean", "avg", "average", "loss", "nll"))
_STEP_WORDS: Final = frozenset(
    (
        "step",
        "steps",
        "global_step",
        "global step",
        "iteration",
        "iterations",
        "iter",
        "iters",
        "it",
    )
) | frozenset(("update", "updates", "num_updates", "batch"))
_PHRASES: Final = ("learning rate", "grad norm", "gradient norm", "loss scale", "global step")
_NOT_OF_A_STEP: Final = frozenset(
    ("per", "of", "number", "time", "timing", "in", "skipped", "nan", "max", "total", "every")
) | frozenset(("size", "last", "next"))
"""`elapsed time per iteration` and `number of skipped iterations` do not say which step it is."""
_SHORT: Final = {
    "trl": "train loss",
    "tel": "val loss",
    "s": "step",
    "up": "update",
    "gnorm": "grad_norm",
}
"""llm.c's, modded-nanogpt's and Marian's abbreviations."""

_DIALECTS: Final = tuple(
    (words, re.compile(pattern))
    for words, pattern in (
        ("Megatron's log", r"iteration\s+\d+/\s*\d+ \|.*\bloss: "),
        ("NeMo's log", r"reduced_train_loss"),
        ("nanoGPT's log", r"iter \d+: loss [\d.naif]+, time "),
        ("llm.c's log", r"^s:\d+ (?:trl|tel|eval):|step +\d+/\d+ \| loss +[\d.]+ \("),
        ("modded-nanogpt's log", r"step:\d+/\d+ train_(?:loss|time):"),
        ("nanochat's log", r"step \d{5}(?:/\d{5})? .*\| loss: "),
        ("torchtitan's log", r"step: *\d+ +loss: .*grad_norm|step: *\d+ +loss: .*(?:tps|memory):"),
        ("fairseq's log", r"\btrain_inner\b|num_updates[=\"]"),
        ("what a Hugging Face Trainer prints", r"\{'loss': .*'epoch': "),
        ("what PyTorch's examples print", r"Train Epoch: \d+ \[\d+/\d+"),
        ("OLMo's log", r"train/CrossEntropyLoss="),
        ("Marian's log", r"Ep\. \d+ : Up\. \d+ .*: Cost "),
        ("OpenNMT's log", r"Step \d+/ *\d+; .*xent: "),
    )
)


def rows_of_text(lines: Iterable[str]) -> Iterator[Row]:
    """Yield a row for every line with a loss, with the step that stands on it or was seen last. A
    line without a step goes on with what the line before was about: training or an evaluation.
    """
    place: Row = {}
    trained: Row = {}  # the step of the last training loss; an evaluation has bars of its own
    is_evaluating = False
    bars = _BarsOfLosses()
    for line in lines:
        if len(line) > _MAX_LINE or not _LIKELY.search(line):
            continue
        text = _ANSI.sub("", line)
        row = numbers_in_line(text)
        yield from bars.completed(row)
        place = _place_after(place, row)
        if not _has_loss(row):
            continue
        has_step = bool(_STEP_WORDS.intersection(row))
        if not has_step and _is_all_of_evaluations(row):
            yield {**trained, **row}
            continue
        is_evaluating = _is_of_evaluation(text) or (is_evaluating and not has_step)
        found = {**place, **(_of_evaluation(row) if is_evaluating else row)}
        trained = trained if is_evaluating else place
        if has_step or not bars.stand_below(place):
            yield found
        else:
            bars.waiting = found
    yield from bars.completed({})


class _BarsOfLosses:
    """Progress bars that say which step a loss belongs to. A Trainer prints a loss and draws the
    bar anew: where no bar but an empty one stands above the first loss, every loss belongs to the
    bar below it.
    """

    def __init__(self) -> None:
        self.waiting: Row | None = None
        """A loss whose bar has not come yet."""
        self._are_below: bool | None = None

    def stand_below(self, place: Row) -> bool:
        """Return whether the bar of a loss comes after it, given the place above the loss."""
        if self._are_below is None:
            self._are_below = not any(place.get(name) for name in _STEP_WORDS)
        return self._are_below

    def completed(self, row: Row) -> Iterator[Row]:
        """Yield the loss that waits for its bar, now that the next line is known."""
        if self.waiting is not None:
            is_bar = row.keys() == {_BATCH}
            yield {**self.waiting, **(row if is_bar else {})}
            self.waiting = None


def _place_after(place: Row, row: Row) -> Row:
    """Return the step and epoch that hold after a line. A step keeps the epoch from before; a line
    with an epoch alone begins it.
    """
    here = {name: value for name, value in row.items() if name in _STEP_WORDS or name == "epoch"}
    if _STEP_WORDS.intersection(row):
        of_epoch = {"epoch": place["epoch"]} if "epoch" in place else {}
        return {**of_epoch, **here}
    return here if here and not _has_loss(row) else place


def _has_loss(row: Row) -> bool:
    return any(map(_is_a_loss, row))


def _is_a_loss(name: str) -> bool:
    return "loss" in name or "nll" in name or name in _OTHER_LOSSES


def _is_all_of_evaluations(row: Row) -> bool:
    """Return whether every loss of a row names its evaluation: `eval_loss`. The line below it is
    about training again.
    """
    return all(map(is_evaluation, filter(_is_a_loss, row)))


def numbers_in_line(text: str) -> Row:
    """Return the numbers of a printed line, by name. The first counts if a name occurs twice."""
    of_kind = _KIND_AFTER_STEP.match(text)
    if of_kind:
        return {"step": float(of_kind["step"]), f"{of_kind['kind']} loss": float(of_kind["value"])}
    row: Row = {}
    named = set[int]()  # where the numbers stand that have a name
    for pattern in (_CELLS, _PAIR, _BARE):
        for match in pattern.finditer(text):
            name = _known_words(match["name"])
            if match.start("value") in named:
                continue
            if name:
                named.add(match.start("value"))
            if not _is_plain_number(match["value"], name):
                continue
            value = float(match["value"].replace(",", ""))
            if name and (value.is_integer() or name not in _STEP_WORDS):
                row.setdefault(name, value)
    of_epoch = _OF_EPOCH.search(text)
    if of_epoch:
        row.setdefault("epoch", float(of_epoch["epoch"]))
    if not _STEP_WORDS.intersection(row):
        bar = _BAR.search(text) or _IN_BRACKETS.search(text)
        if of_epoch:
            row[_BATCH] = float(of_epoch["batch"])
        elif bar:
            row[_BATCH] = float(bar["step"])
    return row


def _is_plain_number(written: str, name: str) -> bool:
    """Return whether a comma in a number separates thousands: in a step, or where a decimal point
    follows. In `1,234` of another number, it may be the decimal point.
    """
    return "," not in written or "." in written or name in _STEP_WORDS


def _of_evaluation(row: Row) -> Row:
    return {f"val {name}" if name in _PLAIN_LOSSES else name: row[name] for name in row}


def _is_of_evaluation(text: str) -> bool:
    """Return whether a line is about an evaluation, from what stands before its loss:
    `Test: [0/242]  Loss 2.5`.
    """
    before = text.lower().partition("loss")[0]
    return bool(_OF_EVALUATION.search(before)) and "train" not in before


def _known_words(name: str) -> str:
    """Return the words of a name that mean something, or nothing."""
    words = name.lower().strip("./-_").split()
    spelled = " ".join(words[-2:])
    if spelled in _PHRASES:
        return spelled
    last = _SHORT.get(words[-1], words[-1])
    if any("loss" in word or word == "nll" for word in words) and "scale" not in words:
        kept = [word for word in words if "loss" in word or _is_kept_before_loss(word)]
        return " ".join(kept).replace("/", ".")
    if last in _STEP_WORDS and _NOT_OF_A_STEP.intersection(words):
        return ""
    return last.replace("/", ".")


def _is_kept_before_loss(word: str) -> bool:
    """Return whether a word says which loss it is: `lm loss`, `mtp_1 loss`."""
    return word in _LOSS_WORDS or word.partition("_")[0] in _LOSS_WORDS


def dialect_of(lines: Iterable[str]) -> str:
    """Return what prints lines like these, in words."""
    for line in islice(lines, 200_000):
        if len(line) < _MAX_LINE and _LIKELY.search(line):
            text = _ANSI.sub("", line)
            for words, pattern in _DIALECTS:
                if pattern.search(text):
                    return words
    return ANY_TEXT
