"""`sonde`: parse the command line, run one verb, and turn errors into `error:`, `cause:`, `hint:`
and an exit code.

Exit codes: 0 success, 1 failure or a check found a difference, 2 wrong command line, 130
interrupted. Each verb is a function in a module of this package. The table below lists them;
importing this module imports none of the others.
"""

import faulthandler
import io
import os
import re
import sys
import zlib
from pathlib import Path
from typing import Final, Literal, NoReturn

from cyclopts import App, CycloptsError, Group, Parameter
from rich.text import Text

from sonde.cli.examples import EXAMPLES
from sonde.cli.terminal import SafeConsole, made_visible
from sonde.errors import SondeError
from sonde.version import __version__

GROUPS: Final[dict[str, dict[str, str]]] = {
    "Start here": {"demo": "demo", "completion": "main"},
    "Watch": {
        "watch": "watch",
        "runs": "runs",
        "show": "show",
        "tail": "log",
        "dashboard": "dashboard",
    },
    "Find out": {
        "why": "why",
        "spikes": "spikes",
        "diagnose": "diagnose",
        "replay": "replay",
        "worst": "worst",
        "check": "check",
        "compare": "compare",
        "compare-logs": "compare",
    },
    "Go back": {"rollback": "diagnose", "skip": "spikes", "checkpoints": "checkpoints"},
    "Prepare and train": {
        "audit": "audit",
        "prepare": "prepare",
        "inspect": "prepare",
        "train": "train",
        "translate": "translate",
        "generate": "translate",
        "score": "translate",
    },
    "Look": {"plot": "show", "log": "log", "report": "show"},
    "Move": {
        "sync": "sync",
        "import-log": "import_logs",
        "import-tensorboard": "import_logs",
        "import-trainer-state": "import_logs",
        "import-wandb": "import_logs",
    },
}
"""The verbs by what people want, each with the module that holds its function."""
VERBS: Final = {verb: module for verbs in GROUPS.values() for verb, module in verbs.items()}
"""Every verb with the module that holds its function, which has its name."""


_EPILOGUE: Final = (
    "`sonde help VERB` has the options of a verb and examples. `sonde version` prints the version."
)


def build_app(chosen: str = "") -> App:
    """Return the application with the chosen verb, or with all of them. The modules of the verbs
    are not imported yet.
    """
    app = App(
        name="sonde",
        help="Find out what goes wrong in a PyTorch training run, and why.",
        version=__version__,
        help_epilogue=_EPILOGUE,
        default_parameter=Parameter(negative=(), show_default=_default_text),
        result_action="return_value",
        print_error=False,
        exit_on_error=False,
    )
    app["--help"].group = app["--version"].group = Group("Flags", sort_key=len(GROUPS))
    for place, (title, verbs) in enumerate(GROUPS.items()):
        group = Group(title, sort_key=place)
        for order, (verb, module) in enumerate(verbs.items()):
            if chosen in VERBS and verb != chosen:
                continue
            app.command(
                f"sonde.cli.{module}:{verb.replace('-', '_')}",
                name=verb,
                group=group,
                sort_key=order,
                help=None if verb == chosen else _summary(verb),
                help_epilogue=_examples(verb),
            )
    return app


def _examples(verb: str) -> str:
    """Return what stands below the options of a verb, as Markdown."""
    lines = "\n".join(f"    {line}" for line in EXAMPLES[verb])
    return f"Examples:\n\n{lines}\n"


def _default_text(value: object) -> str | None:
    """Return a default as the help shows it; None if it says nothing, as for a switch."""
    return None if value is None or value is False or value in ((), "") else str(value)


def _summary(verb: str) -> str:
    """Return the first line of a verb's docstring without importing its module."""
    source = Path(__file__).with_name(f"{VERBS[verb]}.py").read_text("utf-8")
    function = source.partition(f"\ndef {verb.replace('-', '_')}(")[2]
    return function.split('"""', 2)[1].partition("\n")[0]


def completion(shell: Literal["bash", "zsh", "fish"], /) -> None:
    """Print the completion script for a shell.

    Parameters
    ----------
    shell
        The shell to complete for.
    """
    sys.stdout.write(build_app().generate_completion(prog_name="sonde", shell=shell))


