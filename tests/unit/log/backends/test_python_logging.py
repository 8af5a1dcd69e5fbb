import logging

import pytest

from sonde.log import Logger, LoggingBackend, Verbosity


def test_records_reach_the_standard_library(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.INFO, "training"),
        Logger([LoggingBackend(Verbosity.DEFAULT, "training")]) as logger,
    ):
        logger.metadata("ips", {"unit": "imgs/s", "format": ":.1f"})
        logger.log((0, 1), {"ips": 3.0, "percent": "100 %s"})
        logger.info("words")
    assert [record.getMessage() for record in caplog.records] == [
        "Epoch: 0 Iteration: 1  ips : 3.0 imgs/s percent : 100 %s",
        "words",
    ]
    assert caplog.records[0].__dict__["sonde"]["data"]["ips"] == 3.0


def test_a_level_that_is_off_costs_no_formatting(caplog: pytest.LogCaptureFixture) -> None:
    class Shy:
        def __str__(self) -> str:
            raise AssertionError("it was formatted")

    quiet = logging.getLogger("quiet")
    quiet.setLevel(logging.ERROR)
    with Logger([LoggingBackend(Verbosity.DEFAULT, quiet, logging.DEBUG)]) as logger:
        logger.info(Shy())
    assert logger.num_lost == 0
    assert caplog.records == []
