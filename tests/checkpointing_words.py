"""A training script as a user writes it, for tests of diagnosis and rollback from its own
checkpoints: python checkpointing_words.py [--resume out-150.pt]

It learns the letters of a sentence; the batch of step `BAD_STEP` has one garbled row. It keeps no
states in the run, which is `run` in the current directory.
"""

import argparse
import random
import string

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import sonde

BAD_STEP = 180
_NUM_STEPS = 200
_NUM_ROWS = 4
_LENGTH = 48
_SENTENCE = "the quick brown fox jumps over the lazy dog while a small cat looks on from the wall "


class Rows(Dataset[tuple[Tensor, int]]):
    """Pieces of the sentence, and one that is garbled."""

    def __len__(self) -> int:
        return _NUM_STEPS * _NUM_ROWS

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        draw = random.Random(number)
        start = draw.randrange(len(_SENTENCE))
        text = (_SENTENCE * 2)[start : start + _LENGTH]
        if number == (BAD_STEP - 1) * _NUM_ROWS + 2:
            text = "".join(draw.choices(string.printable[:94], k=_LENGTH))
        return torch.tensor(list(text.encode())), number


def main() -> None:
    """Train, saving every 50 steps; resume if asked to."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--resume", default="")
    resume = parser.parse_args().resume
    torch.manual_seed(1)
    model = nn.Sequential(nn.Embedding(128, 32), nn.Linear(32, 128))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    start = 0
    if resume:
        saved = torch.load(resume, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        start = saved["step"]

    def train_step(batch: tuple[Tensor, Tensor]) -> Tensor:
        rows, _ = batch
        scores = model(rows[:, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    recorder = sonde.Recorder(
        "run",
        model,
        optimizer,
        decode=lambda tokens: bytes(tokens).decode(),
        sample_ids=lambda batch: batch[1],
        options=sonde.RecorderOptions(state_every=0),
    )
    recorder.num_updates = start
    loader = DataLoader(sonde.without(Rows(), "run"), batch_size=_NUM_ROWS)
    for number, batch in enumerate(loader, 1):
        if number <= start:
            continue
        recorder.step(train_step, batch)
        if number % 50 == 0:
            path = f"out-{number}.pt"
            state = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "step": number,
            }
            torch.save(state, path)
            recorder.checkpoint(path, resume=["--resume", path])
    recorder.close()


if __name__ == "__main__":
    main()
