"""The text of a row is what the model reads, also where its target is a class."""

import string
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sonde.forensics.verdict import read_verdict
from sonde.recorder.losses import RowLosses
from sonde.recorder.recorder import Recorder
from sonde.recorder.row_reader import are_targets_tokens

NUM_STEPS = 150
ODD_STEP = 140
WORDS = ("river", "stone", "cloud", "apple", "horse", "green", "night", "seven")
LETTERS = " " + string.ascii_lowercase


def decode(tokens: list[int]) -> str:
    return "".join(LETTERS[token] for token in tokens if token).strip()


class TextSorter(nn.Module):
    """Says of which kind a text is."""

    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(len(LETTERS), 24)
        self.head = nn.Linear(24, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.head(self.letters(tokens).mean(1))
        return scores


def test_a_row_with_a_wrong_class_is_shown_as_its_text(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = TextSorter()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    dice = torch.Generator().manual_seed(2)

    def step(batch: dict[str, Tensor]) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch["input_ids"]), batch["labels"])
        loss.backward()
        optimizer.step()
        return loss

    with Recorder(tmp_path, model, optimizer, decode=decode) as recorder:
        for number in range(1, NUM_STEPS):
            chosen = torch.randint(len(WORDS), (16, 3), generator=dice)
            texts = ["qz"[row[0] % 2] + "".join(WORDS[word] for word in row) for row in chosen]
            tokens = torch.tensor([[LETTERS.index(letter) for letter in text] for text in texts])
            labels = chosen[:, 0] % 2
            if number == ODD_STEP:
                labels[3:7] = 1 - labels[3:7]
                odd_texts = texts[3:7]
            recorder.step(step, {"input_ids": tokens, "labels": labels})
    verdict = read_verdict(tmp_path, ODD_STEP)
    suspects = [suspect for cause in verdict.causes for suspect in cause.suspects]
    assert suspects
    assert {suspect.text for suspect in suspects} <= set(odd_texts)
    assert "empty" not in [cause.cause for cause in verdict.causes]


def test_targets_are_text_if_they_are_tokens_of_their_row() -> None:
    def rows_of(*targets: list[int]) -> list[RowLosses]:
        return [RowLosses([1.0] * len(row), row) for row in targets]

    tokens = [[11, 12, 13], [14, 15, 16]]
    assert are_targets_tokens(rows_of([12, 13, 9], [15, 16, 9]), tokens)
    assert are_targets_tokens(rows_of([41, 42], [43, 44, 45, 46]), tokens)  # a translation
    assert not are_targets_tokens(rows_of([0], [1]), tokens)
    assert not are_targets_tokens(rows_of([0, 1, 0], [1, 1, 0]), tokens)
    assert are_targets_tokens(rows_of([41], [42]), [])
