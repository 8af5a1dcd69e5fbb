"""Settings of the trainer and of the built-in recipe: flat, checked, and saved with the run.

Each field of `RecipeSettings` is a flag of `sonde train` (`model_dim` is `--model-dim`), a key of
its TOML file, and an entry of `settings` in the run's manifest. The docstring under it is the
flag's help. Reading, checking and comparing settings does not need torch.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal, get_type_hints

import msgspec
from msgspec.toml import decode as decode_toml

from sonde.errors import SettingError, did_you_mean
from sonde.fields import Amount, Count, Positive, PositiveNumber, Rate, check_fields
from sonde.models.settings import TransformerSettings, TransformerShape
from sonde.records.files import read_small
from sonde.records.manifest import Manifest, read_manifest
from sonde.train.schedule import Plateau, Schedule
from sonde.train.stopping import StopWhen, better_mode

Precision = Literal["float32", "bfloat16", "float16"]
RECIPE: Final = "sonde.train.recipe"
"""The `recipe` entry in the manifest of a run that the built-in recipe trained."""
ARCHITECTURES: Final[Mapping[str, Mapping[str, int]]] = {
    "tiny": {
        "model_dim": 64,
        "num_heads": 2,
        "ffn_dim": 128,
        "encoder_layers": 2,
        "decoder_layers": 2,
    },
    "small": {
        "model_dim": 256,
        "num_heads": 4,
        "ffn_dim": 512,
        "encoder_layers": 3,
        "decoder_layers": 3,
    },
    "base": {
        "model_dim": 512,
        "num_heads": 8,
        "ffn_dim": 2048,
        "encoder_layers": 6,
        "decoder_layers": 6,
    },
    "big": {
        "model_dim": 1024,
        "num_heads": 16,
        "ffn_dim": 4096,
        "encoder_layers": 6,
        "decoder_layers": 6,
    },
}
"""Model sizes by name. `arch`, in TOML or on the command line, sets these five; each can still be
set on its own.
"""
_POSITION: Final = {"block_size", "max_tokens", "max_sentences", "multiple_of", "seed"}
FIXED: Final = frozenset(TransformerShape.__dataclass_fields__) - {"dropout"} | _POSITION
"""Settings that cannot change when a run resumes: weights or data position would no longer fit."""


@dataclass(frozen=True, kw_only=True)
class TrainerSettings:
    """Settings of the training loop and of its updates."""

    seed: int = 1
    """Random seed of the forward pass, and in the recipe also of the initial weights and the data
    order.
    """
    update_freq: Positive = 1
    """Micro-batches per rank and update; their gradients are accumulated."""
    ordered: bool = False
    """Sum micro-batches in a fixed order, for bitwise equal results on any number of ranks. Costs
    some speed; needs replicated parameters.
    """
    clip_norm: PositiveNumber | None = None
    """Clip gradients to this global norm; None turns clipping off."""
    precision: Precision = "float32"
    """Type for autocast; float16 uses a dynamic loss scale."""
    log_interval: Positive = 100
    """Updates between log records; each record holds the means since the previous one."""
    validate_every_updates: Positive | None = None
    """Evaluate every N updates."""
    validate_every_epochs: Positive | None = 1
    """Evaluate every N epochs."""
    save_every_updates: Positive | None = None
    """Save a checkpoint every N updates."""
    save_every_epochs: Positive | None = 1
    """Save a checkpoint every N epochs."""
    keep_checkpoints: int = 4
    """Number of newest checkpoints to keep; 0 or less keeps all."""
    on_save_error: Literal["raise", "record"] = "raise"
    """What a failed checkpoint save does: "raise" ends the run at the next step, "record" records
    an event and continues.
    """

    max_nonfinite_updates: Positive | None = None
    """End the run after this many non-finite losses in a row (default: continue, and mark
    checkpoints as suspect).
    """

    watch_spikes: bool = True
    """Record loss spikes and the samples behind them, if there is a run directory."""

    def __post_init__(self) -> None:
        check_fields(self)


def settings_from(*layers: Mapping[str, Any]) -> "RecipeSettings":
    """Merge settings from several sources; later ones override earlier ones. Raises on unknown keys
    and wrong types.
    """
    hints = get_type_hints(RecipeSettings)
    values: dict[str, Any] = {}
    for layer in layers:
        arch = layer.get("arch")
        if arch not in (None, *ARCHITECTURES):
            known = did_you_mean(str(arch), ARCHITECTURES, f"known: {', '.join(ARCHITECTURES)}")
            raise SettingError(f"there is no architecture {arch!r}", hint=known)
        values |= ARCHITECTURES.get(str(arch), {})
        for key, value in layer.items():
            if key == "arch":
                continue
            if key not in hints:
                known = did_you_mean(
                    key.replace("-", "_"), [*hints, "arch"], "`sonde train --help` lists them all"
                )
                raise SettingError(f"there is no setting {key!r}", hint=known)
            try:
                values[key] = msgspec.convert(value, hints[key])
            except msgspec.ValidationError as error:
                raise SettingError(f"{key} cannot be {value!r}", cause=str(error)) from None
    if not values.get("data"):
        raise SettingError(
            "no data was given",
            hint="sonde train DATA --run RUN; `sonde prepare` makes DATA from text",
        )
    return RecipeSettings(**values)


def read_toml(path: Path) -> dict[str, Any]:
    """Return the keys and values of a settings file. The string "none" stands for None, which TOML
    cannot express.
    """
    try:
        values = decode_toml(read_small(path, follow=True))
    except OSError as error:
        raise SettingError(
            f"cannot read the settings in {path}", cause=error.strerror or str(error)
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SettingError(f"{path} is not TOML", cause=str(error)) from error
    tables = [key for key, value in values.items() if isinstance(value, dict)]
    if tables:
        raise SettingError(
            f"{path} has a table [{tables[0]}]", hint="settings are flat: one `key = value` a line"
        )
    return {key: None if value == "none" else value for key, value in values.items()}


def is_built_in(manifest: Manifest) -> bool:
    """Return whether `sonde train` made the run, with sonde's own recipe."""
    return isinstance(manifest.settings, dict) and manifest.settings.get("recipe") == RECIPE


