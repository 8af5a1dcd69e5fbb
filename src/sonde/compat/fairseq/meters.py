"""fairseq's names for meters: the same classes under the names of `fairseq.logging.meters`."""

from sonde.metrics.aggregator import Aggregator
from sonde.metrics.meters import Average, Rate, Stopwatch, Sum

AverageMeter = Average
SumMeter = Sum
TimeMeter = Rate
StopwatchMeter = Stopwatch
MetersDict = Aggregator
