"""`sonde generate RUN --prompt TEXT`: text drawn from a trained run: a language model continues the prompt, a translation model translates it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, final

from cyclopts import Parameter

from sonde.cli.moved import Moved
from sonde.cli.terminal import write_json
from sonde.cli.translate import opened, sampling_of
from sonde.errors import SettingError


@Parameter(name="*")
@final
@dataclass(frozen=True, kw_only=True, slots=True)
class GenerateOptions:
    """What `sonde generate` can be told."""

    prompt: Annotated[list[str], Parameter(allow_leading_hyphen=True)]
    """Text to continue; may be given several times."""
    num: int = 1
    """Texts for each prompt."""
    max_len: int = 100
    """Tokens after the prompt, at most."""
    greedy: bool = False
    """Take the most likely token each time instead of drawing one."""
    temperature: float = 1.0
    """Below 1 keeps to what is likely, above 1 is bolder."""
    top_k: int = 0
    """Draw from this many most likely tokens only; 0 for all."""
    top_p: float = 1.0
    """Draw from the smallest set of tokens that holds this share of the probability."""
    min_p: float = 0.0
    """Draw only from tokens at least this many times as likely as the most likely one."""
    seed: int = 0
    """The same seed draws the same text."""
    checkpoint: Path | None = None
    """Use the weights of this checkpoint."""
    json: bool = False
    """Print one JSON document instead of text."""


def generate(run: Path, /, options: GenerateOptions, moved: Moved | None = None) -> None:
    """Draw text from a trained run: a language model continues the prompt, a translation model translates it.

    Parameters
    ----------
    run
        The run directory; its newest valid checkpoint is used.
    """
    if options.greedy and options.num > 1:
        raise SettingError(f"--greedy gives one text for each prompt, not {options.num}")
    translator = opened(run, moved, options.checkpoint)
    settings = translator.search(
        beam=options.num, n_best=options.num, max_len=options.max_len, temperature=options.temperature
    )
    sampling = None if options.greedy else sampling_of(options)
    found = translator.translate(options.prompt, settings, sampling=sampling)
    is_translation = translator.model.settings.encoder_layers > 0
    texts = [
        [
            text
            if is_translation
            else translator.continued(prompt, hypothesis.tokens[: -1 if hypothesis.ended else None])
            for text, hypothesis in one.n_best
        ]
        for prompt, one in zip(options.prompt, found, strict=True)
    ]
    if options.json:
        pairs = zip(options.prompt, texts, strict=True)
        write_json({"step": translator.step, "texts": [{"prompt": prompt, "texts": made} for prompt, made in pairs]})
        return
    print("\n\n".join(text for made in texts for text in made))
