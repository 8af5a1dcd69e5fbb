from sonde.report.facts import gather as gather
from sonde.report.inline import show as show
