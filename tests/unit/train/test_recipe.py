"""The built-in recipe: the same settings give the same pieces, the data decides the kind of model,
and it learns.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from small_corpus import TINY, prepare_corpus

from sonde.data.directory import DataDirectory
from sonde.errors import SettingError
from sonde.models.transformer import Transformer
from sonde.run import Run
from sonde.train.recipe import Pieces, build, fingerprints
from sonde.train.settings import RecipeSettings, settings_of_run


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_corpus(tmp_path_factory.mktemp("pairs"))


def settings(data: Path, **others: Any) -> RecipeSettings:
    values: dict[str, Any] = {
        "max_tokens": 64,
        "max_updates": 4,
        "log_interval": 1,
        "warmup": 2,
        **TINY,
        **others,
    }
    return RecipeSettings(data=str(data), **values)


def weights(pieces: Pieces) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in pieces.task.model.parameters()])


def model_of(pieces: Pieces) -> Transformer:
    assert isinstance(pieces.task.model, Transformer)
    return pieces.task.model


def test_the_same_settings_build_the_same_pieces_and_draw_nothing_from_the_global_generator(
    corpus: Path,
) -> None:
    before = torch.get_rng_state()
    one = build(settings(corpus))
    other = build(settings(corpus))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(weights(one), weights(other))
    assert not torch.equal(weights(one), weights(build(settings(corpus, seed=2))))
    assert [batch.provenance for batch in one.data] == [batch.provenance for batch in other.data]


def test_two_languages_make_an_encoder_decoder_and_one_a_language_model(
    corpus: Path, tmp_path: Path
) -> None:
    assert not model_of(build(settings(corpus))).settings.is_decoder_only
    text = prepare_corpus(tmp_path, languages=("en",))
    pieces = build(settings(text, block_size=10))
    assert model_of(pieces).settings.is_decoder_only
    batch = next(iter(pieces.data))
    assert batch.source is None
    assert batch.target.shape[1] == 10
    assert pieces.trainer().train(stop=pieces.settings).startswith("max_updates")


def test_a_run_of_the_recipe_learns_and_can_be_built_again_from_its_manifest(
    corpus: Path, tmp_path: Path
) -> None:
    own = settings(corpus, max_updates=30, lr=3e-2)
    pieces = build(own)
    untrained = weights(pieces)
    with Run(tmp_path, config=own.as_saved(), data=fingerprints(pieces.directory)) as run:
        pieces.trainer(run).train(stop=pieces.settings)
        step = run.checkpoints().folder.steps()[-1]
        found = run.checkpoints().folder.document(step)["metrics"]
        assert found["loss"] < 2.2  # log(13) of a model that knows nothing is 2.56
    assert settings_of_run(tmp_path) == own
    assert torch.equal(weights(build(settings_of_run(tmp_path))), untrained)


def test_held_out_batches_start_anew_at_every_evaluation(corpus: Path) -> None:
    valid_data = build(settings(corpus)).valid_data
    assert valid_data is not None
    first = [batch.provenance for batch in valid_data()]
    assert first == [batch.provenance for batch in valid_data()]
    assert sum(map(len, first)) == 8


def test_samples_on_the_skip_list_are_left_out_of_training_only(
    corpus: Path, tmp_path: Path
) -> None:
    (tmp_path / "skip.txt").write_text("train 3-5\nvalid 1\n")
    pieces = build(settings(corpus, skip_list=str(tmp_path / "skip.txt")))
    seen = {sample for batch in pieces.data for _, sample in batch.provenance}
    assert seen == set(range(48)) - {3, 4, 5}
    assert pieces.valid_data is not None
    assert sum(len(batch) for batch in pieces.valid_data()) == 8


def test_fingerprints_change_with_the_data_and_not_with_its_place(
    corpus: Path, tmp_path: Path
) -> None:
    own = fingerprints(DataDirectory(corpus))
    assert own.keys() == {"train.en", "train.de", "valid.en", "valid.de", "tokenizer"}
    assert fingerprints(DataDirectory(prepare_corpus(tmp_path / "again"))) == own
    other = fingerprints(DataDirectory(prepare_corpus(tmp_path / "other", num=49)))
    assert other["train.en"] != own["train.en"]


def test_patience_without_held_out_data_is_refused(tmp_path: Path) -> None:
    data = prepare_corpus(tmp_path, valid=0)
    assert build(settings(data)).valid_data is None
    with pytest.raises(SettingError, match="no split 'valid'"):
        build(settings(data, patience=3))


def test_every_setting_of_the_loop_reaches_it(corpus: Path) -> None:
    pieces = build(
        settings(corpus, update_freq=3, clip_norm=0.5, save_every_updates=7, keep_checkpoints=2)
    )
    assert (pieces.settings.update_freq, pieces.settings.clip_norm) == (3, 0.5)
    assert (pieces.settings.save_every_updates, pieces.settings.keep_checkpoints) == (7, 2)
