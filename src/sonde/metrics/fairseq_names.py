"""fairseq's names for our meters."""

from sonde.metrics.aggregator import Aggregator
from sonde.metrics.clocks import Rate, Stopwatch
from sonde.metrics.meters import Average, Sum

AverageMeter = Average
SumMeter = Sum
TimeMeter = Rate
StopwatchMeter = Stopwatch
MetersDict = Aggregator
