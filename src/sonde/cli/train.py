"""`sonde train DATA --run RUN`: train with the built-in recipe. Resumes on its own and works under
torchrun.

Settings come from several sources; later ones override earlier ones:

    defaults  <  the run's own settings, if it resumes  <  TOML  <  flags

Every flag comes from a field of `RecipeSettings`, with its docstring as help. A flag that was not
given is absent, so that a file and defaults can fill it in. Only rank 0 prints, to standard error:
a progress line on a terminal, a short line per log interval elsewhere. `--output tcap` prints
TCAP's lines to standard output instead.
"""

import ast
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypedDict, get_type_hints

from cyclopts import Group, Parameter

from sonde.cli.terminal import needs, print_rows, screen
from sonde.errors import SettingError, SondeError
from sonde.heal.decision import ENDED, Heal
from sonde.models.settings import TransformerShape
from sonde.records.host import rank_of_process, world_size_of_process
from sonde.records.layout import RunLayout
from sonde.train.schedule import Schedule
from sonde.train.settings import FIXED, RecipeSettings, read_toml, settings_from, settings_of_run
from sonde.train.stopping import StopWhen


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Start:
    """Options of `sonde train` that are not settings of the recipe."""

    arch: Literal["tiny", "small", "base", "big"] | None = None
    """Model size by name. Sets model_dim, num_heads, ffn_dim and the layers; each can still be set
    (default: small).
    """
    checkpoints: str | None = None
    """Folder or URL for checkpoints, if not in the run directory. Give it at every start; the run
    records it so that other commands find it.
    """
    start_over: bool = False
    """Restart from the first update when the run has checkpoints but none of them is usable."""
    heal: int | None = None
    """Heal the run up to this many times, over all its starts. If the loss does not recover or is
    not finite, find the cause, return to the last good state, skip what caused it, and continue.
    """


def flags_of(
    settings: type[Any],
    *,
    leave_out: tuple[str, ...],
    prefix: str = "",
    group_of: Callable[[str], Group | None] = lambda _: None,
) -> Any:
    """Return a TypedDict with a key for every field of a settings dataclass. `group_of` returns the
    group of the help in which a field stands.
    """
    hints = get_type_hints(settings)
    helps = field_docstrings(settings)
    keys = {}
    for field in fields(settings):
        if field.name in leave_out:
            continue
        if field.default in (MISSING, None, ()):
            default = ""
        else:
            default = f" (default: {_default_text(field.default)})"
        described = Parameter(
            help=f"{helps[field.name].rstrip('.')}{default}.", group=group_of(field.name)
        )
        keys[prefix + field.name] = Annotated[hints[field.name], described]
    # a TypedDict made at run time
    return TypedDict(f"{settings.__name__}Flags", keys, total=False)  # type: ignore[operator]


def field_docstrings(settings: type[Any]) -> dict[str, str]:
    """Return the docstring of each field of a class and its base classes, on one line."""
    found: dict[str, str] = {}
    for base in settings.__bases__:
        if is_dataclass(base):
            found |= field_docstrings(base)
    # A public class names its package as its module, but its functions know where it was defined.
    tree = ast.parse(inspect.getsource(sys.modules[settings.__post_init__.__module__]))
    body = next(
        node
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name == settings.__name__
    ).body
    for pair in pairwise(body):
        match pair:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = " ".join(text.split())
    return found


def _default_text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _names_of(settings: type[Any]) -> frozenset[str]:
    return frozenset(field.name for field in fields(settings))


_HEALING: Final = "Healing"
_TRAINING: Final = "Training"
_GROUPS: Final[dict[str, frozenset[str]]] = {
    _HEALING: frozenset(),
    "Model": _names_of(TransformerShape),
    "Learning rate": _names_of(Schedule) | {"plateau_patience", "plateau_factor"},
    "When to stop": _names_of(StopWhen),
    "Batches and data": frozenset(
        {
            *("block_size", "max_tokens", "max_sentences", "multiple_of", "update_freq"),
            *("skip_list", "num_workers", "verify_data"),
        }
    ),
    "Evaluation and checkpoints": frozenset(
        {
            *("validate_every_updates", "validate_every_epochs", "evaluate"),
            *("evaluate_beam", "evaluate_length_penalty", "evaluate_sentences"),
            *("save_every_updates", "save_every_epochs", "keep_checkpoints", "on_save_error"),
        }
    ),
    _TRAINING: frozenset(),
}
"""The settings of a training by what they are about, in the order of the help. What is in no group
is about the training itself.
"""


