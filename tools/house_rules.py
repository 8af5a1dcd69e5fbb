"""The house rules no linter knows: sizes, names, subclasses, light imports, safe loading.

    python tools/house_rules.py [PROJECT]

Reads limits and exceptions from [tool.house-rules] of pyproject.toml, parses every Python file of
the project and imports none. Prints a line per finding and exits 1, or one summary line and exits
0. An exception is written as "path" (for what concerns the file) or "path:Qualified.name" (for one
class or function) = "reason"; one without a reason, or no longer needed, is a finding itself. Costs
0.2 s of CPU per 10,000 lines.
"""

import ast
import builtins
import gc
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDERS: Final = ("src", "tests", "tools", "benchmarks", "examples")
EMPTY_NAMES: Final = frozenset({"utils", "helpers", "misc", "common", "core", "manager"})
FAMILY_ROOTS: Final = frozenset(
    name
    for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, BaseException)
) | {"TypedDict"}
"""Whatever derives from these may be derived from again."""
OPEN_BASES: Final = frozenset(
    {"ABC", "Protocol", "NamedTuple", "Enum", "IntEnum", "StrEnum", "Flag", "IntFlag"}
)

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


class Finding(NamedTuple):
    """One broken rule. `name` is the qualified name of the class or function, empty for what
    concerns the file.
    """

    path: str
    line: int
    name: str
    text: str

    @property
    def exception_key(self) -> str:
        """How pyproject.toml would excuse it."""
        return f"{self.path}:{self.name}" if self.name else self.path


class Definition(NamedTuple):
    """A class or function, where it stands in its file."""

    name: str
    node: ast.ClassDef | Function
    is_method: bool


