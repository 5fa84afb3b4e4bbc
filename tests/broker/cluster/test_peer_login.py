"""A broker that logs in at another one before it asks, over a network in memory: the real server
hears it, or somebody who plays it."""

from __future__ import annotations

import base64
import random
import struct
from types import SimpleNamespace

import pytest
import trio
import trio.lowlevel

from broker.api import Api
from broker.cluster.config import BrokerConfig
from broker.cluster.config_listener import ListenerSettings
from broker.cluster.peers import BrokerPeers
from broker.dispatch import Dispatcher
from broker.security.listener import ListenerSecurity, SecurityProtocol
from broker.security.sasl.composition import SaslServices, sasl_layer
from broker.security.sasl.outgoing import BrokerLogin, account_of
from broker.security.sasl.scram.composition import scram_mechanism
from broker.security.sasl.scram.credentials import Credential
from broker.security.sasl.scram.hashes import BY_NAME
from broker.server import KafkaServer, ServerSettings
from runtime.config import ConfigError
from runtime.env import Env
from runtime.sim_network import NetFaults, SimNetwork
from runtime.timers import Timers
from runtime.turn import Turn
from wire.kafka.api_keys import ApiKey
from wire.kafka.messages.transactions import EndTxnRequest, EndTxnResponse

MODULE = "org.apache.kafka.common.security"
QUESTION = EndTxnRequest(transactional_id="t", producer_id=7, producer_epoch=1)
PASSWORD = "hidden away"


class Clock:
    def monotonic(self):
        return trio.current_time()

    def time_ms(self):
        return int(trio.current_time() * 1000)


class Users:
    def credentials(self, name):
        if name != "broker":
            return {}
        return {
            each: Credential.of_password(kind, PASSWORD, b"salt") for each, kind in BY_NAME.items()
        }


def texts(mechanism, user="broker", password=PASSWORD, **more):
    module = f"{MODULE}.scram.ScramLoginModule"
    users = ""
    if mechanism == "PLAIN":
        module, users = f"{MODULE}.plain.PlainLoginModule", f' user_broker="{PASSWORD}"'
    return {
        "sasl.enabled.mechanisms": mechanism,
        "sasl.mechanism.inter.broker.protocol": mechanism,
        f"listener.name.internal.{mechanism.lower()}.sasl.jaas.config": (
            f'{module} required username="{user}" password="{password}"{users};'
        ),
        **{name.replace("_", "."): text for name, text in more.items()},
    }


def account(given):
    broker = {name: text for name, text in given.items() if not name.startswith("listener.")}
    return account_of(ListenerSettings("INTERNAL", given), BrokerConfig.parse(broker))


class Brokers:
    """The first asks, the second is asked."""

    def __init__(self, nursery):
        self.nursery = nursery
        self.timers = Timers()
        self.network = SimNetwork(random.Random(7), self.timers, NetFaults())
        self.endpoint = SimpleNamespace(node_id=2, host="two", port=9092)
        self.principals = []
        self.connections = []
        self.aside = []

    async def host(self, name):
        turn = Turn()
        self.nursery.start_soon(turn.serve)
        net = self.network.host(name, turn)
        await self.nursery.start(net.run)
        return net, turn

    async def start(self, own):
        await self.nursery.start(self.timers.run)
        net, turn = await self.host("one")
        env = Env(clock=Clock(), rng=random.Random(1), net=net, disk=None, turn=turn)

        async def aside(function, *arguments):
            self.aside.append(arguments[1:])
            return function(*arguments)

        self.peers = BrokerPeers(env, "broker-1", login=BrokerLogin(account(own), env, aside))
        await self.nursery.start(self.peers.run)

    async def serve(self, given):
        self.net, turn = await self.host("two")

        def end(request):
            self.principals.append(str(request.connection.principal))
            if not any(request.connection is each for each in self.connections):
                self.connections.append(request.connection)
            return EndTxnResponse(producer_id=request.body.producer_id, producer_epoch=2)

        dispatcher = Dispatcher([Api(ApiKey.END_TXN, 0, 5, end)], self.nursery, turn, strict=True)
        broker = {name: text for name, text in given.items() if not name.startswith("listener.")}
        makers = {
            name: scram_mechanism(kind, Users(), None, b"secret", random.Random(3))
            for name, kind in BY_NAME.items()
        }
        services = SaslServices(BrokerConfig.parse(broker), self.timers, Clock(), makers)
        self.sasl = sasl_layer(ListenerSettings("INTERNAL", given), services)
        KafkaServer(self.net, dispatcher, ServerSettings()).listen(
            "two", 9092, "INTERNAL", ListenerSecurity(SecurityProtocol.SASL_PLAINTEXT, self.sasl)
        )

    async def ask(self):
        answers, done = [], trio.Event()

        def answered(message):
            answers.append(message)
            done.set()

        with trio.fail_after(20):
            self.peers.ask(self.endpoint, QUESTION, 5, answered)
            await done.wait()
        assert len(answers) == 1
        return answers[0]


