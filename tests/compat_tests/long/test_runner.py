"""The runner of the long tests: it goes on where it was, tells failures, and ends what takes too
long with all that it started."""

import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from compat_tests.long import __main__ as command
from compat_tests.long.parts import PARTS, Part
from compat_tests.long.runner import State, closing_of, run

ROOT = Path(__file__).parents[3]
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


def test_a_part_has_a_folder_for_its_logs(tmp_path):
    keeps = "import os; os.mkdir(os.environ['QUIRE_CHAOS_LOGS'])"
    part = Part("keeps", (sys.executable, "-c", keeps), 60, {}, tmp_path)
    for _ in range(2):  # what the last run kept is gone
        assert run(part, tmp_path / "logs").result == "passed"
    assert (tmp_path / "logs" / "keeps").is_dir()


def test_another_code_begins_anew(parts, tmp_path):
    state = State(tmp_path, "abc")
    state.keep(run(parts[0], state.directory))
    assert State(tmp_path, "abc").has_passed("first")
    assert not State(tmp_path, "abd").has_passed("first")


def test_an_interruption_keeps_what_is_done(parts, tmp_path, monkeypatch):
    def interrupted(part, *where):
        if part.name == "second":
            raise KeyboardInterrupt
        return run(part, *where)

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


def parent_of(process_id):
    words = Path(f"/proc/{process_id}/stat").read_text()
    return int(words.rpartition(")")[2].split()[1])


#: The same, and ends its own when it is asked to.
PATIENT = STUBBORN.replace("time.sleep(600)\n", "child.wait()\n")


def wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_who_takes_too_long_is_ended_with_its_own(tmp_path):
    part = Part("slow", (sys.executable, "-c", STUBBORN), 5, {}, tmp_path)
    outcome = run(part, tmp_path, grace_seconds=4.0)  # to write what it was asked
    assert outcome.result == "timed out"
    leader, child = map(int, (tmp_path / "ids").read_text().split())
    wait_until(lambda: is_gone(leader) and is_gone(child))
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
    wait_until(lambda: is_gone(child))


def test_a_part_that_is_killed_has_failed_and_leaves_nothing(tmp_path):
    """As the kernel does where memory is short: the command, not what it started."""
    words = "import os, signal\n" + CARELESS + "\nos.kill(os.getpid(), signal.SIGKILL)"
    outcome = run(Part("killed", (sys.executable, "-c", words), 60, {}, tmp_path), tmp_path)
    assert outcome.result == f"failed ({128 + signal.SIGKILL})"
    child = int((tmp_path / "ids").read_text())
    wait_until(lambda: is_gone(child))


def test_an_end_by_a_signal_is_never_a_success(tmp_path):
    """Also of who leads the group, which has the command's exit code otherwise."""
    words = "import os, signal; os.kill(os.getppid(), signal.SIGKILL); signal.pause()"
    outcome = run(Part("orphan", (sys.executable, "-c", words), 60, {}, tmp_path), tmp_path)
    assert outcome.result == f"failed ({-signal.SIGKILL})"


