from sonde.heal.decision import Act as Act
from sonde.heal.decision import Call as Call
from sonde.heal.decision import decide as decide
from sonde.heal.history import read_history as read_history
from sonde.heal.settings import Heal as Heal
from sonde.heal.story import told as told
from sonde.heal.supervisor import train_healing as train_healing
