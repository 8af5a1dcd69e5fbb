"""A hook of the build: the README and the links that the package index shows.

Links in README.md lead to files of the repository, which the index does not have. They are written
out from one address, `home` below [tool.public-home] in pyproject.toml. While it is empty there is
no public home: links become plain text, pictures are left out, and no project link is shown.
"""

import re
import sys
from pathlib import Path
from typing import Any, Final

from hatchling.metadata.plugin.interface import MetadataHookInterface

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_PICTURE: Final = re.compile(r"!\[(?P<text>[^\]]*)\]\((?P<path>(?!https?:|#)[^)]+)\)\n*")
_LINK: Final = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\((?P<path>(?!https?:|#)[^)]+)\)")
_PAGES: Final = {
    "Documentation": "blob/main/docs/index.md",
    "Changelog": "blob/main/CHANGELOG.md",
    "Issues": "issues",
    "Security": "security/policy",
}


class PackageMetadata(MetadataHookInterface):
    """Gives hatchling the README and the project links."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add both to the metadata of the package."""
        root = Path(self.root)
        home = public_home(root)
        readme = (root / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": for_the_index(readme, home),
        }
        if home:
            metadata["urls"] = project_links(home)


def public_home(root: Path) -> str:
    """Return the address of the repository; empty while there is none."""
    document = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    return str(document["tool"]["public-home"]["home"]).rstrip("/")


def for_the_index(readme: str, home: str) -> str:
    """Return a README whose links do not need the repository around it."""
    if not home:
        return _LINK.sub(r"\g<text>", _PICTURE.sub("", readme))
    with_pictures = _PICTURE.sub(rf"![\g<text>]({home}/raw/main/\g<path>)\n\n", readme)
    return _LINK.sub(rf"[\g<text>]({home}/blob/main/\g<path>)", with_pictures)


def project_links(home: str) -> dict[str, str]:
    """Return the links that the index shows beside the package."""
    return {"Source": home, **{name: f"{home}/{path}" for name, path in _PAGES.items()}}
