"""Progress: a bar only after two seconds and only on a terminal, else lines; and sizes."""

import io

import pytest

from quire.tools.output import progress, readable_size, told_progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_quick_work_shows_nothing(clock):
    stream = Terminal()
    with progress("replay", 100, stream=stream, clock=clock) as step:
        for _ in range(10):
            clock.now += 0.19
            step(10)
    assert stream.getvalue() == ""


def test_slow_work_shows_how_far_it_is_and_cleans_up(clock, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    stream = Terminal()
    with progress("replay [x]", 4_000_000, stream=stream, clock=clock) as step:
        step(1_000_000)
        clock.now += 2.1
        step(1_000_000)
        first = stream.getvalue()
        assert "replay [x]" in first
        assert "2.0/4.0 MB" in first
        clock.now += 0.05
        step(1)
        assert stream.getvalue() == first, "it is drawn ten times a second at most"
        clock.now += 0.2
        step(999_999)
        assert "3.0/4.0 MB" in stream.getvalue()
    # A transient bar is erased at the end, and the cursor is back.
    assert stream.getvalue().endswith(("\x1b[2K", "\x1b[?25h\x1b[1A\x1b[2K"))


def test_things_are_counted_too(clock, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with progress("scrub", None, is_bytes=False, stream=stream, clock=clock) as step:
        clock.now += 3
        step(7)
    assert "7/?" in stream.getvalue()


def test_nothing_without_a_terminal_or_if_not_wanted(clock):
    for stream, enabled in ((io.StringIO(), True), (Terminal(), False)):
        with progress("replay", 10, stream=stream, clock=clock, enabled=enabled) as step:
            clock.now += 9
            step(10)
        assert stream.getvalue() == ""


def test_it_is_taken_down_when_the_work_fails(clock, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()

    def work():
        with progress("replay", 10, stream=stream, clock=clock) as step:
            clock.now += 3
            step(1)
            raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        work()
    assert "\x1b[?25h" in stream.getvalue()


def test_progress_is_told_by_ledger_and_bytes(capsys, clock):
    with told_progress("recover", {1: 5_000_000, 2: 3_000_000}, clock) as told:
        told.step(1, 10, 1_000_000)
        assert capsys.readouterr().err == ""
        clock.now += 11.0
        told.problems[2] = "too few bookies"
        told.step(1, 10, 1_000_000)
        expected = "recover: 0 of 2 ledgers, 2.0 of 8.0 MB; under way: 1; ledger 2: too few bookies"
        assert capsys.readouterr().err == f"{expected}\n"
        told.step(1, 10, 1_000_000)
        assert capsys.readouterr().err == ""
        told.finish(1)
        assert told.line().startswith("recover: 1 of 2 ledgers, 5.0 of 8.0 MB; ledger 2")


def test_sizes_for_people():
    assert [readable_size(n) for n in (0, 1023, 1024, 10**9, 10**18)] == [
        "0 B", "1023 B", "1.0 KiB", "953.7 MiB", "888.2 PiB",
    ]  # fmt: skip