def main() -> NoReturn:
    """Run the command line of this process and exit."""
    for stream in (sys.stdout, sys.stderr):
        # a terminal that is not UTF-8 gets escapes, not a traceback
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    # a truncated memory-mapped file kills the process with SIGBUS; show at least where
    faulthandler.enable(2)
    sys.exit(run(sys.argv[1:]))


def _where_to_look(arguments: list[str]) -> str:
    """Return a hint for a command line that is not understood."""
    verb = arguments[0] if arguments else ""
    if verb in ("rollback", "skip", "replay") and "--step" not in " ".join(arguments):
        return f"`sonde spikes RUN` lists the steps to ask about; `sonde help {verb}` has examples"
    if verb in VERBS:
        return f"`sonde help {verb}` shows its options, with examples"
    return "`sonde help` lists the verbs, `sonde help VERB` their options"


def _what_is_missing(error: CycloptsError) -> str:
    """Return the message of an error; shorter if it is only about a missing argument."""
    found = re.fullmatch(r'Command "([^"]+)" parameter (\S+) requires an argument\.', str(error))
    return f"sonde {found[1]} needs {found[2]}" if found else str(error)


def run(arguments: list[str]) -> int:
    """Run one command line and return the exit code."""
    try:
        with made_visible():
            spelled_out = _as_flags(arguments)
            result = build_app("".join(spelled_out[:1]))(spelled_out)
            sys.stdout.flush()
    except CycloptsError as error:
        _complain(_what_is_missing(error), None, _where_to_look(arguments))
        return 2
    except SondeError as error:
        _complain(error.message, error.cause, error.hint)
        return 1
    except BrokenPipeError:
        # The reader of our output (head, less) has closed the pipe. Python must not complain at
        # exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        # A file or device failed where no verb expected it. The file name helps a user more than a
        # traceback.
        where = f"{os.fsdecode(error.filename)}: " if error.filename else ""
        _complain(f"{where}{error.strerror or error}", None, None)
        return 1
    except (MemoryError, RuntimeError) as error:
        # Python raises a specific type; torch only says so in the message.
        is_told = any(words in str(error) for words in ("allocate memory", "out of memory"))
        if not isinstance(error, MemoryError) and not is_told:
            raise
        _complain(
            "there is not enough memory for this", str(error).partition("\n")[0] or None, None
        )
        return 1
    except KeyboardInterrupt:
        return 130
    return result if isinstance(result, int) else 0


def _as_flags(arguments: list[str]) -> list[str]:
    """Return `help`, `help VERB` and `version` as the flags that do the same."""
    match arguments:
        case ["help", *verbs]:
            return [*verbs, "--help"]
        case ["version"]:
            return ["--version"]
    return arguments


def _complain(message: str, cause: str | None, hint: str | None) -> None:
    if not is_mine_to_say(message):
        return
    console = SafeConsole(stderr=True, soft_wrap=True)
    for label, style, text in (
        ("error", "bold red", message),
        ("cause", "yellow", cause),
        ("hint", "cyan", hint),
    ):
        if text:
            console.print(Text(f"{label}:", style=style), Text(text.strip()))


def is_mine_to_say(message: str) -> bool:
    """Return whether this process should print the error. Registers it for all ranks, so call this
    once, before printing.

    Under torchrun, only the first rank that fails in an attempt reports its error: the others
    merely notice that it is gone. An error that comes back in a later attempt is not repeated. The
    ranks of a machine meet in torchrun's own folder of error files,
    FOLDER/attempt_N/RANK/error.json. Where it cannot be used, every rank prints its own error.
    """
    from sonde.records.host import world_size_of_process

    file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not file or world_size_of_process() == 1:
        return True
    attempt, of_all = Path(file).parents[1:3]
    said = of_all / f"said-{zlib.crc32(message.encode(errors='replace'))}"
    try:
        return all([_is_first(attempt / "said"), _is_first(said)])
    except OSError:
        return True


def _is_first(path: Path) -> bool:
    """Create a file and return True, or return False if it is there already."""
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
