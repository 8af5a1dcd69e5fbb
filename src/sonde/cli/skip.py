"""`sonde skip RUN --step N`: add the samples of a spike to the run's skip list."""

from pathlib import Path

from sonde.cli.terminal import tell
from sonde.spikes.skipping import skip_step


def skip(run: Path, /, *, step: int, worst: int | None = None, out: Path | None = None, json: bool = False) -> None:
    """Add the samples of a recorded step to a skip list, so that training leaves them out.

    Parameters
    ----------
    run
        The run directory.
    step
        A step of a recorded spike, or one of the steps kept before it.
    worst
        Add only this many samples, those with the largest share of the step's loss (default: all).
    out
        Skip list to add to, instead of the run's own.
    json
        Print one JSON document instead of text.
    """
    skipped = skip_step(run, step, worst=worst, path=out)
    samples = {name: skipped.added.samples(name).tolist() for name in skipped.added.datasets}
    known = f"; {skipped.num_known} were in it already" if skipped.num_known else ""
    lines = [f"{len(skipped.added)} samples added to {skipped.path}{known}"]
    lines += [f"{name}: {' '.join(map(str, numbers))}" for name, numbers in samples.items() if numbers]
    document = {"path": str(skipped.path), "added": samples, "num_known": skipped.num_known}
    tell(document, lambda console: console.print("\n".join(lines), soft_wrap=True), json=json)
