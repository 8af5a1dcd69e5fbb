"""`sonde score RUN`: compute how likely a trained run finds given translations (or, for a language model, given text)."""

import math
import sys
from pathlib import Path

from sonde.cli.moved import Moved
from sonde.cli.terminal import picked, write_json
from sonde.cli.translate import opened, read_lines
from sonde.errors import SettingError


def score(
    run: Path,
    /,
    *,
    target: Path,
    source: Path | None = None,
    batch_tokens: int = 4096,
    moved: Moved | None = None,
    checkpoint: Path | None = None,
    json: bool = False,
) -> None:
    """Score given pairs. Prints one line per pair: the log-probability of the target and its number of tokens.

    Parameters
    ----------
    run
        The run directory; its newest valid checkpoint is used.
    target
        File of target sentences, one per line.
    source
        File of source sentences, one per line. Optional for a language model, where it is the text before each target.
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
        raise SettingError(f"{run} translates, so its targets need sources", hint="give them with --source FILE")
    sources = read_lines(source) if source is not None else [""] * len(targets)
    if len(sources) != len(targets):
        raise SettingError(f"{source} has {len(sources)} lines and {target} has {len(targets)}")
    scores = translator.score(list(zip(sources, targets, strict=True)), batch_tokens=batch_tokens)
    num_tokens = sum(len(one.tokens) for one in scores)
    total = sum(one.score for one in scores)
    perplexity = math.exp(-total / num_tokens) if num_tokens else float("nan")
    if json:
        pairs = [{"num_tokens": len(one.tokens), **picked(one, "score", "token_scores")} for one in scores]
        write_json({"step": translator.step, "pairs": pairs, "num_tokens": num_tokens, "perplexity": perplexity})
        return
    for one in scores:
        print(f"{one.score:.4f}", len(one.tokens), sep="\t")
    print(f"{num_tokens} tokens, perplexity {perplexity:.3f}", file=sys.stderr)
