"""Where documents begin within packed rows, by what a batch holds."""

import pytest
import torch
from torch import Tensor

from sonde.recorder.checking.packing import document_starts

TOKENS = torch.arange(8).unsqueeze(0) + 20
BLOCKS = torch.block_diag(torch.ones(5, 5), torch.ones(3, 3)).tril().unsqueeze(0)
ADDED = torch.where(BLOCKS > 0, 0.0, float("-inf"))
SAID = {
    "position_ids": torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2]]),
    "document_ids": torch.tensor([[3, 3, 3, 3, 3, 4, 4, 4]]),
    "cu_seqlens": torch.tensor([0, 5, 8]),
    "seq_lengths": torch.tensor([5, 3]),
    "mask": BLOCKS.bool(),
    "mask of each head": ADDED.unsqueeze(1),
    "mask of numbers": BLOCKS,
}
UNSAID = {
    "position_ids": torch.arange(8).unsqueeze(0),
    "token_type_ids": torch.tensor([[0, 0, 0, 0, 0, 1, 1, 1]]),
    "cu_seqlens": torch.tensor([0, 8]),
    "seq_lengths": torch.tensor([5, 2]),
    "mask": torch.ones(1, 8, 8).tril(),
    "mask of everything": torch.ones(1, 8, 8),
}


@pytest.mark.parametrize(("name", "tensor"), SAID.items())
def test_a_batch_says_where_its_documents_begin(name: str, tensor: Tensor) -> None:
    found = document_starts({name: tensor}, TOKENS)

    assert found is not None
    assert found.starts.nonzero().tolist() == [[0, 5]]


@pytest.mark.parametrize(("name", "tensor"), UNSAID.items())
def test_a_batch_of_whole_rows_says_nothing(name: str, tensor: Tensor) -> None:
    assert document_starts({name: tensor}, TOKENS) is None
