"""The tables of settings, what is in force at which level, and the file that sets them."""

from dataclasses import fields

import pytest

from bookie.config_definitions import BOOKIE_CONFIGS
from broker.cluster.config import BROKER_CONFIGS, BrokerConfig, TopicConfig
from broker.cluster.config_file import load
from broker.cluster.config_forms import Listener, parse_listener
from broker.cluster.config_group import (
    CLIENT_METRICS_CONFIGS,
    GROUP_BROKER_NAMES,
    GROUP_CONFIGS,
    GROUP_LIMITS,
)
from broker.cluster.config_topic import BROKER_NAMES, TOPIC_CONFIGS
from broker.cluster.registry import DEFAULT_BROKER, Room, Source
from broker.cluster.view import StandaloneView, ensure_cluster_id
from runtime.config import ConfigError, PropertiesError


def test_every_default_is_allowed():
    for table in (BROKER_CONFIGS, TOPIC_CONFIGS, GROUP_CONFIGS, CLIENT_METRICS_CONFIGS):
        for key in table:
            if key.default is not None:
                assert key.parse(key.default) == table.default(key.name)
            assert key.doc
            assert key.doc.endswith(".")


def test_kafka_has_no_name_that_is_missing():
    """Counts as Kafka 4.3.1 reports them, with ours, with its three rates that only exist
    dynamically, and with the two that its authorizer reads by itself."""
    ours = {name for name in BROKER_CONFIGS.names() if name.startswith("quire.")}
    assert len(BROKER_CONFIGS) - len(ours) == 360 + 3 + 2
    assert len([name for name in TOPIC_CONFIGS.names() if not name.startswith("quire.")]) == 33
    assert len(GROUP_CONFIGS) == 17


def test_names_that_point_at_others_exist():
    for name, broker_names in BROKER_NAMES.items():
        assert name in TOPIC_CONFIGS
        assert all(broker_name.name in BROKER_CONFIGS for broker_name in broker_names)
    assert all(name in BROKER_CONFIGS for name in GROUP_BROKER_NAMES.values())
    assert all(name in BROKER_CONFIGS for names in GROUP_LIMITS.values() for name in names)
    for field in fields(BrokerConfig):
        assert BROKER_CONFIGS[field.name.replace("_", ".")].has_effect
    for field in fields(TopicConfig):
        assert TOPIC_CONFIGS[field.name.replace("_", ".")].has_effect


def test_broker_and_bookie_share_no_name():
    assert not set(BROKER_CONFIGS.names()) & set(BOOKIE_CONFIGS.names())


@pytest.mark.parametrize(
    ("text", "listener"),
    [
        ("PLAINTEXT://127.0.0.1:9092", Listener("PLAINTEXT", "127.0.0.1", 9092)),
        ("plaintext://:0", Listener("PLAINTEXT", "", 0)),
        ("INSIDE_2://[::1]:65535", Listener("INSIDE_2", "::1", 65535)),
        ("A://broker-1.example:1", Listener("A", "broker-1.example", 1)),
    ],
)
def test_listeners(text, listener):
    assert parse_listener(text) == listener


@pytest.mark.parametrize(
    ("texts", "match"),
    [
        ({"listeners": "127.0.0.1:9092"}, "NAME://host:port"),
        ({"listeners": "PLAINTEXT://h:65536"}, "NAME://host:port"),
        ({"listeners": "PLAINTEXT://::1:9092"}, "NAME://host:port"),
        ({"listeners": "PLAINTEXT://a:1,PLAINTEXT://b:2"}, "two listeners have one name"),
        ({"listeners": ""}, "at least one"),
        ({"listeners": "INSIDE://a:1"}, "INSIDE is not in listener.security.protocol.map"),
        ({"advertised.listeners": "SSL://a:1"}, "SSL is no listener"),
        ({"advertised.listeners": "PLAINTEXT://0.0.0.0:1"}, "no client can connect"),
        ({"listener.security.protocol.map": "A:TLS"}, "PLAINTEXT, SSL"),
        ({"broker.id": "-2"}, "the least is 0"),
        ({"group.min.session.timeout.ms": "1800001"}, "above group.max.session"),
        ({"quire.ledger.ack.quorum": "2"}, "above quire.ledger.write.quorum=1"),
    ],
)
def test_broker_settings_that_cannot_be(texts, match):
    with pytest.raises(ConfigError, match=match):
        BrokerConfig.parse(texts)


