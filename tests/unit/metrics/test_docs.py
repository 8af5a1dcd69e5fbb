import re
from pathlib import Path

from sonde import metrics

GUIDE = Path(__file__).parents[3] / "docs" / "metrics.md"


def test_the_code_of_the_guide_runs_and_its_assertions_hold() -> None:
    blocks = re.findall(
        r"^```python\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    assert len(blocks) >= 6
    namespace: dict[str, object] = {}
    for number, block in enumerate(blocks, start=1):
        exec(compile(block, f"metrics.md, block {number}", "exec"), namespace)
    assert "everywhere" in namespace


def test_the_guide_names_every_log_function() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    assert [name for name in dir(metrics) if name.startswith("log_") and name not in text] == []