#: The command line with one part, which passed before. Where all tests run in a shell's background
#: SIGINT is ignored; here it is as if somebody had typed the command.
AGAIN = f"""
import signal, sys
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, {str(ROOT)!r})
from compat_tests.long import __main__ as command
from compat_tests.long.parts import Part
here = Path(sys.argv[1])
part = Part("slow", (sys.executable, "-c", sys.argv[2]), 600, {{}}, here)
sys.exit(command.main(["--again"], [part], here))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_runner_that_dies_takes_its_part_along(parts, tmp_path, number):
    """And what it ran has not passed, though it had before."""
    state = State(tmp_path / "cache", "no-commit")
    state.keep(replace(run(parts[0], state.directory), part="slow"))
    assert State(tmp_path / "cache", "no-commit").has_passed("slow")
    runner = subprocess.Popen((sys.executable, "-c", AGAIN, str(tmp_path), PATIENT))
    try:
        wait_until((tmp_path / "ids").exists)
        leader, child = map(int, (tmp_path / "ids").read_text().split())
        guard = parent_of(leader)
        assert guard != runner.pid
        runner.send_signal(number)
        assert runner.wait(60) == (-number if number == signal.SIGKILL else 1)
        wait_until(lambda: all(map(is_gone, (guard, leader, child))))
    finally:
        runner.kill()
        runner.wait()
    assert State(tmp_path / "cache", "no-commit").outcomes["slow"].result == "not ended"


def test_environment_directory_and_output(tmp_path):
    words = "import os; print(os.environ['QUIRE_SUITE'], os.getcwd()); raise SystemExit(3)"
    part = Part("env", (sys.executable, "-c", words), 60, {"QUIRE_SUITE": "all"}, tmp_path)
    outcome = run(part, tmp_path / "logs")
    assert outcome.result == "failed (3)"
    assert Path(outcome.log).read_text() == f"all {tmp_path}\n"


def test_the_page(parts, tmp_path):
    """Says what was run when, on which commit, and what its log says of it."""
    talkative = "print('seed 7 | all of it'); print('\\n== 3 passed, 1 failed ==\\n')"
    part = Part("told", (sys.executable, "-c", talkative), 60, {}, tmp_path, "^seed")
    page = tmp_path / "long-tests.md"
    chosen = ["--only", "first,told", "--write", str(page)]
    assert command.main(chosen, [*parts, part], tmp_path) == 0
    text = page.read_text()
    assert "2 of 4 parts have passed" in text
    rows = {row.split(" | ")[0]: row.strip("| ").split(" | ") for row in text.splitlines()}
    told = rows["| told"]
    assert len(told) == len(rows["| part"]) == 7
    assert told[1:3] == ["passed", "seed 7 / all of it; 3 passed, 1 failed"]
    assert float(told[3]) < 60
    assert told[4] == State(tmp_path / "cache", "no-commit").outcomes["told"].date
    assert told[5] == "no-commit"
    assert told[6].startswith("`python -c ")
    assert rows["| third"][1:6] == ["-"] * 5


def test_the_closing_line_is_the_last_one_with_words():
    assert closing_of("", "") == ""
    assert closing_of("a\n== b ==\n\n", "") == "b"
    assert closing_of("lost 1\nx\nlost 2\ny\n", "^lost") == "lost 1; lost 2; y"
    assert closing_of("x\nlost 2\n", "^lost") == "lost 2"
    assert len(closing_of("x" * 5000, "")) == 1000


def test_an_unknown_part_is_refused(parts, tmp_path):
    with pytest.raises(SystemExit):
        command.main(["--only", "fourth"], parts, tmp_path)


def test_a_slow_machine_has_longer_limits(parts, tmp_path, monkeypatch):
    given = []

    def noted(part, *where):
        given.append(part.seconds)
        return run(part, *where)

    monkeypatch.setattr(command, "run", noted)
    assert command.main(["--limits", "2.5"], parts, tmp_path) == 0
    assert given == [150.0] * 3
    for refused in ("0.5", "11", "nan", "much"):
        with pytest.raises(SystemExit):
            command.main(["--limits", refused], parts, tmp_path)


def test_the_parts_are_what_can_be_run():
    """Each is a module or a test that is there, with a limit, and all fit into 90 minutes."""
    assert len({part.name for part in PARTS}) == len(PARTS)
    assert sum(part.seconds for part in PARTS) <= 90 * 60
    for part in PARTS:
        assert part.seconds <= 600
        assert part.directory.is_dir()
        for word in part.command:
            if word.endswith(".py") or word.startswith("tests/"):
                assert (part.directory / word).exists(), word


def test_each_room_of_properties_has_some():
    """pytest that finds none fails, and a part would fail for ever."""
    rooms = [part for part in PARTS if part.name.startswith("properties-")]
    for part in rooms:
        folders = [word for word in part.command if word.startswith("tests/")]
        assert folders
        for folder in folders:
            files = (ROOT / folder).rglob("test_*.py")
            assert any("@given" in file.read_text(encoding="utf-8") for file in files), folder
    covered = {word for part in rooms for word in part.command if word.startswith("tests/")}
    for file in (ROOT / "tests").rglob("test_*.py"):
        if file != Path(__file__) and "@given" in file.read_text(encoding="utf-8"):
            assert "/".join(file.relative_to(ROOT).parts[:2]) in covered, file


def test_no_test_that_is_long_is_forgotten():
    """`make test` skips them, so a file with some must be in a part that runs them."""
    run = {word for part in PARTS if "long" in part.command for word in part.command}
    marked = {
        file.name
        for file in (ROOT / "compat_tests").glob("test_*.py")
        if "pytest.mark.long" in file.read_text(encoding="utf-8")
    }
    assert marked == {word for word in run if word.endswith(".py")}
