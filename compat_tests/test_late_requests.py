"""Commits of offsets, and ends of transactions, that come late: of a connection that its client has
given up.

Up to version 1 of transactions all transactions of a producer have one epoch, and these requests
have no sequence number: nothing in them says of which transaction they are. What a client sent,
gave up and sent again may lie in the network until the next transaction is open, and is part of
that then. Apache Kafka does the same; version 2 (KIP-890) has an epoch for each.
"""

import struct
import time

import pytest
from harness.raw import FIND_COORDINATOR, Connection, array, string

OFFSET_FETCH, ADD_OFFSETS_TO_TXN, END_TXN, TXN_OFFSET_COMMIT = 9, 25, 26, 28


class Committing(Connection):
    """What a producer of version 1 sends for one group, and the errors that it is told."""

    def speak_for(self, who, group):
        self.who, self.group = who, group
        transactional_id, producer_id, epoch = who
        self.producer = struct.pack(">qh", producer_id, epoch)
        self.named = string(transactional_id) + self.producer

    def add(self):
        answer = self.call(ADD_OFFSETS_TO_TXN, 0, self.named + string(self.group))
        answer.number("i")
        return answer.number("h")

    def commit_offset(self, topic, offset):
        row = array(struct.pack(">iq", 0, offset) + string(None))
        body = string(self.who[0]) + string(self.group) + self.producer
        answer = self.call(TXN_OFFSET_COMMIT, 0, body + array(string(topic) + row))
        answer.number("i")
        assert (answer.number("i"), answer.string(), answer.number("i")) == (1, topic, 1)
        assert answer.number("i") == 0
        return answer.number("h")

    def end(self):
        answer = self.call(END_TXN, 0, self.named + b"\1")
        answer.number("i")
        return answer.number("h")

    def committed(self, topic):
        body = string(self.group) + array(string(topic) + array(struct.pack(">i", 0)))
        answer = self.call(OFFSET_FETCH, 1, body)
        assert (answer.number("i"), answer.string(), answer.number("i")) == (1, topic, 1)
        assert answer.number("i") == 0
        return answer.number("q")


def repeated(call, *errors, seconds=30):
    """Until it is told none of these: the transaction before is still being ended, say."""
    deadline = time.monotonic() + seconds
    while (error := call()) in errors and time.monotonic() < deadline:
        time.sleep(0.02)
    return error


@pytest.fixture
def two(server, name, topic):
    """Two connections of a producer that has committed offset 5 of the topic in a transaction."""
    with Committing(server.port) as first, Committing(server.port) as second:
        assert first.create_topic(topic) == 0
        transactional_id, group = name("id"), name("group")
        error, producer_id, epoch = first.init_producer_id(transactional_id)
        assert error == 0
        first.call(FIND_COORDINATOR, 1, string(group) + b"\0")
        for each in (first, second):
            each.speak_for((transactional_id, producer_id, epoch), group)
        begin(second, topic, 5)
        assert second.end() == 0
        yield first, second


def begin(connection, topic, offset):
    assert repeated(connection.add, 14, 15, 16, 51) == 0
    assert repeated(lambda: connection.commit_offset(topic, offset), 14, 15, 16) == 0


def until_committed(connection, topic, offset):
    assert repeated(lambda: connection.committed(topic) != offset, True) is False


def test_a_commit_is_part_of_the_transaction_that_is_open(two, topic):
    """The chaos run `transactions` saw it, of librdkafka behind a line that was cut."""
    first, second = two
    begin(second, topic, 9)
    assert first.commit_offset(topic, 5) == 0  # sent for the transaction before
    assert second.end() == 0
    until_committed(second, topic, 5)


def test_an_end_is_that_of_the_transaction_that_is_open(two, topic):
    first, second = two
    begin(second, topic, 9)
    assert first.end() == 0  # sent for the transaction before
    until_committed(second, topic, 9)
