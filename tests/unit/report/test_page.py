"""The page: whole, self-contained, allowed to do nothing but draw its own curves; hostile text
stays text.
"""

import base64
import hashlib
import json
import re
import shlex
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from eventful_run import BACK_TO, HOSTILE, NUM_STEPS, SPIKE_STEP

from sonde.records.values import encode
from sonde.report.facts import RunFacts, gather
from sonde.report.html.markup import escape
from sonde.report.html.page import MAX_POINTS, curve_data, render_html
from sonde.report.html.verdicts import verdict_lines
from sonde.report.marks import Mark
from sonde.report.wording import visible
from sonde.run import Run


class Elements(HTMLParser):
    """What a parser makes of the page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.opened: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.opened.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def document(facts: RunFacts) -> str:
    return render_html(facts)


@pytest.fixture(scope="module")
def elements(document: str) -> Elements:
    return Elements(document)


def test_only_elements_of_our_own_are_in_the_page(elements: Elements) -> None:
    known = (
        "html head meta title style body main header section div article figure figcaption h1 h2 h3"
        " h4 p ul li dl dt dd b"
    )
    known += (
        " span code pre table thead tbody tr th td details summary footer noscript script svg rect"
        " time"
    )
    assert {name for name, _ in elements.opened} <= set(known.split())
    assert [attributes for name, attributes in elements.opened if name == "script"] == [
        {"type": "application/json", "id": "curve-data"},
        {},
    ]


def test_no_attribute_loads_runs_or_styles_anything(elements: Elements) -> None:
    for _, attributes in elements.opened:
        assert not {"href", "src", "style", "srcset", "action"} & attributes.keys()
        assert not [name for name in attributes if name.startswith("on")]


def test_hostile_text_is_there_as_text(elements: Elements) -> None:
    for hostile in HOSTILE:
        assert visible(hostile) in elements.text


def test_the_policy_allows_the_one_style_and_the_one_script_by_their_digests(document: str) -> None:
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', document)
    assert policy.startswith("default-src 'none'; ")
    for kind, content in (
        ("style-src", r"<style>(.*?)</style>"),
        ("script-src", r"<script>(.*?)</script>"),
    ):
        (text,) = re.findall(content, document, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind} 'sha256-{digest}'" in policy


def test_the_data_are_json_without_a_character_that_a_parser_could_stumble_over(
    document: str,
) -> None:
    (text,) = re.findall(
        r'<script type="application/json" id="curve-data">(.*?)</script>', document, re.DOTALL
    )
    assert not set("<>&") & set(text)
    data = json.loads(text)
    assert [panel["title"] for panel in data["panels"]] == [
        "loss",
        "gradient norm",
        "learning rate",
        "tokens per second",
    ]
    assert [line["kind"] for line in data["panels"][0]["lines"]] == ["ghost", "line", "dots"]
    assert data["panels"][0]["broken"] == [[350, "NaN"]]
    restart, event = data["events"]
    assert (restart["step"], restart["kind"], restart["tone"]) == (BACK_TO, "restart", "happened")
    assert (event["first"], event["last"], event["step"]) == (SPIKE_STEP,) * 3
    assert (event["kind"], event["tone"]) == ("spike", "wrong")
    assert event["label"].startswith("spike: loss 9.25, expected 2.3 – Sample 3 of train")


def test_every_part_is_told(elements: Elements) -> None:
    for part in (
        "What happened at step 300",
        "93%",
        "bit for bit",
        "What was tried",
        "the worst 5 of 5 samples",
        "Tensors at step 300",
        "waiting for data",
        "Checkpoints",
        "Samples left out",
        "Settings and versions",
        "model.dim",
        "1 damaged line in",
    ):
        assert part in elements.text


def test_commands_in_advice_are_code_with_the_path_of_the_run(
    document: str, eventful_run: Path
) -> None:
    command = escape(f"sonde rollback {shlex.quote(str(eventful_run))} --step 300")
    assert f"Skip train 3: <code>{command}</code>." in document


def test_tokens_are_coloured_and_carry_their_loss(elements: Elements) -> None:
    tokens = [
        attributes
        for name, attributes in elements.opened
        if name == "span" and "title" in attributes
    ]
    assert any(
        token["class"] == "h9" and str(token["title"]).endswith(" loss NaN")
        for token in tokens
        if "class" in token
    )
    assert len({attributes.get("class") for attributes in tokens}) > 5


def test_a_long_run_is_thinned(tmp_path: Path) -> None:
    with Run(tmp_path / "run") as run:
        records = [
            {"type": "STEP", "step": step, "loss": 9.0 if step == 4321 else 2.0, "lr": 1e308}
            for step in range(1, 2 * MAX_POINTS)
        ]
        run.layout.record_file("steps", 0).write_bytes(b"".join(map(encode, records)))
    loss, rate = curve_data(gather(tmp_path / "run"))["panels"]
    (line,) = loss["lines"]
    assert len(line["dx"]) <= MAX_POINTS
    assert max(line["y"]) == 9.0
    assert rate["lines"][0]["y"][0] == 1e308


def test_the_last_step_is_in_the_curve(facts: RunFacts) -> None:
    assert curve_data(facts)["panels"][0]["lines"][1]["dx"][:3] == [1, 1, 1]
    assert sum(curve_data(facts)["panels"][0]["lines"][1]["dx"]) == NUM_STEPS


def test_a_spike_and_its_healing_share_one_line_of_verdict() -> None:
    spike = Mark(kind="spike", step=5, last=5, title="x", cause="The cause.", note="superseded: x")
    lines = verdict_lines([spike, replace(spike, kind="heal", note=""), replace(spike, step=9)])
    assert str(lines).count("The cause.") == 2
    assert str(lines).count("superseded") == 2
