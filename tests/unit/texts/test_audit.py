"""The audit of a corpus: text files, parallel ones, JSON Lines and data directories; the same for
any number of workers.
"""

import gzip
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from odd_texts import BAD, clean_texts, parallel_texts

from sonde.data.binarise import PrepareSettings, prepare
from sonde.data.text_blocks import open_executor
from sonde.errors import SettingError
from sonde.texts.audit import Audit, AuditFinding, AuditSettings, audit
from sonde.texts.corpora import open_corpus


@pytest.fixture
def lines() -> list[str]:
    texts = clean_texts()[:500]
    for place, text in zip((100, 200, 300, 400), BAD, strict=True):
        texts.insert(place, text)
    return [*texts, texts[7]]


def run(path: Path, **settings: object) -> Audit:
    # several types in one dict
    return audit(open_corpus([path]), AuditSettings(near_duplicates=False, **settings))  # type: ignore[arg-type]


def kinds(done: Audit) -> dict[int, str]:
    return {finding.number: finding.kind for finding in done.findings}


EXPECTED = {
    100: "markup",
    200: "garbled_text",
    300: "foreign_language",
    400: "empty",
    504: "duplicate",
}


def test_bad_lines_are_found_with_their_kind_place_and_text(
    tmp_path: Path, lines: list[str]
) -> None:
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(lines) + "\n")
    done = run(path)
    assert kinds(done) == EXPECTED
    assert done.num_texts == 505
    assert sum(done.counts.values()) == 5
    assert done.flagged.tolist() == sorted(EXPECTED)
    assert done.corpus.place(100) == f"{path}:101"
    found = {finding.kind: finding for finding in done.findings}
    assert found["markup"].text == BAD[0]
    assert found["duplicate"].text == lines[7]
    assert found["duplicate"].evidence == ("the same as text 8",)
    assert done.samples.tolist() == [100, 200, 300, 503]  # `prepare` leaves the empty line out


def test_the_result_depends_neither_on_workers_nor_on_pieces(
    tmp_path: Path, lines: list[str]
) -> None:
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(lines))
    corpus = open_corpus([path])
    streamed = list[AuditFinding]()
    with ThreadPoolExecutor(3) as pool:
        settings = AuditSettings(near_duplicates=False, piece_bytes=2000)
        done = audit(corpus, settings, executor=pool, num_under_way=6, on_finding=streamed.append)
    alone = run(path)
    assert done.findings == alone.findings
    assert {finding.number for finding in streamed} == set(EXPECTED)


def test_compressed_and_json_lines_are_read(tmp_path: Path, lines: list[str]) -> None:
    zipped = tmp_path / "corpus.gz"
    zipped.write_bytes(gzip.compress("\n".join(lines).encode()))
    assert kinds(run(zipped)) == EXPECTED
    records = tmp_path / "corpus.jsonl"
    records.write_text(
        "".join(json.dumps({"meta": {"body": line}}) + "\n" for line in lines) + "{torn\n[1]\n"
    )
    done = audit(open_corpus([records], fields=["meta.body"]), AuditSettings(near_duplicates=False))
    assert kinds(done) == EXPECTED | {505: "unreadable", 506: "unreadable"}


def test_pairs_are_read_from_parallel_files_and_from_prepared_data(tmp_path: Path) -> None:
    pairs = list(dict.fromkeys(parallel_texts(1, 900)))
    assert len(pairs) > 200
    pairs[50] = (pairs[50][0], pairs[50][0])
    pairs[60] = pairs[60][::-1]
    paths = [tmp_path / "corpus.en", tmp_path / "corpus.de"]
    for side, path in enumerate(paths):
        path.write_text("".join(f"{pair[side]}\n" for pair in pairs))
    expected = {50: "copied", 60: "swapped"}
    done = audit(open_corpus(paths), AuditSettings(near_duplicates=False, piece_bytes=3000))
    assert kinds(done) == expected
    prepare(
        PrepareSettings(
            splits={"train": dict(zip(("en", "de"), paths, strict=True))},
            out=tmp_path / "data",
            tokenizer="bytes",
        )
    )
    prepared = audit(open_corpus([tmp_path / "data"]), AuditSettings(near_duplicates=False))
    assert kinds(prepared) == expected
    assert prepared.corpus.place(50) == "train 50"
    assert prepared.samples.tolist() == [50, 60]


def test_files_that_are_no_corpus_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "wide").write_bytes("hello".encode("utf-16"))
    (tmp_path / "short").write_text("one\n")
    (tmp_path / "long").write_text("one\ntwo\n")
    (tmp_path / "noise").write_bytes(bytes(range(128, 256)) * 100 + b"\n\xff\xfe\n\x80\n")
    for names, told in (
        (["fifo"], "FIFO"),
        (["wide"], "UTF-16"),
        (["nowhere"], "No such file"),
        (["."], "no prepared data"),
    ):
        with pytest.raises(SettingError, match=told):
            open_corpus([tmp_path / name for name in names])
    with pytest.raises(SettingError, match=r"long has more lines than .*short, which has 1"):
        audit(open_corpus([tmp_path / "short", tmp_path / "long"]))
    with pytest.raises(SettingError, match="no UTF-8 text"):
        audit(open_corpus([tmp_path / "noise"]))


def test_nul_bytes_broken_bytes_and_over_long_lines_are_findings(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt"
    good = clean_texts()[:300]
    path.write_bytes(
        "\n".join(good).encode()
        + b"\nThe old\x00 man walks along\nThe old m\xe4n walks along the river\n"
        + b"word " * 400_000
    )
    assert kinds(run(path)) == {300: "control_characters", 301: "mis_decoded", 302: "over_long"}


def test_an_empty_file_has_nothing_to_find(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt"
    path.write_bytes(b"")
    done = run(path)
    assert (done.num_texts, done.findings) == (0, ())


def test_only_the_clearest_are_kept_but_all_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "corpus.txt"
    path.write_text(
        "\n".join(
            [
                *clean_texts()[:400],
                *(f"THE OLD MAN NUMBER {number} WALKS ALONG THE RIVER" for number in range(20)),
            ]
        )
    )
    monkeypatch.setattr("sonde.texts.audit._NUM_LISTED", 5)
    done = run(path)
    assert done.counts == {"shouting": 20}
    assert len(done.findings) == 5
    assert len(done.flagged) == 20


@pytest.mark.slow
def test_processes_find_the_same(tmp_path: Path, lines: list[str]) -> None:
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(lines))
    with open_executor(2) as (pool, num_under_way):
        settings = AuditSettings(piece_bytes=20_000)
        done = audit(open_corpus([path]), settings, executor=pool, num_under_way=num_under_way)
    assert done.findings == audit(open_corpus([path]), AuditSettings()).findings
