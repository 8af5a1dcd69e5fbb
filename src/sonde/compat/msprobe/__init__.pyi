from sonde.probe.debugger import PrecisionDebugger as PrecisionDebugger
