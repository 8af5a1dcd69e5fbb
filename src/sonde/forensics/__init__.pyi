from sonde.forensics.checks.check_report import CheckReport as CheckReport
from sonde.forensics.replay import Replay as Replay
from sonde.forensics.seams import ModuleWatch as ModuleWatch
from sonde.forensics.verdict import Verdict as Verdict
from sonde.forensics.verdict import read_verdict as read_verdict
from sonde.forensics.verdict import write_verdict as write_verdict
from sonde.records.replay_order import ReplayOptions as ReplayOptions