def reasons(caplog):
    """Why logins failed, as the log has it."""
    return " ".join(
        str(record.args) for record in caplog.records if record.msg == "broker_login_failed"
    )


@pytest.fixture
def brokers(nursery):
    return Brokers(nursery)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_a_broker_logs_in_and_then_asks_over_one_connection(
    autojump_clock, brokers, mechanism
):
    given = texts(mechanism)
    await brokers.start(given)
    await brokers.serve(given)
    for _ in range(3):
        assert (await brokers.ask()).producer_epoch == 2
    assert brokers.principals == ["User:broker"] * 3
    assert brokers.sasl.logins_count == 1


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
@pytest.mark.parametrize("wrong", [{"user": "nobody"}, {"password": "another"}])
async def test_who_is_refused_gets_no_answer_and_tries_again_after_a_pause(
    autojump_clock, brokers, mechanism, wrong, caplog
):
    await brokers.start(texts(mechanism, **wrong))
    await brokers.serve(texts(mechanism))
    assert await brokers.ask() is None
    assert await brokers.ask() is None, "in the pause nobody is asked"
    assert brokers.sasl.failed_count == 1
    await trio.sleep(1)
    assert await brokers.ask() is None
    assert brokers.sasl.failed_count == 2
    assert brokers.principals == []
    assert "SASL_AUTHENTICATION_FAILED" in reasons(caplog)
    assert "another" not in reasons(caplog)


async def test_a_mechanism_that_the_other_does_not_have(autojump_clock, brokers, caplog):
    await brokers.start(texts("SCRAM-SHA-256"))
    await brokers.serve(texts("SCRAM-SHA-512"))
    assert await brokers.ask() is None
    assert "UNSUPPORTED_SASL_MECHANISM, SCRAM-SHA-256 is wanted" in reasons(caplog)


async def test_a_session_that_ends_is_followed_by_another_before_its_end(autojump_clock, brokers):
    """KIP-368 at the other side: a request past the end would close the connection."""
    given = texts("SCRAM-SHA-512", connections_max_reauth_ms="10000")
    await brokers.start(given)
    await brokers.serve(given)
    for _ in range(30):
        assert (await brokers.ask()).producer_epoch == 2
        await trio.sleep(1)
    assert 3 <= brokers.sasl.logins_count <= 4
    assert brokers.sasl.expired_count == 0
    assert len(brokers.connections) == brokers.sasl.logins_count
    assert len(brokers.aside) == 1, "the password is salted once"
    await trio.sleep(2)
    assert brokers.net.connection_count == 1, "the old ones are closed"


async def test_what_waits_at_a_session_that_ends_is_answered(autojump_clock, brokers):
    given = texts("PLAIN", connections_max_reauth_ms="2000")
    await brokers.start(given)
    await brokers.serve(given)
    answers = []
    assert (await brokers.ask()).producer_epoch == 2
    await trio.sleep_until(brokers.peers._peers[2].session_ends - 1e-6)
    # These go by the old connection, the next one by another.
    for _ in range(5):
        brokers.peers.ask(brokers.endpoint, QUESTION, 5, answers.append)
    await trio.sleep(2e-6)
    assert answers == [], "they are on their way"
    assert (await brokers.ask()).producer_epoch == 2
    await trio.sleep(1)
    assert brokers.net.connection_count == 1, "the old one is closed"
    assert [each.producer_epoch for each in answers] == [2] * 5
    assert brokers.sasl.logins_count == 2


