"""Brokers that ask each other, over a network in memory: a real server answers, or somebody whose
answers a test writes."""

from __future__ import annotations

import random
import struct
from types import SimpleNamespace

import pytest
import trio

from broker.api import Api
from broker.cluster import peers as peers_module
from broker.cluster.peers import BrokerPeers
from broker.dispatch import Dispatcher
from broker.server import KafkaServer, ServerSettings
from runtime.env import Env
from runtime.sim_network import NetFaults, SimNetwork
from runtime.timers import Timers
from runtime.turn import Turn
from wire.kafka.api_keys import ApiKey
from wire.kafka.messages.transactions import EndTxnRequest, EndTxnResponse


class Clock:
    def monotonic(self):
        return trio.current_time()

    def time_ms(self):
        return int(trio.current_time() * 1000)


class Peers:
    """Broker 1, that asks; broker 2 is made by `serve` or `speak`."""

    def __init__(self, nursery):
        self.nursery = nursery
        self.timers = Timers()
        self.network = SimNetwork(random.Random(7), self.timers, NetFaults())
        self.endpoint = SimpleNamespace(node_id=2, host="two", port=9092)
        self.asked = []

    async def host(self, name):
        turn = Turn()
        self.nursery.start_soon(turn.serve)
        net = self.network.host(name, turn)
        await self.nursery.start(net.run)
        return net, turn

    async def start(self):
        await self.nursery.start(self.timers.run)
        net, turn = await self.host("one")
        env = Env(clock=Clock(), rng=random.Random(1), net=net, disk=None, turn=turn)
        self.peers = BrokerPeers(env, "broker-1")
        self.scope = trio.CancelScope()

        async def run(*, task_status):
            with self.scope:
                await self.peers.run(task_status=task_status)

        await self.nursery.start(run)

    async def serve(self):
        """A server that answers EndTxn with the id and epoch that it names, the epoch one up."""
        self.net, turn = await self.host("two")

        def end(request):
            body = request.body
            self.asked.append(body.producer_id)
            return EndTxnResponse(
                producer_id=body.producer_id, producer_epoch=body.producer_epoch + 1
            )

        dispatcher = Dispatcher([Api(ApiKey.END_TXN, 0, 5, end)], self.nursery, turn, strict=True)
        KafkaServer(self.net, dispatcher, ServerSettings()).listen("two", 9092, "INTERNAL")

    async def speak(self, answer):
        """`answer(transport, frames so far)` for whatever comes."""
        self.net, _ = await self.host("two")

        class Mouth:
            def __init__(self, transport):
                self.transport = transport
                self.buffer = bytearray(65536)
                self.got = bytearray()

            def receive_buffer(self):
                return memoryview(self.buffer)

            def received(self, count):
                self.got += self.buffer[:count]
                answer(self.transport, self.got)

            def drained(self):
                pass

            def closed(self):
                pass

        self.net.listen("two", 9092, Mouth)

    def ask(self, producer_id=5, endpoint=None):
        answers = []
        request = EndTxnRequest("id", producer_id, 0, True)
        self.peers.ask(endpoint or self.endpoint, request, 5, answers.append)
        return answers

    async def heard(self, answers):
        with trio.fail_after(60):
            while not answers:
                await trio.sleep(0.01)
        (answer,) = answers
        return answer


@pytest.fixture
async def two(nursery, autojump_clock):
    two = Peers(nursery)
    await two.start()
    return two


async def test_questions_are_answered_in_their_order_over_one_connection(two, autojump_clock):
    await two.serve()
    asked = [two.ask(number) for number in range(50)]
    for number, answers in enumerate(asked):
        answer = await two.heard(answers)
        assert (answer.producer_id, answer.producer_epoch) == (number, 1)
    assert two.asked == list(range(50))
    assert len(two.network.connections) == 1
    assert (await two.heard(two.ask(99))).producer_id == 99
    assert len(two.network.connections) == 1


async def test_nobody_is_there(two, autojump_clock):
    await two.host("two")  # which refuses
    assert await two.heard(two.ask()) is None
    assert two.ask() == [None], "at once, until the pause is over"
    await trio.sleep(0.11)
    await two.heard(two.ask())
    for _ in range(8):  # the pause doubles, up to 1 s
        await trio.sleep(1.01)
        waiting = two.ask()
        assert waiting == []
        assert await two.heard(waiting) is None


async def test_a_broker_that_comes_back_is_asked_again(two, autojump_clock):
    await two.serve()
    assert await two.heard(two.ask())
    two.net.crash(is_silent=False)
    assert await two.heard(two.ask()) is None
    await two.serve()
    await trio.sleep(1.1)
    assert await two.heard(two.ask())


