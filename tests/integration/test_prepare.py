"""`prepare` with real processes: any number of them, a Dask cluster, and kill -9 in the middle."""

import hashlib
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sonde.data.binarise import PrepareSettings, prepare
from sonde.data.datasets import open_pairs
from sonde.data.text_blocks import open_executor
from sonde.errors import SettingError

pytestmark = pytest.mark.slow

RUN = """
import sys
from pathlib import Path
from sonde.data.binarise import prepare
from sonde.data.binarise import PrepareSettings
from sonde.data.text_blocks import open_executor

if __name__ == "__main__":
    out, workers, english, german = sys.argv[1:]
    settings = PrepareSettings(
        splits={"train": {"en": Path(english), "de": Path(german)}},
        out=Path(out), tokenizer="bpe", vocab_size=400, block_bytes=20000,
    )
    with open_executor(int(workers)) as (executor, num_under_way):
        done = prepare(settings, executor=executor, num_under_way=num_under_way)
    print(done.num_parts, done.num_reused_parts)
"""


@pytest.fixture
def texts(tmp_path: Path) -> dict[str, Path]:
    paths = {}
    for language, word in (("en", "sentence"), ("de", "Satz")):
        paths[language] = tmp_path / f"corpus.{language}"
        paths[language].write_text(
            "".join(f"{word} {number * 7919 % 10007} {word}s .\n" for number in range(8000))
        )
    return paths


def settings_for(out: Path, texts: dict[str, Path]) -> PrepareSettings:
    return PrepareSettings(
        splits={"train": texts}, out=out, tokenizer="bpe", vocab_size=400, block_bytes=20000
    )


def digest(directory: Path) -> str:
    paths = sorted(path for path in directory.iterdir() if path.is_file())
    return hashlib.sha256(
        b"".join(path.name.encode() + path.read_bytes() for path in paths)
    ).hexdigest()


def test_any_number_of_workers_writes_the_same_bytes(
    tmp_path: Path, texts: dict[str, Path]
) -> None:
    prepare(settings_for(tmp_path / "one", texts))
    with open_executor(2) as (pool, num_under_way):
        prepare(settings_for(tmp_path / "two", texts), executor=pool, num_under_way=num_under_way)
    with ThreadPoolExecutor(3) as threads:
        prepare(settings_for(tmp_path / "three", texts), executor=threads, num_under_way=5)
    assert digest(tmp_path / "one") == digest(tmp_path / "two") == digest(tmp_path / "three")


def test_a_dask_cluster_writes_the_same_bytes(
    tmp_path: Path, texts: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    distributed = pytest.importorskip("distributed")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    prepare(settings_for(tmp_path / "one", texts))
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
    ) as cluster:
        address = cluster.scheduler_address.replace("tcp://", "dask://")
        with open_executor(1, address) as (executor, num_under_way):
            done = prepare(
                settings_for(tmp_path / "two", texts),
                executor=executor,
                num_under_way=num_under_way,
            )
    assert done.num_parts > 10
    assert digest(tmp_path / "one") == digest(tmp_path / "two")


def test_an_executor_nobody_knows_is_refused() -> None:
    with pytest.raises(SettingError, match="ray://"), open_executor(1, "ray://here"):
        pass


def test_killed_and_started_again_it_goes_on(tmp_path: Path, texts: dict[str, Path]) -> None:
    script = tmp_path / "run.py"
    script.write_text(RUN)
    command = [
        sys.executable,
        str(script),
        str(tmp_path / "data"),
        "2",
        str(texts["en"]),
        str(texts["de"]),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    parts = tmp_path / "data" / ".parts"
    deadline = time.monotonic() + 60
    while (
        len(list(parts.glob("[0-9a-f]*.part"))) < 3
        and process.poll() is None
        and time.monotonic() < deadline
    ):
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)  # the parent only: its workers must not outlive it
    assert process.wait() == -signal.SIGKILL
    group = process.pid
    while _is_running(group) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _is_running(group)
    assert not (tmp_path / "data" / "train.de.json").exists()

    again = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    num_parts, num_reused = map(int, again.stdout.split())
    assert 3 <= num_reused < num_parts
    prepare(settings_for(tmp_path / "straight", texts))
    assert digest(tmp_path / "data") == digest(tmp_path / "straight")
    assert len(open_pairs(tmp_path / "data")) == 8000


def _is_running(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
