"""Metrics: averages and rates at several levels at once.

    with metrics.aggregate("train"):            # the epoch
        for batch in batches:
            with metrics.aggregate("train_inner") as inner:     # the last few steps
                metrics.log_scalar("loss", loss, weight=num_tokens)
            if step % 100 == 0:
                logger.log(inner.get_smoothed_values())
                metrics.reset_meters("train_inner")

Any code can log; the value appears in every enclosing level and in `default`, which covers the
whole run. The guide is docs/metrics.md.

Modules: meter.py (the meter interface), meters.py (the meters), aggregator.py (a level, and values
derived from its meters), stack.py (the active levels, and logging to and reading them), ranks.py
(needs torch; loaded on first use). fairseq's names for meters are in `sonde.compat.fairseq`.
"""

from sonde._public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
