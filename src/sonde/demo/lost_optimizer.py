"""A training that forgets its optimizer when it resumes, for `sonde demo`.

    python -m sonde.demo.lost_optimizer FOLDER              train, and save a checkpoint
    python -m sonde.demo.lost_optimizer FOLDER --resume     go on from it

The second start loads the weights and not the state of the optimizer. Nothing fails, and the loss
falls all the same.
"""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sonde.recorder.recorder import Recorder

_NUM_STEPS = 40


def batch_of(step: int) -> Tensor:
    """Return inputs that follow from the number of the step."""
    generator = torch.Generator().manual_seed(step)
    return torch.randn(16, 8, generator=generator)


def main(folder: Path, *, resumes: bool) -> None:
    """Train for some steps, from the beginning or from the checkpoint."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    recorder = Recorder(folder / "run-resumed", model, optimizer)
    first = 0
    checkpoint_file = folder / "checkpoint.pt"
    if resumes:
        checkpoint = torch.load(checkpoint_file, weights_only=True)
        model.load_state_dict(checkpoint["model"])
        # bug: the state of the optimizer is in the checkpoint, and is not loaded
        torch.set_rng_state(checkpoint["generator"])
        first = checkpoint["step"]
        recorder.num_updates = first

    def train_step(inputs: Tensor) -> Tensor:
        loss = F.mse_loss(model(inputs).squeeze(1), inputs.sum(1).tanh())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    for step in range(first, first + _NUM_STEPS):
        recorder.step(train_step, batch_of(step))
    if not resumes:
        checkpoint = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "generator": torch.get_rng_state(),
            "step": _NUM_STEPS,
        }
        torch.save(checkpoint, checkpoint_file)
        recorder.checkpoint(checkpoint_file)
    recorder.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), resumes="--resume" in sys.argv)
