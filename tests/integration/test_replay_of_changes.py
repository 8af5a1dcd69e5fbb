"""A loop that changes its optimizer on the way, outside of its step function, and is replayed."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys, torch, sonde
torch.manual_seed(1)
backbone, head = torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)
backbone.requires_grad_(False)
model = torch.nn.Sequential(backbone, head)
optimizer = torch.optim.AdamW(head.parameters(), lr=1e-2)

def train_step(batch):
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    return loss

with sonde.Recorder(sys.argv[1], model, optimizer) as recorder:
    for step in range(1, 31):
        if step == 16:
            backbone.requires_grad_(True)
            optimizer.add_param_group({"params": list(backbone.parameters()), "lr": 1e-4})
        recorder.step(train_step, torch.randn(6, 4))
"""


def replay(run: Path, script: Path, step: int) -> "subprocess.CompletedProcess[str]":
    words = ["replay", str(run), "--step", str(step), "--", sys.executable, str(script), str(run)]
    return subprocess.run(
        [sys.executable, "-m", "sonde", *words], capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_a_step_after_layers_were_unfrozen_is_refused_and_the_machine_is_not_blamed(
    tmp_path: Path,
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    run = tmp_path / "run"
    subprocess.run([sys.executable, str(script), str(run)], check=True, capture_output=True)
    before = replay(run, script, 15)
    assert before.returncode == 0, before.stderr
    assert "bit for bit" in before.stdout
    after = replay(run, script, 20)
    assert after.returncode != 0
    said = " ".join(after.stderr.split())
    assert "step 16 cannot be replayed" in said
    assert "2 parameter groups" in said
