from sonde.probe.debugger import PrecisionDebugger as PrecisionDebugger
from sonde.probe.watching import watch as watch
