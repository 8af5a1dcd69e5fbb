"""Which numbers of a log are the training loss, the learning rate and the gradient norm. Pure."""

import re
from collections.abc import Iterable
from typing import Final

_PARTS: Final = re.compile(r"[^a-z0-9]+")
_LOSSES: Final = frozenset(
    ("loss", "losses", "nll", "xent", "cost", "crossentropyloss", "crossentropy")
)
_WORDS: Final = frozenset({"gloss", "floss"})
"""Words that end like `trainloss` and are none."""
_NOT_A_LOSS: Final = frozenset(
    (
        "scale",
        "scaler",
        "scaling",
        "weight",
        "weights",
        "coef",
        "coefficient",
        "lr",
        "time",
        "count",
    )
) | frozenset(("num", "mask", "grad", "gradient", "best", "acc", "accuracy", "ratio", "tokens"))
_EVALUATION: Final = frozenset(("val", "valid", "validation", "eval", "evaluation", "test", "dev"))
_SUMMARY: Final = frozenset(
    ("epoch", "avg", "average", "mean", "smooth", "smoothed", "running", "ema", "min", "max", "std")
)
_AUXILIARY: Final = frozenset(
    (
        "kl",
        "aux",
        "auxiliary",
        "entropy",
        "router",
        "balancing",
        "z",
        "vf",
        "value",
        "critic",
        "mtp",
    )
)
"""Words of losses that are added to another one."""
_USUAL: Final = tuple(
    frozenset(words.split())
    for words in (
        "loss",
        "train loss",
        "training loss",
        "lm loss",
        "reduced train loss",
        "train loss step",
        "loss train",
        "total loss",
        "train total loss",
        "train crossentropyloss",
        "train cross entropy loss",
        "ce loss",
        "nll loss",
    )
)
_RATES: Final = frozenset({"lr", "learning rate", "train lr", "train learning rate", "optim lr"})
_NORMS: Final = frozenset(
    {"grad norm", "gradient norm", "train grad norm", "gnorm", "norm", "total norm"}
)


def parts_of(name: str) -> list[str]:
    """Return the words of a name: `train/lossStep_1` has train, loss, step and 1."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name) if not name.isupper() else name
    return [part for part in _PARTS.split(spaced.lower()) if part]


def is_loss(name: str) -> bool:
    """Return whether a metric is a loss, of training or of an evaluation."""
    parts = parts_of(name)
    if _NOT_A_LOSS.intersection(parts):
        return False
    is_joined = any(part.endswith("loss") and part not in _WORDS for part in parts)
    return is_joined or bool(_LOSSES.intersection(parts))


def is_evaluation(name: str) -> bool:
    """Return whether a metric is of an evaluation."""
    return bool(_EVALUATION.intersection(parts_of(name)))


def loss_names(names: Iterable[str]) -> list[str]:
    """Return the names that are losses: of training before evaluations, whole losses before parts
    of them, the usual ones first.
    """
    return sorted((name for name in names if is_loss(name)), key=_place)


def _place(name: str) -> tuple[bool, bool, bool, int, int, str]:
    parts = parts_of(name)
    words = frozenset(parts)
    usual = _place_among_usual(words)
    if usual == len(_USUAL):
        # `learner.stats.total_loss` is a whole loss, `learner.stats.policy_loss` a part of one.
        usual += _place_among_usual(frozenset(parts_of(name.rpartition(".")[2])))
    is_summary = bool(_SUMMARY & words)
    is_auxiliary = bool(_AUXILIARY & words)
    return is_evaluation(name), is_summary, is_auxiliary, usual, len(parts), name


def _place_among_usual(words: frozenset[str]) -> int:
    return _USUAL.index(words) if words in _USUAL else len(_USUAL)


def rate_name(names: Iterable[str]) -> str | None:
    """Return the name of the learning rate, or None."""
    return _first(names, _RATES, "lr")


def norm_name(names: Iterable[str]) -> str | None:
    """Return the name of the gradient norm, or None."""
    return _first(names, _NORMS, "grad norm")


def _first(names: Iterable[str], usual: frozenset[str], within: str) -> str | None:
    spelled = {name: " ".join(parts_of(name)) for name in sorted(names)}
    for name, words in spelled.items():
        if words in usual:
            return name
    return next((name for name, words in spelled.items() if f" {within} " in f" {words} "), None)