class _Played:
    """Somebody who answers a login as `answer(number of the frame, body)` says."""

    def __init__(self, answer):
        self._answer = answer
        self._data = bytearray()
        self._count = 0

    def connected(self, transport):
        self.transport = transport
        self._buffer = bytearray(65536)
        return self

    def receive_buffer(self):
        return memoryview(self._buffer)

    def received(self, count):
        self._data += self._buffer[:count]
        while len(self._data) >= 4:
            (size,) = struct.unpack_from(">i", self._data)
            if len(self._data) < 4 + size:
                return
            frame = bytes(self._data[4 : 4 + size])
            del self._data[: 4 + size]
            self._count += 1
            said = self._answer(self._count, frame)
            if said is None:
                self.transport.close()
                return
            if said:
                self.transport.write([struct.pack(">i", len(said)) + said])

    def drained(self):
        return

    def closed(self):
        return


def _handshaken():
    return struct.pack(">ihi", 0, 0, 0)


def _token(token):
    """A SaslAuthenticateResponse of version 2 without an error."""
    return (
        struct.pack(">i", 0)
        + b"\0"
        + struct.pack(">h", 0)
        + b"\0"
        + bytes([len(token) + 1])
        + token
        + struct.pack(">q", 0)
        + b"\0"
    )


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ([None], "it closed the connection"),
        ([b""], "no answer in time"),
        ([_handshaken(), None], "it closed the connection"),
        ([b"\xff" * 9], "it closed the connection"),
        ([_handshaken(), _token(b"r=other,s=c2FsdA==,i=4096")], "another nonce"),
        ([_handshaken(), _token(b"hello")], "no nonce, salt and iterations"),
    ],
)
async def test_somebody_who_is_no_broker_is_told_nothing(
    autojump_clock, brokers, caplog, answers, reason
):
    await brokers.start(texts("SCRAM-SHA-512"))
    net, _ = await brokers.host("two")
    played = _Played(lambda number, _: answers[number - 1])
    net.listen("two", 9092, played.connected)
    assert await brokers.ask() is None
    assert reason in reasons(caplog)


async def test_who_does_not_show_that_he_has_the_password_is_told_nothing(
    autojump_clock, brokers, caplog
):
    """Somebody who answers as a server does, up to its own proof."""

    def answer(number, frame):
        if number == 1:
            return _handshaken()
        if number == 2:
            nonce = frame.rpartition(b"r=")[2].rstrip(b"\0")
            return _token(b"r=" + nonce + b"more,s=c2FsdA==,i=4096")
        return _token(b"v=" + base64.b64encode(bytes(64)))

    await brokers.start(texts("SCRAM-SHA-512"))
    net, _ = await brokers.host("two")
    net.listen("two", 9092, _Played(answer).connected)
    assert await brokers.ask() is None
    assert "does not show that it has the password" in reasons(caplog)


async def test_one_that_is_given_up_while_it_logs_in(autojump_clock, brokers):
    given = texts("SCRAM-SHA-512")
    await brokers.start(given)
    await brokers.serve(given)
    answers = []
    brokers.peers.ask(brokers.endpoint, QUESTION, 5, answers.append)
    await trio.lowlevel.checkpoint()
    brokers.peers.ended([2])
    assert answers == [None]
    assert (await brokers.ask()).producer_epoch == 2


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"sasl.mechanism.inter.broker.protocol": "GSSAPI"}, "do not log in to each other by GSS"),
        ({"sasl.mechanism.inter.broker.protocol": "OAUTHBEARER"}, "by OAUTHBEARER, only by one of"),
        ({"sasl.enabled.mechanisms": "SCRAM-SHA-256"}, "PLAIN is not in sasl.enabled.mechanisms"),
        ({"listener.name.internal.plain.sasl.jaas.config": None}, "must have the username and"),
        (
            {"listener.name.internal.plain.sasl.jaas.config": 'a.PlainLoginModule required a="b";'},
            "must have the username and password",
        ),
        (
            {"listener.name.internal.plain.sasl.jaas.config": "ScramLoginModule required;"},
            "is not PlainLoginModule",
        ),
    ],
)
def test_what_ends_the_start(change, match):
    given = {name: text for name, text in {**texts("PLAIN"), **change}.items() if text is not None}
    with pytest.raises(ConfigError, match=match) as raised:
        account(given)
    assert PASSWORD not in str(raised.value)


def test_an_account_does_not_show_its_password():
    assert PASSWORD not in repr(account(texts("PLAIN")))
