"""`LossSpike`: saves a line for every step whose loss is too high, and later decodes the text of
its samples.

The base class of the documented interface. Data layouts differ in where a sample's tokens are, so a
layout consists of two methods: `parse_sample_info` parses the text that names a sample,
`fetch_tokens` finds its tokens.

    token_loss_spike.TokenLossSpike        ATorch's layout: shards of fixed rows
    DatasetLossSpike                       sonde's own datasets

    spike = DatasetLossSpike("spikes", {"train": open_pairs("data")}, min_iter=2000, min_loss=10)
    spike.save_loss(None, loss, step, losses_str=losses, sample_infos_str=[sample_info(*row) for row
        in batch.provenance])

Saving never raises disk errors into a training step. Decoding is never aborted by a bad line:
unusable entries are skipped, counted, and listed in the returned summary. Costs: see
benchmarks/spikes.py.
"""

import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from sonde.compat.atorch import loss_lines
from sonde.errors import RunError, SettingError
from sonde.records import disk
from sonde.records.append import RecordFile
from sonde.records.files import atomic_file, explained, open_regular
from sonde.records.host import rank_of_process
from sonde.spikes.decoding import Decoder, sample_text

DEFAULT_RESULT: Final = "loss_spike_decoded.txt"
"""The default output file of decoding, in the working directory."""
_BUFFER_BYTES: Final = 1 << 18
_SAMPLES_AT_ONCE: Final = 512
_MAX_KEPT: Final = 1000

_Chosen: TypeAlias = tuple[int, float, str, str]
"""A sample to decode: its line number, its loss, its info, and further text for the result."""

Fetched: TypeAlias = tuple[str, Sequence[int]]
"""The name of a sample's dataset, and all of its ids."""

_logger = logging.getLogger("sonde")


class BadEntry(NamedTuple):
    """A line, or a sample in a line, that could not be used."""

    path: Path
    line: int
    """The line number, from 1."""
    reason: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.reason}"


@dataclass(slots=True)
class DecodeSummary:
    """The result of a decoding."""

    result: Path
    """The file that was written."""
    num_lines: int = 0
    """The number of lines that could be read."""
    num_samples: int = 0
    """The number of samples written to the result."""
    num_bad: int = 0
    """The number of lines and samples left out because of errors."""
    bad: list[BadEntry] = field(default_factory=list)
    """The first thousand of them."""

    def note_bad(self, path: Path, line: int, reason: str) -> None:
        """Count an entry that had to be left out."""
        self.num_bad += 1
        if len(self.bad) < _MAX_KEPT:
            self.bad.append(BadEntry(path, line, reason))