class SourceFile(NamedTuple):
    """A parsed file. `path` is relative to the project, with forward slashes."""

    path: str
    text: str
    num_lines: int
    tree: ast.Module
    definitions: list[Definition]

    @property
    def in_package(self) -> bool:
        """Is it part of what users install?"""
        return self.path.startswith("src/")

    @property
    def num_code_lines(self) -> int:
        """Its lines without blank ones, comments and docstrings, those below fields among them."""
        strings = [
            node
            for node in _statements(self.tree)
            if isinstance(node, ast.Expr) and _is_string(node)
        ]
        prose = {
            line
            for node in strings
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
        }
        lines = enumerate(map(str.strip, self.text.splitlines()), start=1)
        return sum(
            bool(line) and not line.startswith("#") and number not in prose
            for number, line in lines
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The numbers in [tool.house-rules]."""

    max_file_lines: int
    max_function_lines: int
    max_class_lines: int
    max_arguments: int


def load_rules(project: Path) -> tuple[Limits, dict[str, str]]:
    """The limits and the exceptions that the project's pyproject.toml states."""
    with (project / "pyproject.toml").open("rb") as file:
        table: dict[str, Any] = dict(tomllib.load(file)["tool"]["house-rules"])
    exceptions: dict[str, str] = table.pop("exceptions", {})
    return Limits(**table), exceptions


def parse_files(project: Path) -> tuple[list[SourceFile], list[Finding]]:
    """Every Python file below FOLDERS, in order, and a finding for each that does not parse."""
    files = []
    findings = []
    for folder in FOLDERS:
        for path in sorted((project / folder).rglob("*.py")):
            relative = path.relative_to(project).as_posix()
            text = path.read_text(encoding="utf-8")
            try:
                tree = ast.parse(text)
            except SyntaxError as error:
                findings.append(
                    Finding(relative, error.lineno or 1, "", f"does not parse: {error.msg}")
                )
                continue
            files.append(
                SourceFile(
                    relative, text, len(text.splitlines()), tree, list(_definitions(tree, ""))
                )
            )
    return files, findings


def _definitions(parent: ast.AST, prefix: str) -> Iterator[Definition]:
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = prefix + node.name
            yield Definition(name, node, isinstance(parent, ast.ClassDef))
            yield from _definitions(node, name + ".")
        elif not isinstance(node, ast.expr):
            # definitions hide in statements, handlers and cases, never in expressions
            yield from _definitions(node, prefix)


def _statements(parent: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(parent):
        if not isinstance(node, ast.expr):
            yield node
            yield from _statements(node)


def check(files: list[SourceFile], limits: Limits) -> Iterator[Finding]:
    """All findings in the files, before exceptions."""
    package_files = [file for file in files if file.in_package]
    yield from check_names(files)
    for file in files:
        yield from check_sizes(file, limits)
        yield from check_loading(file)
    submodules = {module for file in package_files for module in _importable_below_root(file.path)}
    concrete_bases = concrete_base_classes(package_files)
    for file in package_files:
        if ast.get_docstring(file.tree) is None:
            yield Finding(file.path, 1, "", "the module has no docstring")
        yield from check_root_imports(file, submodules)
        yield from check_classes(file, concrete_bases)
        yield from check_opening(file)


def check_names(files: list[SourceFile]) -> Iterator[Finding]:
    """No module or folder has a name that says nothing."""
    seen: set[str] = set()
    for file in files:
        parts = file.path.removesuffix(".py").split("/")
        for depth, part in enumerate(parts, start=1):
            place = "/".join(parts[:depth])
            if part.strip("_") in EMPTY_NAMES and place not in seen:
                seen.add(place)
                yield Finding(
                    file.path, 1, "", f"{part!r} says nothing: name it after what it holds"
                )


def check_sizes(file: SourceFile, limits: Limits) -> Iterator[Finding]:
    """Files, classes, functions and argument lists stay within the limits."""
    if file.num_lines > limits.max_file_lines:
        text = f"the file has {file.num_lines} lines, the limit is {limits.max_file_lines}"
        yield Finding(file.path, limits.max_file_lines + 1, "", text)
    for name, node, is_method in file.definitions:
        num_lines = _num_lines(node)
        if isinstance(node, ast.ClassDef):
            kind = "class"
            limit = limits.max_class_lines
        else:
            kind = "function"
            limit = limits.max_function_lines
            num_arguments = _num_arguments(node, is_method=is_method)
            if num_arguments > limits.max_arguments:
                text = (
                    f"function {name} has {num_arguments} arguments, the limit is"
                    f" {limits.max_arguments}"
                )
                yield Finding(file.path, node.lineno, name, text)
        if num_lines > limit:
            yield Finding(
                file.path,
                node.lineno,
                name,
                f"{kind} {name} has {num_lines} lines, the limit is {limit}",
            )


def check_loading(file: SourceFile) -> Iterator[Finding]:
    """`torch.load` only with a literal weights_only=True, and `allow_pickle=True` nowhere: both run
    what a file says.
    """
    loads = "torch" in file.text and re.search(r"\bload\b", file.text)
    if not loads and "allow_pickle" not in file.text:
        # most files: walking every expression of the project would cost more than parsing it
        return
    aliases = {"torch.load"}
    calls = []
    for node in ast.walk(file.tree):
        if isinstance(node, ast.Call):
            calls.append(node)
        else:
            aliases.update(_aliases_of_load(node))
    for call in calls:
        name = _dotted(call.func)
        is_load = name in aliases or name.endswith("torch.serialization.load")
        if is_load and not _says_true(call, "weights_only"):
            text = "torch.load without weights_only=True runs code from the file"
            yield Finding(file.path, call.lineno, "", text)
        if _says_true(call, "allow_pickle"):
            text = "allow_pickle=True runs code from the file"
            yield Finding(file.path, call.lineno, "", text)


def _aliases_of_load(node: ast.AST) -> Iterator[str]:
    """Return what `torch.load` is called after an import."""
    if isinstance(node, ast.ImportFrom) and node.module in ("torch", "torch.serialization"):
        for alias in node.names:
            if alias.name == "load":
                yield alias.asname or alias.name
    elif isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name == "torch" and alias.asname:
                yield f"{alias.asname}.load"


def check_opening(file: SourceFile) -> Iterator[Finding]:
    """Files are opened through records/files.py: a FIFO, a device or a link in a run must not hang
    or mislead a reader.
    """
    if file.path.startswith("src/sonde/records/") and file.path.endswith(("/files.py", "/disk.py")):
        return
    for node in ast.walk(file.tree):
        if not isinstance(node, ast.Call):
            continue
        name = _dotted(node.func)
        is_bare = name in ("open", "io.open", "os.open")
        if isinstance(node.func, ast.Attribute):
            is_bare = is_bare or node.func.attr in (
                "read_bytes",
                "read_text",
                "write_bytes",
                "write_text",
            )
            mode = node.args[0] if node.func.attr == "open" and node.args else None
            is_bare = is_bare or (
                isinstance(mode, ast.Constant) and str(mode.value)[:1] in tuple("rwax")
            )
        if is_bare:
            yield Finding(
                file.path, node.lineno, "", "opens a file itself: use sonde.records.files"
            )


def check_root_imports(file: SourceFile, submodules: set[str]) -> Iterator[Finding]:
    """Inside the package nobody imports the root: it is the shop window, and would load itself in a
    circle.
    """
    root = file.path.split("/")[1]
    for node in _statements(file.tree):
        if isinstance(node, ast.Import):
            bare = any(alias.name == root for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module == root:
            bare = any(f"{root}.{alias.name}" not in submodules for alias in node.names)
        else:
            continue
        if bare:
            yield Finding(
                file.path,
                node.lineno,
                "",
                f"imports the root of {root}: import from the module that defines it",
            )


def check_classes(file: SourceFile, concrete_bases: set[str]) -> Iterator[Finding]:
    """Only an abstract class has subclasses; settings are frozen, keyword-only and explained field
    by field.
    """
    for name, node, _ in file.definitions:
        if not isinstance(node, ast.ClassDef):
            continue
        if node.name in concrete_bases:
            text = f"class {name} has subclasses and is not abstract (its own bases say: ABC)"
            yield Finding(file.path, node.lineno, name, text)
        if node.name.endswith("Settings"):
            yield from _check_settings(file.path, name, node)


def _check_settings(path: str, name: str, node: ast.ClassDef) -> Iterator[Finding]:
    dataclasses = [
        decorator for decorator in node.decorator_list if _last_name(decorator) == "dataclass"
    ]
    if not dataclasses:
        return
    for option in ("frozen", "kw_only"):
        if not (isinstance(dataclasses[0], ast.Call) and _says_true(dataclasses[0], option)):
            yield Finding(path, node.lineno, name, f"settings {name} are not {option}=True")
    for field, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(field, ast.AnnAssign) and not _is_string(after):
            text = f"field {ast.unparse(field.target)} of settings {name} has no docstring below it"
            yield Finding(path, field.lineno, name, text)


def concrete_base_classes(files: list[SourceFile]) -> set[str]:
    """Names of the package's classes that others derive from, though neither abstract nor an
    exception or typed dict.
    """
    own_bases: set[str] = set()
    bases_of: dict[str, set[str]] = {}
    is_open: set[str] = set()
    for file in files:
        foreign = _foreign_names(file)
        for node in (
            definition.node
            for definition in file.definitions
            if isinstance(definition.node, ast.ClassDef)
        ):
            bases = bases_of[node.name] = {_last_name(base) for base in node.bases}
            own_bases |= bases - foreign
            if bases & OPEN_BASES or _is_abstract(node):
                is_open.add(node.name)
    family: set[str] = set()
    while (
        more := {name for name, bases in bases_of.items() if bases & (FAMILY_ROOTS | family)}
        - family
    ):
        family |= more
    return own_bases & set(bases_of) - is_open - family


def _foreign_names(file: SourceFile) -> set[str]:
    """The names that a file of the package imports from elsewhere."""
    root = file.path.split("/")[1]
    imports = (node for node in _statements(file.tree) if isinstance(node, ast.ImportFrom))
    foreign = (node for node in imports if (node.module or "").partition(".")[0] != root)
    return {alias.asname or alias.name for node in foreign for alias in node.names}


def excuse(findings: list[Finding], exceptions: Mapping[str, str]) -> Iterator[Finding]:
    """The findings that no exception covers, then the exceptions that are wrong themselves."""
    used = {finding.exception_key for finding in findings}
    yield from (finding for finding in findings if finding.exception_key not in exceptions)
    for key, reason in exceptions.items():
        if not reason.strip():
            yield Finding("pyproject.toml", 1, "", f"house-rules exception {key!r} has no reason")
        if key not in used:
            yield Finding(
                "pyproject.toml", 1, "", f"house-rules exception {key!r} is not needed: remove it"
            )


def summary(files: list[SourceFile]) -> str:
    """One line on the state of the house."""
    largest = max(files, key=lambda file: file.num_lines)
    functions = [
        (_num_lines(definition.node), definition.name)
        for file in files
        for definition in file.definitions
        if not isinstance(definition.node, ast.ClassDef)
    ]
    longest = max(functions, default=(0, "none"))
    return (
        f"house rules: {len(files)} files, {sum(file.num_lines for file in files):,} lines,"
        f" {sum(file.num_code_lines for file in files if file.in_package):,} of them code in src;"
        f" largest file {largest.path} ({largest.num_lines}), longest function {longest[1]}"
        f" ({longest[0]})"
    )


def _importable_below_root(path: str) -> set[str]:
    parts = path.removeprefix("src/").removesuffix(".py").split("/")
    return {".".join(parts[:2])} if len(parts) > 1 else set()


def _num_lines(node: ast.ClassDef | Function) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _num_arguments(node: Function, *, is_method: bool) -> int:
    """Named arguments; `self` or `cls` of a method is not one the caller gives."""
    num = len(node.args.posonlyargs) + len(node.args.args) + len(node.args.kwonlyargs)
    is_bound = is_method and "staticmethod" not in map(_last_name, node.decorator_list)
    return num - 1 if is_bound and num else num


def _is_abstract(node: ast.ClassDef) -> bool:
    if any(
        keyword.arg == "metaclass" and _last_name(keyword.value) == "ABCMeta"
        for keyword in node.keywords
    ):
        return True
    methods = [
        member for member in node.body if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return any(
        _last_name(decorator) == "abstractmethod"
        for method in methods
        for decorator in method.decorator_list
    )


def _is_string(node: ast.AST | None) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _says_true(call: ast.Call, argument: str) -> bool:
    return any(
        keyword.arg == argument
        and isinstance(keyword.value, ast.Constant)
        and keyword.value.value is True
        for keyword in call.keywords
    )


def _dotted(node: ast.expr) -> str:
    """`a.b.c` for a chain of names, empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = _dotted(node.value)
        return f"{owner}.{node.attr}" if owner else ""
    return ""


def _last_name(node: ast.expr) -> str:
    """`C` for `C`, `a.C`, `a.C[T]` and `a.C(…)`."""
    if isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Call):
        node = node.func
    return _dotted(node).rpartition(".")[2]


def main() -> int:
    """Check the project given as the first argument, or the one in the working directory."""
    project = Path(sys.argv[1]) if len(sys.argv) > 1 else Path.cwd()
    limits, exceptions = load_rules(project)
    files, findings = parse_files(project)
    findings += check(files, limits)
    remaining = list(excuse(findings, exceptions))
    for finding in remaining:
        print(f"{finding.path}:{finding.line}: {finding.text}")
    if not remaining:
        print(summary(files))
    return 1 if remaining else 0


if __name__ == "__main__":
    # nothing here is garbage before the end, and looking for it costs a third of the time
    gc.disable()
    sys.exit(main())
