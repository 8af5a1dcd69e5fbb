"""`sonde audit DATA`: read a corpus before training and report the texts that do not belong in
it.
"""

import contextlib
import functools
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
from cyclopts import Parameter
from rich.console import Console
from rich.text import Text

from sonde.cli.prepare import expand_braces, progress_on
from sonde.cli.terminal import picked, print_rows, tell
from sonde.data.directory import DataDirectory
from sonde.data.skip_list import SkipList, write_skip_list
from sonde.data.text_blocks import open_executor
from sonde.errors import SettingError
from sonde.records.files import output_file, write_file, write_output
from sonde.records.layout import RunLayout
from sonde.records.manifest import read_manifest
from sonde.records.values import encode
from sonde.report import wording
from sonde.report.html.audits import audit_findings, audit_summary, audit_title
from sonde.report.html.markup import tag
from sonde.report.html.page import document
from sonde.texts.audit import Audit, AuditFinding, AuditSettings
from sonde.texts.audit import audit as audit_corpus
from sonde.texts.corpora import Corpus, open_corpus
from sonde.version import __version__

FORMAT: Final = "sonde-audit"
VERSION: Final = 1
_MAX_BYTES: Final = 64 << 20


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True, slots=True)
class AuditOptions:
    """The options of `sonde audit`."""

    field: Annotated[list[str], Parameter(consume_multiple=True)] | None = None
    """JSON Lines field of the text (default: `text`), or two fields for source and target. Dots
    select nested fields.
    """
    split: str | None = None
    """Split of a data directory to audit (default: the first split)."""
    near_duplicates: Annotated[bool, Parameter(negative="--no-near-duplicates")] = True
    """Also look for near-duplicate texts."""
    similarity: float = 0.8
    """Two texts are near-duplicates when they share at least this fraction of their word
    trigrams.
    """
    least: float = 0.5
    """Minimum strength of a finding, from 0 to 1."""
    show: int = 3
    """Number of texts to print for each kind of finding."""
    workers: int = 1
    """Number of processes that read. The result does not depend on it."""
    executor: str | None = None
    """Read on the Dask cluster at dask://HOST:PORT. Its workers must see the same files."""
    html: Path | None = None
    """Write an HTML page with the clearest findings of each kind."""
    run: Path | None = None
    """Also write the result into this run directory, where the dashboard shows it."""
    skip: Path | None = None
    """Write the flagged samples to a skip list. A language model's data directory also needs
    --block-size.
    """
    block_size: int | None = None
    """Block size in tokens, as in training. The skip list then names the blocks that contain
    flagged texts.
    """
    findings: Path | None = None
    """Write every finding to this file, one JSON document per line."""
    json: bool = False
    """Print one JSON document instead of tables."""


def audit(data: list[str], /, *, options: AuditOptions = AuditOptions()) -> None:
    """Find texts that do not belong in a corpus.

    Garbled or foreign text, markup, code, duplicates, bad pairs.

    Parameters
    ----------
    data
        A text file with one document per line, two parallel files ('corpus.{en,de}'), a JSON Lines
            file, or a data directory. gz and zst are decompressed.
    """
    settings = AuditSettings(**picked(options, "least", "near_duplicates", "similarity"))
    corpus = open_corpus(
        list(map(Path, expand_braces(data))), fields=options.field or (), split=options.split
    )
    if options.skip and corpus.form == "data" and not corpus.is_parallel and not options.block_size:
        cause = "a language model's samples are blocks of several texts"
        raise SettingError("--skip needs --block-size here", cause=cause)
    if options.run:
        read_manifest(options.run)  # raises if this is no run, before hours of reading
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        pool, num_under_way = stack.enter_context(open_executor(options.workers, options.executor))
        report = stack.enter_context(progress_on(Console(stderr=True)))
        file = stack.enter_context(output_file(options.findings)) if options.findings else None
        on_progress = functools.partial(report, "audit", "")
        on_finding = (
            (lambda finding: file.write(encode(_as_json(finding, corpus)))) if file else None
        )
        values: dict[str, Any] = {
            "num_under_way": num_under_way,
            "on_progress": on_progress,
            "on_finding": on_finding,
        }
        done = audit_corpus(corpus, settings, executor=pool, **values)
    found = _document(done)
    if options.html:
        write_output(options.html, render_html(found).encode())
    if options.run:
        write_file(RunLayout(options.run).audit, encode(found, max_bytes=_MAX_BYTES))
    if options.skip:
        write_skip_list(
            options.skip, skip_list_of(done, options.block_size), f"sonde audit {' '.join(data)}"
        )
    seconds = time.monotonic() - started
    tell(found, lambda console: _show(console, done, options, seconds), json=options.json)


