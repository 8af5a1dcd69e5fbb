"""An aggregator over all ranks: each rank sends the state of its meters to the others and merges
what it receives.

The result equals that of a single process that logged the values of rank 0, then those of rank 1,
and so on; sums are equal up to rounding. Rates are the total count over the longest time of any
rank.
"""

import copy
from typing import Any

import torch.distributed as dist

from sonde.errors import SettingError
from sonde.metrics.aggregator import KINDS, Aggregator, Derived
from sonde.metrics.meter import Meter
from sonde.ranks import gather


def over_ranks(aggregator: Aggregator, group: dist.ProcessGroup | None = None) -> Aggregator:
    """Return a new aggregator with the values of every rank in `group`, all of which must call
    this.

    Without an initialized `torch.distributed` this is a copy. Derived values are recomputed from
    the merged meters. A custom meter that this rank never created is left out of its result.

    ```python
    from sonde import metrics

    with metrics.aggregate("train") as level:
        metrics.log_scalar("loss", 2.5)
    everywhere = metrics.over_ranks(level)  # call it on every rank
    assert everywhere.get_smoothed_value("loss") == 2.5
    ```
    """
    total = Aggregator(aggregator.name)
    rows = [row for state in gather(aggregator.state_dict(), group) for row in state["meters"]]
    kinds = {row["key"]: row["kind"] for row in rows}
    for row in rows:
        key = row["key"]
        kind = row["kind"]
        if kind != kinds[key]:
            raise SettingError(
                f"{key!r} is of kind {kind} on one rank, and of kind {kinds[key]} on another",
                hint="log a key with the same function on every rank",
            )
    for row in rows:
        key = row["key"]
        if key not in total:
            meter = _empty(row, aggregator.get(key))
            if meter is None:
                continue
            total.add_meter(key, meter, row["priority"])
        total[key].merge(row["state"])
    for key, meter in aggregator.items():
        if isinstance(meter, Derived):
            total.add_meter(key, Derived(meter.function, total, meter.round), meter.priority)
    return total


def _empty(row: dict[str, Any], local: Meter | None) -> Meter | None:
    if local is None and row["kind"] not in KINDS:
        return None
    meter = KINDS[row["kind"]]() if local is None else copy.copy(local)
    meter.round = row["round"]
    if row["kind"] in KINDS:
        meter.reset()
    return meter
