"""The rules for lines that are easy to read: what a formatter accepts and a reader trips over.

    python tools/line_rules.py [PROJECT]            check
    python tools/line_rules.py [PROJECT] --shrink   remove from the list what is mended

Four habits save a line and cost a reader time:

    tuples        `a, b = first(), second()`: two statements in one (a swap is fine)
    nested_ifs    a conditional expression inside another
    products      `"s" * (n != 1)`, `* bool(…)`: a condition dressed up as a number
    loops         a loop variable called `one`, which says nothing

A fifth rule limits a function's complexity as radon counts it: unlike ruff, it counts conditional
expressions and boolean operators.

`tools/line_rules.json` lists what existed when the rules came: counts for each file and function. A
count above its entry fails. So does one below it, until the entry is lowered: the list can only
shrink. Imports nothing of the project.
"""

import ast
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from radon.complexity import cc_visit_ast
from radon.visitors import Class

FOLDERS: Final = ("src", "tests", "tools", "benchmarks", "examples")
MAX_COMPLEXITY: Final = 15
LIST: Final = "tools/line_rules.json"
_COMPREHENSIONS: Final = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class Habit(NamedTuple):
    """One place that a reader trips over."""

    kind: str
    line: int


def habits(tree: ast.AST) -> Iterator[Habit]:
    """Return every place in a file that one of the four habits shaped."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and _assigns_unrelated_values(node):
            yield Habit("tuples", node.lineno)
        elif isinstance(node, ast.IfExp) and _holds_another(node):
            yield Habit("nested_ifs", node.lineno)
        elif isinstance(node, ast.BinOp) and _multiplies_a_condition(node):
            yield Habit("products", node.lineno)
        elif isinstance(node, ast.For | ast.AsyncFor) and _is_called_one(node.target):
            yield Habit("loops", node.lineno)
        elif isinstance(node, _COMPREHENSIONS):
            for generator in node.generators:
                if _is_called_one(generator.target):
                    yield Habit("loops", node.lineno)


def _assigns_unrelated_values(node: ast.Assign) -> bool:
    if len(node.targets) != 1:
        return False
    target = node.targets[0]
    value = node.value
    if not isinstance(target, ast.Tuple) or not isinstance(value, ast.Tuple):
        return False
    is_swap = {ast.unparse(part) for part in target.elts} == {
        ast.unparse(part) for part in value.elts
    }
    return not is_swap


def _holds_another(node: ast.IfExp) -> bool:
    inside = (child for part in ast.iter_child_nodes(node) for child in ast.walk(part))
    return any(isinstance(child, ast.IfExp) for child in inside)


def _multiplies_a_condition(node: ast.BinOp) -> bool:
    return isinstance(node.op, ast.Mult) and (_is_condition(node.left) or _is_condition(node.right))


def _is_condition(node: ast.expr) -> bool:
    if isinstance(node, ast.Compare | ast.BoolOp):
        return True
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Not)
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "bool"


def _is_called_one(target: ast.expr) -> bool:
    return any(isinstance(node, ast.Name) and node.id == "one" for node in ast.walk(target))


def complex_functions(tree: ast.AST) -> Iterator[tuple[str, int, int]]:
    """Return name, line and complexity of every function above the limit."""
    pending: list[Any] = list(cc_visit_ast(tree))
    while pending:
        block = pending.pop()
        if isinstance(block, Class):
            pending += [*block.methods, *block.inner_classes]
            continue
        pending += block.closures
        if block.complexity > MAX_COMPLEXITY:
            yield block.fullname, block.lineno, block.complexity


def count(project: Path) -> tuple[dict[str, dict[str, int]], dict[str, list[int]]]:
    """Return what stands in each file: counts by kind or function, and the lines of each kind."""
    counts: dict[str, dict[str, int]] = {}
    lines: dict[str, list[int]] = {}
    for folder in FOLDERS:
        for path in sorted((project / folder).rglob("*.py")):
            name = path.relative_to(project).as_posix()
            tree = ast.parse(path.read_text("utf-8"))
            found = Counter[str]()
            for habit in habits(tree):
                found[habit.kind] += 1
                lines.setdefault(f"{name}:{habit.kind}", []).append(habit.line)
            if folder in ("src", "tools"):
                for function, line, complexity in complex_functions(tree):
                    found[f"complexity of {function}"] = complexity
                    lines[f"{name}:complexity of {function}"] = [line]
            if found:
                counts[name] = dict(sorted(found.items()))
    return counts, lines


def compare(
    found: Mapping[str, Mapping[str, int]],
    listed: Mapping[str, Mapping[str, int]],
    lines: Mapping[str, list[int]],
) -> Iterator[str]:
    """Return a sentence for each count that is not the listed one."""
    for name in sorted({*found, *listed}):
        here = found.get(name, {})
        allowed = listed.get(name, {})
        for kind in sorted({*here, *allowed}):
            number = here.get(kind, 0)
            limit = allowed.get(kind, 0)
            if number > limit:
                places = ", ".join(map(str, sorted(lines[f"{name}:{kind}"])))
                yield f"{name}: {kind} {number}, listed {limit} (lines {places})"
            elif number < limit:
                yield f"{name}: {kind} {number}, listed {limit}: run tools/line_rules.py --shrink"


def shrunk(
    found: Mapping[str, Mapping[str, int]], listed: Mapping[str, Mapping[str, int]]
) -> dict[str, dict[str, int]]:
    """Return the list with every count lowered to what is left, and none raised."""
    smaller = {}
    for name, allowed in listed.items():
        here = found.get(name, {})
        counts = {kind: min(limit, here[kind]) for kind, limit in allowed.items() if kind in here}
        if counts:
            smaller[name] = counts
    return smaller


def read_list(project: Path) -> dict[str, dict[str, int]]:
    """Return the listed counts of the files that are there: a copy may be without its tests."""
    place = project / LIST
    if not place.exists():
        return {}
    listed: dict[str, dict[str, int]] = json.loads(place.read_text("utf-8"))
    return {name: counts for name, counts in listed.items() if (project / name).exists()}


def summary(listed: Mapping[str, Mapping[str, int]]) -> str:
    """One line on what is left to mend."""
    num_lines = 0
    num_functions = 0
    for counts in listed.values():
        for kind, number in counts.items():
            if kind.startswith("complexity of"):
                num_functions += 1
            else:
                num_lines += number
    return (
        f"line rules: {num_lines} old lines and {num_functions} complex functions are left to mend"
    )


def main() -> int:
    """Check the project given as the first argument, or the one in the working directory."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--shrink"]
    project = Path(arguments[0]) if arguments else Path.cwd()
    listed = read_list(project)
    found, lines = count(project)
    if "--shrink" in sys.argv:
        listed = shrunk(found, listed)
        text = json.dumps(listed, indent=1, sort_keys=True)
        (project / LIST).write_text(text + "\n", "utf-8")
    problems = list(compare(found, listed, lines))
    for problem in problems:
        print(problem)
    if problems:
        return 1
    print(summary(listed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
