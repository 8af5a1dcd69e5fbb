"""BLEU inside training: beam search at every evaluation, in the log, in the decision to stop,
without a trace in the training.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from small_corpus import TINY, prepare_corpus, sentences

from sonde.compat.nemo.evaluator import EvaluatorCallback
from sonde.generate.translation import translation_quality
from sonde.models.transformer import Transformer
from sonde.run import Run
from sonde.train.recipe import build
from sonde.train.settings import RecipeSettings
from sonde.train.translation import Translator

pytestmark = pytest.mark.slow


def train(
    corpus: Path, directory: Path, *, with_bleu: bool, **others: Any
) -> tuple[str, list[dict[str, Any]], Any]:
    settings = RecipeSettings(
        data=str(corpus),
        max_epochs=4,
        warmup=2,
        max_tokens=200,
        lr=1e-2,
        log_interval=1,
        **TINY,
        **others,
    )
    pieces = build(settings)
    model = pieces.task.model
    assert isinstance(model, Transformer)
    translator = Translator(model, pieces.tokenizer, pieces.tokenizer)

    def measure(_: object) -> dict[str, float]:
        found = translator.translate(sentences("en", 6), translator.search(beam=2, max_len=8))
        quality = translation_quality(
            [translation.text for translation in found], sentences("de", 6)
        )
        return {"bleu": quality.bleu, "chrf": quality.chrf}

    callback = EvaluatorCallback([], lambda *_: None, measure, eval_step=None, eval_epoch=1)
    with Run(directory) as run:
        reason = pieces.trainer(run).train(
            stop=pieces.settings, callbacks=[callback] if with_bleu else []
        )
    lines = (directory / "records" / "log.rank0.jsonl").read_text().splitlines()
    data = [record["data"] for record in map(json.loads, lines) if record["type"] == "LOG"]
    return reason, data, torch.cat([p.detach().flatten() for p in pieces.task.model.parameters()])


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sacrebleu")
    return prepare_corpus(tmp_path_factory.mktemp("pairs"))


def test_every_evaluation_logs_bleu_and_training_does_not_feel_it(
    corpus: Path, tmp_path: Path
) -> None:
    _, with_bleu, weights = train(corpus, tmp_path / "with", with_bleu=True)
    _, without, others = train(corpus, tmp_path / "without", with_bleu=False)
    measured = [data for data in with_bleu if "val.bleu" in data]
    assert len(measured) == 5  # before the first update, and after each of four epochs
    assert all(0 <= data["val.bleu"] <= 100 and data["val.chrf"] >= 0 for data in measured)
    assert torch.equal(weights, others)
    losses = [
        [data["train.loss"] for data in run if "train.loss" in data] for run in (with_bleu, without)
    ]
    assert losses[0] == losses[1]


def test_patience_and_target_may_look_at_bleu(corpus: Path, tmp_path: Path) -> None:
    reason, _, _ = train(corpus, tmp_path, with_bleu=True, metric="chrf", mode="max", target=-1.0)
    assert reason.startswith("target: chrf reached")
