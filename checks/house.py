"""How large the house is: `python -m checks.house [PATH] [--markdown]`.

PATH is the tree of any revision (`git archive REVISION | tar x -C PATH`), so that two can be
compared; this one without it. Counted is the product: no tests, no simulation, no checks. What is
counted is read, and only the tables of settings are asked of the tree's own code, which runs in a
process of its own.

Counts are to compare by, and none of them is a bound: those are in tests/test_tidy.py.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PACKAGES = ("wire", "runtime", "metadata", "bookie", "ledger", "joined", "broker", "quire")
FUNCTION_LINES = 50
PARAMETERS = 8
FILE_LINES_LARGE = 440
FILE_LINES_SMALL = 70
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

#: Runs in the tree that is counted, and prints the names of settings that have an effect.
_TABLES = """
import importlib, sys
from runtime.config import ConfigKey, ConfigTable
names = set()
for module in sys.argv[1:]:
    for value in vars(importlib.import_module(module)).values():
        keys = value if isinstance(value, (ConfigTable, tuple)) else ()
        names |= {key.name for key in keys if isinstance(key, ConfigKey) and key.has_effect}
print("\\n".join(sorted(names)))
"""


class Module(NamedTuple):
    #: The path in dotted form; a package's is the package.
    name: str
    #: The folder that it is in, dotted.
    room: str
    lines: int
    tree: ast.Module


def modules_of(root: Path) -> list[Module]:
    """All of the product. SyntaxError if one of them is not this Python's."""
    found = []
    for path in sorted(path for one in PACKAGES for path in (root / one).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        text = path.read_text(encoding="utf-8")
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        room = ".".join(parts[:-1])
        found.append(Module(name, room, len(text.splitlines()), ast.parse(text, str(path))))
    return found


def imports(tree: ast.Module) -> Iterator[str]:
    """Names of modules, and of what is taken from them; those that only types need, too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{one.name}" for one in node.names)


def arrows(modules: list[Module]) -> set[tuple[str, str]]:
    """Which room imports from which other."""
    room_of = {one.name: one.room for one in modules}
    found = set()
    for one in modules:
        for name in imports(one.tree):
            room = room_of.get(name) or room_of.get(name.rpartition(".")[0])
            if room is not None and room != one.room:
                found.add((one.room, room))
    return found


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Without `self` and `cls`."""
    taken = [*function.args.posonlyargs, *function.args.args]
    is_bound = bool(taken) and taken[0].arg in ("self", "cls")
    return len(taken) - is_bound + len(function.args.kwonlyargs)


def is_command(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Of click, which gives each option by a parameter's name."""
    words = " ".join(ast.unparse(one) for one in function.decorator_list)
    return "command" in words or "option" in words


def is_catch_all(node: ast.AST) -> bool:
    if not isinstance(node, ast.ExceptHandler):
        return False
    kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
    names = {one.id for one in kinds if isinstance(one, ast.Name)}
    return node.type is None or bool(names & {"Exception", "BaseException"})


def acting_settings(root: Path, modules: list[Module]) -> set[str]:
    """Of all tables and tuples of settings that modules hold; CalledProcessError if the tree's
    code cannot be run by this Python."""
    holding = [
        one.name
        for one in modules
        if any(name.startswith("runtime.config.Config") for name in imports(one.tree))
        and not one.name.startswith("quire")
    ]
    told = subprocess.run(
        [sys.executable, "-c", _TABLES, *holding],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    )
    return set(told.stdout.split())


def outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes below, without functions, what is looked up by a name, and the broker's settings that
    a topic's own names for its default (broker/cluster/config_topic.py)."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (*_FUNCTIONS, ast.Lambda, ast.Subscript)):
            continue
        if isinstance(child, ast.keyword) and child.arg == "broker":
            continue
        yield child
        yield from outside_functions(child)


def places(modules: list[Module], names: set[str]) -> Counter[str]:
    """How often a setting is written where things are declared: its name as a text outside of
    functions, and each field of a configuration that says by itself what its name says. `quire`
    composes, and declares none."""
    fields = {name.replace(".", "_"): name for name in names}
    found: Counter[str] = Counter()
    for one in modules:
        reads = any(name.startswith("runtime.config.") for name in imports(one.tree))
        if one.name.startswith("quire") or not (reads or one.name.endswith("config")):
            continue
        for node in outside_functions(one.tree):
            if isinstance(node, ast.Constant) and node.value in names:
                found[str(node.value)] += 1
            elif isinstance(node, ast.ClassDef) and node.name.endswith("Config"):
                found.update(
                    fields[each.target.id]
                    for each in node.body
                    if isinstance(each, ast.AnnAssign)
                    and isinstance(each.target, ast.Name)
                    and each.target.id in fields
                    and not isinstance(each.value, (ast.Call, ast.Attribute, ast.Name))
                )
    return found


def counts(root: Path) -> dict[str, int]:
    """What is counted, in words -> how many."""
    modules = modules_of(root)
    functions = [
        node for one in modules for node in ast.walk(one.tree) if isinstance(node, _FUNCTIONS)
    ]
    many = [one for one in functions if parameters(one) >= PARAMETERS and not is_command(one)]
    names = acting_settings(root, modules)
    written = places(modules, names)
    return {
        "rooms: packages": len({one.room for one in modules}),
        "rooms: modules": len(modules),
        "import arrows between packages": len(arrows(modules)),
        "settings that have an effect": len(names),
        "settings written in more than one place": sum(count > 1 for count in written.values()),
        "lines": sum(one.lines for one in modules),
        f"functions over {FUNCTION_LINES} lines": _long(functions),
        f"constructors with {PARAMETERS} parameters and more": sum(
            one.name == "__init__" for one in many
        ),
        f"other functions with {PARAMETERS} parameters and more": sum(
            one.name != "__init__" for one in many
        ),
        "catch-alls": sum(is_catch_all(node) for one in modules for node in ast.walk(one.tree)),
        f"files over {FILE_LINES_LARGE} lines": sum(
            one.lines > FILE_LINES_LARGE for one in modules
        ),
        f"files under {FILE_LINES_SMALL} lines, without empty ones": sum(
            bool(one.tree.body) and one.lines < FILE_LINES_SMALL for one in modules
        ),
    }


def _long(functions: Iterable[ast.FunctionDef | ast.AsyncFunctionDef]) -> int:
    return sum((one.end_lineno or 0) - one.lineno + 1 > FUNCTION_LINES for one in functions)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m checks.house")
    parser.add_argument("path", nargs="?", type=Path, default=Path(__file__).parent.parent)
    parser.add_argument("--markdown", action="store_true", help="as a table")
    options = parser.parse_args()
    found = counts(options.path.resolve())
    if options.markdown:
        print("| | |\n|---|---:|")
    for words, count in found.items():
        print(f"| {words} | {count:,} |" if options.markdown else f"{count:>8,}  {words}")


if __name__ == "__main__":
    main()
