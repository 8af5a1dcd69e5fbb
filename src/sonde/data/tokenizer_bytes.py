"""The tokenizer without a vocabulary: id = byte + 4, the specials first. Loses nothing; 260 ids."""

from collections.abc import Sequence
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from sonde.data.tokenizer import Encoded, SpecialIds

FILE_NAME: Final = "tokenizer.bytes"
PAYLOAD: Final = b'{"format":"sonde-bytes","version":1,"first_byte_id":4}\n'
_FIRST_BYTE: Final = 4


@final
class BytesTokenizer:
    """UTF-8 bytes as ids."""

    kind: Final = "bytes"
    file_name: Final = FILE_NAME
    payload: Final = PAYLOAD
    vocab_size: Final = 256 + _FIRST_BYTE
    specials: Final = SpecialIds(unk=None)

    def encode_batch(self, lines: Sequence[str]) -> Encoded:
        """The bytes of every line, each with its `eos`."""
        rows = [line.encode() for line in lines]
        sizes = np.fromiter((len(row) + 1 for row in rows), np.int32, len(rows))
        # The joint holds the place of `eos`; whatever byte it is, it is written over.
        tokens = np.frombuffer(b"\n".join(rows) + b"\n" if rows else b"", np.uint8).astype(np.int32) + _FIRST_BYTE
        tokens[np.cumsum(sizes, dtype=np.int64) - 1] = self.specials.eos
        return Encoded(tokens, sizes)

    def decode(self, tokens: Sequence[int] | NDArray[np.generic]) -> str:
        """The text; bytes that are no UTF-8 become U+FFFD."""
        ids = np.asarray(tokens).astype(np.int64)
        return (ids[ids >= _FIRST_BYTE] - _FIRST_BYTE).astype(np.uint8).tobytes().decode(errors="replace")