class LossSpike(ABC):
    """Saves losses above a threshold, and decodes what was saved. Each subclass supports one data
    layout.
    """

    def __init__(
        self,
        loss_spike_save_dir: str | os.PathLike[str],
        min_iter: int = 0,
        min_loss: float = 0.0,
        loss_info_splitter: str = "\t",
        loss_sample_str_splitter: str = ",",
    ) -> None:
        if not loss_info_splitter or not loss_sample_str_splitter:
            raise SettingError("a splitter cannot be empty")
        if loss_info_splitter == loss_sample_str_splitter:
            raise SettingError(
                f"both splitters are {loss_info_splitter!r}: no line could be read back"
            )
        self.loss_spike_save_dir = Path(loss_spike_save_dir).absolute()
        self.min_iter = min_iter
        self.min_loss = min_loss
        self.loss_info_splitter = loss_info_splitter
        self.loss_sample_str_splitter = loss_sample_str_splitter
        self._files: dict[str, RecordFile | None] = {}
        with explained(
            f"loss_spike_save_dir {loss_spike_save_dir} cannot be used", hint="name a directory"
        ):
            disk.make_directories(self.loss_spike_save_dir)

    @abstractmethod
    def parse_sample_info(self, sample_info: str) -> Any:
        """Parse the text that names a sample into the argument of `fetch_tokens`. Raises ValueError
        if it is invalid.
        """

    @abstractmethod
    def fetch_tokens(self, place: Any) -> Fetched:
        """Return the dataset's name and the tokens of a sample. Raises LookupError, ValueError or
        OSError if there are none.
        """

    def check_can_decode(self) -> None:  # noqa: B027  most layouts always can
        """Raise SettingError if something that decoding needs is missing."""

    def fetch_sample(self, sample_info: str) -> Fetched:
        """Return the dataset's name and the tokens of the sample with this info."""
        return self.fetch_tokens(self.parse_sample_info(sample_info))

    def save_loss(
        self,
        file_name: str | None,
        cur_loss: Any,
        cur_iter: int,
        *args: Any,
        losses_str: Any = None,
        sample_infos_str: Any = None,
        **kargs: Any,  # noqa: ARG002  ATorch takes any
    ) -> None:
        """Append a line if both the iteration and the loss are above their minimum. NaN is above
        every minimum.

        `cur_loss` may be a tensor; it is read (which waits for its device) only if the iteration is
        above its minimum. `losses_str` and `sample_infos_str` may be lists or tensors; given by
        position, they come fourth and fifth. Further arguments are ignored, as in ATorch. Without
        `file_name`, the line goes to this rank's own file.
        """
        further = list(args)
        if losses_str is None and further:
            losses_str = further.pop(0)
        if sample_infos_str is None and further:
            sample_infos_str = further.pop(0)
        name = file_name or ""
        if name not in self._files:
            self._path_of(name)  # a bad name is reported before the first spike
            self._files[name] = None
        if not cur_iter > self.min_iter:
            return
        number = cur_loss if isinstance(cur_loss, (int, float)) else loss_lines.number_of(cur_loss)
        if number <= self.min_loss:
            return
        fields = (
            loss_lines.time_text(int(time.time())),
            str(cur_iter),
            # a float32 formatted by numpy, as in ATorch
            str(cur_loss if isinstance(cur_loss, np.generic) else number),
            loss_lines.joined(losses_str, self.loss_sample_str_splitter),
            loss_lines.joined(sample_infos_str, self.loss_sample_str_splitter),
        )
        file = self._files[name]
        if file is None:
            try:
                file = self._files[name] = RecordFile(self._path_of(name), gaps=False)
            except RunError as error:
                _logger.warning("a loss is not saved: %s", error)
                return
        # One system call. A failing disk is reported once and never raised.
        file.append_line(
            (self.loss_info_splitter.join(fields) + "\n").encode("utf-8", "backslashreplace"), False
        )

    def close(self) -> None:
        """Close the files; a later `save_loss` opens them again."""
        for file in self._files.values():
            if file is not None:
                file.close()
        self._files.clear()

    def decode_loss_spike(
        self,
        result_file_path: str | os.PathLike[str] | None = None,
        tokenizer: Decoder | None = None,
        min_iter: int | None = None,
        min_loss: float | None = None,
        *,
        details: bool = False,
    ) -> DecodeSummary:
        """Write the worst sample of every saved step as text, files in order of their names and
        without hidden ones.

        Steps below `min_iter` or `min_loss` (by default those given to the constructor) are left
        out. Without a tokenizer, ids are written. `details` adds the iteration, time, mean loss,
        sample info and file, and writes every sample, worst first. Returns what was written and
        what could not be; the latter is also logged.
        """
        self.check_can_decode()
        result = Path(result_file_path or DEFAULT_RESULT).absolute()
        least = (
            self.min_iter if min_iter is None else min_iter,
            self.min_loss if min_loss is None else min_loss,
        )
        summary = DecodeSummary(result)
        paths = sorted(self.loss_spike_save_dir.rglob("*"))
        with atomic_file(result) as file:
            for path in paths:
                if not path.is_file() or path.name.startswith(".") or path == result:
                    continue
                for text in self._decoded(path, least, tokenizer, details, summary):
                    file.write(text.encode("utf-8", "backslashreplace"))
        for bad in summary.bad[:20]:
            _logger.warning("left out of %s: %s", result, bad)
        if summary.num_bad:
            _logger.warning("%d entries were left out of %s", summary.num_bad, result)
        return summary

    def _path_of(self, file_name: str) -> Path:
        name = file_name or f"rank{rank_of_process()}.txt"
        parts = Path(name).parts
        if (
            "\0" in name
            or Path(name).is_absolute()
            or ".." in parts
            or not parts
            or name.endswith(os.sep)
        ):
            raise SettingError(
                f"file_name is {file_name!r}, which is no file inside loss_spike_save_dir",
                hint="leave the name out for this rank's own file",
            )
        return (self.loss_spike_save_dir / name).resolve()

    def parse_sample_content(
        self, losses_str: str, sample_infos_str: str, tokenizer: Decoder | None
    ) -> tuple[Any, Any, Any]:
        """Return the dataset, text and loss to write for one line; (None, None, None) leaves it
        out: its sample cannot be found, or there are more losses than samples or fewer.

        An extension point of ATorch's: a subclass that overrides it is called for every line.
        """
        splitter = self.loss_sample_str_splitter
        num_losses = losses_str.count(splitter) + 1
        num_samples = sample_infos_str.count(splitter) + 1
        if num_losses != num_samples:
            _logger.warning(
                "a line is left out: number of losses %d, number of samples %d",
                num_losses,
                num_samples,
            )
            return None, None, None
        loss, info = loss_lines.worst_sample(
            losses_str.encode(), sample_infos_str.encode(), splitter.encode()
        )
        try:
            dataset, tokens = self.fetch_sample(info)
        except (LookupError, ValueError, OSError):
            return None, None, None
        return (
            dataset,
            loss_lines.ids_text(tokens) if tokenizer is None else sample_text(tokens, tokenizer),
            loss,
        )

    def _has_own_contents(self) -> bool:
        return type(self).parse_sample_content is not LossSpike.parse_sample_content

    def _decoded(
        self,
        path: Path,
        least: tuple[float, float],
        tokenizer: Decoder | None,
        details: bool,
        summary: DecodeSummary,
    ) -> Iterator[str]:
        """Yield the result for the lines of a file at or above the minimum iteration and loss."""
        min_iter, min_loss = least
        splitter = self.loss_info_splitter.encode()
        sample_splitter = self.loss_sample_str_splitter.encode()
        has_own = self._has_own_contents()
        read_line = loss_lines.read_line
        worst_sample = loss_lines.worst_sample
        chosen: list[_Chosen] = []
        with open_regular(path, follow=True, buffering=_BUFFER_BYTES) as file:
            for number, line in enumerate(file, 1):
                try:
                    when, iteration, mean, losses, infos = read_line(line, splitter)
                    summary.num_lines += 1
                    # As in ATorch, values equal to a minimum are kept, and so is NaN.
                    if iteration < min_iter or mean < min_loss:
                        continue
                    if has_own:
                        contents = (
                            loss_lines.text_of(losses),
                            loss_lines.text_of(infos.rstrip(b"\r\n")),
                        )
                        dataset, text, loss = self.parse_sample_content(*contents, tokenizer)
                        if dataset is not None:
                            summary.num_samples += 1
                            yield f"=========={dataset}  {loss}================\n{text}\n\n\n\n"
                    elif details:
                        more = f"  {iteration}  {loss_lines.text_of(when)}  {mean}"
                        for loss, info in loss_lines.all_samples(losses, infos, sample_splitter):
                            chosen.append((number, loss, info, f"{more}  {info}  {path.name}"))
                    else:
                        chosen.append((number, *worst_sample(losses, infos, sample_splitter), ""))
                except Exception as error:  # noqa: BLE001
                    # a user's method may raise anything: skip this line only
                    torn = "" if line.endswith(b"\n") else ", torn off"
                    summary.note_bad(path, number, f"{_reason(error)}{torn}")
                if len(chosen) >= _SAMPLES_AT_ONCE:
                    yield self._texts(path, chosen, tokenizer, summary)
                    chosen.clear()
        yield self._texts(path, chosen, tokenizer, summary)

    def _texts(
        self, path: Path, chosen: list[_Chosen], tokenizer: Decoder | None, summary: DecodeSummary
    ) -> str:
        """Return the result for some samples."""
        heads: list[str] = []
        texts: list[Any] = []
        for number, loss, info, more in chosen:
            try:
                dataset, tokens = self.fetch_sample(info)
                texts.append(tokens if tokenizer is None else sample_text(tokens, tokenizer))
                heads.append(f"=========={dataset}  {loss}{more}================\n")
            except Exception as error:  # noqa: BLE001
                # a tokenizer may raise anything: skip this sample only
                summary.note_bad(path, number, f"{info}: {_reason(error)}")
        summary.num_samples += len(heads)
        texts = loss_lines.ids_texts(texts) if tokenizer is None else texts
        return "".join([f"{head}{text}\n\n\n\n" for head, text in zip(heads, texts, strict=True)])


