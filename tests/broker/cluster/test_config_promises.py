"""Every setting acts, or says that it has no effect, or ends the start for what it promises."""

import logging

import pytest

from bookie.config_definitions import BOOKIE_CONFIGS
from broker.cluster.config import BROKER_CONFIGS
from broker.cluster.config_acls import STANDARD_AUTHORIZER
from broker.cluster.config_file import load
from broker.cluster.config_listener import OF_TLS
from broker.cluster.config_oauth import OAUTH_NAMES, VALIDATOR_CLASS
from broker.cluster.config_refusals import RefusedConfigError, refusal
from broker.cluster.config_topic import BROKER_NAMES
from broker.cluster.registry import DEFAULT_BROKER, Room
from runtime.config import ConfigError, ConfigType, Scope

#: Kafka's config/server.properties, as distributed with 4.3: what a first try starts with.
KAFKAS_OWN_FILE = """
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,\
SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kraft-combined-logs
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""

#: A value that is not the default, and is right.
REFUSED = {
    "alter.config.policy.class.name": "com.example.Policy",
    "create.topic.policy.class.name": "com.example.Policy",
    "client.quota.callback.class": "com.example.Quotas",
    "config.providers": "file",
    "principal.builder.class": "com.example.Principals",
    "remote.log.storage.system.enable": "true",
    "security.providers": "com.example.Provider",
    "transaction.two.phase.commit.enable": "true",
    "ssl.engine.factory.class": "com.example.Engines",
    "ssl.provider": "BC",
    "ssl.trustmanager.algorithm": "SunX509",
    "sasl.jaas.config": "x required;",
    "listener.name.internal.ssl.provider": "BC",
    "listener.name.internal.ssl.keymanager.algorithm": "PKIX",
    "listener.name.internal.sasl.jaas.config": "x required;",
    "listener.name.internal.gssapi.sasl.jaas.config": "x required;",
    "listener.name.internal.principal.builder.class": "com.example.Principals",
}


def test_kafkas_own_file_is_taken():
    node = load(KAFKAS_OWN_FILE, {}, BOOKIE_CONFIGS)
    assert node.broker.node_id == 1
    told = {note.split()[0] for note in node.notes}
    assert {"log.dirs", "socket.send.buffer.bytes", "process.roles"} <= told
    assert not told & {"num.partitions", "offsets.topic.replication.factor"}


@pytest.mark.parametrize(("name", "value"), REFUSED.items())
def test_a_promise_that_would_not_be_kept_ends_the_start(name, value):
    with pytest.raises(RefusedConfigError, match=f"^{name} cannot be kept: .") as caught:
        load("", {name: value}, BOOKIE_CONFIGS)
    assert caught.value.name == name
    with pytest.raises(RefusedConfigError):
        load(f"{name}={value}\n", {}, BOOKIE_CONFIGS)


def test_every_name_of_tls_and_sasl_is_refused():
    """But for those that are served, and numbers that tune how SASL's logins are made anew."""
    begun = [key for key in BROKER_CONFIGS if key.name.startswith(("ssl.", "sasl."))]
    assert len(begun) > 60
    numbers = (ConfigType.INT, ConfigType.LONG, ConfigType.DOUBLE)
    tunes = {key.name for key in begun if key.type in numbers and key.name.startswith("sasl.")}
    taken = {key.name for key in begun if refusal(key.name, other_value(key)) is None}
    oauth = {name for name in OAUTH_NAMES if name.startswith("sasl.")}
    of_sasl = {"sasl.enabled.mechanisms", "sasl.mechanism.inter.broker.protocol"}
    assert taken == tunes | oauth | of_sasl | {VALIDATOR_CLASS, *OF_TLS}
    assert "sasl.kerberos.min.time.before.relogin" in taken


