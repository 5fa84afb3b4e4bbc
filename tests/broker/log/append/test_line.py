"""The order of what waits for a check or for room, and that all of it is answered."""

from types import SimpleNamespace

import pytest

from broker.log.append.line import RELEASE_LOCKS_NS, AppendLine
from wire.kafka.errors import ErrorCode, KafkaError

LONG = b"long"
SHORT = b"short"


class Checked(str):
    """What a check said, as a word; without locks, which would be counted."""

    __slots__ = ("locks",)

    def __new__(cls, name, cost_ns=None):
        made = super().__new__(cls, "checked " + name)
        made.locks = None if cost_ns is None else SimpleNamespace(cost_ns=cost_ns)
        return made


class Append:
    def __init__(self, name, records=SHORT):
        self.name = name
        self.records = records
        self.error = None

    def fail(self, error):
        self.error = error

    def __repr__(self):
        return self.name


class Log:
    """What a line asks of its partition, and of the checks: there is room for so many."""

    def __init__(self):
        self.config = SimpleNamespace()
        self.room = 0
        self.accepted = []
        self.keeper_calls = 0
        self.lines_called = []

    def has_room(self):
        return self.room > 0

    def accept(self, append, checked):
        assert checked == "checked " + append.name
        self.room -= 1
        self.accepted.append(append)

    def call_keeper(self):
        self.keeper_calls += 1

    def check_now(self, records, config, *, internal):
        assert config is self.config
        return None if records == LONG else self.names.pop(0)

    def call(self, line):
        self.lines_called.append(line)

    names: list


@pytest.fixture
def log():
    return Log()


@pytest.fixture
def line(log):
    log.names = []
    return AppendLine(log, log)


def submit(log, line, append):
    """As PartitionLog.submit when its ledger is full or something is held."""
    if append.records == SHORT:
        log.names.append(Checked(append.name))
    if line.is_held or not log.has_room():
        line.take(append, False)
    else:
        line.check(append, False)


def checked_later(line, append):
    return line.was_checked(append, Checked(append.name))


def with_checked(log, line, count):
    """So many long ones that were checked when there was no room any more."""
    long = [Append(f"long{n}", LONG) for n in range(count)]
    log.room = 1
    for append in long:
        submit(log, line, append)
    return long


def test_what_was_checked_stays_behind_what_was_checked_before(log, line):
    """Room that came back in between is for the first of them."""
    first, second = with_checked(log, line, 2)
    log.room = 0
    assert checked_later(line, first)
    log.room = 5
    assert not checked_later(line, second)
    assert log.accepted == []
    assert log.keeper_calls == 2
    assert not line.release()
    assert log.accepted == [first, second]


def test_what_was_checked_is_taken_before_what_is_held(log, line):
    (long,) = with_checked(log, line, 1)
    log.room = 0
    assert not checked_later(line, long)
    held = Append("held")
    submit(log, line, held)
    log.room = 1
    assert not line.release()
    assert log.accepted == [long]
    assert line.is_held
    log.room = 1
    line.release()
    assert log.accepted == [long, held]
    assert not line.is_held


def test_what_comes_waits_behind_what_was_checked_though_there_is_room(log, line):
    (long,) = with_checked(log, line, 1)
    log.room = 0
    checked_later(line, long)
    log.room = 5
    assert line.is_held
    short = Append("short")
    submit(log, line, short)
    assert log.accepted == []
    line.release()
    assert log.accepted == [long, short]


def test_all_that_waits_is_given_back_in_order(log, line):
    first, second = with_checked(log, line, 2)
    log.room = 0
    assert checked_later(line, first)
    held = Append("held")
    submit(log, line, held)
    assert line.clear() == [first, second, held]
    assert not line.is_held
    assert line.unchecked_head() is None
    assert line.clear() == []
    assert not checked_later(line, second), "it was given back"
    assert log.accepted == []


def test_a_refusal_needs_no_room(log, line):
    first, second = with_checked(log, line, 2)
    log.room = 0
    assert checked_later(line, first)
    refusal = KafkaError(ErrorCode.CORRUPT_MESSAGE)
    assert not line.was_checked(second, refusal)
    assert second.error is refusal
    log.room = 1
    line.release()
    assert log.accepted == [first]


def test_locks_count_when_what_was_checked_is_taken_up(log, line):
    """They are tested and marked then, in one turn."""
    appends = with_checked(log, line, 5)
    log.room = 0
    for append in appends:
        line.was_checked(append, Checked(append.name, RELEASE_LOCKS_NS // 2))
    log.room = 10
    assert line.release(), "there are more"
    assert log.accepted == appends[:2]
    assert line.release()
    assert not line.release()
    assert log.accepted == appends
