"""Formatting of numbers, times and untrusted text. Times are in UTC, since a report may be read
anywhere.
"""

import math
import re
import shlex
import time
from collections.abc import Mapping
from typing import Any, Final

from rich import filesize

from sonde.data.skip_list import sample_name
from sonde.spikes.sample_watch import LOSS

INVISIBLE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ufffe\uffff\ud800-\udfff]"
)
"""Characters that act on a terminal, reorder text or cannot be seen. Tab, newline and joiners are
not among them.
"""


def visible(text: str) -> str:
    """Return text that is safe to show: characters that cannot be seen become escapes such as
    \\x1b.

    Lone surrogates, which no file can hold, become escapes too.
    """
    if text.isascii() and text.isprintable():
        return text
    return INVISIBLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def shortened(text: str, max_characters: int) -> str:
    """Return the beginning of a text, and how much was cut."""
    if len(text) <= max_characters:
        return text
    return f"{text[:max_characters]}… ({len(text) - max_characters:,} more characters)"


def number(value: object) -> str:
    """Format a number with five significant digits, or thousands separators if whole; None gives
    "".
    """
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if isinstance(value, int) or (value.is_integer() and 1000 <= abs(value) < 1e15):
        return f"{int(value):,}"
    return f"{value:.5g}"


def counted(num: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is 1."""
    return f"{num:,} {noun}" if num == 1 else f"{num:,} {noun}s"


def percent(share: float) -> str:
    """Format a fraction as a percentage."""
    if not math.isfinite(share):
        return number(share)
    return f"{share:.0%}" if share >= 0.0995 or share == 0 else f"{share:.1%}"


def moment(seconds: float) -> str:
    """Format a time (seconds since the epoch) to the second, in UTC."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
    except (ValueError, OverflowError, OSError):  # a damaged file may contain anything
        return str(seconds)


def duration(seconds: float) -> str:
    """Format a duration: `3.2 ms`, `3.2 s`, `4 min 10 s`, `2 h 5 min`."""
    if not math.isfinite(seconds) or seconds < 60:
        return f"{1000 * seconds:.3g} ms" if 0 < seconds < 1 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes} min"


def age(seconds: float) -> str:
    """Format how long ago something was, in its largest unit: `12 s`, `4 min`, `2 h`, `9 days`."""
    for unit, name in ((86_400, "day"), (3600, "h"), (60, "min")):
        if seconds >= unit:
            num = int(seconds // unit)
            return counted(num, name) if name == "day" else f"{num} {name}"
    return f"{max(seconds, 0.0):.0f} s"


def middle(text: str, max_characters: int) -> str:
    """Return a text with its middle cut out if it is too long: runs are named alike at one end."""
    if len(text) <= max_characters:
        return text
    front = max_characters // 2
    back = max_characters - front - 1
    return f"{text[:front]}…{text[len(text) - back :]}"


def size(num_bytes: int) -> str:
    """Format a size in bytes: `17 bytes`, `1.4 MB`."""
    return filesize.decimal(num_bytes)


def origin(named: Any, sample: Any) -> list[str]:
    """Return where a sample is from: its dataset and number in `named`; its document, file and line
    in `sample`.
    """
    document = "" if sample.document is None else f"document {sample.document}"
    place = sample.file if sample.line is None else f"{sample.file}:{sample.line}"
    return [fact for fact in (sample_name(named.dataset, named.sample), document, place) if fact]


def deviations(sample: Any) -> str:
    """Say how far a sample that stood out is above others of its length."""
    if sample.measure == LOSS:
        return f"{sample.z:.1f} deviations above"
    return f"{sample.measure} {sample.z:.1f} deviations above"


def about_run(manifest: Any) -> dict[str, str]:
    """Return when, where and how a run was run, by name, from its manifest."""
    ended = f", ended after {duration(manifest.ended - manifest.created)}" if manifest.ended else ""
    starts = f", started {manifest.num_starts} times" if manifest.num_starts > 1 else ""
    ranks = f"{manifest.world_size} {'rank' if manifest.world_size == 1 else 'ranks'}"
    return {
        "id": manifest.run_id,
        "began": moment(manifest.created) + ended + starts,
        "host": ", ".join(part for part in (str(manifest.host.get("name", "")), ranks) if part),
        "command": shlex.join(map(str, manifest.command)),
    }


def setting_rows(settings: Any) -> list[tuple[str, str]]:
    """Return settings as names and values; nested settings get dotted names."""
    if settings is None:
        return []
    if not isinstance(settings, Mapping):
        return [("settings", _value(settings))]
    rows: list[tuple[str, str]] = []
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            rows += [(f"{name}.{inner}", text) for inner, text in setting_rows(value)]
        else:
            rows.append((str(name), _value(value)))
    return rows


def _value(value: object) -> str:
    from sonde.records.values import encode  # brings numpy: 0.1 s that `sonde --help` need not take

    return value if isinstance(value, str) else encode(value).decode().strip()
