from sonde.checkpoint.folder import CheckpointFolder as CheckpointFolder
from sonde.checkpoint.folder import Keep as Keep
from sonde.checkpoint.store import CheckpointStore as CheckpointStore
from sonde.checkpoint.weights import load_weights as load_weights
