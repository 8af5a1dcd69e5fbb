"""Training throughput in target tokens per CPU second: the same Transformer, the same batches, five
loops around them.

    python benchmarks/throughput.py           about three minutes; peers that are not installed are
                                              left out

An encoder-decoder (width 256, 3 + 3 layers, 8,000 tokens) and batches of about 2,000 target tokens
with Multi30k's lengths, float32, one thread, AdamW, clipping at 1.0, label smoothing 0.1. Every
loop does what its users get by default: the bare loop, Lightning and Hugging Face take
`F.cross_entropy`; fairseq's loop is restated from its semantics (its criterion over whole
log-probabilities, gradients multiplied by the inverse of the tokens, the norm and the meters of
each update). Ours has everything on: log, step records, spike recorder, metrics. CPU time between
every fourth batch that a loop asks for, the fastest such stretch but the first (Lightning asks for
a batch ahead, so its first is an update short) of several turns; contenders take turns, so a noisy
minute hits all of them.
"""

import importlib.util
import logging
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that this also runs as a script

from benchmarks.measure import markdown_table

from sonde.data import Batch
from sonde.models import Transformer, TransformerSettings
from sonde.run import Run
from sonde.train import Schedule, StopWhen, Trainer, TrainerSettings, TransformerTask

_STRETCH: Final = 4
_NUM_STRETCHES: Final = 4
_NUM_UPDATES: Final = _STRETCH * _NUM_STRETCHES
_NUM_TURNS: Final = 2
_VOCABULARY: Final = 8000
_PAD: Final = 1
_SMOOTHING: Final = 0.1
_LOG_INTERVAL: Final = 4
_LR: Final = 5e-4
_GATE: Final = 0.98


def main() -> None:
    torch.set_num_threads(1)
    contenders: dict[str, Callable[[_Batches], None]] = {
        "bare loop": _bare,
        "sonde, everything on": _ours,
        "fairseq's loop, restated": _fairseq,
    }
    if importlib.util.find_spec("transformers") and importlib.util.find_spec("accelerate"):
        contenders["Hugging Face Trainer"] = _hugging_face
    if importlib.util.find_spec("lightning"):
        contenders["Lightning, CSV logger"] = _lightning
    rates = _tokens_per_second(contenders)
    bare = rates["bare loop"]
    ours = rates["sonde, everything on"]
    rows = [
        [
            name,
            f"{rate:,.0f}",
            f"{rate / bare:.3f}",
            "" if name.startswith("sonde") else f"{ours / rate:.3f}",
        ]
        for name, rate in rates.items()
    ]
    print(
        markdown_table(
            ["loop", "target tokens per CPU second", "of the bare loop", "ours is faster by"], rows
        )
    )
    print(
        f"\nGate: ours at least {_GATE} of the bare loop:"
        f" {'met' if ours >= _GATE * bare else 'NOT met'}."
    )


def _tokens_per_second(contenders: Mapping[str, Callable[["_Batches"], None]]) -> dict[str, float]:
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(_NUM_TURNS):
        for name, work in contenders.items():
            batches = _Batches()
            work(batches)
            best[name] = min(
                best[name], *(after - before for before, after in pairwise(batches.times[1:]))
            )
    return {name: _Batches().num_tokens / seconds for name, seconds in best.items()}


class _Batches(IterableDataset[Batch]):
    """The batches of one stretch, again and again, and notes of the CPU time at the start of each
    stretch.
    """

    def __init__(self) -> None:
        chance = np.random.default_rng(1)
        self._batches = [_batch(chance) for _ in range(_STRETCH)]
        self.num_tokens = sum(batch.ntokens for batch in self._batches)
        self.times: list[float] = []

    def __iter__(self) -> Iterator[Batch]:
        for _ in range(_NUM_STRETCHES):
            self.times.append(time.process_time())
            yield from self._batches

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        del state


def _batch(chance: np.random.Generator) -> Batch:
    """About 2,000 target tokens in rows of nearly one length, as a token budget gives them."""
    length = int(np.clip(chance.normal(14, 4), 6, 30))
    num_rows = 2000 // length
    lengths = np.clip(length - chance.integers(0, 3, num_rows), 4, None)
    target = torch.full((num_rows, length), _PAD)
    for row, size in enumerate(lengths.tolist()):
        target[row, :size] = torch.from_numpy(4 + chance.zipf(1.3, size) % (_VOCABULARY - 4))
    decoder_input = torch.cat([torch.full((num_rows, 1), 2), target[:, :-1]], 1)
    return Batch(
        target=target,
        target_lengths=torch.from_numpy(lengths),
        decoder_input=decoder_input,
        source=target.flip(0).contiguous(),
        source_lengths=torch.from_numpy(lengths[::-1].copy()),
        weights=torch.ones(num_rows),
        ntokens=int(lengths.sum()),
        provenance=[("train", row) for row in range(num_rows)],
    )


