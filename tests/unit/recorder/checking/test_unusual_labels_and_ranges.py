"""Checks that few trainings need: numbers in float16, labels of other batches, rows in the order of
their dataset.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sonde.forensics.checks.check_rule import CheckResult
from sonde.recorder.checking.half_range import largest_of
from sonde.recorder.recorder import Recorder

VOCABULARY = 40


class Model(nn.Module):
    def __init__(self, gain: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.wide = nn.Linear(16, 16)
        self.mixer = nn.GRU(16, 16, batch_first=True)
        self.head = nn.Linear(16, VOCABULARY)
        self.gain = gain

    def forward(self, tokens: Tensor) -> Tensor:
        """Return scores; `wide` gives outputs that are `gain` times larger than they need be."""
        wide = self.wide(self.embedding(tokens) * self.gain) / self.gain
        scores: Tensor = self.head(self.mixer(wide.float())[0])
        return scores


def checked(
    run: Path,
    name: str,
    batches: list[Any],
    *,
    gain: float = 1.0,
    dtype: torch.dtype = torch.float32,
) -> CheckResult:
    """Check a training on pairs of tokens and labels, and return the answer of one check."""
    torch.manual_seed(1)
    model = Model(gain)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(batch: tuple[Tensor, Tensor]) -> Tensor:
        with torch.autocast("cpu", dtype, enabled=dtype is not torch.float32):
            scores = model(batch[0])
        loss = F.cross_entropy(scores.float().flatten(0, 1), batch[1].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    with Recorder(run, model, optimizer) as recorder:
        report = recorder.check(batches, step)
    return next(result for result in report.results if result.name == name)


def rows() -> list[Tensor]:
    generator = torch.Generator().manual_seed(2)
    return [torch.randint(0, VOCABULARY, (6, 13), generator=generator) for _ in range(8)]


def pairs() -> list[tuple[Tensor, Tensor]]:
    return [(batch[:, :-1], batch[:, 1:]) for batch in rows()]


@pytest.mark.parametrize(
    ("gain", "dtype", "status"),
    [
        (1.0, torch.float16, "fine"),
        (1.5e4, torch.float16, "wrong"),
        (1e6, torch.float16, "wrong"),
        (1.5e4, torch.bfloat16, "does not apply"),
    ],
)
def test_an_overflow_that_is_close_is_named(
    tmp_path: Path, gain: float, dtype: torch.dtype, status: str
) -> None:
    found = checked(tmp_path, "overflow", pairs(), gain=gain, dtype=dtype)
    assert found.status == status
    assert status != "wrong" or "wide" in found.text


def test_what_a_mask_puts_in_is_no_overflow() -> None:
    scores = torch.tensor([1.0, 3.0, 2.0], dtype=torch.float16)
    for filling in (-65504.0, -1e4, -torch.inf):
        assert largest_of(torch.cat([scores, scores.new_full((2,), filling)])) == 3.0
    assert largest_of(torch.cat([scores, -4 * scores])) == 12.0
    assert largest_of(torch.tensor([1.0, torch.inf])) == torch.inf
    assert largest_of(torch.tensor([1.0, torch.nan])) == torch.inf


END = 0
PADDING = 1


def padded(padding: int) -> list[tuple[Tensor, Tensor]]:
    """Texts that end with END, padded to the longest of the batch; padding does not count."""
    generator = torch.Generator().manual_seed(5)
    batches = []
    for _ in range(8):
        lengths = torch.randint(5, 20, (6,), generator=generator).tolist()
        tokens = torch.full((6, max(lengths) + 1), padding)
        for row, length in enumerate(lengths):
            tokens[row, :length] = torch.randint(2, VOCABULARY, (length,), generator=generator)
            tokens[row, length] = END
        labels = tokens[:, 1:].clone()
        labels[labels == padding] = -100
        batches.append((tokens[:, :-1], labels))
    return batches


@pytest.mark.slow
@pytest.mark.parametrize(("padding", "status"), [(END, "wrong"), (PADDING, "does not apply")])
def test_an_end_of_text_that_is_masked_as_padding_is_named_without_a_tokenizer(
    tmp_path: Path, padding: int, status: str
) -> None:
    assert checked(tmp_path, "end_of_text", padded(padding)).status == status


@pytest.mark.slow
def test_an_end_of_its_own_before_the_padding_is_seen_where_labels_are_rolled(
    tmp_path: Path,
) -> None:
    batches = []
    for tokens, _ in padded(PADDING):
        tokens = torch.cat([tokens, tokens[:, :1]], 1)
        tokens[:, -1] = PADDING
        tokens[0, -1] = END  # the longest row has no padding
        labels = tokens.roll(-1, 1)
        labels[(labels == PADDING) | (tokens == END)] = -100
        batches.append((tokens, labels))
    assert checked(tmp_path, "end_of_text", batches).status == "does not apply"


@pytest.mark.slow
def test_labels_of_another_batch_are_named(tmp_path: Path) -> None:
    labels = [batch[:, 1:] for batch in rows()]
    mixed = [(batch[:, :-1], labels[(at + 3) % 8]) for at, batch in enumerate(rows())]
    assert checked(tmp_path / "right", "label_shift", pairs()).status == "fine"
    assert checked(tmp_path / "mixed", "label_shift", mixed).status == "wrong"


def test_labels_that_are_in_no_batch_cannot_be_judged(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(7)
    others = [torch.randint(0, VOCABULARY, (6, 12), generator=generator) for _ in range(8)]
    mixed = [(batch[:, :-1], other) for batch, other in zip(rows(), others, strict=True)]
    assert checked(tmp_path / "mixed", "label_shift", mixed).status == "cannot tell"
    reversed_ = [(batch[:, :-1], batch[:, :-1].flip(1)) for batch in rows()]
    assert checked(tmp_path / "reversed", "label_shift", reversed_).status == "does not apply"


@pytest.mark.parametrize(
    ("follows", "name", "status"),
    [
        (False, "answer_mask", "wrong"),
        (False, "completion_mask", "wrong"),
        (True, "answer_mask", "fine"),
        (False, "token_type_ids", "fine"),
    ],
)
def test_labels_that_do_not_follow_the_mask_of_the_answers_are_named(
    tmp_path: Path, follows: bool, name: str, status: str
) -> None:
    torch.manual_seed(1)
    model = Model(1.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = []
    for tokens in rows():
        mask = (torch.arange(tokens.shape[1]) >= 6).long().expand_as(tokens)
        labels = tokens.masked_fill(mask == 0, -100) if follows else tokens
        batches.append({"input_ids": tokens, name: mask, "labels": labels})

    def step(batch: dict[str, Tensor]) -> Tensor:
        scores = model(batch["input_ids"][:, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1), batch["labels"][:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    with Recorder(tmp_path, model, optimizer) as recorder:
        report = recorder.check(batches, step)
    found = next(result for result in report.results if result.name == "counted_positions")
    assert found.status == status, found.text


@pytest.mark.parametrize(("is_carried_on", "status"), [(True, "wrong"), (False, "fine")])
def test_losses_that_are_carried_on_from_one_micro_batch_to_the_next_are_named(
    tmp_path: Path, is_carried_on: bool, status: str
) -> None:
    torch.manual_seed(1)
    model = Model(1.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(tokens: Tensor) -> Tensor:
        optimizer.zero_grad()
        total = torch.zeros(())
        for part in tokens.split(2):
            scores = model(part[:, :-1])
            loss = F.cross_entropy(scores.flatten(0, 1), part[:, 1:].flatten())
            total = total + loss / 3
            (total if is_carried_on else loss / 3).backward(retain_graph=True)
        optimizer.step()
        return loss.detach()

    with Recorder(tmp_path, model, optimizer) as recorder:
        report = recorder.check(rows(), step)
    found = next(result for result in report.results if result.name == "accumulation")
    assert found.status == status, found.text


def test_a_small_loss_before_a_large_one_is_not_carried_on(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

    def step(batch: Tensor) -> Tensor:
        optimizer.zero_grad()
        for part, size in zip(batch.split(2), (0.01, 10.0), strict=True):
            loss = F.mse_loss(model(part).squeeze(1), size * torch.arange(1.0, 3.0) + model.bias)
            (loss / 2).backward()
        optimizer.step()
        return loss.detach()

    with Recorder(tmp_path, model, optimizer) as recorder:
        report = recorder.check([torch.zeros(4, 4)] * 8, step)
    found = next(result for result in report.results if result.name == "accumulation")
    assert found.status != "wrong", found.text


class Translator(nn.Module):
    """Reads a source and says a target; with `masks`, it looks at no padding of the source."""

    def __init__(self, *, masks: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.head = nn.Linear(16, VOCABULARY)
        self.masks = masks

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return scores of the next token of the target."""
        memory = self.embedding(source)
        states = self.embedding(target)
        weights = states @ memory.transpose(1, 2)
        if self.masks:
            weights = weights.masked_fill((source == END).unsqueeze(1), float("-inf"))
        scores: Tensor = self.head(states + weights.softmax(-1) @ memory)
        return scores


@pytest.mark.parametrize(("masks", "status"), [(False, "wrong"), (True, "fine")])
def test_a_decoder_that_looks_at_the_padding_of_the_source_is_named(
    tmp_path: Path, masks: bool, status: str
) -> None:
    torch.manual_seed(1)
    model = Translator(masks=masks)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    targets = [torch.randint(2, VOCABULARY, (6, 11)) for _ in range(8)]
    batches = [(pair[0], target) for pair, target in zip(padded(END), targets, strict=True)]

    def step(batch: tuple[Tensor, Tensor]) -> Tensor:
        scores = model(batch[0], batch[1][:, :-1])
        following = batch[1][:, 1:].flatten()
        loss = F.cross_entropy(scores.flatten(0, 1), following, ignore_index=END)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    with Recorder(tmp_path, model, optimizer) as recorder:
        report = recorder.check(batches, step)
    found = next(result for result in report.results if result.name == "padding_apart")
    assert found.status == status, found.text