@cache
def _group(title: str) -> Group:
    return Group(title, sort_key=list(_GROUPS).index(title))


def _group_of(name: str) -> Group:
    found = (title for title, names in _GROUPS.items() if name in names)
    return _group(next(found, _TRAINING))


if TYPE_CHECKING:
    Flags = dict[str, Any]
    HealFlags = dict[str, Any]
else:
    Flags = flags_of(RecipeSettings, leave_out=("data",), group_of=_group_of)
    HealFlags = flags_of(
        Heal,
        prefix="heal_",
        leave_out=("max_times", "diagnosis_seconds", "diagnose"),
        group_of=lambda _: _group(_HEALING),
    )


def train(
    data: Path | None = None,
    /,
    *,
    run: Annotated[Path, Parameter(name=("--run", "--run-dir"))],
    config: Path | None = None,
    dry_run: bool = False,
    start: Start = Start(),
    healing: Annotated[HealFlags, Parameter(name="*")] | None = None,
    flags: Annotated[Flags, Parameter(name="*")] | None = None,
) -> int:
    """Train a Transformer on prepared data, or resume the run.

    An existing run resumes from its newest valid checkpoint.

    Parameters
    ----------
    data
        The directory that `sonde prepare` wrote. Not needed when a run resumes.
    run
        The run directory: created, or resumed if it exists. Under torchrun write --run-dir, because
            torchrun takes
        --run as a short form of its own --run-path.
    config
        A TOML file of settings, one `key = value` per line. Command-line flags override it.
    dry_run
        Print what would happen without doing anything.
    """
    needs("sonde train", "torch")
    given: dict[str, Any] = {"arch": start.arch, **(flags or {})}
    if data is not None:
        if not data.is_dir():
            raise SettingError(
                f"there is no directory {data}",
                hint="`sonde prepare --train FILE --out DIR` makes one",
            )
        given["data"] = str(data.absolute())
    try:
        settings = _resolved(run, read_toml(config) if config else {}, given)
    except SondeError:
        if rank_of_process() == 0:
            raise
        return 1  # rank 0 reports the same error
    from sonde.train.session import dry_run_facts, train_run

    place = start.checkpoints
    if dry_run:
        _print_facts(settings, dry_run_facts(settings, run, place))
        return 0
    heal = _heal(start.heal, healing or {})
    if heal is None:
        train_run(settings, run, start_over=start.start_over, checkpoints=place)
        return 0
    from sonde.heal.supervisor import train_healing

    reason = train_healing(settings, run, heal, start_over=start.start_over, checkpoints=place)
    return 1 if reason.startswith(ENDED) else 0


def _heal(times: int | None, flags: Mapping[str, Any]) -> Heal | None:
    """Return the healing settings, or None if healing was not requested."""
    given = {name.removeprefix("heal_"): value for name, value in flags.items()}
    if times is None and not given.get("dry_run"):
        if given:
            raise SettingError(
                "the flags --heal-… need --heal N", hint="N is how often the run may be mended"
            )
        return None
    return Heal(max_times=1_000_000 if times is None else times, **given)


def _resolved(run: Path, toml: dict[str, Any], given: dict[str, Any]) -> RecipeSettings:
    """Return the settings to train with. Reports what changed since the last start and refuses what
    must not change.
    """
    if not RunLayout(run).manifest.exists():
        return settings_from(toml, given)
    before = asdict(settings_of_run(run))
    now = settings_from(before, toml, given)
    new = asdict(now)
    changed = {
        name: f"{name} was {old!r} and is now {new[name]!r}"
        for name, old in before.items()
        if old != new[name]
    }
    fixed = [sentence for name, sentence in changed.items() if name in FIXED]
    if fixed:
        sentence = f"{run} cannot go on with other settings than it began with: {'; '.join(fixed)}"
        raise SettingError(
            sentence, hint="leave them out to go on with its own, or start a new run directory"
        )
    if rank_of_process() == 0:
        for sentence in changed.values():
            screen().print(f"changed: {sentence}", style="yellow", markup=False)
    return now


def _print_facts(settings: RecipeSettings, facts: dict[str, str]) -> None:
    if rank_of_process() != 0:
        return
    console = screen()
    print_rows(console, ("what would happen", ""), facts.items())
    console.print()
    print_rows(
        console,
        ("setting", "value"),
        ((name, str(value)) for name, value in asdict(settings).items()),
    )
    console.print(f"\n{world_size_of_process()} ranks; nothing was written")
