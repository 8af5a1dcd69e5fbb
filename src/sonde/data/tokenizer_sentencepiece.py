"""A SentencePiece model as it is: `tokenizer.model` in, ids out. Needs the sentencepiece package."""

from collections.abc import Sequence
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from sonde.data.tokenizer import Encoded, SpecialIds, join_ids
from sonde.errors import DamagedFile, MissingDependency

FILE_NAME: Final = "tokenizer.model"


@final
class SentencePieceTokenizer:
    """A trained SentencePiece model; `payload` is its `.model` file."""

    kind: Final = "sentencepiece"
    file_name: Final = FILE_NAME

    def __init__(self, payload: bytes) -> None:
        try:
            import sentencepiece
        except ImportError:
            raise MissingDependency(
                "sentencepiece", needed_for="a SentencePiece model", extra="sentencepiece"
            ) from None
        self.payload = payload
        self._model: Any = sentencepiece.SentencePieceProcessor()
        try:
            self._model.LoadFromSerializedProto(payload)
        except RuntimeError as error:
            raise DamagedFile("this is not a SentencePiece model", cause=str(error)) from None
        eos = self._model.eos_id()
        if eos < 0:
            raise DamagedFile("the SentencePiece model has no end-of-sequence id", hint="train it with eos_id >= 0")
        pad, bos = self._model.pad_id(), self._model.bos_id()
        # SentencePiece leaves out `pad` by default; nothing here compares tokens with it, so that `eos` can stand in.
        self.specials = SpecialIds(
            bos=bos if bos >= 0 else eos, pad=pad if pad >= 0 else eos, eos=eos, unk=self._model.unk_id()
        )

    @property
    def vocab_size(self) -> int:
        """Number of ids."""
        return int(self._model.vocab_size())

    def encode_batch(self, lines: Sequence[str]) -> Encoded:
        """The ids of every line, each with its `eos`. One thread: workers are what runs in parallel here."""
        return join_ids(self._model.encode(list(lines), out_type=int, num_threads=1), self.specials.eos)

    def decode(self, tokens: Sequence[int] | NDArray[np.generic]) -> str:
        """The text."""
        left_out = (self.specials.bos, self.specials.pad, self.specials.eos)
        return str(self._model.decode([token for token in np.asarray(tokens).tolist() if token not in left_out]))