def test_older_names():
    assert BrokerConfig.parse({}).node_id == 0
    assert BrokerConfig.parse({"broker.id": "7"}).node_id == 7
    assert BrokerConfig.parse({"broker.id": "7", "node.id": "8"}).node_id == 8


def test_a_file_for_both():
    node = load(
        "num.partitions=4\njournalMaxSizeMB=64\nprocess.roles=broker,controller\n"
        "listener.name.internal.num.network.threads=4\npageSize=8192",
        {"num.partitions": "5"},
        BOOKIE_CONFIGS,
    )
    assert node.broker.num_partitions == 5
    assert node.broker_texts["num.partitions"] == "5"
    assert node.bookie_values["journalMaxSizeMB"] == 64
    assert [(note.split()[0], "Kafka" in note, "BookKeeper" in note) for note in node.notes] == [
        ("process.roles", True, False),
        ("listener.name.internal.num.network.threads", True, False),
        ("pageSize", False, True),
    ]


def test_a_slip_in_a_listeners_name_is_told():
    texts = {
        "listeners": "CLIENTS://:1",
        "listener.security.protocol.map": "CLIENTS:SSL",
        "listener.name.clients.ssl.client.auth": "required",
    }
    assert load("", texts, BOOKIE_CONFIGS).notes == ()
    slip = {"listener.name.clinets.ssl.client.auth": "required"}
    [note] = load("", {**texts, **slip}, BOOKIE_CONFIGS).notes
    assert note.startswith("listener.name.clinets.ssl.client.auth has no effect")
    upper = {"listener.name.CLIENTS.ssl.client.auth": "required"}
    with pytest.raises(ConfigError, match="CLIENTS is written clients here"):
        load("", {**texts, **upper}, BOOKIE_CONFIGS)


@pytest.mark.parametrize(
    ("text", "error", "match"),
    [
        ("num.partition=4", ConfigError, "num.partition; the nearest known name is num.partitions"),
        ("journalDirectry=x", ConfigError, "the nearest known name is journalDirectory"),
        ("retention.ms=5", ConfigError, "the nearest known name is log.retention.ms"),
        ("max.message.bytes=5", ConfigError, "the nearest known name is message.max.bytes"),
        ("compression.type=gizp", ConfigError, r"compression.type='gizp'.*nearest: gzip"),
        ("num.io.threads=many", ConfigError, "num.io.threads='many'"),
        ("journalMaxBackups=-1", ConfigError, "journalMaxBackups='-1'"),
        ("a=\\u12", PropertiesError, "line 1"),
    ],
)
def test_a_file_that_is_refused(text, error, match):
    with pytest.raises(error, match=match):
        load(text, {}, BOOKIE_CONFIGS)


def described(listing):
    return {one.key.name: one for one in listing}


def levels(one):
    return [(s.name, s.value, int(s.source)) for s in one.synonyms]


async def test_levels_of_a_topic_setting(open_node):
    """What is set in hours alone is in force, and named nowhere (ConfigHelper.configSynonyms)."""
    node = await open_node({"log.retention.hours": "1", "min.insync.replicas": "2"})
    registry = node.registry

    def topic(overrides, name):
        return described(registry.describe_topic(overrides))[name]

    one = topic({}, "retention.ms")
    assert (one.value, one.source, levels(one)) == ("3600000", Source.DEFAULT_CONFIG, [])
    await registry.change(Room.BROKERS, DEFAULT_BROKER, lambda _: {"log.retention.ms": "1234567"})
    one = topic({}, "retention.ms")
    assert (one.value, one.source) == ("1234567", Source.DYNAMIC_DEFAULT_BROKER_CONFIG)
    await registry.change(Room.BROKERS, "0", lambda _: {"log.retention.ms": "7654321"})
    one = topic({"retention.ms": " 5 "}, "retention.ms")
    assert (one.value, one.source) == ("5", Source.DYNAMIC_TOPIC_CONFIG)
    assert levels(one) == [
        ("retention.ms", "5", 1),
        ("log.retention.ms", "7654321", 2),
        ("log.retention.ms", "1234567", 3),
        ("log.retention.hours", "1", 4),
        ("log.retention.hours", "168", 5),
    ]
    for overrides in ({}, {"segment.ms": "60000"}):
        named = [("segment.ms", "60000", 1)] if overrides else []
        assert levels(topic(overrides, "segment.ms")) == named
    assert levels(topic({}, "remote.storage.enable")) == []
    assert levels(topic({}, "min.insync.replicas")) == [
        ("min.insync.replicas", "2", 4),
        ("min.insync.replicas", "1", 5),
    ]
    assert registry.topic_config({}).retention_ms == 7_654_321


