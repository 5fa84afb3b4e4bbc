"""The coordinator's settings are the broker's, each of them."""

from dataclasses import fields

import pytest

from broker.cluster.config import BROKER_CONFIGS, BrokerConfig
from broker.transactions.config import TransactionConfig, verification_of
from runtime.config import ConfigError, Scope

OURS = {"pending_bytes_max", "batch_bytes_max", "loads_max"}


def test_each_of_kafkas_settings_comes_from_the_brokers():
    names = [field.name for field in fields(TransactionConfig) if field.name not in OURS]
    assert len(names) == 6
    texts = {name.replace("_", "."): str(7 + at) for at, name in enumerate(names)}
    config = TransactionConfig.of(BrokerConfig.parse(texts))
    assert [getattr(config, name) for name in names] == [7 + at for at in range(len(names))]


def test_without_any_they_are_the_declared_defaults():
    config = TransactionConfig.of(BrokerConfig())
    assert config == TransactionConfig()
    for field in fields(TransactionConfig):
        if field.name not in OURS:
            key = BROKER_CONFIGS.get(field.name.replace("_", "."))
            assert key is not None
            assert getattr(config, field.name) == key.parse_default()


def test_whether_partitions_ask_follows_the_registry():
    class Registry:
        broker = BrokerConfig()

    registry = Registry()
    is_enabled = verification_of(registry)
    assert is_enabled()
    name = "transaction.partition.verification.enable"
    registry.broker = BrokerConfig.parse({name: "false"})
    assert not is_enabled()
    assert BROKER_CONFIGS.get(name).scope is Scope.CLUSTER_WIDE


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("transaction.max.timeout.ms", "0"),
        ("transactional.id.expiration.ms", "0"),
        ("transaction.remove.expired.transaction.cleanup.interval.ms", "0"),
        ("transaction.abort.timed.out.transaction.cleanup.interval.ms", "0"),
        ("transaction.state.log.load.buffer.size", "0"),
        ("transaction.state.log.num.partitions", "0"),
        ("add.partitions.to.txn.retry.backoff.max.ms", "-1"),
        ("add.partitions.to.txn.retry.backoff.ms", "0"),
        ("producer.id.expiration.ms", "0"),
        ("transaction.partition.verification.enable", "perhaps"),
    ],
)
def test_what_kafka_refuses_is_refused(name, value):
    with pytest.raises(ConfigError, match=name):
        BrokerConfig.parse({name: value})