async def test_a_broker_that_comes_back_elsewhere(two, autojump_clock):
    await two.serve()
    assert await two.heard(two.ask())
    gone = SimpleNamespace(node_id=2, host="three", port=9092)
    await two.host("three")
    waiting = two.ask(endpoint=gone)
    assert await two.heard(waiting) is None
    assert await two.heard(two.ask())


async def test_what_is_on_its_way_when_the_connection_breaks_is_not_known(two, autojump_clock):
    await two.speak(lambda transport, got: transport.close() if len(got) > 60 else None)
    asked = [two.ask(number) for number in range(5)]
    assert [await two.heard(answers) for answers in asked] == [None] * 5


async def test_an_answer_that_does_not_come_is_given_up(two, autojump_clock):
    await two.speak(lambda transport, got: None)
    started = trio.current_time()
    waiting = two.ask()
    assert await two.heard(waiting) is None
    assert trio.current_time() - started == pytest.approx(peers_module.ANSWER_SECONDS, abs=2)


def where(**addresses):
    """As of those that are registered: broker 2 only, here."""
    return lambda node_id: addresses.get(f"broker{node_id}")


async def test_nobody_waits_for_a_broker_that_is_gone(two, autojump_clock):
    """It stands still: it keeps its connection, and its network answers for it."""
    await two.speak(lambda transport, got: None)
    waiting = [two.ask(number) for number in range(3)]
    await trio.sleep(1)
    two.peers.moved(where(broker2=("two", 9092)))
    two.peers.moved(where())
    assert waiting == [[], [], []], "it is still there"
    two.peers.ended([2])
    assert waiting == [[None]] * 3, "at once"
    await trio.sleep(1)
    assert two.network.connections == []


@pytest.mark.parametrize("address", [("two", 9093), ("other", 9092)])
async def test_what_was_asked_at_an_address_that_is_nobodys_now(two, address, autojump_clock):
    await two.speak(lambda transport, got: None)
    waiting = two.ask()
    await trio.sleep(1)
    two.peers.moved(where(broker2=address))
    assert waiting == [None]
    await trio.sleep(1)
    again = two.ask()
    await trio.sleep(1)
    assert (again, len(two.network.connections)) == ([], 1), "asked over a connection of its own"


async def test_what_waits_for_a_connection_is_told_too(two, autojump_clock):
    """And what is made after all is not kept."""
    await two.serve()
    waiting = two.ask()
    two.peers.ended([2])
    assert waiting == [None]
    await trio.sleep(1)
    assert two.network.connections == []
    assert two.asked == []
    assert (await two.heard(two.ask(7))).producer_id == 7


async def test_a_connection_that_cannot_be_made_in_time(two, autojump_clock):
    (await two.host("two"))[0].crash(is_silent=True)
    started = trio.current_time()
    assert await two.heard(two.ask()) is None
    assert trio.current_time() - started == pytest.approx(peers_module.CONNECT_SECONDS, abs=0.1)


@pytest.mark.parametrize(
    "bad",
    [
        struct.pack(">ii", 4, 77),  # of another request
        struct.pack(">ii", 5, 1) + b"\0",  # cut short
        struct.pack(">i", 1 << 30),  # too large
    ],
)
async def test_bad_answers_end_the_connection(two, bad, autojump_clock):
    await two.speak(lambda transport, got: transport.write([bad]))
    assert await two.heard(two.ask()) is None
    await trio.sleep(1)
    assert two.network.connections == []


async def test_too_much_for_a_broker_that_takes_nothing(two, monkeypatch, autojump_clock):
    monkeypatch.setattr(peers_module, "UNSENT_BYTES_MAX", 1_000)
    await two.serve()
    asked = [two.ask(number) for number in range(100)]
    refused = [answers for answers in asked if answers == [None]]
    assert 50 < len(refused) < 95
    for answers in asked:
        await two.heard(answers)
    assert await two.heard(two.ask())


async def test_nobody_waits_for_what_was_stopped(two, autojump_clock):
    await two.speak(lambda transport, got: None)
    first = two.ask()
    await trio.sleep(1)
    two.scope.cancel()
    await trio.sleep(1)
    assert first == [None]
    assert two.ask(endpoint=SimpleNamespace(node_id=3, host="x", port=1)) == [None]


async def test_what_waits_for_a_broker_that_is_gone_is_told_so_at_once(two, autojump_clock):
    """Its machine lost power: the connection stays silent. It is there again, and is asked anew."""
    await two.speak(lambda transport, got: None)
    asked = [two.ask(), two.ask()]
    await trio.sleep(2)
    assert asked == [[], []]
    began = trio.current_time()
    two.peers.ended([7, 2])
    with trio.fail_after(60):
        while [] in asked:
            await trio.sleep(0.01)
    assert asked == [[None], [None]]
    assert trio.current_time() - began < 1, "not after ANSWER_SECONDS"
    two.net.crash(is_silent=True)
    await two.serve()
    assert (await two.heard(two.ask(9))).producer_id == 9
