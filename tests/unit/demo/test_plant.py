"""What is planted comes up where it is said to, and looks like what it is."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from sonde.data.binarise import PrepareSettings, prepare
from sonde.data.tokenizer import BytesTokenizer
from sonde.demo.scenario import garble, plant
from sonde.errors import SettingError
from sonde.train.recipe import build
from sonde.train.settings import RecipeSettings

WINDOW = range(20, 30)


def sentences(number: int, lengths: tuple[int, int]) -> list[str]:
    rng = random.Random(1)
    words = ["".join(rng.choices("abcdefghijklmno", k=rng.randint(2, 9))) for _ in range(200)]
    return [" ".join(rng.choices(words, k=rng.randint(*lengths))) for _ in range(number)]


def settings_for(data: Path) -> RecipeSettings:
    return RecipeSettings(
        data=str(data),
        block_size=256,
        max_tokens=768,
        max_updates=1,
        model_dim=8,
        num_heads=1,
        ffn_dim=8,
    )


def samples_of_update(settings: RecipeSettings, update: int) -> list[int]:
    """What the training's own loader hands out."""
    batches = iter(build(settings).data.sampler)
    return [next(batches) for _ in range(update)][-1]


def test_garbled_text_is_one_printable_line_that_nobody_can_read() -> None:
    text = "Return the first of all words that a sentence has, or nothing. " * 5
    garbled = garble(text)
    assert garbled.isprintable()
    assert garbled == garble(text)
    assert "sentence" not in garbled
    assert 40 < len(garbled) < len(text)


def test_a_document_comes_up_when_it_is_said_to_and_in_one_block(tmp_path: Path) -> None:
    documents = sentences(600, (5, 60))
    settings = settings_for(tmp_path / "data")
    planted = plant({"text": documents}, BytesTokenizer(), settings, WINDOW)
    assert planted.update in WINDOW
    assert planted.after == garble(documents[planted.line - 1])
    documents[planted.line - 1] = planted.after
    (tmp_path / "train.text").write_text("\n".join(documents) + "\n")
    prepare(
        PrepareSettings(
            splits={"train": {"text": tmp_path / "train.text"}},
            out=tmp_path / "data",
            tokenizer="bytes",
        )
    )
    blocks = build(settings).data.dataset
    (block,) = (
        block
        for block in samples_of_update(settings, planted.update)
        if _holds(blocks, block, planted.line - 1)
    )
    assert not any(_holds(blocks, other, planted.line - 1) for other in (block - 1, block + 1))


def test_a_garbled_target_comes_up_when_it_is_said_to(tmp_path: Path) -> None:
    sources = sentences(600, (3, 9))
    targets = sentences(600, (5, 15))
    settings = replace(settings_for(tmp_path / "data"), max_sentences=16)
    planted = plant({"a": sources, "b": targets}, BytesTokenizer(), settings, WINDOW)
    assert planted.update in WINDOW
    targets[planted.line - 1] = planted.after
    for name, lines in {"train.a": sources, "train.b": targets}.items():
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    splits = {"train": {"a": tmp_path / "train.a", "b": tmp_path / "train.b"}}
    prepare(PrepareSettings(splits=splits, out=tmp_path / "data", tokenizer="bytes"))
    assert planted.line - 1 in samples_of_update(settings, planted.update)


def test_a_window_that_nothing_comes_up_in_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="no document comes up between steps 900 and 910"):
        plant(
            {"text": sentences(50, (5, 60))},
            BytesTokenizer(),
            settings_for(tmp_path),
            range(900, 910),
        )


def _holds(blocks: object, block: int, document: int) -> bool:
    found = blocks.document  # type: ignore[attr-defined]  # narrower here than its type says
    return any(found(block, position) == document for position in range(256))
