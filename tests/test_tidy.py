"""The house rules that no linter knows: sizes, docstrings, dead modules, the file map, bans."""

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

from quire.cli import TOOLS

ROOT = Path(__file__).parent.parent
#: The rooms of the product; a module of them that nothing imports is dead.
PACKAGES = (
    "wire", "runtime", "metadata", "bookie", "ledger", "joined", "broker", "quire", "quire_locks",
    "pyspark_quire", "spark_jobs",
)  # fmt: skip
WORKROOMS = ("sim", "checks", "bench", "spark_examples", "bank_example")
WORKSHOPS = (*WORKROOMS, "tests", "compat_tests")

LINE_LENGTH_MAX = 100
FUNCTION_LINES_MAX = 70
#: One idea a file is the rule. This bound only finds what grew without anybody looking: no file is
#: cut for a number, and two that are one idea are one file.
FILE_LINES_MAX = 800


@cache
def python_files(*folders):
    return sorted(
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if "__pycache__" not in path.parts
    )


@cache
def tree_of(path):
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def where(path, line):
    return f"{path.relative_to(ROOT)}:{line}"


def none(found):
    """Fails with the whole list, one per line."""
    if found:
        pytest.fail("\n".join(found), pytrace=False)


def test_lines_are_short():
    found = [
        where(path, number)
        for path in python_files(*PACKAGES, *WORKSHOPS)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > LINE_LENGTH_MAX
    ]
    none(found)


def test_functions_fit_on_a_screen():
    found = [
        f"{where(path, node.lineno)} {node.name}: {node.end_lineno - node.lineno + 1} lines"
        for path in python_files(*PACKAGES, *WORKSHOPS)
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno - node.lineno + 1 > FUNCTION_LINES_MAX
    ]
    none(found)


def test_files_hold_one_thing():
    found = []
    for path in python_files(*PACKAGES):
        count = len(path.read_text(encoding="utf-8").splitlines())
        if count > FILE_LINES_MAX:
            found.append(f"{path.relative_to(ROOT)}: {count} lines")
    none(found)


def test_modules_say_what_they_are():
    found = [
        str(path.relative_to(ROOT))
        for path in python_files(*PACKAGES, *WORKSHOPS)
        if path.stat().st_size and not ast.get_docstring(tree_of(path))
    ]
    none(found)


def test_nothing_is_left_undone():
    words = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|NotImpl" + r"emented\b(?!Error))\b")
    found = [
        where(path, number)
        for path in python_files(*PACKAGES, *WORKSHOPS)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if words.search(line)
    ]
    none(found)


