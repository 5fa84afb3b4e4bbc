"""Processes that are kept running: real ones, of a line of Python each."""

import os
import signal
import sys

import pytest
import trio

from quire import kept_processes
from quire.kept_processes import RESTART_SECONDS_MIN, KeptProcesses, properties_lines
from runtime.config import parse_properties

#: Notes a clean end by SIGTERM; a second one ends it at once, as it does ours.
PROGRAM = """
import os, signal, sys, time
def stop(*_):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    time.sleep(0.3)
    open(sys.argv[1], "a").write("clean ")
    os._exit(0)
signal.signal(signal.SIGTERM, stop)
open(sys.argv[1], "a").write(f"{os.getpid()} ")
while True:
    signal.pause()
"""


class Server:
    """In the place of the metadata's."""

    def __init__(self):
        self.ended = []

    async def end_client(self, name):
        self.ended.append(name)


class Sleepers(KeptProcesses):
    kind = "sleeper"
    start_error = OSError

    def __init__(self, directory, names, program=PROGRAM):
        self.server = Server()
        super().__init__(names, self.server)
        self.directory = directory
        self.program = program
        self.prepared = []

    def prepare(self, name):
        self.prepared.append(name)

    def command(self, name):
        return [sys.executable, "-c", self.program, str(self.directory / name)]

    def notes(self, name):
        """What it noted: the process ids of its lives, and clean ends."""
        path = self.directory / name
        return path.read_text().split() if path.exists() else []

    def missing(self):
        return [name for name in self._names if not self.notes(name)]

    async def look(self):
        while True:
            self.look_again()
            await trio.sleep(0.02)


@pytest.fixture
async def sleepers(tmp_path):
    made = Sleepers(tmp_path, ["one", "two"])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.look)
        with trio.fail_after(60):
            await nursery.start(made.run)
            yield made
        nursery.cancel_scope.cancel()


async def until(condition):
    with trio.fail_after(60):
        while not condition():
            await trio.sleep(0.02)


async def test_one_that_dies_is_started_again_and_its_session_ends(sleepers):
    assert sleepers.prepared == ["one", "two"]
    first = sleepers.pids["one"]
    os.kill(first, signal.SIGKILL)
    await until(lambda: len(sleepers.notes("one")) == 2)
    assert sleepers.pids["one"] != first
    assert sleepers.server.ended == ["one"]
    assert sleepers.prepared == ["one", "two", "one"]
    assert len(sleepers.notes("two")) == 1


async def test_the_pauses_before_its_next_starts_double(sleepers, monkeypatch, caplog):
    monkeypatch.setattr(kept_processes, "RESTART_SECONDS_MAX", 4 * RESTART_SECONDS_MIN)
    for lives in range(2, 6):
        os.kill(sleepers.pids["one"], signal.SIGKILL)
        await until(lambda lives=lives: len(sleepers.notes("one")) == lives)
    died = [each.args for each in caplog.records if each.getMessage() == "sleeper_died"]
    pauses = [each["restart_in_ms"] for each in died]
    first = int(RESTART_SECONDS_MIN * 1000)
    assert pauses == [first, 2 * first, 4 * first, 4 * first]


async def test_one_that_cannot_be_started_again_is_tried_again(sleepers, monkeypatch, caplog):
    """A full disk, or no memory for a process, when one has died: the others go on."""
    refusals = [OSError(28, "No space left on device"), OSError(11, "no process")]
    prepare, command = sleepers.prepare, sleepers.command

    def full(name):
        if len(refusals) == 2:
            raise refusals.pop()
        prepare(name)

    def none(name):
        if refusals:
            raise refusals.pop()
        return command(name)

    monkeypatch.setattr(sleepers, "prepare", full)
    monkeypatch.setattr(sleepers, "command", none)
    os.kill(sleepers.pids["one"], signal.SIGKILL)
    await until(lambda: len(sleepers.notes("one")) == 2)
    assert not refusals
    told = [each.args for each in caplog.records if each.getMessage() == "sleeper_not_started"]
    first = int(RESTART_SECONDS_MIN * 1000)
    assert [each["restart_in_ms"] for each in told] == [2 * first, 4 * first]
    assert len(sleepers.notes("two")) == 1


async def test_one_that_cannot_be_started_the_first_time_ends_the_start(tmp_path, monkeypatch):
    made = Sleepers(tmp_path, ["one"])
    monkeypatch.setattr(made, "command", lambda name: [str(tmp_path / "no program")])
    with trio.fail_after(30), pytest.RaisesGroup(FileNotFoundError, flatten_subgroups=True):
        await made.run()


async def test_who_is_asked_to_end_is_asked_once_and_stays_away(sleepers):
    sleepers.ask_to_end()
    await trio.sleep(0.15)  # two signals that come together are one
    sleepers.ask_to_end()
    await until(lambda: not sleepers.pids)
    assert sorted(sleepers.server.ended) == ["one", "two"]
    for name in ("one", "two"):
        assert sleepers.notes(name)[1:] == ["clean"]


async def test_the_end_asks_who_was_not_asked(tmp_path):
    made = Sleepers(tmp_path, ["one"])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.look)
        await nursery.start(made.run)
        nursery.cancel_scope.cancel()
    assert made.pids == {}
    assert made.notes("one")[1:] == ["clean"]


async def test_one_that_ends_at_the_start_ends_the_start(tmp_path):
    made = Sleepers(tmp_path, ["one"], "raise SystemExit(3)")
    with pytest.RaisesGroup(
        pytest.RaisesExc(OSError, match="one ended with code 3 at the start"),
        flatten_subgroups=True,
    ):
        await made.run()


@pytest.mark.parametrize(
    "value", ["plain", " blank", "\ttab", "a\\b", "two\nlines\r", "a=b:c#d", ""]
)
def test_settings_are_read_as_they_were(value):
    text = "".join(properties_lines({"first": value, "second": "2"}))
    assert parse_properties(text) == {"first": value, "second": "2"}
