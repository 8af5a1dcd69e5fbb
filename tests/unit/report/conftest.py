"""One eventful run for all tests of this package: they only read it."""

from pathlib import Path

import pytest
from eventful_run import build_run

from sonde.report.facts import RunFacts, gather


@pytest.fixture(scope="session")
def eventful_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_run(tmp_path_factory.mktemp("eventful"))


@pytest.fixture(scope="session")
def facts(eventful_run: Path) -> RunFacts:
    return gather(eventful_run)
