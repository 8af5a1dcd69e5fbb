"""A Hugging Face Trainer that sonde watches: a small Llama on a small corpus, one record of which
is garbled.

    python examples/huggingface.py
    sonde spikes runs/huggingface
    sonde diagnose runs/huggingface -- python examples/huggingface.py
    sonde rollback runs/huggingface --step N --apply
    python examples/huggingface.py --resume runs/huggingface-out/checkpoint-40

What sonde adds to the script is one line: the callback.
"""

import argparse
import logging

import torch
from corpus import sentences
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    DataCollatorForLanguageModeling,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    set_seed,
)

from sonde.integrations.huggingface import SondeCallback


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, so that nothing has to be downloaded."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(
        models.BPE({letter: at for at, letter in enumerate(["<pad>", *letters])}, [])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>")  # noqa: S106


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--directory", default="runs/huggingface")
    parser.add_argument("--resume", default=None)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--unwatched", action="store_true")
    arguments = parser.parse_args()
    logging.basicConfig()
    set_seed(1)
    tokenizer = byte_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        attention_dropout=0.1,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=None,
    )
    trainer = Trainer(
        LlamaForCausalLM(config),
        TrainingArguments(
            f"{arguments.directory}-out",
            learning_rate=0.01,
            num_train_epochs=2,
            per_device_train_batch_size=arguments.rows,
            use_cpu=True,
            gradient_accumulation_steps=arguments.accumulate,
            dataloader_num_workers=arguments.workers,
            save_steps=20,
            logging_steps=10,
            report_to=[],
            disable_tqdm=True,
        ),
        train_dataset=[tokenizer(text, return_token_type_ids=False) for text in sentences()],
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
        processing_class=tokenizer,
        callbacks=[] if arguments.unwatched else [SondeCallback(arguments.directory)],
    )
    trainer.train(resume_from_checkpoint=arguments.resume)
    torch.save(trainer.model.state_dict(), f"{arguments.directory}.pt")


if __name__ == "__main__":
    main()
