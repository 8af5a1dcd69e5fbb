from sonde.compat.nemo.checkpoint import CheckpointCallback as CheckpointCallback
from sonde.compat.nemo.evaluator import EvaluatorCallback as EvaluatorCallback
from sonde.compat.nemo.loss_logger import SimpleLossLoggerCallback as SimpleLossLoggerCallback
from sonde.compat.nemo.wandb import WandbCallback as WandbCallback
