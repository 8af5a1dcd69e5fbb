"""A hook of mkdocs: brings files from beside docs/ into the site, so that links to them work there
as they do in the repository.
"""

import ast
import re
from pathlib import Path
from typing import Any, Final

from mkdocs.structure.files import File, InclusionLevel

PROJECT: Final = Path(__file__).parents[1]
_OUTSIDE: Final = re.compile(r"\]\((?P<up>(?:\.\./)+)(?P<path>[\w./-]+)(?P<anchor>#[\w-]+)?\)")
_WHOLE: Final = (
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "CODE_OF_CONDUCT.md",
    "SECURITY.md",
    "benchmarks/RESULTS.md",
)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages of files beside docs/."""
    for name in (*_WHOLE, *_shown()):
        source = PROJECT / name
        text = source.read_text(encoding="utf-8")
        if source.suffix != ".md":
            text = f"# {name}\n\n```{source.suffix[1:]}\n{text}```\n"
        # Sources are reached from the tour alone.
        inclusion = (
            InclusionLevel.NOT_IN_NAV if name.startswith("src/") else InclusionLevel.UNDEFINED
        )
        files.append(File.generated(config, _page(name), content=text, inclusion=inclusion))
    for module in _modules():
        files.append(File.generated(config, f"reference/{module}.md", content=_reference(module)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links out of docs/ to the pages made of what they name."""
    depth = page.file.src_uri.count("/")
    if page.file.src_uri.startswith("repository/"):
        return re.sub(r"\]\((?!https?:|#)[^)]*\)", _beside(page.file.src_uri), markdown)

    def inside(link: re.Match[str]) -> str:
        ups = link["up"].count("../")
        path = link["path"].rstrip("/")
        if ups <= depth:
            return link[0]
        return f"]({'../' * depth}{_page(path)}{link['anchor'] or ''})"

    return _OUTSIDE.sub(inside, markdown)


def _shown() -> list[str]:
    """Files that have a page: the examples, and the sources that the tour goes to."""
    found = [*(PROJECT / "examples").rglob("*.py"), *(PROJECT / "examples").rglob("*.md")]
    tour = (PROJECT / "docs" / "tour.md").read_text(encoding="utf-8")
    sources = set(re.findall(r"\]\(\.\./(src/[\w/]+\.py)\)", tour))
    return sorted({*(str(path.relative_to(PROJECT)) for path in found), *sources})


def _modules() -> list[str]:
    """The modules that promise names: those that docs/api.md lists, and one for each host."""
    listed = re.findall(
        r"^## `([\w.]+)`$", (PROJECT / "docs" / "api.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    return [
        *listed,
        *(f"sonde.integrations.{host}" for host in ("huggingface", "lightning", "accelerate")),
    ]


def _reference(module: str) -> str:
    """The page of a module's names, each from where it is written: its stub says where, if it has
    one.
    """
    homes = _listed(module)
    if homes is None:
        return f"# {module}\n\n::: {module}\n"
    if module == "sonde":  # most of its names are those of a package, and stand on its page
        homes = [
            (home, name) for home, name in homes if ".".join(home.split(".")[:2]) not in _modules()
        ]
    # What exists for the sake of an original stands on the page of that original alone.
    if module.startswith("sonde.compat."):
        homes = [(home, name) for home, name in homes if home.startswith(module)]
    else:
        homes = [(home, name) for home, name in homes if not home.startswith("sonde.compat.")]
    lines = [f"# {module}", "", _purpose(module), ""]
    lines += [f"::: {home}.{name}\n" for home, name in sorted(homes, key=lambda place: place[1])]
    return "\n".join(lines)


def _purpose(module: str) -> str:
    """What a package is for: the first paragraph of its docstring. The rest is about its files."""
    source = PROJECT.joinpath("src", *module.split("."), "__init__.py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n\n")[0]


def _listed(module: str) -> list[tuple[str, str]] | None:
    """The names in the stub of a package, each with its home; None without a stub."""
    stub = PROJECT.joinpath("src", *module.split("."), "__init__.pyi")
    if not stub.exists():
        return None
    pattern = r"^from (sonde\.[\w.]+) import ([a-zA-Z]\w+) as "
    return re.findall(pattern, stub.read_text(encoding="utf-8"), re.MULTILINE)


def _page(name: str) -> str:
    """The page of the site that shows a file of the repository."""
    return f"repository/{name if name.endswith('.md') else name + '.md'}"


def _beside(src_uri: str) -> Any:
    """Links of a file outside docs/, seen from its page."""
    folder = Path(src_uri.removeprefix("repository/")).parent
    up = "../" * (len(folder.parts) + 1)

    def link(match: re.Match[str]) -> str:
        target, _, anchor = match[0][2:-1].partition("#")
        path = (PROJECT / folder / target).resolve()
        if not path.is_relative_to(PROJECT):
            return match[0]
        name = str(path.relative_to(PROJECT))
        anchor = f"#{anchor}" if anchor else ""
        if name.startswith("docs/") and path.is_file():
            return f"]({up}{name.removeprefix('docs/')}{anchor})"
        if name in (*_WHOLE, *_shown()):
            return f"]({up}{_page(name)}{anchor})"
        return "](#)"  # a folder or a source file: the site has no page of it

    return link


if __name__ == "__main__":
    raise SystemExit("this is a hook of mkdocs: `make docs`")