async def test_a_dynamic_change_is_in_force_at_once_and_after_a_restart(open_node):
    node = await open_node({"message.max.bytes": "1000"})
    topic = await node.catalog.create("t", 1)
    heard = []
    node.registry.subscribe(lambda: heard.append(node.registry.topic_config({}).max_message_bytes))
    assert node.catalog.config(topic).max_message_bytes == 1000
    await node.registry.change(Room.BROKERS, "0", lambda _: {"message.max.bytes": "2000"})
    assert heard == [2000]
    assert node.catalog.config(topic).max_message_bytes == 2000
    again = await open_node({"message.max.bytes": "1000"})
    assert again.registry.topic_config({}).max_message_bytes == 2000
    await again.registry.change(Room.BROKERS, "0", lambda _: {})
    assert again.registry.topic_config({}).max_message_bytes == 1000
    # An empty node stays (a version never means two things), and sets nothing.
    assert (await again.store.get("/quire/configs/brokers/0")).data == b"{}"


async def test_another_brokers_settings_are_not_ours(open_node):
    node = await open_node()
    await node.registry.change(Room.BROKERS, "7", lambda _: {"message.max.bytes": "2000"})
    assert node.registry.topic_config({}).max_message_bytes == 1_048_588


async def test_a_lost_race_is_run_again(open_node):
    first, second = await open_node(), await open_node()
    await first.registry.change(Room.BROKERS, "0", lambda _: {"max.connections": "5"})
    await second.registry.change(
        Room.BROKERS, "0", lambda before: {**before, "log.retention.ms": "9"}
    )
    both = {"max.connections": "5", "log.retention.ms": "9"}
    assert second.registry.stored(Room.BROKERS, "0") == both


async def test_a_change_that_raises_changes_nothing(open_node):
    node = await open_node()

    def change(_):
        raise ConfigError("a", "b")

    with pytest.raises(ConfigError):
        await node.registry.change(Room.GROUPS, "g", change)
    assert node.registry.stored_names(Room.GROUPS) == []


async def test_what_a_broker_refuses_leaves_what_is_in_force(open_node):
    registry = (await open_node()).registry
    before = registry.broker

    def check(texts, name="0"):
        registry.check_broker(name, texts, set(texts))

    check({"log.cleaner.threads": "2"})
    for texts, match in (
        ({"num.partitions": "2"}, r"Cannot update these configs dynamically: \[num.partitions\]"),
        ({"foo.bar": "2"}, "unknown setting foo.bar"),
        ({"message.max.bytes": "-5"}, "least is 0"),
        ({"quire.ledger.ack.quorum": "3"}, "above"),
        (
            {"log.cleaner.max.compaction.lag.ms": "1", "log.cleaner.min.compaction.lag.ms": "2"},
            "above max.compaction.lag.ms",
        ),
    ):
        with pytest.raises(ConfigError, match=match):
            check(texts)
    with pytest.raises(ConfigError, match="name a broker"):
        check({"ssl.client.auth": "required"}, DEFAULT_BROKER)
    assert registry.broker is before


async def test_secrets_are_never_described(open_node):
    node = await open_node({"ssl.key.password": "hunter2"})
    one = described(node.registry.describe_broker())["ssl.key.password"]
    assert one.key.sensitive
    assert one.value is None
    assert levels(one) == [("ssl.key.password", None, 4)]


async def test_descriptions_of_a_broker(open_node):
    node = await open_node({"num.partitions": "4"})
    all_of_it = described(node.registry.describe_broker())
    assert len(all_of_it) == len(BROKER_CONFIGS)
    assert levels(all_of_it["num.partitions"]) == [
        ("num.partitions", "4", 4),
        ("num.partitions", "1", 5),
    ]
    assert all_of_it["num.partitions"].read_only
    assert not all_of_it["log.cleaner.threads"].read_only
    retention = all_of_it["log.retention.ms"]
    assert (retention.value, levels(retention)) == (None, [])
    assert levels(all_of_it["log.retention.hours"]) == [("log.retention.hours", "168", 5)]


