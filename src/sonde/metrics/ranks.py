"""The same aggregator over all ranks, with one all-reduce for all of its meters.

The rule: the result is that of a single process that had logged the values of rank 0, then those of rank 1, and so on. Sums,
weights, counts, buckets and extremes are equal to the last bit, because everything that is added crosses the network as integers
(see exact.py). Clocks differ by nature: a rate is the sum of the counts over the longest time.

How: the ranks first compare a digest of what they hold, and only when it differs send each other their lists of keys as JSON; then each
lays its meters out in one int64 tensor, and one SUM adds them. What is not added (a maximum, the latest value) travels in a place per
rank, which the others leave zero. A key that a rank does not have is zero there. Costs: for 20 averages 1.2 ms of CPU here besides the
network; 1.1 KB for each average or sum, 80 KB for each quantile.
"""

import hashlib
import json
import struct
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from sonde.errors import SettingError
from sonde.metrics.aggregator import KINDS, Aggregator
from sonde.metrics.derived import Derived
from sonde.metrics.meter import Meter
from sonde.metrics.parts import Parts

_WITHOUT_LATEST, _WITH_LATEST = 1, 2

Row = dict[str, Any]
"""What the ranks must know of a meter to leave room for it: key, kind, priority, round, settings, widths."""


def over_ranks(aggregator: Aggregator, group: dist.ProcessGroup | None = None) -> Aggregator:
    """A new aggregator with the values of every rank of `group`; every rank must call it. The given one is not changed.

    Without `torch.distributed` running it is a copy. Derived values are computed anew from the reduced meters. A meter of your own
    kind that this rank has never made is left out of this rank's result.
    """
    meters = {key: meter for key, meter in aggregator.meters.items() if not isinstance(meter, Derived)}
    parts = {key: meter.parts() for key, meter in meters.items()}
    rows = [_row(key, meter, parts[key]) for key, meter in meters.items()]
    if not (dist.is_available() and dist.is_initialized()):
        return _rebuild(rows, _lay_out(rows, parts, rank=0, world=1), 1, aggregator)
    rank, world, device = dist.get_rank(group), dist.get_world_size(group), _device_of(group)
    rows = _agree(_exchange(rows, world, device, group))
    mail = torch.tensor(_lay_out(rows, parts, rank, world), dtype=torch.int64).to(device)
    dist.all_reduce(mail, op=dist.ReduceOp.SUM, group=group)
    return _rebuild(rows, mail.tolist(), world, aggregator)


def _row(key: str, meter: Meter, parts: Parts) -> Row:
    return {
        "key": key,
        "kind": meter.kind,
        "priority": meter.priority,
        "round": meter.round,
        "added": len(parts.added),
        "highest": len(parts.highest),
        "empty": meter.fresh().state_dict(),
    }


def _device_of(group: dist.ProcessGroup | None) -> torch.device:
    """Where the group's backend wants its tensors."""
    return (
        torch.device("cuda", torch.cuda.current_device()) if "nccl" in dist.get_backend(group) else torch.device("cpu")
    )


def _exchange(rows: list[Row], world: int, device: torch.device, group: dist.ProcessGroup | None) -> list[list[Row]]:
    """The rows of every rank, in rank order."""
    text = json.dumps(rows).encode()
    digest = int.from_bytes(hashlib.sha256(text).digest()[:7], "little")
    heads = [torch.zeros(2, dtype=torch.int64, device=device) for _ in range(world)]
    dist.all_gather(heads, torch.tensor([digest, len(text)], dtype=torch.int64, device=device), group=group)
    heads_of_ranks = [head.tolist() for head in heads]
    if all(head == heads_of_ranks[0] for head in heads_of_ranks):
        return [rows]
    longest = max(length for _, length in heads_of_ranks)
    texts = [torch.zeros(longest, dtype=torch.uint8, device=device) for _ in range(world)]
    padded = torch.tensor([*text, *bytes(longest - len(text))], dtype=torch.uint8, device=device)
    dist.all_gather(texts, padded, group=group)
    return [
        json.loads(bytes(other[:length].tolist())) for other, (_, length) in zip(texts, heads_of_ranks, strict=True)
    ]


def _agree(rows_of_ranks: Sequence[list[Row]]) -> list[Row]:
    """One list for all: the rows of rank 0, then what others have besides. Every rank comes to the same, errors included."""
    agreed: dict[str, Row] = {}
    for rows in rows_of_ranks:
        for row in rows:
            known = agreed.setdefault(row["key"], row)
            if any(known[field] != row[field] for field in ("kind", "empty", "added", "highest")):
                raise SettingError(
                    f"{row['key']!r} is of kind {known['kind']} on one rank, and of kind {row['kind']} or set otherwise on another",
                    hint="log a key with the same function on every rank",
                )
    return list(agreed.values())


def _lay_out(rows: list[Row], parts_of: dict[str, Parts], rank: int, world: int) -> list[int]:
    """This rank's numbers: per meter what is added, then per rank [presence, latest, *highest], floats as their bits."""
    mail: list[int] = []
    for row in rows:
        places = [[0] * (2 + row["highest"]) for _ in range(world)]
        parts = parts_of.get(row["key"])
        if parts is not None:
            presence = _WITHOUT_LATEST if parts.latest is None else _WITH_LATEST
            places[rank] = [presence, _bits(parts.latest or 0.0), *map(_bits, parts.highest)]
        mail += [0] * row["added"] if parts is None else parts.added
        for place in places:
            mail += place
    return mail


def _rebuild(rows: list[Row], mail: list[int], world: int, local: Aggregator) -> Aggregator:
    reduced = Aggregator(local.name)
    at = 0

    def take(count: int) -> list[int]:
        nonlocal at
        at += count
        return mail[at - count : at]

    for row in rows:
        added = take(row["added"])
        places = [take(2 + row["highest"]) for _ in range(world)]
        meter = _empty_meter(row, local.get_meter(row["key"]))
        if meter is None:
            continue
        present = [place for place in places if place[0]]
        latest = [_float(place[1]) for place in present if place[0] == _WITH_LATEST]
        meter.add_parts(
            Parts(
                added=added,
                highest=[max(map(_float, column)) for column in zip(*(place[2:] for place in present), strict=True)],
                latest=latest[-1] if latest else None,
            )
        )
        reduced.add_meter(row["key"], meter)
    for key, meter in local.in_order():
        if isinstance(meter, Derived):
            reduced.add_meter(key, meter.of(reduced.meters))
    return reduced


def _empty_meter(row: Row, local: Meter | None) -> Meter | None:
    if local is not None:
        meter = local.fresh()
    elif row["kind"] in KINDS:
        meter = KINDS[row["kind"]]()
        meter.load_state_dict(row["empty"])
    else:
        return None
    meter.priority, meter.round = row["priority"], row["round"]
    return meter


def _bits(value: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def _float(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])
