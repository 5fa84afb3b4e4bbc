"""The runner of the long tests: it goes on where it was, tells failures, and ends what takes too
long with all that it started."""

import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from compat_tests.long import __main__ as command
from compat_tests.long.parts import PARTS, Part
from compat_tests.long.runner import State, code_of, run

ROOT = Path(__file__).parents[2]
#: Says that it ran, and ends with the code in a file of its own.
SCRIPT = """
import pathlib, sys
with open("runs", "a") as file:
    file.write(sys.argv[1] + "\\n")
code = pathlib.Path(sys.argv[1])
sys.exit(int(code.read_text()) if code.exists() else 0)
"""


@pytest.fixture
def parts(tmp_path, monkeypatch):
    """Three of them, in a directory that is no work tree."""
    monkeypatch.setenv("QUIRE_CACHE", str(tmp_path / "cache"))
    return [
        Part(name, (sys.executable, "-c", SCRIPT, name), 60, {}, tmp_path)
        for name in ("first", "second", "third")
    ]


def runs(tmp_path):
    path = tmp_path / "runs"
    return path.read_text().split() if path.exists() else []


def test_what_has_passed_is_left_out(parts, tmp_path, capsys):
    (tmp_path / "second").write_text("7")
    assert command.main([], parts, tmp_path) == 1
    assert runs(tmp_path) == ["first", "second", "third"]
    (tmp_path / "second").unlink()
    assert command.main([], parts, tmp_path) == 0
    assert runs(tmp_path) == ["first", "second", "third", "second"]
    told = capsys.readouterr().out
    assert "| second | failed (7) | " in told
    assert told.endswith("\n")
    assert "| second | passed | " in told.rpartition("first: passed before")[2]
    assert command.main(["--again", "--only", "third"], parts, tmp_path) == 0
    assert runs(tmp_path)[-1] == "third"


def test_another_code_begins_anew(parts, tmp_path):
    state = State(tmp_path, "abc")
    state.keep(run(parts[0], state.directory))
    assert State(tmp_path, "abc").has_passed("first")
    assert not State(tmp_path, "abd").has_passed("first")
    assert code_of(tmp_path) == "no-commit"
    assert code_of(ROOT) != "no-commit"


def test_an_interruption_keeps_what_is_done(parts, tmp_path, monkeypatch):
    def interrupted(part, directory):
        if part.name == "second":
            raise KeyboardInterrupt
        return run(part, directory)

    monkeypatch.setattr(command, "run", interrupted)
    assert command.main([], parts, tmp_path) == 1
    monkeypatch.setattr(command, "run", run)
    assert command.main([], parts, tmp_path) == 0
    assert runs(tmp_path) == ["first", "second", "third"]


#: Starts another that hears no signal but the last, tells both ids, and waits.
STUBBORN = """
import os, signal, subprocess, sys, time
words = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\\n"
words += "signal.signal(signal.SIGINT, signal.SIG_IGN)\\nprint(flush=True)\\ntime.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", words], stdout=subprocess.PIPE)
child.stdout.readline()
with open("ids.new", "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
os.rename("ids.new", "ids")
time.sleep(600)
"""


def is_gone(process_id):
    """It ended; its own parent may be gone, and then whoever has it has not looked yet."""
    try:
        words = Path(f"/proc/{process_id}/stat").read_text()
    except FileNotFoundError:
        return True
    return words.rpartition(")")[2].split()[0] == "Z"


def test_who_takes_too_long_is_ended_with_its_own(tmp_path):
    part = Part("slow", (sys.executable, "-c", STUBBORN), 5, {}, tmp_path)
    outcome = run(part, tmp_path, grace_seconds=4.0)  # to write what it was asked
    assert outcome.result == "timed out"
    leader, child = map(int, (tmp_path / "ids").read_text().split())
    deadline = time.monotonic() + 30
    while not (is_gone(leader) and is_gone(child)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert is_gone(leader)
    assert is_gone(child)
    assert "KeyboardInterrupt" in Path(outcome.log).read_text(), "it was asked first"


#: Leaves a process behind.
CARELESS = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open("ids", "w").write(str(child.pid))
"""


def test_what_a_part_leaves_behind_goes(tmp_path):
    part = Part("careless", (sys.executable, "-c", CARELESS), 60, {}, tmp_path)
    assert run(part, tmp_path).result == "passed"
    child = int((tmp_path / "ids").read_text())
    deadline = time.monotonic() + 30
    while not is_gone(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert is_gone(child)


def test_environment_directory_and_output(tmp_path):
    words = "import os; print(os.environ['QUIRE_SUITE'], os.getcwd()); raise SystemExit(3)"
    part = Part("env", (sys.executable, "-c", words), 60, {"QUIRE_SUITE": "all"}, tmp_path)
    outcome = run(part, tmp_path / "logs")
    assert outcome.result == "failed (3)"
    assert Path(outcome.log).read_text() == f"all {tmp_path}\n"


def test_the_page(parts, tmp_path):
    page = tmp_path / "long-tests.md"
    assert command.main(["--only", "first", "--write", str(page)], parts, tmp_path) == 0
    text = page.read_text()
    assert "commit no-commit" in text
    assert "| first | passed | " in text
    assert "| third | - | - | - |" in text


def test_an_unknown_part_is_refused(parts, tmp_path):
    with pytest.raises(SystemExit):
        command.main(["--only", "fourth"], parts, tmp_path)


def test_the_parts_are_what_can_be_run():
    """Each is a module or a test that is there, with a limit."""
    assert len({part.name for part in PARTS}) == len(PARTS)
    for part in PARTS:
        assert part.seconds <= 3600
        assert part.directory.is_dir()
        for word in part.command:
            if word.endswith(".py") or word.startswith("tests/"):
                assert (part.directory / word).exists(), word