async def test_of_a_setting_with_several_names_the_weaker_are_told_by_level(open_node):
    """As DynamicBrokerConfig.brokerConfigSynonyms names them: minutes are told of hours too."""
    hours, minutes = ("log.retention.hours", "2", 4), ("log.retention.minutes", "7", 4)
    default = ("log.retention.hours", "168", 5)
    node = await open_node({"log.retention.hours": "2", "log.retention.minutes": "7"})
    all_of_it = described(node.registry.describe_broker())
    assert levels(all_of_it["log.retention.ms"]) == []
    assert levels(all_of_it["log.retention.minutes"]) == [minutes, hours, default]
    assert levels(all_of_it["log.retention.hours"]) == [hours, default]


async def test_group_settings(open_node):
    registry = (await open_node({"group.consumer.session.timeout.ms": "50000"})).registry
    before = described(registry.describe_named(Room.GROUPS, "g"))
    assert before["consumer.session.timeout.ms"].value == "50000"
    assert before["share.auto.offset.reset"].value == "latest"
    name = "groupé/ 1"
    await registry.change(Room.GROUPS, name, lambda _: {"consumer.session.timeout.ms": "46000"})
    assert registry.stored_names(Room.GROUPS) == [name]
    one = described(registry.describe_named(Room.GROUPS, name))["consumer.session.timeout.ms"]
    assert one.value == "46000"
    assert levels(one) == [
        ("consumer.session.timeout.ms", "46000", 8),
        ("group.consumer.session.timeout.ms", "50000", 4),
        ("group.consumer.session.timeout.ms", "45000", 5),
    ]
    for texts, match in (
        ({"consumer.session.timeout.ms": "1"}, "greater than or equal to group.consumer.min"),
        ({"consumer.session.timeout.ms": "90000"}, "less than or equal to group.consumer.max"),
        ({"share.auto.offset.reset": "by_duration:1h"}, "by_duration"),
        ({"share.auto.offset.reset": f"by_duration:P{'9' * 5000}D"}, "by_duration"),
        ({"share.auto.offset.reset": f"by_duration:PT{'9' * 19}S"}, "by_duration"),
        ({"foo": "1"}, "unknown setting"),
    ):
        with pytest.raises(ConfigError, match=match):
            registry.check_named(Room.GROUPS, texts)
    registry.check_named(Room.GROUPS, {"share.auto.offset.reset": "by_duration:P1DT2H3.5S"})


async def test_view_and_cluster_id(open_node):
    node, other = await open_node(), await open_node()
    cluster_id = await ensure_cluster_id(node.store, node.env)
    assert len(cluster_id) == 22
    assert await ensure_cluster_id(other.store, other.env) == cluster_id
    config = BrokerConfig.parse(
        {
            "node.id": "3",
            "listeners": "PLAINTEXT://:9092,INSIDE://127.0.0.1:0",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INSIDE:PLAINTEXT",
            "broker.rack": "r1",
        }
    )
    view = StandaloneView(cluster_id, config)
    view.endpoints.set_port("INSIDE", 1234)
    view.endpoints.set_port("PLAINTEXT", 1)
    (outside,), (inside,) = view.brokers("PLAINTEXT"), view.brokers("INSIDE")
    assert (outside.host, outside.port, outside.rack) == ("127.0.0.1", 9092, "r1")
    assert (inside.node_id, inside.host, inside.port) == (3, "127.0.0.1", 1234)
    assert view.controller_id in view.broker_ids()
    assert view.partition("t", 0).leader == 3
    assert view.leader("t", 0, "INSIDE") == inside
    assert view.leader("t", 0, "NOPE") is None
    with pytest.raises(ConfigError, match=r"advertised\.listeners has no INSIDE"):
        StandaloneView(
            cluster_id,
            BrokerConfig.parse(
                {
                    "listeners": "PLAINTEXT://:9092,INSIDE://:1",
                    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INSIDE:PLAINTEXT",
                    "advertised.listeners": "PLAINTEXT://h:1",
                }
            ),
        )
