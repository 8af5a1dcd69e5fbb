"""The dashboard over a run of somebody's own loop: its events are seen, and the button finds the
cause by running the script again.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from browser import Browser
from dashboard_pages import DRAWN, click
from dashboard_server import serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SCRIPT = """
import random
import sys

import torch
import torch.nn.functional as F
from torch import nn

import sonde

torch.manual_seed(0)
random.seed(0)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(64, 32)
        self.head = nn.Linear(32, 64)

    def forward(self, x, y):
        logits = self.head(self.embedding(x))
        return logits, F.cross_entropy(logits.flatten(0, 1), y.flatten())


def row():
    tokens = [random.randrange(64)]
    for _ in range(24):
        follows = random.random() < 0.9
        tokens.append((tokens[-1] * 5 + 1) % 64 if follows else random.randrange(64))
    return tokens


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
data = torch.tensor([row() for _ in range(2800)])
for bad in (2003, *range(2400, 2408)):  # one row of step 251, all rows of step 301
    data[bad] = torch.randint(0, 64, (25,))
run = sonde.Run(sys.argv[1])
recorder = sonde.Recorder(
    run,
    model,
    optimizer,
    decode=lambda tokens: " ".join(map(str, tokens)),
    sample_ids=lambda batch: [("train", int(number)) for number in batch[2]],
)


def train_step(batch):
    x, y, _ = batch
    _, loss = model(x, y)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss


for start in range(0, len(data), 8):
    rows = data[start : start + 8]
    loss = recorder.step(train_step, (rows[:, :-1], rows[:, 1:], torch.arange(start, start + 8)))
    run.logger.log(start // 8 + 1, {"train/loss": loss.item()})
run.close()
"""


def test_events_of_ones_own_loop_are_seen_and_the_button_finds_the_cause(
    browser: Browser, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    run = tmp_path / "runs" / "mine"
    command = [sys.executable, str(tmp_path / "train.py"), str(run)]
    subprocess.run(command, check=True, cwd=tmp_path, capture_output=True)
    with serving(tmp_path / "runs", allow_jobs=True) as server:
        browser.open(server.address)
        browser.wait_for("document.querySelector('[data-events]').textContent === '2'")
        address = server.address.partition("?")[0]
        browser.open(f"{address}run/mine")
        browser.wait_for(DRAWN)
        marks = "[...document.querySelectorAll('#curves .mark')].map((one) => one.dataset.step)"
        assert browser.evaluate(marks) == ["251", "301"]
        kinds = "[...document.querySelectorAll('#events .kind')].map((one) => one.textContent)"
        assert browser.evaluate(kinds) == ["sample", "spike"]

        browser.open(f"{address}run/mine/step/251")
        assert "train 2003" in browser.evaluate("document.querySelector('.samples').textContent")

        browser.open(f"{address}run/mine/step/301")
        asked = "window.confirm = (text) => { window.asked = text; return true; }; void 0"
        browser.evaluate(asked)
        click(browser, "[data-job=diagnose]")
        output = "document.getElementById('job-output')?.textContent"
        browser.wait_for(f"{output}.includes('ended with 0')", 120)
        assert str(tmp_path / "train.py") in browser.evaluate("window.asked")
        commands = browser.evaluate(
            "[...document.querySelectorAll('.commands [data-copy]')].map((one) => one.dataset.copy)"
        )
        assert f"sonde diagnose {run} --step 301 --again" in commands
        verdict = json.loads((run / "forensics" / "verdict-301.json").read_text())
        title = verdict["causes"][0]["title"]
        deadline = time.monotonic() + 30
        while browser.evaluate("document.querySelector('.verdict .title').textContent") != title:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert browser.complaints == []
