"""`sonde generate RUN --prompt TEXT`: sample text from a trained run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, final

from cyclopts import Parameter

from sonde.cli.moved import Moved
from sonde.cli.terminal import write_json
from sonde.cli.translate import Drawing, opened
from sonde.errors import SettingError


@Parameter(name="*")
@final
@dataclass(frozen=True, kw_only=True, slots=True)
class GenerateOptions:
    """The options of `sonde generate`."""

    prompt: Annotated[list[str], Parameter(allow_leading_hyphen=True)]
    """Text to continue. Repeat it for several prompts."""
    num: int = 1
    """Number of texts per prompt."""
    max_len: int = 100
    """Maximum number of tokens after the prompt."""
    greedy: bool = False
    """Take the most likely token at each position instead of sampling."""
    checkpoint: Path | None = None
    """Checkpoint to load the weights from (default: the newest valid one)."""
    json: bool = False
    """Print one JSON document instead of text."""


def generate(
    run: Path, /, options: GenerateOptions, drawing: Drawing | None = None, moved: Moved | None = None
) -> None:
    """Sample text from a trained run: a language model continues the prompt, a translation model translates it.

    Parameters
    ----------
    run
        The run directory; its newest valid checkpoint is used.
    """
    if options.greedy and options.num > 1:
        raise SettingError(f"--greedy gives one text for each prompt, not {options.num}")
    translator = opened(run, moved, options.checkpoint)
    drawn, num = drawing or Drawing(), options.num
    settings = translator.search(beam=num, n_best=num, max_len=options.max_len, temperature=drawn.temperature)
    sampling = None if options.greedy else drawn.sampling()
    found = translator.translate(options.prompt, settings, sampling=sampling)
    texts = [[text for text, _ in one.n_best] for one in found]
    if translator.model.settings.is_decoder_only:
        tokens = [[one.tokens[: -1 if one.ended else None] for _, one in made.n_best] for made in found]
        pairs = zip(options.prompt, tokens, strict=True)
        texts = [[translator.continued(prompt, one) for one in made] for prompt, made in pairs]
    if options.json:
        pairs = zip(options.prompt, texts, strict=True)
        write_json({"step": translator.step, "texts": [{"prompt": prompt, "texts": made} for prompt, made in pairs]})
        return
    print("\n\n".join(text for made in texts for text in made))
