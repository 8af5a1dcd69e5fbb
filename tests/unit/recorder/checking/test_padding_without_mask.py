"""Padding that a batch has no mask of: a model that reads it is named, one that knows it is not."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sonde.recorder.recorder import Recorder

PAD = 0
VOCABULARY = 30
DICE = torch.Generator().manual_seed(3)


class Reader(nn.Module):
    """Looks up tokens, mixes them by attention, and says something of each place or of the row."""

    def __init__(
        self, outputs: int, *, knows_padding: bool, is_causal: bool, has_index: bool = True
    ) -> None:
        super().__init__()
        self.knows_padding = knows_padding
        self.is_causal = is_causal
        self.table = nn.Embedding(VOCABULARY, 16, padding_idx=PAD if has_index else None)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.head = nn.Linear(16, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        hidden = torch.zeros(length, length, dtype=torch.bool)
        if self.is_causal:
            hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        padding = tokens == PAD if self.knows_padding else None
        vectors = self.table(tokens)
        mixed, _ = self.attention(
            vectors, vectors, vectors, attn_mask=hidden, key_padding_mask=padding
        )
        scores: Tensor = self.head(torch.nan_to_num(mixed) + vectors)
        return scores


def rows(*, on_the_left: bool) -> Tensor:
    tokens = torch.full((8, 14), PAD)
    for row in range(8):
        length = 5 + row % 8
        words = torch.randint(1, VOCABULARY, (length,), generator=DICE)
        tokens[row, -length:] = words
        if not on_the_left:
            tokens[row] = tokens[row].roll(length - 14)
    return tokens


def status(run: Path, model: Reader, *, on_the_left: bool, is_classifier: bool) -> str:
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = [rows(on_the_left=on_the_left) for _ in range(8)]

    def train_step(tokens: Tensor) -> Tensor:
        optimizer.zero_grad()
        if is_classifier:
            first = 0 if not on_the_left else -1
            loss = F.cross_entropy(model(tokens)[:, first], (tokens != PAD).sum(1) % 3)
        else:
            labels = tokens[:, 1:].masked_fill(tokens[:, 1:] == PAD, -100)
            loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), labels.flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    with Recorder(run, model, optimizer) as recorder:
        report = recorder.check(batches, train_step)
    return next(result.status for result in report.results if result.name == "padding_apart")


@pytest.mark.slow
@pytest.mark.parametrize(("knows_padding", "expected"), [(False, "wrong"), (True, "fine")])
def test_a_classifier_that_reads_padding_is_named_by_the_embedding(
    tmp_path: Path, knows_padding: bool, expected: str
) -> None:
    model = Reader(3, knows_padding=knows_padding, is_causal=False)
    assert status(tmp_path, model, on_the_left=False, is_classifier=True) == expected


@pytest.mark.slow
@pytest.mark.parametrize("has_index", [True, False])
@pytest.mark.parametrize(
    ("on_the_left", "knows_padding", "expected"),
    [(True, False, "wrong"), (True, True, "fine"), (False, False, "fine")],
)
def test_a_language_model_that_reads_padding_on_the_left_is_named_by_embedding_or_loss(
    tmp_path: Path, has_index: bool, on_the_left: bool, knows_padding: bool, expected: str
) -> None:
    model = Reader(VOCABULARY, knows_padding=knows_padding, is_causal=True, has_index=has_index)
    assert status(tmp_path, model, on_the_left=on_the_left, is_classifier=False) == expected


@pytest.mark.slow
def test_without_an_index_nothing_says_what_the_padding_of_a_classifier_is(tmp_path: Path) -> None:
    model = Reader(3, knows_padding=False, is_causal=False, has_index=False)
    assert status(tmp_path, model, on_the_left=False, is_classifier=True) == "does not apply"
