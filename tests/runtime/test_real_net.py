"""RealNet against plain sockets: bursts, order, half-sent frames, slow readers, closing."""

import select
import socket
from collections import Counter
from contextlib import ExitStack, suppress

import pytest
import trio

from runtime import real_net
from runtime.poller import Poller
from runtime.real_net import RealNet, SocketTransport
from runtime.turn import SPENT_UNITS, Turn


class Echo:
    """Sends back what came, at the end of the turn."""

    def __init__(self, transport):
        self.transport = transport
        self.buffer = bytearray(4096)
        self.is_closed = False
        self.drains = 0

    def receive_buffer(self):
        return memoryview(self.buffer)

    def received(self, count):
        self.transport.write([bytes(self.buffer[:count])])

    def drained(self):
        self.drains += 1

    def closed(self):
        assert not self.is_closed
        self.is_closed = True


@pytest.fixture
async def net(nursery):
    turn = Turn()
    poller = Poller(turn)
    real = RealNet(poller)
    nursery.start_soon(turn.serve)
    await nursery.start(poller.run)
    await nursery.start(real.run)
    return real


async def exchange(port, data):
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        got = bytearray()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.send_all, data)
            while len(got) < len(data):
                got += await stream.receive_some()
    return bytes(got)


async def test_echo_keeps_bytes_and_order(net):
    listener = net.listen("127.0.0.1", 0, Echo)
    data = bytes(range(256)) * 5000
    with trio.fail_after(20):
        assert await exchange(listener.address[1], data) == data


async def test_a_client_of_ipv4_has_its_address_at_an_ipv6_listener_too(net):
    peers = []

    def make(transport):
        peers.append(transport.peer)
        return Echo(transport)

    listener = net.listen("::", 0, make)
    with trio.fail_after(20):
        assert await exchange(listener.address[1], b"ping") == b"ping"
    assert peers[0].rpartition(":")[0] == "127.0.0.1"


async def test_many_connections_at_once(net):
    listener = net.listen("127.0.0.1", 0, Echo)
    results = []

    async def one(number):
        results.append(await exchange(listener.address[1], b"%06d" % number) == b"%06d" % number)

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            for number in range(200):
                nursery.start_soon(one, number)
    assert results == [True] * 200
    with trio.fail_after(5):
        while net.connection_count:
            await trio.sleep(0.01)


async def test_what_is_left_of_descriptors_is_for_files(net, caplog):
    """A listener that takes all of them leaves none to a bookie's next file, and that ends it."""
    listener = net.listen("127.0.0.1", 0, Echo)
    port = listener.address[1]
    with socket.socket() as free, ExitStack() as clients:
        net.accepted_below = free.fileno() + 12  # six clients, and the server's ends of them
        streams = [
            clients.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(20)
        ]
        with trio.fail_after(5):
            while not any(record.message == "descriptors_short" for record in caplog.records):
                await trio.sleep(0.01)
        await trio.sleep(0.5)
        told = [record for record in caplog.records if record.message == "descriptors_short"]
        assert len(told) == 1, "once"
        assert net.connection_count < 12
        for each in streams:
            each.close()
        with trio.fail_after(5):
            assert await exchange(port, b"ping") == b"ping"


async def test_a_reader_that_does_not_read_holds_up_nobody(net):
    made = []

    class Flood(Echo):
        def __init__(self, transport):
            super().__init__(transport)
            made.append(self)

        def received(self, count):
            self.transport.write([b"x" * (8 << 20)])

    flood = net.listen("127.0.0.1", 0, Flood)
    echo = net.listen("127.0.0.1", 0, Echo)
    with socket.create_connection(("127.0.0.1", flood.address[1])) as slow:
        slow.sendall(b"go")
        with trio.fail_after(10):
            assert await exchange(echo.address[1], b"hello") == b"hello"
            while not made or not made[0].transport.unsent_bytes:
                await trio.sleep(0.01)
    with trio.fail_after(10):
        while not made[0].is_closed:
            await trio.sleep(0.01)


async def test_paused_reading_resumes_where_it_stopped(net):
    made = []

    class Pausing(Echo):
        def __init__(self, transport):
            super().__init__(transport)
            made.append(self)

        def received(self, count):
            super().received(count)
            self.transport.pause_reading()

    listener = net.listen("127.0.0.1", 0, Pausing)
    async with await trio.open_tcp_stream("127.0.0.1", listener.address[1]) as stream:
        with trio.fail_after(10):
            await stream.send_all(b"one")
            assert await stream.receive_some() == b"one"
            await stream.send_all(b"two")
            with trio.move_on_after(0.1) as scope:
                await stream.receive_some()
            assert scope.cancelled_caught
            made[0].transport.resume_reading()
            assert await stream.receive_some() == b"two"


