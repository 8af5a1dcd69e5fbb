"""Small trainings with TRL's trainers, one sample of which is spoiled; for the tests, and as a
script for replays: `python tests/trl_training.py dpo RUN`.
"""

import copy
import random
import sys
from pathlib import Path
from typing import Any

import torch

NUM_SAMPLES = 1280
"""40 batches. The rows are watched after 1,024 of them."""
SPOILED = 1200
_LETTERS = "abcdefghijklmnop"
_SIGNS = "#$%&*+/0123456789"
_SPECIAL = ["<pad>", "<end>"]


def train(kind: str, run: Path | None, **settings: Any) -> list[torch.Tensor]:
    """Train, watched if there is a run to record; returns the weights."""
    from sonde.integrations.huggingface import SondeCallback

    torch.manual_seed(1)
    given: dict[str, Any] = {
        "max_steps": 40,
        "per_device_train_batch_size": 32,
        "learning_rate": 0.01,
        "train_sampling_strategy": "sequential",
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        **settings,
    }
    callbacks = [] if run is None else [SondeCallback(run)]
    trainer = (_supervised if kind == "sft" else _preferences)(given, callbacks)
    trainer.train()
    return [parameter.detach() for parameter in trainer.model.parameters()]


def _supervised(settings: dict[str, Any], callbacks: list[Any]) -> Any:
    """Letters that follow one another, and a sample of signs."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    dice = random.Random(1)
    texts = [_in_order(dice, 20) for _ in range(NUM_SAMPLES)]
    texts[SPOILED] = _noise(dice, 20)
    return SFTTrainer(
        _model(),
        SFTConfig("unused", **settings),
        train_dataset=Dataset.from_dict({"text": texts}),
        processing_class=_tokenizer(),
        callbacks=callbacks,
    )


def _preferences(settings: dict[str, Any], callbacks: list[Any]) -> Any:
    """Letters are preferred to signs, but in one sample it is the other way round."""
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    dice = random.Random(1)
    samples = []
    for number in range(NUM_SAMPLES):
        pair = [_in_order(dice, 8), _noise(dice, 8)]
        if number == SPOILED:
            pair.reverse()
        samples.append({"prompt": _in_order(dice, 4), "chosen": pair[0], "rejected": pair[1]})
    model = _model()
    return DPOTrainer(
        model,
        ref_model=copy.deepcopy(model),
        args=DPOConfig("unused", **settings),
        train_dataset=Dataset.from_list(samples),
        processing_class=_tokenizer(),
        callbacks=callbacks,
    )


def _in_order(dice: random.Random, length: int) -> str:
    start = dice.randrange(len(_LETTERS))
    return "".join(_LETTERS[(start + at) % len(_LETTERS)] for at in range(length))


def _noise(dice: random.Random, length: int) -> str:
    return "".join(dice.choice(_SIGNS) for _ in range(length))


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    names = [*_SPECIAL, *_LETTERS, *_SIGNS]
    tokenizer = Tokenizer(models.BPE({name: number for number, name in enumerate(names)}, []))
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=_SPECIAL[0], eos_token=_SPECIAL[1]
    )


def _model() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    size = len(_SPECIAL) + len(_LETTERS) + len(_SIGNS)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=size,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=2,
            attention_dropout=0.1,
            pad_token_id=0,
            bos_token_id=None,
            eos_token_id=1,
        )
    )


if __name__ == "__main__":
    train(sys.argv[1], Path(sys.argv[2]))
