"""TensorBoard event files, written with TensorBoard's own writer: torch is not needed.

Every number of a LOG record becomes a point of the scalar of its name, all of a record in one event; INFO and METADATA
become text. Epochs are counted on into one step (steps.StepCounter). What waits is written out whenever the queue is
empty, so a run that is killed keeps its curves up to its last moments. Only rank 0 writes unless told otherwise.
"""

import os
from typing import Any, final

from typing_extensions import Unpack

from sonde.errors import MissingDependency
from sonde.log.backend import LOG, METADATA, Record
from sonde.log.queued import QueuedBackend, QueuedOptions, scalars
from sonde.log.steps import StepCounter
from sonde.records.values import encode


@final
class TensorBoardBackend(QueuedBackend):
    """Writes an event file into a directory."""

    def __init__(self, verbosity: int, directory: str | os.PathLike[str], **options: Unpack[QueuedOptions]) -> None:
        super().__init__(verbosity, **options)
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError:
            raise MissingDependency("tensorboard", needed_for="TensorBoardBackend", extra="tensorboard") from None
        self._directory = os.fspath(directory)
        self._make_writer = EventFileWriter
        self._make_event = event_pb2.Event
        self._make_summary: Any = summary_pb2.Summary
        self._make_metadata: Any = summary_pb2.SummaryMetadata
        self._writer: Any = None
        self._steps = StepCounter()

    def open(self) -> None:
        """Make the event file."""
        self._writer = self._make_writer(self._directory)

    def send(self, record: Record) -> None:
        """Write one event."""
        if record["type"] == LOG:
            values = [self._make_summary.Value(tag=tag, simple_value=number) for tag, number in scalars(record["data"])]
            step = self._steps.number(record["step"])
        else:
            values = [self._text(record)]
            step = self._steps.number(None)
        if not values:
            return
        summary = self._make_summary(value=values)
        self._writer.add_event(self._make_event(wall_time=record["timestamp"], step=step, summary=summary))

    def rest(self) -> None:
        """Bring the events to the disk."""
        self._writer.flush()

    def finish(self) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()

    def _text(self, record: Record) -> Any:
        is_metadata = record["type"] == METADATA
        content = record["metadata"] if is_metadata else record["data"]
        text = content if isinstance(content, str) else encode(content).decode().strip()
        value = self._make_summary.Value(
            tag=f"metadata/{record['metric']}" if is_metadata else "info",
            metadata=self._make_metadata(plugin_data=self._make_metadata.PluginData(plugin_name="text")),
        )
        value.tensor.dtype = 7  # DT_STRING
        value.tensor.string_val.append(text.encode("utf-8", errors="backslashreplace"))
        value.tensor.tensor_shape.dim.add().size = 1
        return value
