"""What kazoo's thread runs on: real sockets and threads, no ZooKeeper."""

import os
import socket
import threading
import time

import pytest
import trio

from metadata.zookeeper_handler import Handler, Inbox, Result


@pytest.fixture
async def inbox():
    return Inbox(trio.lowlevel.current_trio_token())


@pytest.fixture
def handler(inbox):
    return Handler(inbox, None, lambda error: None, 5)


@pytest.fixture
def peer():
    """A listener, and where it listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


async def test_a_server_that_says_nothing_is_left_early(inbox, peer):
    """Before its first answer, that is: later kazoo's own times count."""
    handler = Handler(inbox, None, lambda error: None, 0.2)
    connection = handler.create_connection(peer.getsockname())
    accepted, _ = peer.accept()
    with accepted:
        started = time.monotonic()
        assert handler.select([connection], [], [], 30) == ([], [], [])
        assert time.monotonic() - started < 15
        accepted.send(b"first")
        assert handler.select([connection], [], [], 30)[0] == [connection]
        assert connection.recv(5) == b"first"
        started = time.monotonic()
        assert handler.select([connection], [], [], 0.5) == ([], [], [])
        assert time.monotonic() - started >= 0.5
    connection.close()


async def test_a_burst_from_threads_is_taken_in_order_at_one_wakeup(inbox):
    taken = []

    def produce():
        for n in range(5_000):
            inbox.put(lambda n=n: taken.append(n))

    thread = threading.Thread(target=produce)
    thread.start()
    thread.join()  # the loop stands still meanwhile, else the threads' turns decide how many
    with trio.fail_after(5):
        while len(taken) < 5_000:
            await trio.lowlevel.checkpoint()
    assert taken == list(range(5_000))
    assert inbox.wakeup_count == 1


async def test_a_burst_from_threads_is_taken_in_order_at_few_wakeups(inbox):
    taken = []

    def produce():
        for n in range(5_000):
            inbox.put(lambda n=n: taken.append(n))

    await trio.to_thread.run_sync(produce)
    with trio.fail_after(5):
        while len(taken) < 5_000:
            await trio.lowlevel.checkpoint()
    assert taken == list(range(5_000))
    assert inbox.wakeup_count < 500


async def test_what_is_put_while_draining_gets_a_turn_of_its_own(inbox):
    rounds = []

    def again():
        rounds.append(inbox.wakeup_count)
        if len(rounds) < 5:
            inbox.put(again)

    inbox.put(again)
    with trio.fail_after(5):
        while len(rounds) < 5:
            await trio.lowlevel.checkpoint()
    assert rounds == [1, 2, 3, 4, 5]


def test_after_the_loop_has_ended_calls_are_dropped():
    async def main():
        return Inbox(trio.lowlevel.current_trio_token())

    trio.run(main).put(lambda: pytest.fail("called"))


def test_a_result_tells_everybody_once():
    told = []
    result = Result()
    result.rawlink(lambda r: told.append(("early", r.value)))
    result.set(7)
    result.set_exception(ValueError("kazoo drops what it has answered"))
    result.rawlink(lambda r: told.append(("late", r.value)))
    assert told == [("early", 7), ("late", 7)]
    assert result.ready()
    assert result.successful()
    assert result.get() == 7
    failed = Result()
    failed.set_exception(ValueError("no"))
    assert not failed.successful()
    with pytest.raises(ValueError, match="no"):
        failed.get()


async def test_a_hundred_thousand_signals_do_not_block_and_are_counted(handler):
    reader, writer = handler.create_socket_pair()
    try:
        assert handler.select([reader], [], [], 0) == ([], [], [])
        for _ in range(100_000):
            writer.send(b"\0")
        for _ in range(100_000):
            assert reader.recv(1) == b"\0"
        assert handler.select([reader], [], [], 0) == ([], [], [])
        with pytest.raises(BlockingIOError):
            reader.recv(1)
    finally:
        writer.close()
        reader.close()
        reader.close()


async def test_select_sees_what_is_in_the_buffer(handler, peer):
    connection = handler.create_connection(peer.getsockname())
    accepted, _ = peer.accept()
    with accepted:
        connection.setblocking(False)
        assert handler.select([connection], [connection], [], 0)[1] == [connection]
        started = time.monotonic()
        assert handler.select([connection], [], [], 0.1)[0] == []
        assert time.monotonic() - started >= 0.1
        accepted.sendall(b"abcdef" + bytes(100_000))
        assert handler.select([connection], [], [], 5)[0] == [connection]
        assert connection.recv(2) == b"ab"
        assert connection.pending() >= 4
        assert handler.select([connection], [], [], 5)[0] == [connection]
        assert connection.recv(4) == b"cdef"
        rest = 0
        while rest < 100_000:
            handler.select([connection], [], [], 5)
            rest += len(connection.recv(1_000_000))
        assert rest == 100_000
        assert connection.pending() == 0
        assert handler.select([connection], [], [], 0)[0] == []
        assert connection.send(memoryview(b"xyz")) == 3
        assert accepted.recv(10) == b"xyz"
    assert handler.select([connection], [], [], 5)[0] == [connection]
    assert connection.recv(10) == b""
    connection.close()


async def test_a_refused_connection_and_a_failed_handshake_leave_nothing_open(inbox, peer):
    import ssl

    context = ssl.create_default_context()
    handler = Handler(inbox, context, lambda error: None, 5)
    before = len(os.listdir("/proc/self/fd"))

    def hang_up():
        peer.accept()[0].close()

    thread = threading.Thread(target=hang_up)
    thread.start()
    with pytest.raises(OSError, match=r"."):
        handler.create_connection(peer.getsockname(), hostname="127.0.0.1")
    thread.join()
    with socket.create_server(("127.0.0.1", 0)) as gone:
        address = gone.getsockname()
    with pytest.raises(ConnectionRefusedError):
        handler.create_connection(address)
    assert len(os.listdir("/proc/self/fd")) == before


async def test_the_end_of_a_thread_is_told_with_its_reason(inbox):
    ends = []
    handler = Handler(inbox, None, ends.append, 5)
    handler.spawn(lambda: None).join()
    handler.spawn(int, "x").join()
    assert ends[0] is None
    assert isinstance(ends[1], ValueError)
