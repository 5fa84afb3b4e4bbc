"""One contract for every Net: the operating system's and the simulated one."""

import random

import pytest
import trio

from runtime.poller import Poller
from runtime.real_net import RealNet
from runtime.sim_network import NetFaults, SimNetwork
from runtime.timers import Timers
from runtime.turn import Turn


class Peer:
    """Keeps what came; `reply`, if given, is called with each piece."""

    def __init__(self, transport, reply=None):
        self.transport = transport
        self.reply = reply
        self.buffer = bytearray(4096)
        self.got = bytearray()
        self.is_closed = False
        self.drains = 0
        self.changed = trio.Event()

    def receive_buffer(self):
        return memoryview(self.buffer)

    def received(self, count):
        assert not self.is_closed
        assert count > 0
        data = bytes(self.buffer[:count])
        self.got += data
        self.tell()
        if self.reply is not None:
            self.reply(self, data)

    def drained(self):
        self.drains += 1
        self.tell()

    def closed(self):
        assert not self.is_closed
        self.is_closed = True
        self.tell()

    def tell(self):
        self.changed.set()
        self.changed = trio.Event()

    async def until(self, condition):
        with trio.fail_after(10):
            while not condition(self):
                await self.changed.wait()


def echo(peer, data):
    peer.transport.write([data])


def echoing(transport):
    return Peer(transport, echo)


async def start_net(kind, nursery, **faults):
    turn = Turn()
    nursery.start_soon(turn.serve)
    if kind == "real":
        poller = Poller(turn)
        await nursery.start(poller.run)
        net = RealNet(poller)
    else:
        timers = Timers()
        await nursery.start(timers.run)
        net = SimNetwork(random.Random(7), timers, NetFaults(**faults)).host("here", turn)
    await nursery.start(net.run)
    return net


@pytest.fixture(params=["real", "sim"])
async def net(request, nursery):
    return await start_net(request.param, nursery)


async def test_all_bytes_arrive_in_order_both_ways(net):
    listener = net.listen("127.0.0.1", 0, echoing)
    caller = await net.connect(*listener.address, Peer)
    data = random.Random(1).randbytes(1_500_000)
    view = memoryview(data)
    for start in range(0, len(data), 50_000):
        caller.transport.write([view[start : start + 1], view[start + 1 : start + 50_000]])
    await caller.until(lambda peer: len(peer.got) >= len(data))
    assert caller.got == data
    assert caller.drains


@pytest.mark.parametrize("caller_greets", [True, False])
async def test_what_the_factory_writes_arrives_first(net, caller_greets):
    """Brokers write what waited for the connection there."""

    def greeting(transport):
        transport.write([b"first ", b"of all"])
        return Peer(transport)

    served = []

    def serving(transport):
        served.append(Peer(transport) if caller_greets else greeting(transport))
        return served[0]

    listener = net.listen("127.0.0.1", 0, serving)
    caller = await net.connect(*listener.address, greeting if caller_greets else Peer)
    with trio.fail_after(10):
        while not served:
            await trio.sleep(0.01)
    writer, reader = (caller, served[0]) if caller_greets else (served[0], caller)
    writer.transport.write([b", then more"])
    await reader.until(lambda peer: len(peer.got) >= 23)
    assert reader.got == b"first of all, then more"


async def test_many_connections_keep_to_themselves(net):
    listener = net.listen("127.0.0.1", 0, echoing)

    async def one(number):
        caller = await net.connect(*listener.address, Peer)
        caller.transport.write([b"%06d" % number])
        await caller.until(lambda peer: len(peer.got) >= 6)
        assert caller.got == b"%06d" % number
        caller.transport.close()
        await caller.until(lambda peer: peer.is_closed)

    async with trio.open_nursery() as nursery:
        for number in range(50):
            nursery.start_soon(one, number)
    with trio.fail_after(5):
        while net.connection_count:
            await trio.sleep(0.01)


async def test_a_reader_that_does_not_read_holds_up_nobody_and_pushes_back(net):
    made = []

    def flood(transport):
        made.append(Peer(transport, lambda peer, _: peer.transport.write([b"x" * (8 << 20)])))
        return made[-1]

    flooding = net.listen("127.0.0.1", 0, flood)
    other = net.listen("127.0.0.1", 0, echoing)
    slow = await net.connect(*flooding.address, Peer)
    slow.transport.pause_reading()
    slow.transport.write([b"go"])
    quick = await net.connect(*other.address, Peer)
    quick.transport.write([b"hello"])
    await quick.until(lambda peer: peer.got == b"hello")
    with trio.fail_after(10):
        while not made or not made[0].transport.unsent_bytes:
            await trio.sleep(0.01)
    assert not made[0].drains
    slow.transport.resume_reading()
    await slow.until(lambda peer: len(peer.got) == 8 << 20)
    await made[0].until(lambda peer: peer.drains and not peer.transport.unsent_bytes)


