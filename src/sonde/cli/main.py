"""`sonde`: parse the command line, run one verb, and turn errors into `error:`, `cause:`, `hint:` and an exit code.

Exit codes: 0 success, 1 failure or a check found a difference, 2 wrong command line, 130 interrupted. Each verb is a
function in a module of this package. The tables below list them; importing this module imports none of the others.
"""

import faulthandler
import io
import os
import sys
import zlib
from pathlib import Path
from typing import Final, Literal, NoReturn

from cyclopts import App, CycloptsError, Parameter
from rich.text import Text

from sonde.cli.terminal import SafeConsole, guarded
from sonde.errors import SondeError
from sonde.version import __version__

VERBS: Final = {
    "prepare": "Tokenize text and write it to disk, ready for training.",
    "inspect": "Show the contents of a data directory: sizes, lengths, padding and decoded samples.",
    "audit": "Find texts that do not belong in a corpus: garbled or foreign text, markup, code, duplicates, bad pairs.",
    "train": "Train a Transformer on a prepared data directory; an existing run resumes.",
    "translate": "Translate text with a trained run.",
    "generate": "Sample text from a trained run.",
    "score": "Score given translations, or text, with a trained run.",
    "runs": "List the runs below a directory.",
    "show": "Show the manifest, record files and metrics of a run.",
    "tail": "Show the last records of a run, then each new one as it is written.",
    "log": "Summarise logs: last values, the best value by each metric's goal, means.",
    "compare-logs": "Compare one metric of two runs; exit 1 when they differ too much.",
    "checkpoints": "List, verify, prune or average the checkpoints of a run.",
    "spikes": "Show the loss spikes of a run and the samples that caused them.",
    "worst": "Rank the samples of a run by their loss, compared with others of their length, over all epochs.",
    "diagnose": "Find the cause of a loss spike: replay the step, change one thing at a time, and rank the possible causes.",
    "dashboard": "Show every run below a folder in a browser, live.",
    "report": "Write a report of a run as one self-contained file.",
    "sync": "Copy a run to another folder or an object store, sending only what is missing there.",
    "plot": "Draw curves of a run in the terminal, with its spikes marked.",
    "replay": "Replay one update of a run; exit 1 when the loss differs from the recorded one.",
    "rollback": "Plan how to continue from before a spike, without the samples that caused it; --apply does it.",
    "skip": "Add the samples of a recorded step to a skip list, so that training leaves them out.",
    "compare": "Compare two probe dumps; exit 1 when they differ.",
    "import-tensorboard": "Import TensorBoard event files as runs.",
    "import-wandb": "Import offline wandb runs.",
    "import-trainer-state": "Import the log of a Hugging Face Trainer as a run.",
    "demo": "Watch sonde at work: a real training run hits one bad document.",
    "completion": "Print the completion script for a shell.",
}
"""Every verb with a one-line description. A verb is the function of its name in the module of its name, except for those in `_ELSEWHERE`."""
_ELSEWHERE: Final = {
    "tail": "log",
    **dict.fromkeys(("generate", "score"), "translate"),
    **dict.fromkeys(("import-tensorboard", "import-wandb", "import-trainer-state"), "import_logs"),
    "inspect": "prepare",
    **dict.fromkeys(("plot", "report"), "show"),
    "rollback": "diagnose",
    **dict.fromkeys(("skip", "worst"), "spikes"),
    "completion": "main",
}


def build_app() -> App:
    """Return the application with all its verbs. The modules of the verbs are not imported yet."""
    app = App(
        name="sonde",
        help="The instrument package that rides along with a PyTorch training run.",
        version=__version__,
        help_epilogue="Run `sonde VERB --help` for the options of a verb. Documentation: docs/cli.md",
        default_parameter=Parameter(negative=()),
        result_action="return_value",
        print_error=False,
        exit_on_error=False,
    )
    for name, summary in VERBS.items():
        function = name.replace("-", "_")
        app.command(f"sonde.cli.{_ELSEWHERE.get(name, function)}:{function}", name=name, help=summary)
    return app


def completion(shell: Literal["bash", "zsh", "fish"], /) -> None:
    """Print the completion script for a shell. For bash: `source <(sonde completion bash)`.

    Parameters
    ----------
    shell
        The shell to complete for.
    """
    sys.stdout.write(build_app().generate_completion(prog_name="sonde", shell=shell))


def main() -> NoReturn:
    """Run the command line of this process and exit."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that is not UTF-8 gets escapes, not a traceback
            stream.reconfigure(errors="backslashreplace")
    faulthandler.enable(2)  # a truncated memory-mapped file kills the process with SIGBUS; show at least where
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line and return the exit code."""
    try:
        with guarded():
            result = build_app()(arguments)
            sys.stdout.flush()
    except CycloptsError as error:
        _complain(f"{error}", None, "`sonde --help` lists the verbs, `sonde VERB --help` their options")
        return 2
    except SondeError as error:
        _complain(error.message, error.cause, error.hint)
        return 1
    except BrokenPipeError:
        # The reader of our output (head, less) has closed the pipe. Python must not complain at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        # A file or device failed where no verb expected it. The file name helps a user more than a traceback.
        where = f"{os.fsdecode(error.filename)}: " if error.filename else ""
        _complain(f"{where}{error.strerror or error}", None, None)
        return 1
    except (MemoryError, RuntimeError) as error:
        # Python raises a specific type; torch only says so in the message.
        is_told = any(words in str(error) for words in ("allocate memory", "out of memory"))
        if not isinstance(error, MemoryError) and not is_told:
            raise
        _complain("there is not enough memory for this", str(error).partition("\n")[0] or None, None)
        return 1
    except KeyboardInterrupt:
        return 130
    return result if isinstance(result, int) else 0


def _complain(message: str, cause: str | None, hint: str | None) -> None:
    if not is_mine_to_say(message):
        return
    console = SafeConsole(stderr=True, soft_wrap=True)
    for label, style, text in (("error", "bold red", message), ("cause", "yellow", cause), ("hint", "cyan", hint)):
        if text:
            console.print(Text(f"{label}:", style=style), Text(text.strip()))


def is_mine_to_say(message: str) -> bool:
    """Return whether this process should print the error. Registers it for all ranks, so call this once, before printing.

    Under torchrun, only the first rank that fails in an attempt reports its error: the others merely notice that it is
    gone. An error that comes back in a later attempt is not repeated. The ranks of a machine meet in torchrun's own
    folder of error files, FOLDER/attempt_N/RANK/error.json. Where it cannot be used, every rank prints its own error.
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
