"""`sonde translate RUN`, `generate` and `score`: use a trained run, on a GPU if there is one.

`translate` translates a file of sentences, in order; with a reference file, it also prints BLEU and
chrF. `generate` samples text. `score` computes how likely given translations are, or given text for
a language model.
"""

import math
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.progress import Progress

from sonde.cli.flags import Moved
from sonde.cli.terminal import data_output, needs, picked, write_json
from sonde.errors import SettingError
from sonde.records.files import explained

if TYPE_CHECKING:
    from sonde.generate.sampling import Sampling
    from sonde.generate.translation import Translation
    from sonde.train.translation import Translator


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True, slots=True)
class Drawing:
    """Options for random sampling."""

    temperature: float = 1.0
    """Sampling temperature: below 1 favours likely tokens, above 1 makes the output more
    diverse.
    """
    top_k: int = 0
    """Sample only from the k most likely tokens; 0 uses all of them."""
    top_p: float = 1.0
    """Sample from the smallest set of tokens whose total probability reaches this value."""
    min_p: float = 0.0
    """Sample only from tokens whose probability is at least this fraction of the most likely
    token's.
    """
    seed: int = 0
    """Random seed. The samples depend only on it and on the position of the text in the input."""

    def sampling(self) -> "Sampling":
        """Return these options as a `Sampling`."""
        from sonde.generate.sampling import Sampling

        return Sampling(seed=self.seed, top_k=self.top_k, top_p=self.top_p, min_p=self.min_p)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True, slots=True)
class TranslateOptions:
    """The options of `sonde translate`."""

    input: Annotated[Path, Parameter(allow_leading_hyphen=True)] = Path("-")
    """Input file with one sentence per line; - is standard input."""
    beam: int = 5
    """Beam size; 1 is greedy search."""
    nbest: int = 1
    """Number of translations per sentence, best first. Above 1, each line holds sentence number,
    score and text, tab-separated.
    """
    length_penalty: float = 1.0
    """Divide scores by the length raised to this power; values above 1 favour longer
    translations.
    """
    sample: bool = False
    """Sample translations instead of running beam search. See --top-k, --top-p, --min-p and
    --temperature.
    """
    batch_tokens: int = 4096
    """Maximum source tokens per batch, padding included."""
    ref: Path | None = None
    """Reference translations, one per line. Prints BLEU and chrF to standard error. Needs
    torchsonde[eval].
    """
    checkpoint: Path | None = None
    """Checkpoint to load the weights from (default: the newest valid one)."""
    json: bool = False
    """Print one JSON document instead of lines of text."""


def translate(
    run: Path,
    /,
    options: TranslateOptions = TranslateOptions(),
    drawn: Drawing = Drawing(),
    moved: Moved = Moved(),
) -> None:
    """Translate text with a trained run.

    A language model continues the text instead.

    Parameters
    ----------
    run
        The run directory; its newest valid checkpoint is used.
    """
    lines = read_lines(options.input)
    references = _references_for(lines, options)
    translator = opened(run, moved, options.checkpoint)
    found = _translate_lines(translator, lines, options, drawn)
    quality = None
    if references is not None:
        from sonde.generate.translation import translation_quality

        quality = translation_quality([translation.text for translation in found], references)
    if options.json:
        translations = [
            _as_json(line, translation) for line, translation in zip(lines, found, strict=True)
        ]
        scores = asdict(quality) if quality else None
        write_json({"step": translator.step, "translations": translations, "quality": scores})
        return
    if options.nbest == 1:
        _print_best(found)
    else:
        _print_n_best(found)
    if quality is not None:
        print(f"BLEU {quality.bleu:.2f}  {quality.bleu_signature}", file=sys.stderr)
        print(f"chrF {quality.chrf:.2f}  {quality.chrf_signature}", file=sys.stderr)


def _references_for(lines: list[str], options: TranslateOptions) -> list[str] | None:
    """Return the reference of each line, or None if no references are given."""
    if options.ref is None:
        return None
    references = read_lines(options.ref)
    if len(references) != len(lines):
        raise SettingError(
            f"{options.ref} has {len(references)} lines and {options.input} has {len(lines)}"
        )
    return references


def _translate_lines(
    translator: "Translator", lines: list[str], options: TranslateOptions, drawn: Drawing
) -> "list[Translation]":
    """Translate the lines, with a progress bar on a terminal. Any option about sampling samples."""
    is_drawn = options.sample or drawn.top_k or drawn.top_p < 1.0 or drawn.min_p
    sampling = drawn.sampling() if is_drawn else None
    settings = translator.search(
        beam=options.nbest if is_drawn else options.beam,
        n_best=options.nbest,
        length_penalty=options.length_penalty,
        temperature=drawn.temperature,
    )
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("translating", total=len(lines))
        return translator.translate(
            lines,
            settings,
            sampling=sampling,
            batch_tokens=options.batch_tokens,
            on_progress=lambda num_done: bar.update(task, completed=num_done),
        )