async def test_a_pause_in_the_middle_keeps_the_rest(net):
    def pausing(transport):
        def reply(peer, data):
            peer.transport.write([data])
            peer.transport.pause_reading()

        made.append(Peer(transport, reply))
        return made[-1]

    made = []
    listener = net.listen("127.0.0.1", 0, pausing)
    caller = await net.connect(*listener.address, Peer)
    # Of one byte each: the network may cut anything longer.
    caller.transport.write([b"1"])
    await caller.until(lambda peer: peer.got == b"1")
    caller.transport.write([b"2"])
    await trio.sleep(0.05)
    assert caller.got == b"1"
    made[0].transport.resume_reading()
    await caller.until(lambda peer: peer.got == b"12")


async def test_close_sends_what_was_written_first(net):
    def farewell(peer, _):
        peer.transport.write([b"b", b"ye"])
        peer.transport.close()
        peer.transport.write([b"never"])
        peer.transport.close()

    made = []

    def accept(transport):
        made.append(Peer(transport, farewell))
        return made[-1]

    listener = net.listen("127.0.0.1", 0, accept)
    caller = await net.connect(*listener.address, Peer)
    caller.transport.write([b"x"])
    await caller.until(lambda peer: peer.is_closed)
    assert caller.got == b"bye"
    assert made[0].is_closed
    caller.transport.write([b"ignored"])
    assert caller.transport.unsent_bytes == 0


async def test_a_listener_that_pauses_keeps_callers_waiting(net):
    accepted = []

    def accept(transport):
        accepted.append(Peer(transport, echo))
        listener.pause_accepting()
        return accepted[-1]

    listener = net.listen("127.0.0.1", 0, accept)
    first = await net.connect(*listener.address, Peer)
    second = await net.connect(*listener.address, Peer)
    second.transport.write([b"early"])
    first.transport.write([b"first"])
    await first.until(lambda peer: peer.got == b"first")
    await trio.sleep(0.05)
    assert len(accepted) == 1
    assert second.got == b""
    listener.resume_accepting()
    await second.until(lambda peer: peer.got == b"early")
    assert len(accepted) == 2


async def test_refused_connection_and_taken_address(net):
    listener = net.listen("127.0.0.1", 0, Peer)
    with pytest.raises(OSError, match="in use"):
        net.listen(*listener.address, Peer)
    listener.close()
    listener.close()
    with pytest.raises(OSError, match="refused"):
        await net.connect(*listener.address, Peer)


@pytest.mark.parametrize("kind", ["real", "sim"])
async def test_a_net_that_stops_sends_and_closes_all(kind):
    accepted = []

    def accept(transport):
        accepted.append(Peer(transport))
        return accepted[-1]

    async with trio.open_nursery() as outer:
        if kind == "real":
            near, far = [await start_net("real", outer) for _ in range(2)]
        else:
            timers = Timers()
            await outer.start(timers.run)
            network = SimNetwork(random.Random(3), timers)
            near, far = (network.host(name, Turn()) for name in ("near", "far"))
            for each in (near, far):
                outer.start_soon(each._turn.serve)
            await outer.start(near.run)
            await outer.start(far.run)
        async with trio.open_nursery() as nursery:
            third = (
                await start_net("real", nursery)
                if kind == "real"
                else network.host("third", Turn())
            )
            if kind == "sim":
                nursery.start_soon(third._turn.serve)
                await nursery.start(third.run)
            listener = third.listen("127.0.0.1" if kind == "real" else "third", 0, accept)
            caller = await near.connect(*listener.address, Peer)
            await trio.sleep(0.05)
            accepted[0].transport.write([b"last words"])
            nursery.cancel_scope.cancel()
        assert accepted[0].is_closed
        await caller.until(lambda peer: peer.is_closed)
        assert caller.got == b"last words"
        with pytest.raises(OSError, match="refused"):
            await far.connect(*listener.address, Peer)
        outer.cancel_scope.cancel()
