"""What is the same for every host."""

from pathlib import Path
from typing import Any

import pytest

from sonde.errors import MissingDependency, SettingError
from sonde.forensics.rollback import newest_of_host
from sonde.integrations import hosts
from sonde.run import Run


def test_a_version_that_is_too_old_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "version", lambda _: "4.44.2")
    with pytest.raises(
        SettingError, match=r"transformers 4\.46 and newer, and 4\.44\.2 is installed"
    ):
        hosts.require("transformers", "4.46")
    monkeypatch.setattr(hosts, "version", lambda _: "5.0.0rc1")
    hosts.require("transformers", "4.46")


def test_a_host_that_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingDependency, match="needs no-such-host"):
        hosts.require("no-such-host", "1")


def test_the_newest_checkpoint_of_the_host_from_before_a_step_is_found(tmp_path: Path) -> None:
    with Run(tmp_path / "run") as run:
        for step in (20, 40, 60, 80):
            (tmp_path / f"checkpoint-{step}").mkdir()
            hosts.note_checkpoint(run, "huggingface", step, tmp_path / f"checkpoint-{step}")
    (tmp_path / "checkpoint-60").rmdir()
    found = newest_of_host(tmp_path / "run", 70)
    assert found is not None
    assert found.step == 40
    assert found.way_on == f'trainer.train(resume_from_checkpoint="{tmp_path}/checkpoint-40")'
    first = newest_of_host(tmp_path / "run", 10)
    assert first is not None
    assert first.way_on == "trainer.train(…) without a checkpoint"


def test_a_run_that_no_host_trained_has_none(tmp_path: Path) -> None:
    with Run(tmp_path / "run"):
        pass
    assert newest_of_host(tmp_path / "run", 10) is None


class _Host(hosts.Hosted):
    def _begin(self, model: object) -> Any:
        raise NotImplementedError


def test_a_host_that_cannot_go_back_refuses_to_heal(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="only in a loop of your own"):
        _Host("torch", "1", tmp_path, "heal", None)
    assert _Host("torch", "1", tmp_path, "record", None).run is None
