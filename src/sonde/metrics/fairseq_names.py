"""fairseq's names for our meters."""

from sonde.metrics.aggregator import Aggregator
from sonde.metrics.clocks import Rate, Stopwatch
from sonde.metrics.meters import Average, Sum

AverageMeter, SumMeter, TimeMeter, StopwatchMeter, MetersDict = Average, Sum, Rate, Stopwatch, Aggregator
