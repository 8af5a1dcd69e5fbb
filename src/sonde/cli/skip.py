"""`sonde skip RUN --step N`: put the samples of a spike on the run's skip list."""

from pathlib import Path

from sonde.cli.terminal import tell
from sonde.spikes.skipping import skip_step


def skip(run: Path, /, *, step: int, worst: int | None = None, out: Path | None = None, json: bool = False) -> None:
    """Write the samples of a recorded step to a skip list, which the sampler obeys.

    Parameters
    ----------
    run
        The run directory.
    step
        A step of a recorded spike, or one of those kept before it.
    worst
        Only the samples with the greatest share of the step's loss, this many of them; all of them otherwise.
    out
        The skip list to add to, instead of the run's own.
    json
        Print one JSON document instead of a sentence.
    """
    skipped = skip_step(run, step, worst=worst, path=out)
    samples = {name: skipped.added.samples(name).tolist() for name in skipped.added.datasets}
    known = f"; {skipped.num_known} were in it already" if skipped.num_known else ""
    lines = [f"{len(skipped.added)} samples added to {skipped.path}{known}"]
    lines += [f"{name}: {' '.join(map(str, numbers))}" for name, numbers in samples.items() if numbers]
    document = {"path": str(skipped.path), "added": samples, "num_known": skipped.num_known}
    tell(document, lambda console: console.print("\n".join(lines), soft_wrap=True), json=json)
