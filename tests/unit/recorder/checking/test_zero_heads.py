"""Models whose output layer begins with zeros, as in nanochat: what comes before it counts as soon
as training moves it, so the experiments look through the zeros.
"""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sonde.recorder.recorder import Recorder

VOCABULARY = 40


class Model(nn.Module):
    def __init__(self, *, sees_ahead: bool) -> None:
        super().__init__()
        self.sees_ahead = sees_ahead
        self.table = nn.Embedding(VOCABULARY, 16)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(16, VOCABULARY, bias=False)
        nn.init.zeros_(self.head.weight)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.drop(self.table(tokens))
        x = x + F.scaled_dot_product_attention(x, x, x, is_causal=not self.sees_ahead)
        scores: Tensor = self.head(x)
        return scores


@pytest.mark.slow
@pytest.mark.parametrize(("sees_ahead", "causality"), [(True, "wrong"), (False, "fine")])
def test_a_leak_behind_a_head_of_zeros_is_seen_and_its_dropout_is_fine(
    tmp_path: Path, sees_ahead: bool, causality: str
) -> None:
    torch.manual_seed(0)
    model = Model(sees_ahead=sees_ahead)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def train_step(tokens: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    before = model.head.weight.clone()
    with Recorder(tmp_path, model, optimizer) as recorder:
        batches = [torch.randint(VOCABULARY, (6, 13)) for _ in range(8)]
        report = recorder.check(batches, train_step)
    status = {result.name: result.status for result in report.results}
    assert status["causality"] == causality
    assert status["dropout"] == "fine"
    assert torch.equal(model.head.weight, before)
