"""Every test begins with no metrics."""

from collections.abc import Iterator

import pytest

from sonde import metrics


@pytest.fixture(autouse=True)
def _no_metrics() -> Iterator[None]:
    metrics.reset()
    yield
    metrics.reset()
