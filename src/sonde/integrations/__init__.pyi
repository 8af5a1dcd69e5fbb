from sonde.integrations import accelerate as accelerate
from sonde.integrations import huggingface as huggingface
from sonde.integrations import lightning as lightning
