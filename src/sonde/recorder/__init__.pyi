from sonde.recorder.options import RecorderOptions as RecorderOptions
from sonde.recorder.recorder import Recorder as Recorder
from sonde.recorder.samples import without as without