def imported_names(path):
    """Full names of all that a file imports: modules, and modules or attributes of modules."""
    package = module_name(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*base, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def entry_points():
    """Modules that are started from outside: scripts, and what is run with `python -m`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {target.partition(":")[0] for target in project.get("scripts", {}).values()}


def test_no_module_is_dead():
    """A module needs an importer beside its own tests, or to be an entry point."""
    importers = {}
    for path in python_files(*PACKAGES, *WORKSHOPS):
        for name in imported_names(path):
            importers.setdefault(name, set()).add(path)
    started = {*entry_points(), *TOOLS.values()}  # a tool is imported by its name
    dead = []
    for path in python_files(*PACKAGES):
        name = module_name(path)
        if path.name in ("__init__.py", "__main__.py") or name in started:
            continue
        others = {p for p in importers.get(name, ()) if p != path}
        if not [p for p in others if not p.name.startswith(f"test_{path.stem}")]:
            dead.append(name)
    none(dead)


#: Of a function, its class or its module: why it is there though none of ours but tests calls it.
UNCALLED = re.compile(r"\b[Ff]or\s+tests\b|\bParity\s+with\s+BookKeeper|\bkazoo\.interfaces\b")


def circles(needs):
    """Of what needs what: paths whose last is their first once more. None only if there is none."""
    found, done = [], set()
    for start in sorted(needs):
        path, ways = [], [iter([start])]
        while ways:
            name = next(ways[-1], None)
            if name is None:
                ways.pop()
                if path:
                    done.add(path.pop())
            elif name in path:
                found.append([*path[path.index(name) :], name])
            elif name not in done:
                path.append(name)
                ways.append(iter(sorted(needs[name])))
    return found


def test_circles_are_found():
    line = {"a": {"b", "c"}, "b": {"c"}, "c": set()}
    assert circles(line) == []
    assert circles(line | {"c": {"a"}}) == [["a", "b", "c", "a"]]
    assert circles(line | {"d": {"e"}, "e": {"d"}}) == [["d", "e", "d"]]


def test_no_modules_need_each_other():
    """Not for their types either: what both need is in the room below, or said by a Protocol."""
    modules = {module_name(path): path for path in python_files(*PACKAGES)}
    needs = {
        name: (set(imported_names(path)) & modules.keys()) - {name}
        for name, path in modules.items()
    }
    assert "broker.log.life.chain" in needs["broker.log.life.keeper"], "types count, too"
    none([" -> ".join(path) for path in circles(needs)])


#: Libraries: who calls them has a program of his own.
LIBRARIES = ("quire_locks", "pyspark_quire")


def names_in(path):
    """Identifiers that a file reads, passes by name, or has as strings (for `getattr`)."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.arg
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def definitions_in(node, docstring):
    """(definition, whether it or what it is in says why nobody calls it), inner ones included."""
    said = docstring or ast.get_docstring(node) or ""
    for inner in node.body:
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            text = ast.get_docstring(inner) or ""
            yield inner, UNCALLED.search(text) is not None or UNCALLED.search(said) is not None
            if isinstance(inner, ast.ClassDef):
                yield from definitions_in(inner, f"{said} {text}")


def test_what_only_tests_call_says_so():
    """By name: two of one name are both called if one is. Commands are called by their user."""
    used = {name for path in python_files(*PACKAGES, *WORKROOMS) for name in names_in(path)}
    tested = {name for path in python_files("tests", "compat_tests") for name in names_in(path)}
    none(
        [
            f"{where(path, node.lineno)} {node.name}"
            for path in python_files(*(name for name in PACKAGES if name not in LIBRARIES))
            for node, is_said in definitions_in(tree_of(path), "")
            if node.name in tested
            and node.name not in used
            and not is_said
            and not node.name.startswith("__")
            and not any("command(" in ast.unparse(each) for each in node.decorator_list)
        ]
    )


#: Folders whose tests mirror them: tests/<folder>/test_<module>.py, test_<module>_<aspect>.py.
MIRRORED = (*PACKAGES, "sim", "checks", "bench", "compat_tests")
#: Tests of what several modules of a folder do together. Each says in its first line what that is.
BEHAVIOURS = {
    "bookie": (
        "crash_points deferred_sync disk_full disk_full_histories disk_slow fault_histories kill "
        "killed_then_power_fails long_turns torn_under_a_reader"
    ),
    "broker": "driven hot_path loop_turns",
    "broker/cluster": "followed members",
    "broker/handlers": "conformance internal_topics refusals refused_changes",
    "broker/log": "cluster_histories",
    "ledger": "random_histories",
    "ledger/autorecovery": "auto_recovery records rules",
    "quire": "grafana guide secrets",
    "sim": "addresses command marks named scenarios seeds",
    "sim/transactions": "crashes",
    "wire/bookkeeper": "golden protocol",
}


def is_mirrored(test, module):
    """Whether a test file's name and place are those of a module's or a package's path."""
    stem = f"test_{module.stem}"
    return test.parent.relative_to(ROOT / "tests") == module.parent.relative_to(ROOT) and (
        test.stem == stem or test.stem.startswith(f"{stem}_")
    )


def test_tests_lie_where_their_modules_lie():
    declared = {
        ROOT / "tests" / folder / f"test_{name}.py"
        for folder, names in BEHAVIOURS.items()
        for name in names.split()
    }
    modules = [path for path in python_files(*MIRRORED) if path.name != "__init__.py"]
    modules += {path.parent for path in python_files(*MIRRORED)}
    found = [f"{path}: is declared and does not exist" for path in declared if not path.exists()]
    for path in python_files("tests"):
        # What lies in tests/ itself is about the whole tree.
        if not path.name.startswith("test_") or path.parent == ROOT / "tests":
            continue
        mirrors = any(is_mirrored(path, module) for module in modules)
        if mirrors == (path in declared):
            words = "is declared, and mirrors a module" if mirrors else "mirrors no module"
            found.append(f"{path.relative_to(ROOT)}: {words}")
    none(found)


UNTESTED_LINES_MAX = 60
#: Modules that no test of their room comes to, and the test of another room that does.
TESTED_ELSEWHERE = {
    # The registration is what a node tells metadata of its bookie.
    "bookie.server.registration": "quire/test_bookie_node_stock_settings.py",
    # The crashes and the damage are those of a bookie, whose tests have it at hand.
    "checks.crash_check": "bookie/test_crash_points.py",
    "checks.crash_disk": "bookie/test_crash_points.py",
    "checks.crash_points": "bookie/test_crash_points.py",
    "checks.crash_scenario": "bookie/test_crash_points.py",
    "checks.crash_steps": "bookie/test_crash_points.py",
    "checks.damage": "bookie/journal/test_journal_damage.py",
    "checks.damage_bookie": "bookie/health/test_damage.py",
    # The page is of the settings of all rooms.
    "quire.settings_page": "test_settings.py",
    # Children are real only where there is a program to start.
    "runtime.processes": "quire/test_bookie_processes.py",
    # What outlives a process is seen on a bookie that is killed.
    "runtime.sim_disk_life": "bookie/test_killed_then_power_fails.py",
}


@cache
def needed_by(path):
    """What a file imports, and the modules whose names it has as strings: it starts programs."""
    strings = {
        node.value
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return strings.union(imported_names(path))


def reached(tests, modules, room=""):
    """Names of the modules that tests come to by way of modules of a room; without one, of any."""
    found, ahead = set(), list(tests)
    while ahead:
        names = needed_by(ahead.pop()) & modules.keys() - found
        names = {name for name in names if not room or name.partition(".")[0] == room}
        found |= names
        ahead += [modules[name] for name in names]
    return found


def test_modules_have_tests():
    """A module of some size has a test: one that mirrors it, or one of its room that comes to it
    through what it imports. No test that fails is promised by that; but what no test of the room
    comes to has none, and nobody would see it."""
    modules = {module_name(path): path for path in python_files(*PACKAGES, "sim", "checks")}
    found = []
    for room in (*PACKAGES, "sim", "checks"):
        shared = ROOT / "tests" / "conftest.py"
        covered = reached([*python_files(f"tests/{room}"), shared], modules, room)
        for name, path in modules.items():
            size = len(path.read_text(encoding="utf-8").splitlines())
            if name.partition(".")[0] != room or path.stem in ("__init__", "__main__"):
                continue
            elsewhere = TESTED_ELSEWHERE.get(name)
            if elsewhere and (
                name in covered or name not in reached([ROOT / "tests" / elsewhere], modules)
            ):
                found.append(f"{name}: is not tested by {elsewhere}, or by its room's tests too")
            if size > UNTESTED_LINES_MAX and name not in covered and not elsewhere:
                found.append(f"{name}: no test in tests/{room}/ comes to it")
    none(found)


def test_file_map_is_true():
    """The fenced block `file map` of docs/architecture.md names every folder with modules, and no
    other: a line for each, that starts with the folder's path and a slash."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    block = re.search(r"^```file map\n(.*?)^```", text, re.M | re.S)
    assert block, "docs/architecture.md has no ```file map block"
    mapped = re.findall(r"^\s*([\w./-]+)/(?=\s|$)", block.group(1), re.M)
    assert len(mapped) == len(set(mapped))
    rooms = {str(path.parent.relative_to(ROOT)) for path in python_files(*PACKAGES)}
    rooms |= {folder for folder in WORKSHOPS if python_files(folder)}
    assert set(mapped) == rooms


BANS = [
    # (what, pattern, files that may)
    ("print is for command lines", r"^\s*print\(", ()),
    (
        "threads stay in runtime",
        r"^\s*(import|from) (threading|concurrent|asyncio)\b",
        ("runtime", "quire_locks", "pyspark_quire"),
    ),
    ("bare except", r"^\s*except\s*:", ()),
    ("paths of one machine", r"[\"' ](/wo" + r"rk|/ro" + r"ot|/ho" + r"me)/", ()),
]


@pytest.mark.parametrize(("what", "pattern", "allowed"), BANS, ids=[ban[0] for ban in BANS])
def test_bans(what, pattern, allowed):
    compiled = re.compile(pattern)
    found = [
        where(path, number)
        for path in python_files(*PACKAGES)
        if not (allowed and path.relative_to(ROOT).parts[0] in allowed)
        and not path.name.startswith("zookeeper")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if compiled.search(line)
    ]
    none(found)


def test_catch_alls_are_few():
    """Errors have owners (docs/invariants.md); who catches everything and does not raise it
    again says why next to it."""
    found = []
    for path in python_files(*PACKAGES):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ExceptHandler) and isinstance(node.type, ast.Name):
                if node.type.id not in ("Exception", "BaseException"):
                    continue
                if any(isinstance(inner, ast.Raise) and not inner.exc for inner in ast.walk(node)):
                    continue
                lines = path.read_text(encoding="utf-8").splitlines()
                around = lines[node.lineno - 3 : node.lineno + 2]
                if not any("#" in line or '"""' in line for line in around):
                    found.append(where(path, node.lineno))
    none(found)


PAGE = re.compile(r"(?<![\w/.-])((?:[a-z_]+/)*[A-Za-z][\w-]*\.md)\b")
#: Pages that commands write: `make test-long`, and tests of commands.
WRITTEN_PAGES = {"docs/long-tests.md", "long-tests.md", "page.md"}
RULES = re.compile(r"\binvariants?\s+((?:[A-Z]\d*)(?:,\s+[A-Z]\d+)*)\b")
FEATURES = re.compile(r"\bfeatures?\s+(\d+(?:(?:,\s+|-)\d+)*)")


def prose():
    """(path, text) of all that people read: modules and pages."""
    for path in python_files(*PACKAGES, *WORKSHOPS):
        if path != Path(__file__):
            yield path, path.read_text(encoding="utf-8")
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")):
        yield path, path.read_text(encoding="utf-8")


PROSE_LENGTH_MAX = 119


def prose_lines(text):
    """(number, line) of a page without its tables and blocks of code."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith(("|", "    ")):
            yield number, line


def test_prose_can_be_read_in_a_terminal():
    found = []
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        lines = prose_lines(path.read_text(encoding="utf-8"))
        found += [where(path, number) for number, line in lines if len(line) > PROSE_LENGTH_MAX]
    none(found)


LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")


def anchors(path):
    """What the headings of a page are called in links."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings}


def test_links_lead_somewhere():
    found = []
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for page, anchor in LINK.findall(path.read_text(encoding="utf-8")):
            target = path.parent / page if page else path
            if not target.exists() or (anchor and anchor not in anchors(target)):
                found.append(f"{path.relative_to(ROOT)}: {page}#{anchor}")
    none(found)


def test_cited_pages_exist():
    none(
        [
            f"{path.relative_to(ROOT)}: {page}"
            for path, text in prose()
            for page in set(PAGE.findall(text)) - WRITTEN_PAGES
            if not any((folder / page).exists() for folder in (ROOT, path.parent, ROOT / "docs"))
        ]
    )


def test_cited_invariants_and_features_exist():
    rules = (ROOT / "docs/invariants.md").read_text(encoding="utf-8")
    rows = (ROOT / "docs/features.md").read_text(encoding="utf-8")
    found = []
    for path, text in prose():
        for names in RULES.findall(text):
            for name in re.split(r",\s+", names):
                known = f"**{name}.**" if name[1:] else f"({name})"
                if known not in rules:
                    found.append(f"{path.relative_to(ROOT)}: invariant {name}")
        for numbers in FEATURES.findall(text):
            for number in re.split(r",\s+|-", numbers):
                if f"\n| {number} |" not in rows:
                    found.append(f"{path.relative_to(ROOT)}: feature {number}")
    none(found)


def test_turns_are_measured_alone():
    """`make test` runs all but tests marked turns, then those of the Makefile's list alone."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    line = next(line for line in makefile.splitlines() if line.startswith("TURNS := "))
    listed = [ROOT / word for word in line.split()[2:]]
    assert all(path.exists() for path in listed)
    marked = [
        path
        for path in python_files("tests")
        if "mark.turns" in path.read_text(encoding="utf-8") and path != Path(__file__)
    ]
    assert len(marked) > 4
    none(
        [
            str(path.relative_to(ROOT))
            for path in marked
            if not any(path.is_relative_to(each) for each in listed)
        ]
    )
