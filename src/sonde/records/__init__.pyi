from sonde.records.index import RunIndex as RunIndex
from sonde.records.journal import read_steps as read_steps
from sonde.records.layout import RunLayout as RunLayout
from sonde.records.manifest import Manifest as Manifest
from sonde.records.manifest import checkpoint_place as checkpoint_place
from sonde.records.manifest import read_manifest as read_manifest
from sonde.records.reader import read_records as read_records