async def test_close_sends_what_was_written_first(net):
    class Farewell(Echo):
        def received(self, count):
            self.transport.write([b"bye"])
            self.transport.close()
            self.transport.write([b"never"])

    listener = net.listen("127.0.0.1", 0, Farewell)
    async with await trio.open_tcp_stream("127.0.0.1", listener.address[1]) as stream:
        with trio.fail_after(10):
            await stream.send_all(b"x")
            assert await stream.receive_some() == b"bye"
            assert await stream.receive_some() == b""


async def test_connect_is_driven_too(net):
    heard = trio.Event()

    class Caller(Echo):
        def received(self, count):
            self.text = bytes(self.buffer[:count])
            heard.set()

    listener = net.listen("127.0.0.1", 0, Echo)
    caller = await net.connect("127.0.0.1", listener.address[1], Caller)
    caller.transport.write([b"pi", b"ng"])
    with trio.fail_after(10):
        await heard.wait()
    assert caller.text == b"ping"


async def test_refused_connection_and_taken_address(net):
    listener = net.listen("127.0.0.1", 0, Echo)
    with pytest.raises(OSError, match="in use"):
        net.listen("127.0.0.1", listener.address[1], Echo)
    listener.close()
    with pytest.raises(OSError, match="refused"):
        await net.connect("127.0.0.1", listener.address[1], Echo)


async def test_turn_runs_deferred_work_once_and_in_order(nursery):
    turn = Turn()
    nursery.start_soon(turn.serve)
    await trio.testing.wait_all_tasks_blocked()
    seen = []
    turn.defer(lambda: (seen.append(1), turn.defer(lambda: seen.append(3))))
    turn.defer(lambda: seen.append(2))
    assert seen == []
    with trio.fail_after(5):
        while len(seen) < 3:
            await trio.lowlevel.checkpoint()
    assert seen == [1, 2, 3]


class Bursts(Turn):
    """Counts them."""

    number = 0

    def begin(self):
        self.number += 1
        super().begin()


