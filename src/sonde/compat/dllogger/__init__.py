"""DLLogger, as NVIDIA publishes it (`nvidia`) and as Tecorigin adapted it (`tcap`).

    from sonde.compat.dllogger import nvidia as DLLogger
    from sonde.compat.dllogger.tcap import JSONStreamBackend, Logger, StdOutBackend, Verbosity

Both give the defaults, screen lines and files of the original, on top of `sonde.log`. sonde's own
`Logger` has the same methods; `JSONStreamBackend(prefix=…)` there writes either kind of file, and
`sonde.log.read` reads both (`log/foreign_lines.py`).
"""
