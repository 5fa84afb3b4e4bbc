"""Share sessions: epochs, connections, limits."""

import uuid

import pytest

from broker.api import all_steps
from broker.share.sessions.share_session_core import (
    EPOCH_MAX,
    SESSION_PARTITIONS_MAX,
    Partition,
    ShareSessions,
)
from wire.kafka.errors import KafkaError

TOPIC = uuid.UUID(int=7)
P = [Partition(TOPIC, number) for number in range(300)]


class Uses(dict):
    def use(self, session, partition):
        key = session.group, partition
        self[key] = self.get(key, 0) + 1
        return 0

    def unuse(self, session, partition):
        self[session.group, partition] -= 1


@pytest.fixture
def uses():
    return Uses()


@pytest.fixture
def sessions(uses):
    return ShareSessions(2, uses)


def fetch(sessions, epoch, connection="c", *, member="m", acknowledges=False):
    try:
        return sessions.fetch("g", member, epoch, connection, acknowledges=acknowledges)
    except KafkaError as error:
        return error.code.name


def acknowledge(sessions, epoch, connection="c"):
    try:
        return sessions.acknowledge("g", "m", epoch, connection)
    except KafkaError as error:
        return error.code.name


def test_session_epoch_wrap(sessions):
    session = fetch(sessions, 0)
    assert fetch(sessions, 1) is acknowledge(sessions, 2) is session
    assert fetch(sessions, 2) == acknowledge(sessions, 4) == "INVALID_SHARE_SESSION_EPOCH"
    session.next_epoch = EPOCH_MAX
    assert fetch(sessions, EPOCH_MAX) is session
    assert fetch(sessions, EPOCH_MAX) == "INVALID_SHARE_SESSION_EPOCH"
    assert fetch(sessions, 1) is session


def test_reconnect_old_session(sessions):
    session = fetch(sessions, 0, "old")
    assert fetch(sessions, 1, "new") == acknowledge(sessions, 1, "new") == "SHARE_SESSION_NOT_FOUND"
    assert fetch(sessions, -1, "new") == "SHARE_SESSION_NOT_FOUND"
    sessions.close(session)
    later = fetch(sessions, 0, "new")
    assert sessions.connection_closed("old") == []
    assert fetch(sessions, 1, "new") is later, "the old connection's end is not its end"
    assert sessions.connection_closed("new") == [later]
    assert later.is_closed
    assert len(sessions) == 0


def test_session_limit(sessions):
    fetch(sessions, 0, member="a")
    last = fetch(sessions, 0, member="b")
    assert fetch(sessions, 0, member="c") == "SHARE_SESSION_LIMIT_REACHED"
    sessions.close(last)
    assert fetch(sessions, 0, member="c").member == "c"


def test_first_and_last_epoch(sessions):
    assert acknowledge(sessions, 0) == "INVALID_SHARE_SESSION_EPOCH"
    assert fetch(sessions, -1) == acknowledge(sessions, -1) == "SHARE_SESSION_NOT_FOUND"
    assert fetch(sessions, 0, acknowledges=True) == "INVALID_REQUEST"
    session = fetch(sessions, 0)
    assert fetch(sessions, -1) is acknowledge(sessions, -1) is session
    sessions.close(session)
    sessions.close(session)
    assert fetch(sessions, -1) == "SHARE_SESSION_NOT_FOUND"


def test_partitions(sessions, uses):
    session = fetch(sessions, 0)
    costs = list(sessions.change(session, P[:250] + P[:2], P[290:]))
    assert max(costs) <= 100
    assert sessions.partitions_count == len(session.partitions) == 250
    all_steps(sessions.change(session, [P[299]], P[:249]))
    assert list(session.partitions) == [P[249], P[299]]
    session.rotate([P[249], P[0]])
    assert list(session.partitions) == [P[299], P[249]]
    assert {key: count for key, count in uses.items() if count} == {
        ("g", P[249]): 1,
        ("g", P[299]): 1,
    }
    sessions.close(session)
    assert sessions.partitions_count == 0


@pytest.mark.parametrize("there", [[P[0]], []])
def test_what_is_named_and_forgotten_at_once_is_forgotten(sessions, uses, there):
    """As Java's client does with what it was relieved of, and has still to acknowledge."""
    session = fetch(sessions, 0)
    all_steps(sessions.change(session, [*there, P[1]], []))
    all_steps(sessions.change(session, [P[0]], [P[0]]))
    assert list(session.partitions) == [P[1]]
    assert sessions.partitions_count == 1
    assert {key: count for key, count in uses.items() if count} == {("g", P[1]): 1}


def test_all_sessions_have_so_many_partitions(sessions):
    session = fetch(sessions, 0)
    sessions.partitions_count = SESSION_PARTITIONS_MAX - 1
    with pytest.raises(KafkaError, match="SHARE_SESSION_LIMIT_REACHED"):
        all_steps(sessions.change(session, P[:2], []))
    assert not session.partitions


def test_sessions_that_are_changed_at_once_have_no_more(sessions):
    """What others have begun to add counts, and no longer when that is given up."""
    one, two = fetch(sessions, 0), fetch(sessions, 0, member="n")
    sessions.partitions_count = SESSION_PARTITIONS_MAX - 400
    steps = sessions.change(one, P, [])
    next(steps)
    with pytest.raises(KafkaError, match="SHARE_SESSION_LIMIT_REACHED"):
        all_steps(sessions.change(two, P, []))
    assert not two.partitions
    steps.close()  # its connection is
    all_steps(sessions.change(two, P, []))
    assert (len(one.partitions), len(two.partitions)) == (100, 300)
    assert sessions.partitions_count == SESSION_PARTITIONS_MAX
    all_steps(sessions.change(two, [], P))
    all_steps(sessions.change(two, P, []))


def test_a_session_that_closes_while_it_is_changed(sessions, uses):
    session = fetch(sessions, 0)
    steps = sessions.change(session, P, [])
    next(steps)
    sessions.close(session)
    list(steps)
    assert len(session.partitions) == 100
    assert sum(uses.values()) == 100, "whoever lets go of it gives these back"
    assert sessions.partitions_count == 0