async def test_many_that_leave_together_are_not_all_ended_in_one_turn(nursery, monkeypatch):
    monkeypatch.setattr(real_net, "CLOSE_UNITS", SPENT_UNITS // 10)
    turn = Bursts()
    poller = Poller(turn)
    net = RealNet(poller)
    ended = Counter()

    class Ended(Echo):
        def closed(self):
            super().closed()
            ended[turn.number] += 1

    listener = net.listen("127.0.0.1", 0, Ended)
    nursery.start_soon(turn.serve)
    await nursery.start(poller.run)
    await nursery.start(net.run)
    clients = []
    with trio.fail_after(60):
        for number in range(50):
            clients.append(socket.create_connection(listener.address))
            while net.accepted_count <= number:
                await trio.lowlevel.checkpoint()
        for client in clients:  # without a checkpoint: the poller finds all of them
            client.close()
        while net.connection_count:
            await trio.lowlevel.checkpoint()
    assert ended.total() == 50
    assert max(ended.values()) <= 11


class Library(Echo):
    """Answers «book» with megabytes in pieces, and anything else with itself."""

    PIECES = tuple(bytes([number]) * (1 + number * 40_000) for number in range(14))
    BOOK = b"".join(PIECES)

    def received(self, count):
        asked = bytes(self.buffer[:count])
        self.transport.write(self.PIECES if asked == b"book" else [asked])


async def receive_exactly(stream, size):
    got = bytearray()
    while len(got) < size and (data := await stream.receive_some()):
        got += data
    return bytes(got)


@pytest.fixture
def sent_per_call(monkeypatch):
    """The bytes that each of the net's calls sent of long answers, and of how many connections."""
    calls, sent = [], []
    flush = SocketTransport.flush

    def flushed(transport, bytes_max):
        is_long = transport.unsent_bytes > real_net.SHORT_BYTES_MAX
        size = flush(transport, bytes_max)
        if is_long:
            sent.append(size)
        return size

    def counting(name):
        function = getattr(RealNet, name)

        def call(net):
            sent.clear()
            function(net)
            calls.append(list(sent))

        monkeypatch.setattr(RealNet, name, call)

    monkeypatch.setattr(SocketTransport, "flush", flushed)
    counting("_flush_dirty")
    counting("_send_line")
    return calls


async def test_long_answers_leave_in_parts_and_short_ones_ahead_of_them(net, sent_per_call):
    """Eight of 3.6 MB each at once: a turn sends two megabytes of them. Who asks for little
    meanwhile has it before any of them."""
    listener = net.listen("127.0.0.1", 0, Library)
    books, order = [], []

    async def read(stream):
        books.append(await receive_exactly(stream, len(Library.BOOK)))
        order.append("book")

    async def ask_for_little(stream):
        await stream.send_all(b"ping")
        assert await receive_exactly(stream, 4) == b"ping"
        order.append("ping")

    with trio.fail_after(30):
        streams = [await trio.open_tcp_stream("127.0.0.1", listener.address[1]) for _ in range(9)]
        async with trio.open_nursery() as nursery:
            for stream in streams[:8]:
                await stream.send_all(b"book")
            for stream in streams[:8]:
                nursery.start_soon(read, stream)
            nursery.start_soon(ask_for_little, streams[8])
        for stream in streams:
            await stream.aclose()
    assert books == [Library.BOOK] * 8
    assert order[0] == "ping"
    totals = [sum(each) for each in sent_per_call]
    assert sum(totals) > 20_000_000, "they were long"
    assert max(totals) <= real_net.PER_TURN_BYTES_MAX
    assert max(map(len, sent_per_call)) > 1, "one after the other would be unfair"


async def test_a_client_that_leaves_while_its_long_answer_leaves_in_parts(net):
    listener = net.listen("127.0.0.1", 0, Library)
    with trio.fail_after(30):
        for _ in range(5):
            streams = [
                await trio.open_tcp_stream("127.0.0.1", listener.address[1]) for _ in range(6)
            ]
            for stream in streams:
                await stream.send_all(b"book")
            for stream in streams[::2]:
                await stream.receive_some()
                stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
                stream.socket.close()
            for stream in streams[1::2]:
                assert await receive_exactly(stream, len(Library.BOOK)) == Library.BOOK
                await stream.aclose()
        while net.connection_count:
            await trio.sleep(0.01)
    assert not net._long


async def test_who_sends_no_more_has_its_long_answer_nevertheless(net):
    class Long(Echo):
        def received(self, count):
            self.transport.write([bytes(3 << 20)])

    listener = net.listen("127.0.0.1", 0, Long)

    def read():
        got = 0
        with socket.create_connection(listener.address) as client:
            client.sendall(b"x")
            client.shutdown(socket.SHUT_WR)
            while some := client.recv(1 << 20):
                got += len(some)
        return got

    with trio.fail_after(20):
        assert await trio.to_thread.run_sync(read) == 3 << 20
        while net.connection_count:
            await trio.sleep(0.01)


async def test_who_sends_no_more_and_reads_nothing_is_closed(net):
    class Long(Echo):
        def received(self, count):
            self.transport.write([bytes(30 << 20)])

    listener = net.listen("127.0.0.1", 0, Long)
    with socket.socket() as client, trio.fail_after(20):
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(listener.address)
        client.sendall(b"x")
        client.shutdown(socket.SHUT_WR)
        while not net.accepted_count:
            await trio.sleep(0.01)
        while net.connection_count:
            await trio.sleep(0.01)


async def test_who_writes_when_drained_stands_in_line_once(net):
    most, most_bytes = 0, 0

    class Eager(Echo):
        def received(self, count):
            self.transport.write([bytes(1 << 19)])

        def drained(self):
            super().drained()
            if self.drains < 40:
                self.transport.write([bytes(1 << 19)])

    send = net._send_line

    def look():
        nonlocal most, most_bytes
        most = max(most, max(Counter(map(id, net._long)).values()))
        most_bytes = max(most_bytes, net._turn.unsent_bytes)
        assert net._turn.unsent_bytes == sum(each.unsent_bytes for each in net._long)
        send()

    net._send_line = look
    listener = net.listen("127.0.0.1", 0, Eager)

    def read():
        with socket.create_connection(listener.address) as client:
            client.sendall(b"x")
            got = 0
            while got < 40 << 19:
                got += len(client.recv(1 << 20))

    with trio.fail_after(30):
        await trio.to_thread.run_sync(read)
        assert most <= 1
        assert most_bytes <= 1 << 19
        while net.connection_count:
            await trio.sleep(0.01)
    assert not net._turn.unsent_bytes


async def test_what_waits_in_line_is_not_told_ready_all_the_while(net, monkeypatch):
    """Level-triggered: it would be in each burst."""
    told = 0
    on_events = SocketTransport.on_events

    def counted(transport, mask):
        nonlocal told
        told += bool(mask & select.EPOLLOUT)
        on_events(transport, mask)

    monkeypatch.setattr(SocketTransport, "on_events", counted)

    class Long(Echo):
        def received(self, count):
            self.transport.write([bytes(8 << 20)])

    listener = net.listen("127.0.0.1", 0, Long)

    async def read():
        async with await trio.open_tcp_stream("127.0.0.1", listener.address[1]) as stream:
            await stream.send_all(b"x")
            assert len(await receive_exactly(stream, 8 << 20)) == 8 << 20

    flushes = 0
    flush = SocketTransport.flush

    def flushed(transport, bytes_max):
        nonlocal flushes
        flushes += 1
        return flush(transport, bytes_max)

    monkeypatch.setattr(SocketTransport, "flush", flushed)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for _ in range(30):
                nursery.start_soon(read)
    assert told <= flushes


async def test_only_who_waits_for_its_peer_is_told_when_that_takes_more(net, monkeypatch):
    """The descriptor's mask, as the peer takes nothing, some, and all."""
    masks, transports = [], []
    modify = net.modify

    def noted(fd, mask):
        masks.append(mask)
        modify(fd, mask)

    net.modify = noted

    def make(transport):
        transports.append(transport)
        return Echo(transport)

    listener = net.listen("127.0.0.1", 0, make)
    with socket.socket() as client, trio.fail_after(20):
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(listener.address)
        while not transports:
            await trio.sleep(0.01)
        (transport,) = transports
        transport.write([bytes(16 << 20)])
        while not transport.is_blocked:
            await trio.lowlevel.checkpoint()
        assert masks[-1] == real_net._READ | select.EPOLLOUT
        transport.write([b"more"])  # in line again, and the peer still takes nothing
        assert not transport.is_blocked
        monkeypatch.setattr(
            SocketTransport, "_send_some", lambda own, most: min(most, own.unsent_bytes)
        )
        transport.flush(1 << 20)
        assert transport.is_unfinished
        assert masks[-1] == real_net._READ, "what is in line goes on by itself"
        transport._dirty = False
        transport._update_mask()
        assert masks[-1] == real_net._READ | select.EPOLLOUT
        transport.flush(1 << 30)
        assert not transport.is_unfinished
        assert masks[-1] == real_net._READ, "and what is sent waits for nothing"
        transport.abort()


@pytest.mark.parametrize(
    ("count", "size", "kept"),
    [
        (200, 100, 1),
        (real_net.SMALL_BUFFERS_MIN, 100, real_net.SMALL_BUFFERS_MIN),
        (200, 2000, 200),
    ],
)
async def test_very_many_small_buffers_are_joined(net, count, size, kept):
    """What leaves in a turn is counted in bytes."""
    left, right = socket.socketpair()
    with right:
        transport = real_net.SocketTransport(net, left, "peer")
        buffers = [bytes([number]) * size for number in range(count)]
        transport.write(buffers)
        assert len(transport._output) == kept
        assert b"".join(transport._output) == b"".join(buffers)
        assert transport.unsent_bytes == count * size
        net._dirty.clear()
        left.close()


async def test_a_turn_of_long_answers_is_charged_and_has_a_bound_for_each_connection(net):
    sent, units = [], []

    class Taker:
        """A transport whose peer takes all."""

        in_line_bytes = 0
        is_unfinished = True

        def __init__(self):
            self.unsent_bytes = 8 << 20

        def flush(self, bytes_max):
            sent.append(bytes_max)
            self.unsent_bytes -= bytes_max
            self.is_unfinished = self.unsent_bytes > 0
            return bytes_max

    for transport in (Taker(), Taker()):
        net._dirty.append(transport)
    net._flush_dirty()
    assert sent == [real_net.PER_TURN_BYTES_MAX]
    net._dirty.append(Taker())
    net._flush_dirty()
    assert len(sent) == 1, "others are in line already"
    assert net._turn.unsent_bytes == (24 << 20) - real_net.PER_TURN_BYTES_MAX
    sent.clear()
    net._send_line()
    assert not sent, "so much left in this turn"
    net._turn.number += 1
    net._turn.spent_units = 0
    net._send_line()
    units.append(net._turn.spent_units)
    assert sent == [real_net.LONG_PART_BYTES_MAX] * 4
    assert units == [real_net.PER_TURN_BYTES_MAX >> real_net.SENT_UNIT_BITS]
    while net._long:
        net._turn.number += 1
        net._send_line()
    assert net._turn.unsent_bytes == 0


async def test_peers_that_take_nothing_cost_a_turn_little_and_what_they_have_is_forgotten(net):
    """A thousand, to each of which more was written while it stood in line."""
    calls = 0

    class Blocked:
        in_line_bytes = 0
        is_unfinished = False

        def __init__(self):
            self.unsent_bytes = 1 << 20

        def flush(self, bytes_max):
            nonlocal calls
            calls += 1
            return 0

    transports = [Blocked() for _ in range(1000)]
    for transport in transports:
        net._put_in_line(transport, net._long)
        transport.unsent_bytes += 12_345
    turns = 0
    while net._long:
        net._turn.number += 1
        net._turn._later.popleft()()
        turns += 1
        assert calls <= 256 * turns
    assert calls == 1000
    assert net._turn.unsent_bytes == 0


async def test_who_is_to_be_closed_is_not_read_from_meanwhile(net, monkeypatch):
    """It would be told ready in each burst, for as long as its answer leaves in parts."""
    transports, told = [], 0

    class Last(Echo):
        def received(self, count):
            transports.append(self.transport)
            self.transport.write([bytes(6 << 20)])
            self.transport.close()

    on_events = SocketTransport.on_events

    def counted(transport, mask):
        nonlocal told
        told += transport in transports
        on_events(transport, mask)

    monkeypatch.setattr(SocketTransport, "on_events", counted)
    listener = net.listen("127.0.0.1", 0, Last)

    async def talk():
        async with await trio.open_tcp_stream("127.0.0.1", listener.address[1]) as stream:
            await stream.send_all(b"x")
            with suppress(trio.BrokenResourceError):
                await stream.send_all(b"more")
                await receive_exactly(stream, 6 << 20)

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for _ in range(12):
                nursery.start_soon(talk)
    assert len(transports) == 12
    assert told <= 12 * 4


async def test_short_answers_that_are_put_off_go_ahead_of_long_ones(net):
    """More of them than leave in a turn."""
    order = []

    class Taker:
        in_line_bytes = 0
        is_unfinished = False

        def __init__(self, size):
            self.unsent_bytes = self.size = size

        def flush(self, bytes_max):
            order.append(self.size)
            self.unsent_bytes = 0
            return self.size

    short, long = 60_000, 90_000
    per_turn = -(-real_net.PER_TURN_BYTES_MAX // short)
    for size in [*[short] * per_turn, long, *[short] * (per_turn + 1), long]:
        net._dirty.append(Taker(size))
    net._flush_dirty()
    assert order == [short] * per_turn
    for leave, left in (([short] * per_turn, 3), ([short, long, long], 0)):
        order.clear()
        net._turn.number += 1
        (send,) = net._turn._later
        net._turn._later.clear()
        send()
        assert order == leave
        assert len(net._turn._later) == (left > 0)
    assert net._turn.unsent_bytes == 0
    order.clear()
    net._put_in_line(Taker(short), net._short)
    net._turn.begin()  # another burst, with as many bytes of its own
    net._dirty.append(Taker(long))
    net._flush_dirty()
    assert net._left_bytes() == real_net.PER_TURN_BYTES_MAX
    assert not order
    net._send_line()
    assert order == [short, long]
    order.clear()
    for _ in range(2 * per_turn):
        net._put_in_line(Taker(short), net._short)
    for _ in range(3):
        net._turn.number += 1
        net._turn._later.popleft()()
    assert order == [short] * (2 * per_turn)


async def test_what_is_left_is_sent_at_the_end(nursery):
    turn = Turn()
    poller = Poller(turn)
    net = RealNet(poller)
    nursery.start_soon(turn.serve)
    await nursery.start(poller.run)
    connections = []

    def make(transport):
        connections.append(Echo(transport))
        return connections[-1]

    listener = net.listen("127.0.0.1", 0, make)
    with trio.fail_after(30):
        async with trio.open_nursery() as inner:
            await inner.start(net.run)
            stream = await trio.open_tcp_stream("127.0.0.1", listener.address[1])
            while not connections:
                await trio.sleep(0.01)
            connections[0].transport.write([bytes(2 << 20)])
            inner.cancel_scope.cancel()
        assert len(await receive_exactly(stream, 1 << 30)) > 300 << 10
        await stream.aclose()
