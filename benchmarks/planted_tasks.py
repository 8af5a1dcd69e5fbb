"""The two trainings that faults are planted into: a language model on docstrings, and a translation
by rule; each trained once, in seconds.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from benchmarks.planted_corpora import Texts

from sonde.data.binarise import PrepareSettings, prepare
from sonde.demo.corpus import read_docstrings
from sonde.train.session import train_run
from sonde.train.settings import RecipeSettings, settings_from

LANGUAGE_MODEL: Final = "language model"
TRANSLATION: Final = "translation"

_SIZES: Final[dict[str, Any]] = {
    "model_dim": 64,
    "num_heads": 2,
    "ffn_dim": 128,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "dropout": 0.1,
    "label_smoothing": 0.0,
    "lr": 2e-3,
    "schedule": "inverse_sqrt",
    "warmup": 100,
    "multiple_of": 1,
    "seed": 1,
    "validate_every_epochs": None,
    "save_every_epochs": None,
    "keep_checkpoints": 0,
    "log_interval": 1000,
}

_SUBJECTS: Final = (
    ("the dog", "der Hund"),
    ("the cat", "die Katze"),
    ("the old man", "der alte Mann"),
    ("the woman", "die Frau"),
    ("a child", "ein Kind"),
    ("the teacher", "der Lehrer"),
    ("my brother", "mein Bruder"),
    ("your sister", "deine Schwester"),
    ("the king", "der König"),
    ("a young doctor", "ein junger Arzt"),
    ("our neighbour", "unser Nachbar"),
    ("the baker", "der Bäcker"),
    ("the little girl", "das kleine Mädchen"),
    ("a soldier", "ein Soldat"),
    ("the farmer", "der Bauer"),
    ("nobody", "niemand"),
)
_VERBS: Final = (
    ("sees", "sieht"),
    ("buys", "kauft"),
    ("finds", "findet"),
    ("sells", "verkauft"),
    ("paints", "malt"),
    ("carries", "trägt"),
    ("loves", "liebt"),
    ("forgets", "vergisst"),
    ("needs", "braucht"),
    ("hides", "versteckt"),
    ("builds", "baut"),
    ("washes", "wäscht"),
)
_OBJECTS: Final = (
    ("the house", "das Haus"),
    ("a red car", "ein rotes Auto"),
    ("the bread", "das Brot"),
    ("an apple", "einen Apfel"),
    ("the book", "das Buch"),
    ("a green bottle", "eine grüne Flasche"),
    ("two chairs", "zwei Stühle"),
    ("the letter", "den Brief"),
    ("a long table", "einen langen Tisch"),
    ("the picture", "das Bild"),
    ("many flowers", "viele Blumen"),
    ("the ship", "das Schiff"),
    ("a small stone", "einen kleinen Stein"),
    ("the clock", "die Uhr"),
    ("three birds", "drei Vögel"),
    ("the white shirt", "das weiße Hemd"),
)
_PLACES: Final = (
    ("in the garden", "im Garten"),
    ("near the river", "am Fluss"),
    ("at school", "in der Schule"),
    ("on the market", "auf dem Markt"),
    ("behind the church", "hinter der Kirche"),
    ("under the bridge", "unter der Brücke"),
    ("in the city", "in der Stadt"),
    ("at home", "zu Hause"),
    ("beside the road", "neben der Straße"),
    ("in the forest", "im Wald"),
)
_TIMES: Final = (
    ("today", "heute"),
    ("in the evening", "am Abend"),
    ("every day", "jeden Tag"),
    ("on sunday", "am Sonntag"),
    ("in winter", "im Winter"),
    ("now", "jetzt"),
    ("very often", "sehr oft"),
    ("again", "wieder"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class BaseRun:
    """A training that went well."""

    task: str
    """LANGUAGE_MODEL or TRANSLATION."""
    directory: Path
    """Of the run."""
    data: Path
    """Of its data."""
    settings: RecipeSettings
    """What it was trained with."""
    last: int
    """Its last update, after which there is a checkpoint."""


def translated_sentences(num: int, *, seed: int) -> list[tuple[str, str]]:
    """English sentences and German ones, whose verb stands second whatever is first; no pair
    twice.
    """
    generator = random.Random(seed)
    found: dict[str, str] = {}
    while len(found) < num:
        english, german = _sentence(generator)
        found[english] = german
    return list(found.items())


def train_base(
    task: str, folder: Path, *, num_updates: int, precision: str = "float32", **settings: Any
) -> BaseRun:
    """Prepare the data of a task and train on it; a checkpoint every 50 updates."""
    data = folder / "data"
    texts: dict[str, list[str]] = {}
    if task == LANGUAGE_MODEL:
        texts["en"] = read_docstrings(seed=7)
        sizes = {"block_size": 64, "max_tokens": None, "max_sentences": 8}
    else:
        pairs = translated_sentences(16_000, seed=7)
        texts["en"] = [english for english, _ in pairs]
        texts["de"] = [other for _, other in pairs]
        sizes = {"max_tokens": None, "max_sentences": 16}
    paths = {}
    for language, lines in texts.items():
        paths[language] = folder / f"text.{language}"
        paths[language].parent.mkdir(parents=True, exist_ok=True)
        paths[language].write_text("".join(f"{line}\n" for line in lines))
    vocab_size = 1000 if task == LANGUAGE_MODEL else 500
    prepare(PrepareSettings(splits={"train": paths}, out=data, vocab_size=vocab_size))
    made = settings_from(
        _SIZES | sizes,
        {
            "data": str(data),
            "max_updates": num_updates,
            "save_every_updates": 50,
            "precision": precision,
            **settings,
        },
    )
    train_run(made, folder / "run")
    return BaseRun(task=task, directory=folder / "run", data=data, settings=made, last=num_updates)


def train_on(
    texts: "Texts",
    name: str,
    folder: Path,
    *,
    num_updates: int,
    batch: int,
    seed: int,
    **others: Any,
) -> BaseRun:
    """Prepare a corpus and train a small model on it; a checkpoint every 50 updates."""
    folder.mkdir(parents=True, exist_ok=True)
    sides = (
        {"en": texts.target} if texts.source is None else {"en": texts.source, "de": texts.target}
    )
    paths = {}
    for language, lines in sides.items():
        paths[language] = folder / f"text.{language}"
        paths[language].write_text("".join(f"{line}\n" for line in lines))
    data = folder / "data"
    prepare(PrepareSettings(splits={"train": paths}, out=data, vocab_size=1200))
    small = {"model_dim": 48, "ffn_dim": 96, "encoder_layers": 1, "lr": 4e-3, "seed": seed}
    sizes = {"block_size": 64, "max_tokens": None, "max_sentences": batch, "save_every_updates": 20}
    made = settings_from(
        _SIZES | small | sizes, {"data": str(data), "max_updates": num_updates, **others}
    )
    train_run(made, folder / "run")
    return BaseRun(task=name, directory=folder / "run", data=data, settings=made, last=num_updates)


def _sentence(generator: random.Random) -> tuple[str, str]:
    subject, verb, thing, place, time = (
        generator.choice(words) for words in (_SUBJECTS, _VERBS, _OBJECTS, _PLACES, _TIMES)
    )
    shape = generator.randrange(4)
    if shape == 0:
        parts = (f"{subject[0]} {verb[0]} {thing[0]}", f"{subject[1]} {verb[1]} {thing[1]}")
    elif shape == 1:
        parts = (
            f"{subject[0]} {verb[0]} {thing[0]} {place[0]}",
            f"{subject[1]} {verb[1]} {place[1]} {thing[1]}",
        )
    elif shape == 2:
        parts = (
            f"{time[0]} {subject[0]} {verb[0]} {thing[0]}",
            f"{time[1]} {verb[1]} {subject[1]} {thing[1]}",
        )
    else:
        parts = (
            f"{time[0]} {subject[0]} {verb[0]} {thing[0]} {place[0]}",
            f"{time[1]} {verb[1]} {subject[1]} {place[1]} {thing[1]}",
        )
    return f"{parts[0]} .", f"{parts[1]} ."


def lines_of(base: BaseRun, language: str) -> Iterator[str]:
    """The text that the data was made from."""
    yield from (base.data.parent / f"text.{language}").read_text().splitlines()