def other_value(key):
    """A right value that is not the default."""
    if key.type is ConfigType.BOOLEAN:
        return "false" if key.default == "true" else "true"
    candidates = {
        ConfigType.LIST: ("x", "classic", "uniform", "PLAINTEXT://127.0.0.1:1", "delete"),
        ConfigType.DOUBLE: ("0.25", "0.75"),
    }.get(key.type, ("7", "8", "x", "4096", "2097152", "50000", "zstd", "LogAppendTime", "upgrade"))
    more = ("A:PLAINTEXT", "127.0.0.1:5", "compact", "gzip", "1", STANDARD_AUTHORIZER, "User:x",
            "TLSv1.2", "required", "PEM", "SSL", "")  # fmt: skip
    for text in (*candidates, *more):
        try:
            if key.parse(text) != key.parse_default():
                return text
        except ConfigError:
            continue
    raise AssertionError(f"no other value known for {key.name}")


def test_each_setting_acts_is_noted_or_is_refused():
    """And the default is never refused."""
    outcomes = {"acts": 0, "noted": 0, "refused": 0}
    for key in BROKER_CONFIGS:
        if key.default is not None:
            assert refusal(key.name, key.default) is None
        assert refusal(key.name, " ") is None or key.default not in (None, "")
        if key.name == "group.share.assignors":  # there is one, and no other may be named
            with pytest.raises(ConfigError):
                key.parse("uniform")
            outcomes["acts"] += key.has_effect
            continue
        text = other_value(key)
        if refusal(key.name, text) is not None:
            assert not key.has_effect, key.name
            outcomes["refused"] += 1
        elif key.has_effect:
            outcomes["acts"] += 1
        else:
            (note,) = load("", {key.name: text}, BOOKIE_CONFIGS).notes
            assert note == f"{key.name} is a setting of Kafka that has no effect here"
            outcomes["noted"] += 1
    assert all(outcomes.values())
    assert sum(outcomes.values()) == len(BROKER_CONFIGS)


def test_what_may_be_changed_while_running_acts_then():
    """Whoever adds one says here that it does; of others a change is refused."""
    acts_at_once = {
        *("cordoned.log.dirs", "producer.id.expiration.ms", "max.connections"),
        *("max.connections.per.ip", "max.connections.per.ip.overrides"),
        "max.connection.creation.rate",
        "group.consumer.assignment.interval.ms",
        "group.share.assignment.interval.ms",
        "group.streams.assignment.interval.ms",
        # tests/broker/log/compact/test_cleaner_settings.py
        *("log.cleaner.backoff.ms", "log.cleaner.dedupe.buffer.size", "log.cleaner.threads"),
        *("log.cleaner.io.buffer.load.factor", "log.cleaner.io.max.bytes.per.second"),
        # tests/broker/transactions/test_config.py, tests/broker/transactions/test_verifier.py
        "transaction.partition.verification.enable",
        *OF_TLS,  # of single listeners: tests/broker/security/tls/test_reload.py
        *(one.name for names in BROKER_NAMES.values() for one in names),
    }
    for key in BROKER_CONFIGS:
        if key.has_effect and key.scope is not Scope.READ_ONLY:
            is_refused = refusal(key.name, other_value(key)) is not None
            assert is_refused == (key.name not in acts_at_once), key.name


async def test_a_refused_change_is_not_stored(open_node):
    registry = (await open_node()).registry
    name = "config.providers"
    with pytest.raises(RefusedConfigError, match=name):
        registry.check_broker(DEFAULT_BROKER, {name: "file"}, {name})


async def test_one_that_an_earlier_version_stored_is_told_and_can_be_taken_back(open_node, caplog):
    caplog.set_level(logging.WARNING)
    stored = {"config.providers": "file", "num.io.threads": "9"}
    await (await open_node()).registry.change(Room.BROKERS, "0", lambda _: stored)
    registry = (await open_node()).registry
    notes = [one.args for one in caplog.records if one.getMessage() == "stored_setting_not_kept"]
    assert [note["setting"] for note in notes] == ["config.providers"]
    registry.check_broker("0", {}, set(stored))
