"""Mutations: every anchor is there, a patch is in force where it should be, findings are kept."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from sim.mutations import __main__ as command
from sim.mutations.hunt import Finding, brief, failing_test, seeds_needed
from sim.mutations.mutation import AnchorError, Mutation, Patch
from sim.mutations.rules import MUTATIONS
from sim.mutations.table import BEGIN, END, Findings, markdown, together, write_into

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", MUTATIONS)
def test_every_anchor_is_there(name):
    """Where the code has moved on, so has its mutation to."""
    mutation = MUTATIONS[name]
    assert mutation.patches
    for module, source in mutation.sources().items():
        path = ROOT / f"{module.replace('.', '/')}.py"
        assert source != path.read_text(encoding="utf-8")
        compile(source, module, "exec")
    for test in mutation.tests:
        file, _, function = test.partition("::")
        assert (ROOT / file).exists(), test
        if function:
            assert f"def {function}(" in (ROOT / file).read_text(encoding="utf-8"), test


def test_there_are_enough_and_each_has_a_name_of_its_own():
    assert len(MUTATIONS) >= 25
    assert len({mutation.story for mutation in MUTATIONS.values()}) == len(MUTATIONS)


def test_a_patch_that_finds_nothing_fails_loudly():
    path = "sim.mutations.mutation"
    with pytest.raises(AnchorError, match="0 times"):
        Mutation("m", "", (Patch(path, "nobody ever" + " wrote this", ""),)).sources()
    with pytest.raises(AnchorError, match="not once"):
        Mutation("m", "", (Patch(path, "self", "other"),)).sources()


def test_the_mutant_has_it_and_nobody_else(tmp_path):
    (tmp_path / "rule_printer.py").write_text(
        "from ledger.distribution import Schedule\n"
        "from ledger.writer_core import WriterCore\n"
        "print(WriterCore(1, Schedule(3, 3, 2), ('a', 'b', 'c'))._ack_quorum_size)\n"
    )
    environment = {"PYTHONPATH": f"{ROOT}:{tmp_path}", "PATH": ""}
    words = [sys.executable, "-m"]
    broken = subprocess.run(
        [*words, "sim.mutations.mutant", "confirm-at-qa-1", "rule_printer"],
        env=environment, cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    whole = subprocess.run(
        [*words, "rule_printer"],
        env=environment, cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert (broken.stdout, whole.stdout) == ("1\n", "2\n")


def test_seeds_find_one():
    """In processes of their own."""
    needed, words = seeds_needed(MUTATIONS["ack-before-sync"], 3, 1)
    assert needed == 1
    assert words == "early answer"


def test_a_named_test_finds_one():
    """The first that fails; one that passes has found nothing."""
    core = "tests/ledger/test_distribution.py"
    mutation = MUTATIONS["coverage-short"]
    assert failing_test(mutation).startswith(core)
    other = Mutation(mutation.name, "", mutation.patches, ("tests/sim/test_describe.py",))
    assert failing_test(other) == ""


@pytest.mark.parametrize(
    ("story", "words"),
    [
        ("Violation('lost: (\\'log\\', 1) offset 3') in check:1", "lost"),
        ("CrashError(\"bookie-1 ended by OSError(5, 'x') in a\") in b", "ended by OSError"),
        ("LivenessError('no progress after the heal: a, b') in x", "no progress after the heal"),
        ("StuckError() in run:3", "StuckError"),
    ],
)
def test_what_a_seed_said_in_few_words(story, words):
    assert brief(story) == words


def finding(name, seeds=3, test=""):
    return Finding(name, seeds, 100 if seeds is None else seeds, "lost" if seeds else "", test, 1.0)


def test_findings_outlive_the_process(tmp_path):
    path = tmp_path / "cache" / "findings.json"
    Findings(path).keep(finding("no-fence"))
    Findings(path).keep(finding("lac-ahead", None))
    known = Findings(path).known
    assert list(known) == ["no-fence", "lac-ahead"]
    assert known["lac-ahead"] == finding("lac-ahead", None)


def test_two_ways_of_looking_make_one_row():
    by_test = Finding("no-fence", None, 0, "", "tests/a/b.py::c", 1.0)
    by_seed = finding("no-fence", 3)
    by_neither = finding("no-fence", None)
    for first, second in ((by_test, by_seed), (by_seed, by_test)):
        assert together(first, second) == finding("no-fence", 3, "tests/a/b.py::c")
    assert together(by_test, by_neither) == finding("no-fence", None, "tests/a/b.py::c")
    assert "| `b.py::c` | - |" in markdown([by_test])
    assert "| **nothing** | > 100 |" in markdown([by_neither])


def test_a_run_goes_on_where_it_was(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("QUIRE_CACHE", str(tmp_path))
    hunted = []

    def hunt(mutation, _count, _jobs, _shape, **_options):
        hunted.append(mutation.name)
        if mutation.name == "no-floor" and len(hunted) < 3:
            raise KeyboardInterrupt
        return finding(mutation.name, None if mutation.name == "no-floor" else 2)

    monkeypatch.setattr(command, "hunt", hunt)
    arguments = ["--only", "no-fence,no-floor,lac-ahead"]
    with pytest.raises(KeyboardInterrupt):
        command.main(arguments)
    assert command.main([*arguments, "--json"]) == 1
    assert hunted == ["no-fence", "no-floor", "no-floor", "lac-ahead"]
    told = capsys.readouterr()
    values = json.loads(told.out[told.out.index("[") :])
    assert [each["seeds"] for each in values] == [2, None, 2]
    assert told.err.endswith("found by nothing: no-floor\n")


def test_the_table_goes_between_its_marks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write_into(page, markdown([finding("no-fence"), finding("no-floor", None, "tests/a/b.py::c")]))
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}\nCommit ")
    assert text.endswith(f"{END}\nafter\n")
    assert "old" not in text
    assert "| lost | 3 |" in text
    assert "| `b.py::c` | > 100 |" in text
    page.write_text("no marks")
    with pytest.raises(ValueError, match="has no"):
        write_into(page, "")
