from sonde.flight.recorder import FlightRecorder as FlightRecorder
from sonde.flight.samples import without as without
from sonde.flight.settings import FlightSettings as FlightSettings
