"""Loops that accumulate with `accelerator.accumulate`, which counts the batches it is given.

Accelerate decides by its own count which micro-batch completes an update. A micro-batch that is run
again would be counted again, and then the next updates would have other micro-batches. So the count
is put back after a look at a scene (put_back.py), and in a replay it is set to what the recorded
update needs.

An accelerator is recognised by its class. Only its public attributes are used, and Accelerate is
not imported.
"""

from collections.abc import Callable, Iterable
from typing import Any


def counts_batches(value: object) -> bool:
    """Return whether something is an accelerator."""
    kind = type(value)
    return kind.__name__ == "Accelerator" and kind.__module__.partition(".")[0] == "accelerate"


def undo_counting(accelerator: Any) -> Callable[[], None]:
    """Return a function that lets an accelerator go on from where it is now."""
    step = accelerator.step
    sync_gradients = accelerator.sync_gradients

    def undo() -> None:
        accelerator.step = step
        accelerator.sync_gradients = sync_gradients

    return undo


def expect_micro_batch(values: Iterable[Any], *, completes_update: bool) -> None:
    """Let the accelerators among some values take the next micro-batch for one that completes an
    update, or for another.
    """
    for accelerator in filter(counts_batches, values):
        last = accelerator.gradient_accumulation_steps - 1
        accelerator.step = last if completes_update else 0
