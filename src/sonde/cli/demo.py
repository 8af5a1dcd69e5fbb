"""`sonde demo`: the tiny run, then the two verbs that look at it."""

from importlib.util import find_spec
from pathlib import Path

from sonde.cli.runs import runs
from sonde.cli.show import show
from sonde.cli.terminal import screen
from sonde.errors import MissingDependency


def demo(*, out: Path = Path("sonde-demo")) -> None:
    """See it work: a small real training run, recorded and shown.

    Parameters
    ----------
    out
        Where the run directories go.
    """
    if find_spec("torch") is None:
        raise MissingDependency("torch", needed_for="sonde demo", extra="train")
    from sonde.demo.tiny_run import TinyRunSettings, train_tiny_run

    console = screen()
    settings = TinyRunSettings()
    console.print(f"training: {settings.num_steps} updates on the docstrings of the standard library …")
    run = train_tiny_run(out, settings)
    console.print(f"\n[bold]sonde runs {out}[/]")
    runs(out)
    console.print(f"\n[bold]sonde show {run}[/]")
    show(run)
