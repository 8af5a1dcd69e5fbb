from sonde.alerts.message import Alert as Alert
from sonde.alerts.message import alert_of_event as alert_of_event
from sonde.alerts.sender import Alerts as Alerts
from sonde.alerts.targets import command as command
from sonde.alerts.targets import webhook as webhook
from sonde.alerts.trackers import tell_trackers as tell_trackers
