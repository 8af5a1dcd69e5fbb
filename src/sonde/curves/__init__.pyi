from sonde.curves.curve_events import find_curve_events as find_curve_events
from sonde.curves.judgement import Finding as Finding
from sonde.curves.judgement import judge as judge
from sonde.curves.loss_curves import LossCurve as LossCurve
from sonde.curves.loss_curves import loss_curve as loss_curve
from sonde.curves.recognise import find_sources as find_sources
from sonde.curves.together import find_recurring as find_recurring
