from sonde.compat.fairseq.meters import AverageMeter as AverageMeter
from sonde.compat.fairseq.meters import MetersDict as MetersDict
from sonde.compat.fairseq.meters import StopwatchMeter as StopwatchMeter
from sonde.compat.fairseq.meters import SumMeter as SumMeter
from sonde.compat.fairseq.meters import TimeMeter as TimeMeter