def _print_best(found: "list[Translation]") -> None:
    for translation in found:
        print(translation.text, file=data_output())


def _print_n_best(found: "list[Translation]") -> None:
    for number, translation in enumerate(found, start=1):
        for text, hypothesis in translation.n_best:
            print(number, f"{hypothesis.score:.4f}", text, sep="\t", file=data_output())


def opened(run: Path, moved: Moved, checkpoint: Path | None) -> "Translator":
    """Return the translator of a run, on a GPU if there is one."""
    needs("using a model", "torch")
    import torch

    from sonde.train.translation import open_translator

    device = "cuda" if torch.cuda.is_available() else "cpu"
    place = checkpoint or moved.checkpoints
    return open_translator(run, data=moved.data, checkpoint=place, device=device)


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text file or of standard input."""
    with explained(f"cannot read {path}"):
        text = (sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()).decode()
    if not text:
        return []
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def _as_json(line: str, found: "Translation") -> dict[str, Any]:
    best = [
        {"text": text, **picked(hypothesis, "score", "token_scores")}
        for text, hypothesis in found.n_best
    ]
    return {"source": line, **picked(found, "text", "score"), "nbest": best}


@Parameter(name="*")
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
    run: Path, /, options: GenerateOptions, drawn: Drawing = Drawing(), moved: Moved = Moved()
) -> None:
    """Sample text from a trained run.

    A language model continues the prompt, a translation model translates it.

    Parameters
    ----------
    run
        The run directory; its newest valid checkpoint is used.
    """
    if options.greedy and options.num > 1:
        raise SettingError(f"--greedy gives one text for each prompt, not {options.num}")
    translator = opened(run, moved, options.checkpoint)
    num = options.num
    settings = translator.search(
        beam=num, n_best=num, max_len=options.max_len, temperature=drawn.temperature
    )
    sampling = None if options.greedy else drawn.sampling()
    found = translator.translate(options.prompt, settings, sampling=sampling)
    texts = [[text for text, _ in continuation.n_best] for continuation in found]
    if translator.model.settings.is_decoder_only:
        pairs = zip(options.prompt, found, strict=True)
        texts = [
            [translator.continued(prompt, hypothesis.words) for _, hypothesis in made.n_best]
            for prompt, made in pairs
        ]
    if options.json:
        answers = [
            {"prompt": prompt, "texts": made}
            for prompt, made in zip(options.prompt, texts, strict=True)
        ]
        write_json({"step": translator.step, "texts": answers})
        return
    print("\n\n".join(text for made in texts for text in made))


def score(
    run: Path,
    /,
    *,
    target: Path,
    source: Path | None = None,
    batch_tokens: int = 4096,
    moved: Moved = Moved(),
    checkpoint: Path | None = None,
    json: bool = False,
) -> None:
    """Score given sentence pairs with a trained run.

    Prints one line per pair: the log-probability of the target and its number of tokens.

    Parameters
    ----------
    run
        The run directory; its newest valid checkpoint is used.
    target
        File of target sentences, one per line.
    source
        File of source sentences, one per line. Optional for a language model, where it is the text
            before each target.
    batch_tokens
        Maximum tokens per batch, padding included.
    checkpoint
        Checkpoint to load the weights from (default: the newest valid one).
    json
        Print one JSON document instead of lines of text.
    """
    targets = read_lines(target)
    translator = opened(run, moved, checkpoint)
    if source is None and not translator.model.settings.is_decoder_only:
        raise SettingError(
            f"{run} translates, so its targets need sources", hint="give them with --source FILE"
        )
    sources = read_lines(source) if source is not None else [""] * len(targets)
    if len(sources) != len(targets):
        raise SettingError(f"{source} has {len(sources)} lines and {target} has {len(targets)}")
    scores = translator.score(list(zip(sources, targets, strict=True)), batch_tokens=batch_tokens)
    num_tokens = sum(len(pair.tokens) for pair in scores)
    total = sum(pair.score for pair in scores)
    perplexity = math.exp(-total / num_tokens) if num_tokens else float("nan")
    if json:
        pairs = [
            {"num_tokens": len(pair.tokens), **picked(pair, "score", "token_scores")}
            for pair in scores
        ]
        write_json(
            {
                "step": translator.step,
                "pairs": pairs,
                "num_tokens": num_tokens,
                "perplexity": perplexity,
            }
        )
        return
    for pair in scores:
        print(f"{pair.score:.4f}", len(pair.tokens), sep="\t")
    print(f"{num_tokens} tokens, perplexity {perplexity:.3f}", file=sys.stderr)
