"""What clients do not take of their answers is bounded, over all connections."""

from contextlib import suppress

import trio

from broker import unsent
from broker.unsent import SHORT_FROM_BYTES, TOTAL_BYTES_MAX, UnsentAnswers

MIB = 1 << 20


class Holder:
    def __init__(self, peer):
        self.peer = peer
        self.is_closed = False
        self.waits_here = False

    def close(self):
        assert not self.is_closed
        self.is_closed = True


def test_whoever_leaves_most_is_closed():
    answers = UnsentAnswers()
    one, two, three = map(Holder, "123")
    answers.note(one, TOTAL_BYTES_MAX // 2)
    answers.note(two, TOTAL_BYTES_MAX // 4)
    answers.note(one, TOTAL_BYTES_MAX // 4)
    answers.note(three, TOTAL_BYTES_MAX // 2)
    assert answers.total_bytes == TOTAL_BYTES_MAX
    answers.note(two, TOTAL_BYTES_MAX // 4 + 1)
    assert [each.is_closed for each in (one, two, three)] == [False, False, True]
    assert answers.total_bytes == TOTAL_BYTES_MAX // 2 + 1
    answers.note(three, 0)  # it is gone
    answers.note(one, 0)
    answers.note(two, 0)
    assert (answers.total_bytes, answers.closed_count) == (0, 1)


def test_whose_answers_wait_for_their_turn_here_is_not_closed():
    answers = UnsentAnswers()
    one, two = map(Holder, "12")
    one.waits_here = two.waits_here = True
    answers.note(one, TOTAL_BYTES_MAX)
    answers.note(two, TOTAL_BYTES_MAX // 2)
    assert answers.closed_count == 0
    two.waits_here = False
    answers.note(one, TOTAL_BYTES_MAX)
    assert (one.is_closed, two.is_closed) == (False, True)
    assert answers.total_bytes == TOTAL_BYTES_MAX


def test_answers_are_short_while_much_is_left():
    answers, one = UnsentAnswers(), Holder("1")
    answers.note(one, SHORT_FROM_BYTES)
    assert answers.answer_bytes_max == unsent.ANSWER_BYTES_MAX
    answers.note(one, SHORT_FROM_BYTES + 1)
    assert answers.answer_bytes_max == unsent.SHORT_ANSWER_BYTES


async def test_clients_that_do_not_read(client, requests, wait_until, monkeypatch):
    """Attack 73: 150 of them took 2.8 GB, and others waited for 8 s."""
    monkeypatch.setattr(unsent, "SHORT_FROM_BYTES", 24 * MIB)
    monkeypatch.setattr(unsent, "TOTAL_BYTES_MAX", 48 * MIB)
    server = client.server
    answers = server.parts["KafkaServer"].answers
    await client.create_topic("large")
    for _ in range(8):
        await client.produce("large", [bytes(400_000)])
    body = requests.fetch(("large", 0, 0), partition_max_bytes=8 * MIB, max_bytes=8 * MIB)
    before = len((await client.call(body, 12)).responses[0].partitions[0].records)
    silent = [await server.connect() for _ in range(20)]
    most = 0
    for _ in range(4):
        for each in silent:
            with suppress(trio.BrokenResourceError):  # it was closed
                await each.send(body, version=12)
            await trio.sleep(0.01)
            most = max(most, answers.total_bytes)
    await wait_until(lambda: answers.total_bytes > 24 * MIB)
    short = len((await client.call(body, 12)).responses[0].partitions[0].records)
    assert before > 3_000_000
    assert 400_000 < short < 500_000
    assert most <= 48 * MIB
    held = sum(each._transport.unsent_bytes for each in server.parts["Dispatcher"].connections)
    assert held <= 48 * MIB + 20 * unsent.COUNTED_FROM_BYTES
    for each in silent:
        await each.aclose()
    await wait_until(lambda: answers.total_bytes == 0)