def skip_list_of(done: Audit, block_size: int | None) -> SkipList:
    """Return the findings as training samples: pairs, blocks of a language model, or 0-based lines
    of plain text.
    """
    corpus = done.corpus
    if corpus.form == "data" and not corpus.is_parallel:
        assert block_size
        tokens = DataDirectory(corpus.paths[0]).tokens(corpus.name)
        starts, sizes = tokens.spans(done.flagged)
        lasts = np.maximum(starts, starts + sizes - 1)
        spans = zip((starts // block_size).tolist(), (lasts // block_size).tolist(), strict=True)
        return SkipList(
            {
                corpus.name: sorted(
                    {block for first, last in spans for block in range(first, last + 1)}
                )
            }
        )
    found = done.samples if corpus.is_parallel and not corpus.fields else done.flagged
    return SkipList({corpus.name: found.tolist()})


def _show(console: Console, done: Audit, options: AuditOptions, seconds: float) -> None:
    what = "pairs" if done.corpus.is_parallel else "texts"
    share = len(done.flagged) / max(done.num_texts, 1)
    console.print(
        f"{done.num_texts:,} {what}, {wording.size(done.num_bytes)}, in"
        f" {wording.duration(seconds)}: {len(done.flagged):,} stand out ({share:.2%})"
    )
    if not done.counts:
        return
    counts = done.counts.items()
    rows = (
        (kind.replace("_", " "), f"{count:,}", f"{count / done.num_texts:.3%}")
        for kind, count in counts
    )
    print_rows(console, ("kind", f">{what}", ">share"), rows)
    shown = dict.fromkeys(done.counts, 0)
    for finding in done.findings:
        if shown[finding.kind] >= options.show:
            continue
        shown[finding.kind] += 1
        console.print()
        head = (
            f"{finding.kind.replace('_', ' ')}  {finding.strength:.2f} "
            f" {done.corpus.place(finding.number)}"
        )
        console.print(Text(head, style="bold"))
        console.print(Text(f"  {wording.visible(finding.text)[:300]}"))
        console.print(Text(f"  {'; '.join(finding.evidence)}", style="dim"))
    kept = RunLayout(options.run).audit if options.run else None
    for path in (options.html, options.skip, options.findings, kept):
        if path:
            console.print(Text(f"\nwritten: {path}"))


def render_html(found: Mapping[str, Any]) -> str:
    """Render the document of an audit as a page of its own."""
    title = tag("h1", audit_title(found))
    kicker = tag("p", "sonde audit", class_="kicker")
    head = tag("header", kicker, title, audit_summary(found))
    foot = tag(
        "footer", f"Made by sonde {__version__}. What counts as unusual is relative to this corpus."
    )
    name = Path(found["data"][0]).name
    return document(f"{name} – sonde audit", head, audit_findings(found), foot)


def _as_json(finding: AuditFinding, corpus: Corpus) -> dict[str, object]:
    place = {"sample": finding.number} if corpus.form == "data" else {"line": finding.number + 1}
    found = {"kind": finding.kind, "strength": round(finding.strength, 3), **place}
    return {**found, "text": finding.text, "evidence": list(finding.evidence)}


def _document(done: Audit) -> dict[str, Any]:
    """Return the audit as plain data (docs/formats/audit.md)."""
    corpus = done.corpus
    findings = [
        {**_as_json(finding, corpus), "place": corpus.place(finding.number)}
        for finding in done.findings
    ]
    return {
        "format": FORMAT,
        "version": VERSION,
        "data": [str(path) for path in corpus.paths],
        "is_parallel": corpus.is_parallel,
        **picked(done, "num_texts", "num_bytes", "languages", "counts"),
        "num_found": len(done.flagged),
        "findings": findings,
    }
