"""fairseq's names for meters, and where the rest of fairseq's ideas are in sonde.

    from sonde.compat.fairseq import AverageMeter, MetersDict, StopwatchMeter, SumMeter, TimeMeter

    fairseq-preprocess                  sonde prepare       sonde.data: reads and writes its
                                                            .bin, .idx and dict.txt
    fairseq-train                       sonde train         sonde.train
    fairseq-generate                    sonde translate     sonde.generate
    fairseq.logging.metrics             sonde.metrics: the same functions

The notes on fairseq asked how all this works: docs/questions.md answers, each time with a test.
"""

from sonde._public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
