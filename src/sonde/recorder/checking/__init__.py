"""The experiments of `sonde check`: what is measured in a user's own step function, at the first
steps, while everything is put back.

    first_steps.py   what the first updates of any recorded training show by themselves
    bench.py         the first batches, run again as often as is needed
    targets.py, influence.py, connection.py, running.py, order.py   the experiments
    checker.py       collects, puts back, measures, and hands the results over

What is measured is plain data, judged in `forensics/checks`. A whole check costs less than 40
steps (benchmarks/check.py).
"""