def _model() -> Transformer:
    torch.manual_seed(1)
    settings = TransformerSettings(
        vocab_size=_VOCABULARY,
        model_dim=256,
        num_heads=4,
        ffn_dim=512,
        encoder_layers=3,
        decoder_layers=3,
    )
    return Transformer(settings)


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=_LR, betas=(0.9, 0.98), weight_decay=1e-4)


def _mean_loss(model: nn.Module, batch: Batch) -> Tensor:
    logits = model(batch.decoder_input, batch.source)
    return F.cross_entropy(
        logits.flatten(0, 1), batch.target.flatten(), ignore_index=_PAD, label_smoothing=_SMOOTHING
    )


def _bare(batches: _Batches) -> None:
    model = _model()
    optimizer = _optimizer(model)
    for batch in batches:
        optimizer.zero_grad()
        _mean_loss(model, batch).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def _ours(batches: _Batches) -> None:
    model = _model()
    task = TransformerTask(model, pad=_PAD, label_smoothing=_SMOOTHING)
    settings = TrainerSettings(log_interval=_LOG_INTERVAL, clip_norm=1.0)
    with tempfile.TemporaryDirectory() as folder, Run(folder) as run:
        schedule = Schedule(schedule="constant", lr=_LR)
        trainer = Trainer(
            task, batches, _optimizer(model), schedule=schedule, run=run, settings=settings
        )
        trainer.train(stop=StopWhen(max_updates=_NUM_UPDATES))


def _fairseq(batches: _Batches) -> None:
    model = _model()
    optimizer = _optimizer(model)
    loss_meter = [0.0, 0.0]
    norm_meter = [0.0, 0.0]
    for batch in batches:
        model.train()
        optimizer.zero_grad()
        log_probabilities = F.log_softmax(
            model(batch.decoder_input, batch.source), dim=-1, dtype=torch.float32
        )
        log_probabilities = log_probabilities.view(-1, _VOCABULARY)
        target = batch.target.view(-1, 1)
        likelihood = -log_probabilities.gather(-1, target)
        smooth = -log_probabilities.sum(-1, keepdim=True)
        is_pad = target.eq(_PAD)
        likelihood = likelihood.masked_fill(is_pad, 0.0).sum()
        smooth = smooth.masked_fill(is_pad, 0.0).sum()
        spread = _SMOOTHING / (_VOCABULARY - 1)
        loss = (1.0 - _SMOOTHING - spread) * likelihood + spread * smooth
        loss.backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(1.0 / batch.ntokens)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        for meter, value in ((loss_meter, loss.item() / batch.ntokens), (norm_meter, norm.item())):
            meter[0] += value
            meter[1] += 1


def _lightning(batches: _Batches) -> None:
    import lightning
    from lightning.pytorch.loggers import CSVLogger

    class Translation(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = _model()

        def training_step(self, batch: Batch, _: int) -> Tensor:
            loss = _mean_loss(self.model, batch)
            self.log("train_loss", loss, batch_size=len(batch))
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return _optimizer(self)

        def transfer_batch_to_device(self, batch: Batch, *_: Any) -> Batch:
            return batch

    _be_quiet()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(
            max_steps=_NUM_UPDATES,
            accelerator="cpu",
            logger=CSVLogger(folder),
            log_every_n_steps=_LOG_INTERVAL,
            gradient_clip_val=1.0,
            enable_progress_bar=False,
            enable_checkpointing=False,
            enable_model_summary=False,
        )
        trainer.fit(
            Translation(),
            train_dataloaders=DataLoader(batches, batch_size=None, collate_fn=lambda one: one),
        )


def _hugging_face(batches: _Batches) -> None:
    import transformers

    class Translation(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = _model()

        def forward(self, batch: Batch) -> dict[str, Tensor]:
            return {"loss": _mean_loss(self.model, batch)}

    class Ready(transformers.Trainer):  # type: ignore[misc]
        def get_train_dataloader(self) -> Any:
            return DataLoader(batches, batch_size=None, collate_fn=lambda batch: {"batch": batch})

    model = Translation()
    _be_quiet()
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            max_steps=_NUM_UPDATES,
            logging_steps=_LOG_INTERVAL,
            max_grad_norm=1.0,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        )
        optimizer = _optimizer(model)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
        trainer = Ready(model, arguments, train_dataset=batches, optimizers=(optimizer, schedule))
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()


def _be_quiet() -> None:
    for name in ("lightning", "lightning.pytorch", "transformers"):
        logging.getLogger(name).setLevel(logging.ERROR)


if __name__ == "__main__":
    main()
