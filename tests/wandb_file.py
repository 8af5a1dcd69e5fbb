"""What wandb left on the disk when it was offline."""

import struct
from collections.abc import Iterator


def wandb_records(content: bytes) -> Iterator[bytes]:
    """The records of a .wandb file: a head of seven bytes, then blocks of 32 KiB in the format of
    LevelDB's log.
    """
    assert content[:4] == b":W&B"
    position = 7
    parts = b""
    while position + 7 <= len(content):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        _, length, kind = struct.unpack("<IHB", content[position : position + 7])
        parts += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or last part
            yield parts
            parts = b""