def _reason(error: Exception) -> str:
    is_usual = isinstance(error, (LookupError, ValueError, OSError)) and str(error)
    return str(error) if is_usual else f"{type(error).__name__}: {error}"


def sample_info(dataset: str, sample: int) -> str:
    """Return the text that names a sample."""
    return f"{dataset}:{sample}"


class DatasetLossSpike(LossSpike):
    """Loss spikes for sonde's own datasets: `dataset[i].target` are the tokens of sample i, and its
    info is `train:20117`.
    """

    def __init__(
        self,
        loss_spike_save_dir: str | os.PathLike[str],
        datasets: Mapping[str, Any],
        *,
        min_iter: int = 0,
        min_loss: float = 0.0,
    ) -> None:
        for name in datasets:
            if "\t" in name or "," in name or "\n" in name:
                raise SettingError(
                    f"a dataset cannot be named {name!r} here: tabs and commas separate the fields"
                    " of a line"
                )
        super().__init__(loss_spike_save_dir, min_iter=min_iter, min_loss=min_loss)
        self.datasets = dict(datasets)

    def parse_sample_info(self, sample_info: str) -> tuple[str, int]:
        """Parse a sample info of the form `{dataset}:{sample}`."""
        dataset, colon, sample = sample_info.strip().rpartition(":")
        if not colon:
            raise ValueError("not of the form DATASET:SAMPLE")
        return dataset, int(sample)

    def fetch_tokens(self, place: tuple[str, int]) -> Fetched:
        """Return the dataset's name and the tokens of a sample."""
        name, sample = place
        if name not in self.datasets:
            raise LookupError(f"there is no dataset {name!r}: there are {', '.join(self.datasets)}")
        dataset = self.datasets[name]
        if not 0 <= sample < len(dataset):
            raise LookupError(f"there is no sample {sample}: {name} has {len(dataset)}")
        return name, dataset[sample].target.tolist()
