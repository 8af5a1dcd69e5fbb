"""docs/cli.md, made of the commands themselves (tools/pages.py writes it).

A verb's section is its docstring and its flags with their help, so a text is written once, where
the flag is.
"""

import re
from collections.abc import Iterator
from typing import Final

from cyclopts import App
from cyclopts.argument import Argument

from sonde.cli.examples import EXAMPLES
from sonde.cli.main import GROUPS, VERBS, build_app

_READ_MORE: Final = {
    "prepare": "data.md",
    "train": "training.md",
    "translate": "generate.md",
    "score": "generate.md",
    "log": "logger.md",
    "tail": "logger.md",
    "checkpoints": "checkpoints.md",
    "why": "why.md",
    "watch": "alerts.md",
    "import-log": "integrations.md#import-existing-runs",
    "spikes": "spikes.md",
    "skip": "spikes.md",
    "worst": "spikes.md",
    "dashboard": "dashboard.md",
    "report": "report.md",
    "diagnose": "diagnosis.md",
    "replay": "replay.md",
    "rollback": "replay.md#rolling-back",
    "compare": "probe.md",
    "demo": "demo.md",
}
"""The page that says more about a verb."""
_OPENING: Final = """# The command line

<!-- Written by tools/pages.py from the commands themselves.
Do not edit: change the docstrings in src/sonde/cli and run it. -->

`sonde VERB …`. Every verb has `--help`. Output is for people unless `--json` is given, which prints
one JSON document ([how values are spelled](formats/values.md)). Colour follows the terminal;
`NO_COLOR=1` turns it off.

Exit codes: 0 success; 1 it failed, or a check found a difference; 2 the command line was wrong;
130 interrupted. Errors go to standard error as `error:`, `cause:` and `hint:`
([for agents and CI](agents.md)). The documents have stable fields ([why](formats/why.md),
[diagnose](formats/verdict.md), [the others](formats/answers.md)).

`sonde help` lists the verbs, `sonde help VERB` the options of a verb with examples, `sonde version`
prints the version. The verbs by what they are for:

"""


def cli_page() -> str:
    """The whole page."""
    app = build_app()
    parts = [_OPENING]
    for title, verbs in GROUPS.items():
        names = ", ".join(f"`{verb}`" for verb in verbs)
        parts.append(f"- {title}: {names}\n")
    parts += [f"\n{_section(app, verb)}" for verb in VERBS]
    return "".join(parts)


def _section(app: App, verb: str) -> str:
    arguments = list(
        app[verb].assemble_argument_collection(
            default_parameter=app.default_parameter, parse_docstring=True
        )
    )
    arguments = [argument for argument in arguments if argument.parse and argument.show]
    places = [
        argument
        for argument in arguments
        if not any(name.startswith("-") for name in argument.names)
    ]
    usage = " ".join([f"sonde {verb}", *map(_place, places)])
    more = _READ_MORE.get(verb)
    link = f"\nMore: [{more.partition('.')[0]}]({more}).\n" if more else ""
    flags = "\n".join(
        [
            *map(_flag, places),
            *map(_flag, (argument for argument in arguments if argument not in places)),
        ]
    )
    examples = "".join(f"    {line}\n" for line in EXAMPLES[verb])
    return f"## `{usage}`\n{_text(app, verb)}\n{link}\n{examples}\n{flags}\n"


def _text(app: App, verb: str) -> str:
    """The docstring of the verb without its list of parameters."""
    command = app[verb].default_command
    assert command is not None
    lines = (command.__doc__ or "").expandtabs().splitlines()
    text = "\n".join([lines[0], *(line.removeprefix("    ") for line in lines[1:])])
    return text.partition("\nParameters\n")[0].strip()


def _place(argument: Argument) -> str:
    name = argument.names[0]
    name = f"{name}…" if _is_many(argument) else name
    return name if argument.required else f"[{name}]"


def _is_many(argument: Argument) -> bool:
    return "tuple" in str(argument.hint) or "list" in str(argument.hint)


def _flag(argument: Argument) -> str:
    names = ", ".join(f"`{name}`" for name in argument.names)
    choices = " ".join(_choices(argument))
    said = _sentence(argument.parameter.help or "")
    return f"- {names}: {said}{f' One of {choices}.' if choices else ''}"


def _choices(argument: Argument) -> Iterator[str]:
    found = re.findall(r"Literal\[(.*?)\]", str(argument.hint))
    for group in found:
        yield ", ".join(f"`{choice.strip().strip(chr(39))}`" for choice in group.split(","))


def _sentence(text: str) -> str:
    text = " ".join(text.split())
    return text if text.endswith((".", "?", "!")) else f"{text}."
