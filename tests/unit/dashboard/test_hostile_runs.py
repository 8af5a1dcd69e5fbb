"""Runs that are not what they should be: every page answers, quickly, and the others go on."""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from dashboard_server import ask, serving
from eventful_run import SPIKE_STEP, build_run

FILES = (
    *(
        "run.json",
        "lock.json",
        "skip-list.txt",
        f"forensics/verdict-{SPIKE_STEP}.json",
        "checkpoints",
        "index.sqlite",
        "records",
    ),
    *("records/log.rank0.jsonl", "records/steps.rank0.jsonl", "records/spikes.rank0.jsonl"),
)
PAGES = ("", "/samples", "/checkpoints", "/log", "/settings", f"/step/{SPIKE_STEP}")


def as_link_to_zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def as_link_to_itself(path: Path) -> None:
    path.symlink_to(path)


def as_noise(path: Path) -> None:
    path.write_bytes(os.urandom(3000))


KINDS: tuple[Callable[[Path], None], ...] = (
    os.mkfifo,
    Path.mkdir,
    as_link_to_zeros,
    as_link_to_itself,
    as_noise,
)


@pytest.mark.slow
@pytest.mark.parametrize("make", KINDS, ids=lambda one: one.__name__)
def test_whatever_stands_where_a_file_should_every_page_answers(
    make: Callable[[Path], None], tmp_path: Path
) -> None:
    (tmp_path / "source").mkdir()
    source = build_run(tmp_path / "source")
    runs = tmp_path / "runs"
    for place, name in enumerate(FILES):
        run = runs / f"run-{place}"
        shutil.copytree(source, run)
        target = run / name
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)
        make(target)
    with serving(runs) as server:
        began = time.monotonic()
        assert ask(server.port, "/").status == 200
        for place, name in enumerate(FILES):
            for address in [f"/run/run-{place}{page}" for page in PAGES] + [
                f"/api/curves?run=run-{place}",
                f"/api/sparks?run=run-{place}",
            ]:
                answer = ask(server.port, address)
                told = (name, address, answer.status, answer.text[-300:])
                assert answer.status == 200 or "That cannot be shown" in answer.text, told
        names = "&".join(f"run=run-{place}" for place in range(len(FILES)))
        for address in (f"/compare?{names}", f"/api/compare?{names}", f"/api/sparks?{names}"):
            assert ask(server.port, address).status == 200
        assert time.monotonic() - began < 60
