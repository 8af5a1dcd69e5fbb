from sonde.flight.leaving_out import without as without
from sonde.flight.recorder import FlightRecorder as FlightRecorder
from sonde.flight.settings import FlightSettings as FlightSettings
