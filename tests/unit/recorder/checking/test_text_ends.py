"""Answers that never end, by the token that the tokenizer or the model's configuration names."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sonde.recorder.recorder import Recorder

PAD = 0
END = 1
OWN_END = 2
VOCABULARY = 40


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(eos_token_id=END)
        self.table = nn.Embedding(VOCABULARY, 16)
        self.head = nn.Linear(16, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.head(self.table(tokens))
        return scores


def conversations(last: int | None, *, is_cut: bool, number: int) -> tuple[Tensor, Tensor]:
    """Questions and answers; the answers end with a token, or with nothing."""
    dice = torch.Generator().manual_seed(number)
    tokens = torch.full((6, 20), PAD)
    labels = torch.full((6, 20), -100)
    for row in range(6):
        length = 20 if is_cut else 10 + 2 * row
        words = torch.randint(3, VOCABULARY, (length,), generator=dice)
        if last is not None:
            words[-1] = last
        tokens[row, :length] = words
        labels[row, 5:length] = words[5:]
    return tokens, labels


@pytest.mark.slow
@pytest.mark.parametrize(
    ("last", "is_cut", "status"),
    [
        (None, False, "cannot tell"),
        (None, True, "does not apply"),
        (END, False, "does not apply"),
        (OWN_END, False, "does not apply"),
        (3, False, "cannot tell"),
    ],
)
def test_answers_without_an_end_are_told_as_far_as_the_configuration_is_right(
    tmp_path: Path, last: int | None, is_cut: bool, status: str
) -> None:
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())

    def train_step(batch: tuple[Tensor, Tensor]) -> Tensor:
        tokens, labels = batch
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    batches = [conversations(last, is_cut=is_cut, number=number) for number in range(8)]
    with Recorder(tmp_path, model, optimizer) as recorder:
        report = recorder.check(batches, train_step)
    found = next(result for result in report.results if result.name == "end_of_text")
    assert found.status == status
    assert found.status != "cannot tell" or "Token 1" in found.text
