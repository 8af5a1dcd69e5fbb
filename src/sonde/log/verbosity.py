"""How much a backend takes and how important a record is: three levels, plain numbers inside."""

import enum
from typing import final


@final
class Verbosity(enum.IntEnum):
    """A backend takes a record when its own level is at least the record's.

    A backend that is OFF takes nothing, and a record logged at OFF goes nowhere.
    """

    OFF = -1
    DEFAULT = 0
    VERBOSE = 1
