from sonde.models.loss import token_losses as token_losses
from sonde.models.settings import TransformerSettings as TransformerSettings
from sonde.models.transformer import Transformer as Transformer
