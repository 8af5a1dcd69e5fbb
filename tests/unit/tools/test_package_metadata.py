"""What the package index shows: no link and no picture leads to a file that is not there."""

import re
from pathlib import Path

import package_metadata
import pytest

PROJECT = Path(__file__).parents[3]
README = (PROJECT / "README.md").read_text(encoding="utf-8")
HOME = "https://forge.example/them/sonde"
RELATIVE = re.compile(r"\]\((?!https?:|#)")


@pytest.mark.parametrize("home", ["", HOME])
def test_no_link_of_the_readme_needs_the_repository(home: str) -> None:
    assert RELATIVE.search(README)  # or this would test nothing
    assert not RELATIVE.search(package_metadata.for_the_index(README, home))


def test_without_a_home_links_are_text_and_pictures_are_left_out() -> None:
    readme = (
        "See [the guide](docs/a.md).\n\n![A run](docs/run.png)\n\nMore: [x](https://x.example).\n"
    )
    shown = package_metadata.for_the_index(readme, "")
    assert shown == "See the guide.\n\nMore: [x](https://x.example).\n"


def test_with_a_home_links_and_pictures_lead_there() -> None:
    shown = package_metadata.for_the_index("[a](docs/a.md#b)\n\n![A run](docs/run.png)\n", HOME)
    assert (
        shown == f"[a]({HOME}/blob/main/docs/a.md#b)\n\n![A run]({HOME}/raw/main/docs/run.png)\n\n"
    )


@pytest.mark.parametrize("home", ["", HOME + "/"])
def test_the_build_gets_both_from_the_one_address(home: str, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("[a](docs/a.md)\n")
    (tmp_path / "pyproject.toml").write_text(f'[tool.public-home]\nhome = "{home}"\n')
    metadata: dict[str, object] = {}
    package_metadata.PackageMetadata(str(tmp_path), {}).update(metadata)
    address = home.rstrip("/")
    shown = f"[a]({address}/blob/main/docs/a.md)\n" if home else "a\n"
    assert metadata["readme"] == {"content-type": "text/markdown", "text": shown}
    assert metadata.get("urls") == (package_metadata.project_links(address) if home else None)


def test_the_address_stands_in_one_place() -> None:
    home = package_metadata.public_home(PROJECT)
    assert home == "" or home.startswith("https://")
