"""The Transformer on two real processes: DistributedDataParallel and fully_shard give the gradients
of one process.
"""

import os
import socket
from itertools import product
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.multiprocessing.spawn import start_processes
from torch.nn.parallel import DistributedDataParallel

from sonde.models.loss import token_losses
from sonde.models.settings import TransformerSettings
from sonde.models.transformer import Transformer

WORLD_SIZE = 2
KINDS = ("ddp", "fsdp2")
ENCODER_LAYERS = (0, 2)


def make_model(encoder_layers: int) -> Transformer:
    torch.manual_seed(0)
    return Transformer(
        TransformerSettings(
            vocab_size=40,
            model_dim=32,
            num_heads=2,
            ffn_dim=64,
            encoder_layers=encoder_layers,
            decoder_layers=2,
            dropout=0.0,
        )
    )


def make_batch(encoder_layers: int) -> tuple[Tensor, Tensor | None, Tensor]:
    generator = torch.Generator().manual_seed(1)
    previous = torch.randint(2, 40, (4, 6), generator=generator)
    source = torch.randint(2, 40, (4, 5), generator=generator) if encoder_layers else None
    return previous, source, torch.randint(2, 40, (4, 6), generator=generator)


def rows(tensor: Tensor | None, rank: int) -> Tensor | None:
    return None if tensor is None else tensor[rank * 2 : rank * 2 + 2]


def whole(gradient: Tensor | None) -> Tensor:
    assert gradient is not None
    return gradient.full_tensor() if isinstance(gradient, DTensor) else gradient


def gradients_of_rank(rank: int, kind: str, encoder_layers: int) -> dict[str, Tensor]:
    model = make_model(encoder_layers)
    wrapped: torch.nn.Module = model
    if kind == "ddp":
        wrapped = DistributedDataParallel(model)
    else:
        mesh = dist.device_mesh.init_device_mesh("cpu", (WORLD_SIZE,))
        for block in [*model.encoder, *model.decoder]:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    previous, source, targets = make_batch(encoder_layers)
    mine = rows(targets, rank)
    assert mine is not None
    token_losses(wrapped(rows(previous, rank), rows(source, rank)), mine, pad=1).mean().backward()
    return {name: whole(parameter.grad) for name, parameter in model.named_parameters()}


def train_one_step(rank: int, port: int, directory: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=WORLD_SIZE)
    for kind, encoder_layers in product(KINDS, ENCODER_LAYERS):
        gradients = gradients_of_rank(rank, kind, encoder_layers)
        if rank == 0:
            torch.save(gradients, Path(directory) / f"{kind}-{encoder_layers}.pt")
    dist.destroy_process_group()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.slow
def test_two_ranks_give_the_gradients_of_one_process(tmp_path: Path) -> None:
    start_processes(
        train_one_step, args=(free_port(), str(tmp_path)), nprocs=WORLD_SIZE, start_method="spawn"
    )
    for kind, encoder_layers in product(KINDS, ENCODER_LAYERS):
        model = make_model(encoder_layers)
        previous, source, targets = make_batch(encoder_layers)
        token_losses(model(previous, source), targets, pad=1).mean().backward()
        expected = {name: parameter.grad for name, parameter in model.named_parameters()}
        gradients = torch.load(tmp_path / f"{kind}-{encoder_layers}.pt", weights_only=True)
        torch.testing.assert_close(gradients, expected)
