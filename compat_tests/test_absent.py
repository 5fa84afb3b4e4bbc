"""What is skipped as absent is absent: the server offers no request of such a feature."""

import time

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from harness import servers
from harness.absent import ABSENT
from harness.raw import Connection

pytestmark = pytest.mark.skipif(
    servers.target() == "control", reason="the control has all of these features"
)


@pytest.mark.parametrize("feature", [name for name, one in ABSENT.items() if one.api_keys])
def test_absent_feature_is_not_offered(server, feature):
    with Connection(server.port) as connection:
        offered = connection.api_versions()
    assert offered.keys() & set(ABSENT[feature].api_keys) == set()


def test_transactional_producer_is_told_at_once(server, name):
    """A refusal that clients do not retry: most errors of a coordinator's look-up they do."""
    producer = Producer({"bootstrap.servers": server.bootstrap, "transactional.id": name("tx")})
    started = time.monotonic()
    with pytest.raises(KafkaException) as caught:
        producer.init_transactions(20)
    assert caught.value.args[0].code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert time.monotonic() - started < 5


def test_transactional_id_gets_no_producer_id(server):
    with Connection(server.port) as connection:
        error, producer_id, _ = connection.init_producer_id("tx")
    assert (error, producer_id) == (53, -1)
