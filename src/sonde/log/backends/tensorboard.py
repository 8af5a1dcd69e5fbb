"""TensorBoard: event files, by its own writer. Needs the package `tensorboard`, and no torch."""

import os
from typing import Any

from sonde.errors import import_extra
from sonde.log.backend import LOG, METADATA, QueuedBackend, Record
from sonde.log.scalars import scalars
from sonde.log.steps import StepCounter
from sonde.records.values import as_text


class TensorBoardBackend(QueuedBackend):
    """Writes TensorBoard event files into a directory, with TensorBoard's own writer; torch is not
    needed.

    Every number of a LOG record becomes a point of the scalar with its name, all of a record in one
    event; INFO and METADATA become text. Epochs are continued into one step count
    (steps.StepCounter). Buffers are flushed whenever the queue is empty, so a killed run keeps its
    curves almost to the end. Only rank 0 writes by default.
    """

    def __init__(self, verbosity: int, directory: str | os.PathLike[str], **options: Any) -> None:
        super().__init__(verbosity, **options)
        import_extra("tensorboard", needed_for="TensorBoardBackend", extra="tensorboard")
        self._directory = os.fspath(directory)
        self._writer: Any = None
        self._steps = StepCounter()

    def open(self) -> None:
        """Create the event file."""
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer = EventFileWriter(self._directory)

    def send(self, record: Record) -> None:
        """Write one event."""
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.plugins.text.summary_v2 import text_pb

        if record["type"] == LOG:
            values = [
                {"tag": tag, "simple_value": number} for tag, number in scalars(record["data"])
            ]
            summary = summary_pb2.Summary(value=values)
            step = self._steps.number(record["step"])
        else:
            is_metadata = record["type"] == METADATA
            tag = f"metadata/{record['metric']}" if is_metadata else "info"
            text = as_text(record["metadata" if is_metadata else "data"])
            summary = text_pb(tag, text.encode(errors="backslashreplace").decode())
            step = self._steps.number(None)
        if not summary.value:
            return
        self._writer.add_event(
            event_pb2.Event(wall_time=record["timestamp"], step=step, summary=summary)
        )

    def rest(self) -> None:
        """Flush the events to disk."""
        self._writer.flush()

    def finish(self) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()
