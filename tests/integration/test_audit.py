"""An audit on a Dask cluster, and of corpora of two sizes."""

import subprocess
import sys
from pathlib import Path

import pytest

from sonde.data.text_blocks import open_executor
from sonde.demo.corpus import read_docstrings
from sonde.texts.audit import AuditSettings, audit
from sonde.texts.corpora import open_corpus

pytestmark = pytest.mark.slow

PEAK = """
import sys
from pathlib import Path
from sonde.texts.audit import AuditSettings, audit
from sonde.texts.corpora import open_corpus
done = audit(open_corpus([Path(sys.argv[1])]), AuditSettings(piece_bytes=1 << 18))
status = Path("/proc/self/status").read_text().splitlines()
peak = next(line for line in status if line.startswith("VmHWM"))
print(done.num_texts, int(peak.split()[1]) // 1024)
"""


@pytest.fixture
def lines() -> list[str]:
    return [" ".join(text.split()) for text in read_docstrings(seed=7)[:1500]] + [
        "qzxv wkjq zzxq vvkq xqzj",
        "\x00\x01",
    ]


def test_a_dask_cluster_finds_the_same(
    tmp_path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    distributed = pytest.importorskip("distributed")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(lines))
    settings = AuditSettings(piece_bytes=20_000)
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
    ) as cluster:
        address = cluster.scheduler_address.replace("tcp://", "dask://")
        with open_executor(1, address) as (executor, num_under_way):
            done = audit(
                open_corpus([path]), settings, executor=executor, num_under_way=num_under_way
            )
    alone = audit(open_corpus([path]), settings)
    assert done.findings == alone.findings
    assert (done.counts, done.num_texts) == (alone.counts, alone.num_texts)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_does_not_grow_with_the_corpus(tmp_path: Path, lines: list[str]) -> None:
    peaks = []
    for times in (1, 6):
        path = tmp_path / f"corpus-{times}.txt"
        path.write_text("".join(f"{line} {copy}\n" for copy in range(times) for line in lines))
        command = [sys.executable, "-c", PEAK, str(path)]
        num_texts, peak = subprocess.run(
            command, check=True, capture_output=True, text=True
        ).stdout.split()
        assert int(num_texts) == times * len(lines)
        peaks.append(int(peak))
    # megabytes; the larger corpus has a larger sample to know it by
    assert peaks[1] < peaks[0] + 60
