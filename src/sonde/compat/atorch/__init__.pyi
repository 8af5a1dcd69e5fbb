from sonde.compat.atorch.loss_spike import DatasetLossSpike as DatasetLossSpike
from sonde.compat.atorch.loss_spike import LossSpike as LossSpike
from sonde.compat.atorch.loss_spike import sample_info as sample_info
from sonde.compat.atorch.token_loss_spike import TokenLossSpike as TokenLossSpike
