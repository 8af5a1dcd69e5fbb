"""`sonde report RUN -o report.html`: write everything about a run to one file that can be sent on."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from sonde.errors import SettingError
from sonde.records.storage import write_anywhere
from sonde.report import markdown, wording
from sonde.report.facts import gather
from sonde.report.html import page


def report(
    run: Path,
    /,
    *,
    out: Annotated[str | None, Parameter(name=("--out", "-o"))] = None,
    format: Literal["html", "md"] | None = None,  # noqa: A002  the name of the flag
) -> None:
    """Write a report of a run as one self-contained file.

    Parameters
    ----------
    run
        The run directory.
    out
        The file or URL (s3://…) to write (default: `report.html` or `report.md`).
    format
        An HTML page or Markdown (default: from the file name).
    """
    if format is None:
        format = "md" if out is not None and out.endswith((".md", ".markdown")) else "html"  # noqa: A001  as the flag is called
    path = out if out is not None else f"report.{format}"
    if Path(path).is_dir():
        raise SettingError(f"{path} is a directory", hint=f"name the file: -o {Path(path, f'report.{format}')}")
    facts = gather(run)
    text = markdown.render_markdown(facts) if format == "md" else page.render_html(facts)
    payload = text.encode("utf-8", "backslashreplace")
    write_anywhere(path, payload)
    found = {"verdict": len(facts.verdicts), "event": len(facts.events)}
    told = ", ".join(f"{num} {what}{'' if num == 1 else 's'}" for what, num in found.items())
    print(f"{path}: {wording.size(len(payload))}; {told}")
    for problem in facts.problems:
        print(f"  {problem}")
