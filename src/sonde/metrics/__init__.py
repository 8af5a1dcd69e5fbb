"""metrics: averages and rates at every level at once.

    with metrics.aggregate("train"):            # the epoch
        for batch in batches:
            with metrics.aggregate("train_inner") as inner:     # the last few steps
                metrics.log_scalar("loss", loss, weight=num_tokens)
            if step % 100 == 0:
                logger.log(inner.get_smoothed_values())
                metrics.reset_meters("train_inner")

Any line of code can log; the value appears in every enclosing level and in `default`, the whole run. The guide is docs/metrics.md.
Inside: meter.py (what a meter is), meters.py, quantile.py (the meters), aggregator.py (a level, and what is derived from its meters), stack.py
(which levels are active, logging into them and reading them), ranks.py (which needs torch, and is loaded when first used).

The names of fairseq's meters stand for ours: `AverageMeter`, `SumMeter`, `TimeMeter`, `StopwatchMeter`, `MetersDict`.
"""

from sonde._public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