def settings_of_run(directory: str | Path) -> "RecipeSettings":
    """Return the settings that a run was last started with."""
    manifest = read_manifest(directory)
    if not is_built_in(manifest):
        raise SettingError(
            f"{directory} was not made by `sonde train`",
            cause=(
                "its manifest does not name sonde's own recipe, so nobody knows how to build its"
                " model"
            ),
        )
    return settings_from(
        {key: value for key, value in manifest.settings.items() if key != "recipe"}
    )


@dataclass(frozen=True, kw_only=True)
class RecipeSettings(TrainerSettings, StopWhen, Schedule, TransformerShape):
    """Settings of the built-in recipe: model, data, optimizer and stop conditions. The data decides
    between translation and language model.
    """

    data: str
    """The directory that `sonde prepare` wrote. Two languages give an encoder-decoder, one a
    language model.
    """
    label_smoothing: Rate = 0.1
    """Share of the target's probability that is spread over the vocabulary."""
    block_size: Positive = 512
    """Block size of a language model in tokens; documents are packed into such blocks."""
    max_tokens: Positive | None = 4096
    """Maximum tokens per micro-batch, padding included."""
    max_sentences: Positive | None = None
    """Maximum rows per micro-batch."""
    multiple_of: Positive = 8
    """Round the number of rows of a micro-batch down to a multiple of this; smaller batches stay as
    they are.
    """
    skip_list: str | None = None
    """File of samples to leave out; docs/data.md describes the format."""
    num_workers: Count = 0
    """Number of processes that prepare batches ahead; 0 prepares them in the training process."""
    warmup: Count = 1000
    """Number of warm-up updates, over which the learning rate rises to its peak."""
    plateau_patience: int | None = None
    """Lower the learning rate after this many evaluations without a better metric (default:
    never).
    """
    plateau_factor: float = 0.5
    """Factor by which the learning rate is multiplied on a plateau."""
    betas: tuple[Rate, Rate] = (0.9, 0.98)
    """AdamW's beta coefficients."""
    weight_decay: Amount = 1e-4
    """AdamW's weight decay."""
    clip_norm: PositiveNumber | None = 1.0
    """Clip gradients to this global norm."""
    evaluate: Literal["loss", "bleu"] = "loss"
    """What to measure: "loss" is the held-out loss, "bleu" adds BLEU and chrF of translations of
    the held-out text.
    """
    evaluate_beam: Positive = 5
    """Beam size for the evaluation's translations; 1 is greedy search, which is several times
    faster.
    """
    evaluate_length_penalty: float = 1.0
    """Length penalty for the evaluation's translations."""
    evaluate_sentences: Positive | None = None
    """Translate only the first N held-out sentences (default: all)."""
    verify_data: bool = True
    """Check every byte of the data against its checksums before training. Takes 0.7 s per GB, on
    rank 0.
    """
    output: Literal["short", "tcap"] = "short"
    """Output during training: "short" is a progress line and a line per evaluation, "tcap" is
    TCAP's line per log record.
    """
    timeout_seconds: PositiveNumber = 600.0
    """End the run when the other ranks have waited this many seconds for a rank."""

    def __post_init__(self) -> None:
        StopWhen.__post_init__(self)
        TransformerShape.__post_init__(self)
        self.check_peak_lr(self.learning_rate.lr)
        self.plateau  # noqa: B018  making it checks its settings, as making the schedule does

    @property
    def learning_rate(self) -> Schedule:
        """The learning rate schedule, which ends with the run unless told otherwise."""
        total = self.schedule_updates or self.max_updates
        return Schedule(**{**self._of(Schedule), "schedule_updates": total})

    @property
    def plateau(self) -> Plateau | None:
        """The rule that lowers the learning rate when evaluations stop improving, or None."""
        if not self.plateau_patience:
            return None
        mode = better_mode(self.metric, self.mode)
        return Plateau(factor=self.plateau_factor, patience=self.plateau_patience, mode=mode)

    def model(
        self, *, vocab_size: int, pad: int, has_source: bool, source_vocab_size: int | None = None
    ) -> TransformerSettings:
        """Return the model settings for a vocabulary. With `source_vocab_size`, the encoder has its
        own embedding.
        """
        shape = self._of(TransformerShape)
        if not has_source:
            shape["encoder_layers"] = 0
        if source_vocab_size is not None and self.tie == "all":
            shape["tie"] = "output"
        return TransformerSettings(
            vocab_size=vocab_size, source_vocab_size=source_vocab_size, pad=pad, **shape
        )

    def _of(self, part: type[Any]) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(part)}

    def as_saved(self) -> dict[str, Any]:
        """Return the settings as the manifest stores them; `settings_of_run` reads them back."""
        return {"recipe": RECIPE, **asdict(self)}
