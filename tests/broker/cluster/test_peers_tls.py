"""Brokers that ask each other over TLS: they believe each other, or they do not."""

import random
from types import SimpleNamespace

import pytest
import trio

from broker.api import Api
from broker.cluster.config import BrokerConfig
from broker.cluster.config_listener import ListenerSettings
from broker.cluster.peers import BrokerPeers
from broker.dispatch import Dispatcher
from broker.security.listener import ListenerSecurity, SecurityProtocol
from broker.security.tls.composition import tls_server
from broker.server import KafkaServer, ServerSettings
from runtime.env import Env, RealClock
from runtime.poller import Poller
from runtime.real_net import RealNet
from runtime.timers import Timers
from runtime.turn import Turn
from tests.broker.security.tls.conftest import Authority
from wire.kafka.api_keys import ApiKey
from wire.kafka.messages.transactions import EndTxnRequest, EndTxnResponse

QUESTION = EndTxnRequest(transactional_id="t", producer_id=7, producer_epoch=1)


class Brokers:
    """Two in one process: the second listens, the first asks."""

    def __init__(self, nursery, authority):
        self.nursery = nursery
        self.authority = authority
        self.principals = []

    async def start(self, own, other, **settings):
        """`own`, `other`: their certificates."""
        self.turn, self.timers = Turn(), Timers()
        poller = Poller(self.turn)
        self.nursery.start_soon(self.turn.serve)
        await self.nursery.start(poller.run)
        await self.nursery.start(self.timers.run)
        self.net = RealNet(poller)
        await self.nursery.start(self.net.run)

        def end(request):
            self.principals.append(str(request.connection.principal))
            return EndTxnResponse(producer_id=request.body.producer_id, producer_epoch=2)

        dispatcher = Dispatcher(
            [Api(ApiKey.END_TXN, 0, 5, end)], self.nursery, self.turn, strict=True
        )
        security = ListenerSecurity(SecurityProtocol.SSL, tls=self._tls(other, settings))
        listener = KafkaServer(self.net, dispatcher, ServerSettings()).listen(
            "127.0.0.1", 0, "INTERNAL", security
        )
        self.endpoint = SimpleNamespace(
            node_id=2, host=listener.address[0], port=listener.address[1]
        )
        env = Env(RealClock(), random.Random(1), self.net, None, self.turn)
        secure = self._tls(own, settings).client_layer
        self.peers = BrokerPeers(env, "broker-1", secure)
        await self.nursery.start(self.peers.run)

    def _tls(self, made, settings):
        texts = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.key": made.key_pem.decode(),
            "ssl.keystore.certificate.chain": made.chain_pem.decode(),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.certificates": self.authority.pem.decode(),
            "ssl.client.auth": "required",
            **{name.replace("_", "."): text for name, text in settings.items()},
        }
        settings = ListenerSettings("INTERNAL", texts)
        return tls_server(settings, BrokerConfig(), self.turn, self.timers, has_sasl=False)

    async def ask(self):
        answers, done = [], trio.Event()

        def answered(message):
            answers.append(message)
            done.set()

        with trio.fail_after(10):
            self.peers.ask(self.endpoint, QUESTION, 5, answered)
            await done.wait()
        assert len(answers) == 1
        return answers[0]


@pytest.fixture
def brokers(nursery, authority):
    return Brokers(nursery, authority)


@pytest.fixture
def authority():
    return Authority()


async def test_they_know_each_other_by_their_certificates(brokers, authority):
    await brokers.start(authority.made("CN=one"), authority.made("CN=two"))
    for _ in range(3):
        assert (await brokers.ask()).producer_epoch == 2
    assert brokers.principals == ["User:CN=one"] * 3
    assert brokers.net.connection_count == 2, "one connection, both of its ends"


@pytest.mark.parametrize(
    ("own", "other"),
    [
        (lambda good: good.made("CN=one"), lambda good: good.made("CN=two", hosts=("elsewhere",))),
        (lambda good: good.made("CN=one"), lambda good: Authority("CN=x").made("CN=two")),
        (lambda good: Authority("CN=x").made("CN=one"), lambda good: good.made("CN=two")),
    ],
)
async def test_who_is_not_believed_gets_no_answer_and_is_asked_again_after_a_pause(
    brokers, authority, own, other, caplog
):
    caplog.set_level("INFO")
    await brokers.start(own(authority), other(authority))
    for _ in range(2):
        assert await brokers.ask() is None
        await trio.sleep(0.15)
    assert brokers.principals == []
    with trio.fail_after(5):
        while brokers.net.connection_count:
            await trio.sleep(0.01)


async def test_the_hosts_name_counts_unless_it_is_said_not_to(brokers, authority):
    other = authority.made("CN=two", hosts=("elsewhere",))
    algorithm = {"ssl_endpoint_identification_algorithm": ""}
    await brokers.start(authority.made("CN=one"), other, **algorithm)
    assert (await brokers.ask()).producer_epoch == 2


async def test_one_that_is_given_up_while_it_shakes_hands(brokers, authority):
    await brokers.start(authority.made("CN=one"), authority.made("CN=two"))
    answers = []
    brokers.peers.ask(brokers.endpoint, QUESTION, 5, answers.append)
    brokers.peers.ended([2])
    assert answers == [None]
    assert (await brokers.ask()).producer_epoch == 2
    with trio.fail_after(5):
        while brokers.net.connection_count > 2:
            await trio.sleep(0.01)
