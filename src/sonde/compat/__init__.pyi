from sonde.compat import atorch as atorch
from sonde.compat import dllogger as dllogger
from sonde.compat import fairseq as fairseq
from sonde.compat import msprobe as msprobe
from sonde.compat import nemo as nemo
