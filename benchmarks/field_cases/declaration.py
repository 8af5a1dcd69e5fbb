"""What a case of the field stick is: a training, where its failure acts, and which answers count.

Declared before anything is measured, beside the training itself. Imports nothing heavy.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

Host: TypeAlias = Literal["own", "huggingface", "lightning"]
"""Who runs the training loop."""

CONTROL = "control"
"""The class of the cases that look like a fault and are none."""

CLASSES = (
    "resume",
    "numerics",
    "targets",
    "accumulation",
    "masks",
    "precision",
    "data",
    "order",
    "rate",
    "connection",
    "rows",
    "mixture",
)
"""The classes of failures: those of the threads, and two failures at once."""


class Job(NamedTuple):
    """One process of a case: where it records, and which of the case's processes it is."""

    run: Path
    part: int

    @property
    def checkpoints(self) -> Path:
        """The folder of the script's own checkpoints."""
        return self.run.with_name(f"{self.run.name}-checkpoints")


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A training with a planted failure, or a control."""

    name: str
    class_: str
    host: Host
    train: Callable[[Job], None]
    """The script: trains as a user's does, and records with sonde."""
    onset: int = 1
    """The update at which the failure acts; 1 is wrong from the start."""
    accepted: frozenset[str] = frozenset()
    """The answers that are right. answers.py says which of sonde's names they stand for."""
    also_true: frozenset[str] = frozenset()
    """Answers that are true and do not name the failure: neither right nor misleading."""
    visible: bool = True
    """Whether anybody could see the failure. Where nobody can, "cannot tell" is right."""
    num_parts: int = 1
    """How many processes make the run: 2 where it is killed and resumed."""

    @property
    def is_control(self) -> bool:
        """Whether nothing is wrong with this training."""
        return self.class_ == CONTROL


def failure(
    train: Callable[[Job], None],
    class_: str,
    accepted: str,
    *,
    host: Host = "own",
    onset: int = 1,
    also_true: str = "",
    visible: bool = True,
) -> Case:
    """Declare a planted failure; `accepted` and `also_true` are names with spaces between."""
    assert class_ in CLASSES, class_
    return Case(
        name=train.__name__,
        class_=class_,
        host=host,
        train=train,
        onset=onset,
        accepted=frozenset(accepted.split()),
        also_true=frozenset(also_true.split()),
        visible=visible,
        num_parts=_num_parts(train),
    )


def control(train: Callable[[Job], None], *, host: Host = "own", also_true: str = "") -> Case:
    """Declare a training with which nothing is wrong."""
    return Case(
        name=train.__name__,
        class_=CONTROL,
        host=host,
        train=train,
        also_true=frozenset(also_true.split()),
        num_parts=_num_parts(train),
    )


def _num_parts(train: Callable[[Job], None]) -> int:
    """A training whose name begins with `resume` is killed once and started again."""
    return 2 if train.__name__.startswith("resume") else 1
