"""The command line of a file of cases: `python benchmarks/field_cases/tune_own.py CASE RUN`.

`FIELD_PART` in the environment says which process of the run this is; a user's script would look
for its checkpoint instead, and a replay of the second part must find the same script.
"""

import logging
import os
import sys
from pathlib import Path

from benchmarks.field_cases.declaration import Case, Job


def main(cases: tuple[Case, ...]) -> None:
    """Train the case that the command line names."""
    name = sys.argv[1]
    run = Path(sys.argv[2])
    logging.basicConfig()  # so that each line on the screen says whose it is
    for case in cases:
        if case.name == name:
            case.train(Job(run, int(os.environ.get("FIELD_PART", "1"))))
            return
    sys.exit(f"no case is called {name}")
