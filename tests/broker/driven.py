"""Which test drove which version of an API over a socket, and which error codes it was answered.

Every answer that a test decodes is noted: by the client on real sockets (conftest.py), and by the
drivers that hand requests to handlers through the codec, whose answers count for errors only. What
is known of it is checked in, driven.txt: for each (API, version) and each (API, error) two tests at
most, those that drive the least else. It cannot rot: a test that is named there for a version fails
when it passes without having driven that version, and test_driven.py fails for a name that is no
test's. Which errors a test meets may hang on what was faster, which versions it speaks does not: so
errors are compared only when they are recorded.

`QUIRE_DRIVEN=<file> pytest <tests>` writes down what these tests drive, a line for each; then
`python -m tests.broker.driven <file>…` makes driven.txt and the table in docs/apis.md of it, and
prints what is in driven.txt no longer. Tests that did not run keep what they are named for. Of a
test that ran several times only that counts which it did each time.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
from collections import defaultdict
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

from wire.kafka.api_keys import ApiKey
from wire.kafka.errors import ErrorCode

HERE = Path(__file__).parent
KNOWN = HERE / "driven.txt"
ERRORS = HERE / "errors_of_apis.toml"
PAGE = HERE.parents[1] / "docs" / "apis.md"
#: A file that is added to, if it is set.
VARIABLE = "QUIRE_DRIVEN"
TESTS_MAX = 2
BEGIN, END = "<!-- what drives it: begin -->\n", "<!-- what drives it: end -->\n"

_noted: set[tuple[str, str]] | None = None


# -- while tests run -------------------------------------------------------------------------------


@contextmanager
def noting():
    """What is noted until the end of the block: {(API's name, version as «v3» or error's name)}."""
    global _noted
    before, _noted = _noted, set()
    try:
        yield _noted
    finally:
        _noted = before


def note(key, version, answer, *, on_wire):
    """An answer that a test was given."""
    if _noted is not None:
        api = api_name(key)
        _noted.update((api, ErrorCode(code).name) for code in error_codes(answer) if code > 0)
        if on_wire:
            _noted.add((api, f"v{version}"))


def error_codes(value):
    """Every error code in a message."""
    for name in getattr(type(value), "__slots__", ()):
        inner = getattr(value, name)
        if name.endswith("error_code"):
            yield inner
        elif isinstance(inner, list):
            for one in inner:
                yield from error_codes(one)
        else:
            yield from error_codes(inner)


def write_down(nodeid, noted):
    """For `python -m tests.broker.driven`, if somebody wants it: also that nothing was noted."""
    path = os.environ.get(VARIABLE)
    if path:
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps([nodeid, sorted(noted)]) + "\n")


# -- what is known ---------------------------------------------------------------------------------


def api_name(key):
    return "".join(word.capitalize() for word in ApiKey(key).name.split("_"))


def known():
    """{(API's name, version or error): [tests]}."""
    found = {}
    for line in KNOWN.read_text(encoding="utf-8").splitlines():
        api, what, *tests = line.split(" ")
        found[api, what] = tests
    return found


def is_version(what):
    return re.fullmatch(r"v\d+", what[1]) is not None


def versions_by_test():
    """{test: the (API's name, version) that it is named for}."""
    found = defaultdict(set)
    for what, tests in known().items():
        for test in tests:
            if is_version(what):
                found[test].add(what)
    return found


def errors_of_apis():
    """{API's name: (errors that it may answer, {one that cannot occur here: the reason})}."""
    data = tomllib.loads(ERRORS.read_text(encoding="utf-8"))
    nowhere = data.pop("nowhere")
    found = {}
    for api, row in data.items():
        assert row.keys() <= {"answers", "cannot"}, api
        listed = set(row["answers"].split())
        cannot = {name: nowhere[name] for name in listed & nowhere.keys()}
        found[api] = (listed, cannot | row.get("cannot", {}))
    return found


# -- making it -------------------------------------------------------------------------------------


def order(what):
    """APIs by key, an API's versions by number, then its errors by name."""
    api, detail = what
    key = next(each for each in ApiKey if api_name(each) == api)
    version = re.fullmatch(r"v(\d+)", detail)
    return key, version is None, int(version[1]) if version else 0, detail


def chosen(runs, before):
    """{(API, version or error): the tests that name it}, of what runs wrote down, and of what was
    known `before` of tests that are in none of them."""
    every = []
    for path in runs:
        of_run = defaultdict(set)
        for line in Path(path).read_text(encoding="utf-8").splitlines():
            nodeid, noted = json.loads(line)
            of_run[nodeid].update(map(tuple, noted))
        every.append(of_run)
    doing = {
        nodeid: set.intersection(*(run[nodeid] for run in every if nodeid in run))
        for nodeid in set().union(*every)
        # A space parts the names in driven.txt.
        if " " not in nodeid
    }
    ran = set(doing)
    for what, tests in before.items():
        for nodeid in tests:
            if nodeid not in ran:
                doing.setdefault(nodeid, set()).add(what)
    by_what = defaultdict(list)
    for nodeid, noted in doing.items():
        for what in noted:
            by_what[what].append(nodeid)
    return {
        what: sorted(sorted(tests, key=lambda test: (len(doing[test]), test))[:TESTS_MAX])
        for what, tests in by_what.items()
    }


def table(driven):
    """The page's lines: versions that the same tests drive in one row."""
    lines = ["| API | versions | driven by |", "|---|---|---|"]
    versions = [what for what in sorted(driven, key=order) if is_version(what)]
    for (api, tests), group in groupby(versions, lambda what: (what[0], tuple(driven[what]))):
        numbers = [what[1][1:] for what in group]
        words = numbers[0] if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"
        names = "; ".join(f"`{test.removeprefix('tests/broker/')}`" for test in tests)
        lines.append(f"| {api} | {words} | {names} |")
    return "\n".join(lines) + "\n"


def page_with(text, driven):
    """The page with its table made anew."""
    before, rest = text.split(BEGIN)
    return before + BEGIN + "\n" + table(driven) + "\n" + END + rest.split(END)[1]


def main(runs):
    before = known()
    driven = chosen(runs, before)
    for what in sorted(before.keys() - driven.keys(), key=order):
        print("no longer:", *what, "which was by", *before[what])
    lines = [" ".join((*what, *driven[what])) for what in sorted(driven, key=order)]
    KNOWN.write_text("\n".join(lines) + "\n", encoding="utf-8")
    PAGE.write_text(page_with(PAGE.read_text(encoding="utf-8"), driven), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
