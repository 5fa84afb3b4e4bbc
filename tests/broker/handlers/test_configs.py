"""Describe, alter and list settings: the answers that Kafka 4.3.1 gave to the same."""

import logging

import pytest

from broker.cluster.config import BROKER_CONFIGS
from broker.cluster.registry import Room
from wire.kafka.errors import ErrorCode
from wire.kafka.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsRequestAlterableConfig,
    AlterConfigsRequestAlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
    ListConfigResourcesRequest,
)

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)


@pytest.fixture
async def admin(broker):
    await broker.catalog.create("a1", 1, {})
    return Admin(broker)


class Admin:
    def __init__(self, broker):
        self.broker = broker

    async def describe(self, kind, name, keys=None, *, version=4, synonyms=True, docs=False):
        """(error's name, {setting: result})"""
        body = DescribeConfigsRequest(
            resources=[DescribeConfigsResource(kind, name, keys)],
            include_synonyms=synonyms,
            include_documentation=docs,
        )
        (result,) = (await self.broker.call(body, version)).results
        assert (result.resource_type, result.resource_name) == (kind, name)
        return ErrorCode(result.error_code).name, {one.name: one for one in result.configs}

    async def one(self, kind, name, setting):
        """(value, source, synonyms)"""
        _, configs = await self.describe(kind, name, [setting])
        found = configs[setting]
        return (
            found.value,
            found.config_source,
            [(s.name, s.value, s.source) for s in found.synonyms],
        )

    async def change(self, kind, name, *operations, validate_only=False, version=1):
        body = IncrementalAlterConfigsRequest(
            resources=[
                IncrementalAlterConfigsRequestAlterConfigsResource(
                    kind,
                    name,
                    [
                        IncrementalAlterConfigsRequestAlterableConfig(setting, operation, value)
                        for setting, operation, value in operations
                    ],
                )
            ],
            validate_only=validate_only,
        )
        return self.outcome(await self.broker.call(body, version), kind, name)

    async def replace(self, kind, name, *pairs, version=2):
        body = AlterConfigsRequest(
            resources=[
                AlterConfigsRequestAlterConfigsResource(
                    kind, name, [AlterConfigsRequestAlterableConfig(*pair) for pair in pairs]
                )
            ]
        )
        return self.outcome(await self.broker.call(body, version), kind, name)

    def outcome(self, response, kind, name):
        (result,) = response.responses
        self.message = result.error_message
        assert (result.resource_type, result.resource_name) == (kind, name)
        assert (result.error_message is None) == (result.error_code == 0)
        return ErrorCode(result.error_code).name


@pytest.mark.parametrize("version", range(1, 5))
async def test_describe_lists_every_setting(admin, version):
    code, configs = await admin.describe(TOPIC, "a1", version=version, docs=True)
    assert code == "NONE"
    assert len([name for name in configs if not name.startswith("quire.")]) == 33
    retention = configs["retention.ms"]
    assert (retention.value, retention.config_source) == ("604800000", 5)
    assert not retention.read_only
    assert (retention.config_type, bool(retention.documentation)) == (
        (5, True) if version >= 3 else (0, False)
    )
    assert retention.synonyms == []
    assert [(s.name, s.value, s.source) for s in configs["cleanup.policy"].synonyms] == [
        ("log.cleanup.policy", "delete", 5)
    ]
    _, everything = await admin.describe(TOPIC, "a1", [], version=version, synonyms=False)
    assert everything.keys() == configs.keys()
    assert not any(one.synonyms for one in everything.values())
    _, chosen = await admin.describe(TOPIC, "a1", ["retention.ms", "nope"], version=version)
    assert list(chosen) == ["retention.ms"]


@pytest.mark.parametrize(
    ("kind", "name", "code", "count"),
    [
        (TOPIC, "nope", "UNKNOWN_TOPIC_OR_PARTITION", 0),
        (TOPIC, "", "INVALID_TOPIC_EXCEPTION", 0),
        (TOPIC, "a b", "INVALID_TOPIC_EXCEPTION", 0),
        (BROKER, "0", "NONE", len(BROKER_CONFIGS)),
        (BROKER, "", "NONE", 0),
        (BROKER, "7", "INVALID_REQUEST", 0),
        (BROKER, "x", "INVALID_REQUEST", 0),
        (LOGGER, "7", "INVALID_REQUEST", 0),
        (LOGGER, "", "INVALID_REQUEST", 0),
        (METRICS, "m", "NONE", 3),
        (METRICS, "", "INVALID_REQUEST", 0),
        (GROUP, "g", "NONE", 17),
        (GROUP, "", "INVALID_REQUEST", 0),
        (0, "a", "INVALID_REQUEST", 0),
        (9, "a", "INVALID_REQUEST", 0),
    ],
)
async def test_describe_resources(admin, kind, name, code, count):
    found, configs = await admin.describe(kind, name)
    assert (found, len(configs)) == (code, count)


async def test_describe_a_broker(admin):
    assert await admin.one(BROKER, "0", "num.partitions") == (
        "4",
        4,
        [("num.partitions", "4", 4), ("num.partitions", "1", 5)],
    )
    _, configs = await admin.describe(BROKER, "0")
    assert configs["num.partitions"].read_only
    assert not configs["num.io.threads"].read_only
    assert configs["ssl.key.password"].is_sensitive
    assert {name: configs[name].config_type for name in ("log.dirs", "log.cleaner.enable")} == {
        "log.dirs": 7,
        "log.cleaner.enable": 1,
    }


@pytest.mark.parametrize(
    ("operations", "code"),
    [
        ([("retention.ms", SET, "99")], "NONE"),
        ([("retention.ms", SET, "x")], "INVALID_CONFIG"),
        ([("retention.ms", SET, "")], "INVALID_CONFIG"),
        ([("retention.ms", SET, None)], "INVALID_REQUEST"),
        ([("retention.ms", DELETE, None)], "NONE"),
        ([("retention.ms", APPEND, "5")], "INVALID_CONFIG"),
        ([("retention.ms", 4, "5")], "INVALID_REQUEST"),
        ([("retention.ms", SET, "1"), ("retention.ms", SET, "2")], "INVALID_REQUEST"),
        ([("foo", SET, "x")], "INVALID_CONFIG"),
        ([("foo", DELETE, None)], "NONE"),
        ([("foo", APPEND, "x")], "INVALID_CONFIG"),
        ([("retention.ms", SET, "5"), ("foo", SET, "x")], "INVALID_CONFIG"),
        ([], "NONE"),
        (
            [("max.compaction.lag.ms", SET, "1"), ("min.compaction.lag.ms", SET, "2")],
            "INVALID_CONFIG",
        ),
        ([("leader.replication.throttled.replicas", APPEND, "0:0")], "NONE"),
        ([("leader.replication.throttled.replicas", APPEND, "0:x")], "INVALID_CONFIG"),
        ([("cleanup.policy", APPEND, "compct")], "INVALID_CONFIG"),
        ([("cleanup.policy", SUBTRACT, "nope")], "NONE"),
    ],
)
async def test_change_a_topic(admin, operations, code):
    assert await admin.change(TOPIC, "a1", *operations, validate_only=True) == code
    assert admin.broker.catalog.get("a1").configs == {}
    assert await admin.change(TOPIC, "a1", *operations) == code
    if code != "NONE":
        assert admin.broker.catalog.get("a1").configs == {}


@pytest.mark.parametrize("version", [0, 1])
async def test_append_and_subtract(admin, version):
    async def edit(operation, value):
        change = ("cleanup.policy", operation, value)
        assert await admin.change(TOPIC, "a1", change, version=version) == "NONE"
        return (await admin.one(TOPIC, "a1", "cleanup.policy"))[:2]

    assert await edit(APPEND, "compact") == ("delete,compact", 1)
    assert await edit(SUBTRACT, "delete") == ("compact", 1)
    assert await edit(APPEND, "compact,delete") == ("compact,delete", 1)
    assert await edit(DELETE, None) == ("delete", 5)
    topic = admin.broker.catalog.get("a1")
    assert admin.broker.catalog.config(topic).cleanup_policy == ("delete",)


async def test_a_change_is_in_force_at_once(admin):
    await admin.change(TOPIC, "a1", ("max.message.bytes", SET, "1234"))
    catalog = admin.broker.catalog
    assert catalog.config(catalog.get("a1")).max_message_bytes == 1234
    assert await admin.change(BROKER, "", ("log.retention.ms", SET, "1234567")) == "NONE"
    assert catalog.config(catalog.get("a1")).retention_ms == 1_234_567
    assert await admin.change(BROKER, "0", ("log.retention.ms", SET, "7654321")) == "NONE"
    assert await admin.one(TOPIC, "a1", "retention.ms") == (
        "7654321",
        2,
        [
            ("log.retention.ms", "7654321", 2),
            ("log.retention.ms", "1234567", 3),
            ("log.retention.hours", "168", 5),
        ],
    )
    assert await admin.one(BROKER, "", "log.retention.ms") == (
        "1234567",
        3,
        [("log.retention.ms", "1234567", 3)],
    )
    await admin.change(BROKER, "", ("log.retention.ms", DELETE, None))
    await admin.change(BROKER, "0", ("log.retention.ms", DELETE, None))
    assert catalog.config(catalog.get("a1")).retention_ms == 604_800_000


@pytest.mark.parametrize(
    ("kind", "name", "operation", "code"),
    [
        (TOPIC, "nope", ("retention.ms", SET, "1"), "UNKNOWN_TOPIC_OR_PARTITION"),
        (TOPIC, "", ("retention.ms", SET, "1"), "INVALID_REQUEST"),
        (BROKER, "0", ("log.cleaner.threads", SET, "2"), "NONE"),
        (BROKER, "0", ("num.partitions", SET, "2"), "INVALID_REQUEST"),
        (BROKER, "", ("listeners", SET, "PLAINTEXT://:9092"), "INVALID_REQUEST"),
        (BROKER, "0", ("foo.bar", SET, "2"), "INVALID_CONFIG"),
        (BROKER, "7", ("log.cleaner.threads", SET, "2"), "INVALID_REQUEST"),
        (BROKER, "x", ("log.cleaner.threads", SET, "2"), "INVALID_REQUEST"),
        (BROKER, "0", ("log.retention.ms", SET, "x"), "INVALID_REQUEST"),
        (BROKER, "0", ("message.max.bytes", SET, "-5"), "INVALID_REQUEST"),
        (BROKER, "0", ("log.cleanup.policy", APPEND, "compact"), "NONE"),
        (GROUP, "g", ("consumer.session.timeout.ms", SET, "46000"), "NONE"),
        (GROUP, "g", ("consumer.session.timeout.ms", SET, "1"), "INVALID_CONFIG"),
        (GROUP, "g", ("consumer.session.timeout.ms", SET, "90000"), "INVALID_CONFIG"),
        (GROUP, "g", ("consumer.session.timeout.ms", SET, "x"), "INVALID_CONFIG"),
        (GROUP, "g", ("foo", SET, "1"), "INVALID_CONFIG"),
        (GROUP, "", ("consumer.session.timeout.ms", SET, "46000"), "INVALID_REQUEST"),
        (METRICS, "m", ("interval.ms", SET, "1000"), "NONE"),
        (METRICS, "m", ("interval.ms", SET, "1"), "INVALID_REQUEST"),
        (METRICS, "m", ("match", SET, "foo=bar"), "INVALID_CONFIG"),
        (METRICS, "m", ("match", SET, "client_id=("), "INVALID_CONFIG"),
        (METRICS, "m", ("foo", SET, "1"), "INVALID_REQUEST"),
        (METRICS, "", ("interval.ms", SET, "1000"), "INVALID_REQUEST"),
        (LOGGER, "0", ("no.such.logger", SET, "DEBUG"), "INVALID_CONFIG"),
        (LOGGER, "0", ("root", SET, "FOO"), "INVALID_CONFIG"),
        (LOGGER, "0", ("root", DELETE, None), "INVALID_REQUEST"),
        (LOGGER, "7", ("root", SET, "INFO"), "INVALID_REQUEST"),
        (9, "0", ("root", SET, "FOO"), "INVALID_REQUEST"),
    ],
)
async def test_change_other_resources(admin, kind, name, operation, code):
    assert await admin.change(kind, name, operation, validate_only=True) == code
    assert await admin.change(kind, name, operation) == code


async def test_appending_to_a_brokers_list_begins_with_what_is_in_force(admin):
    await admin.change(BROKER, "0", ("log.cleanup.policy", APPEND, "compact"))
    assert (await admin.one(BROKER, "0", "log.cleanup.policy"))[:2] == ("delete,compact", 2)


async def test_group_and_subscription_settings_are_kept(admin):
    await admin.change(GROUP, "g", ("consumer.session.timeout.ms", SET, "46000"))
    assert await admin.one(GROUP, "g", "consumer.session.timeout.ms") == (
        "46000",
        8,
        [
            ("consumer.session.timeout.ms", "46000", 8),
            ("group.consumer.session.timeout.ms", "45000", 5),
        ],
    )
    await admin.change(METRICS, "m", ("metrics", APPEND, "a,b"))
    assert await admin.one(METRICS, "m", "metrics") == ("a,b", 7, [("metrics", "a,b", 7)])
    assert await admin.one(METRICS, "m", "interval.ms") == ("300000", 5, [])


@pytest.mark.parametrize("version", range(3))
async def test_replacing_drops_what_is_not_named(admin, version):
    both = [("retention.ms", "123"), ("segment.ms", "5")]
    assert await admin.replace(TOPIC, "a1", *both, version=version) == "NONE"
    assert await admin.replace(TOPIC, "a1", ("retention.ms", "124"), version=version) == "NONE"
    assert dict(admin.broker.catalog.get("a1").configs) == {"retention.ms": "124"}
    assert await admin.replace(TOPIC, "a1", ("retention.ms", None)) == "INVALID_REQUEST"
    assert await admin.replace(TOPIC, "a1", ("foo", "1")) == "INVALID_CONFIG"
    assert await admin.replace(TOPIC, "nope", ("retention.ms", "1")) == (
        "UNKNOWN_TOPIC_OR_PARTITION"
    )
    assert await admin.replace(BROKER, "0", ("num.partitions", "3")) == "INVALID_REQUEST"
    assert await admin.replace(LOGGER, "0", ("root", "INFO")) == "INVALID_REQUEST"
    assert await admin.replace(GROUP, "g", ("consumer.session.timeout.ms", "47000")) == "NONE"
    assert await admin.replace(GROUP, "g") == "NONE"
    assert (await admin.one(GROUP, "g", "consumer.session.timeout.ms"))[1] == 5


async def test_a_resource_named_twice(admin):
    resource = AlterConfigsRequestAlterConfigsResource(TOPIC, "a1", [])
    other = AlterConfigsRequestAlterConfigsResource(GROUP, "g", [])
    body = AlterConfigsRequest(resources=[resource, resource, other])
    codes = [one.error_code for one in (await admin.broker.call(body)).responses]
    assert codes == [ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_REQUEST, 0]


async def test_logger_levels(admin):
    logger = logging.getLogger("broker.some.module")
    try:
        change = ("broker.some.module", SET, "DEBUG")
        assert await admin.change(LOGGER, "0", change, validate_only=True) == "NONE"
        assert logger.level == logging.NOTSET
        assert await admin.change(LOGGER, "0", change) == "NONE"
        assert logger.level == logging.DEBUG
        value, source, _ = await admin.one(LOGGER, "0", "broker.some.module")
        assert (value, source) == ("DEBUG", 6)
        assert await admin.change(LOGGER, "0", ("broker.some.module", DELETE, None)) == "NONE"
        assert logger.level == logging.NOTSET
        _, levels = await admin.describe(LOGGER, "0")
        assert levels["broker.some.module"].value == levels["root"].value
    finally:
        logger.setLevel(logging.NOTSET)


async def test_list_resources(admin):
    await admin.change(GROUP, "g", ("consumer.session.timeout.ms", SET, "46000"))
    await admin.change(METRICS, "m", ("interval.ms", SET, "1000"))

    async def listed(*types, version=1):
        body = ListConfigResourcesRequest(resource_types=list(types))
        response = await admin.broker.call(body, version)
        found = [(one.resource_name, one.resource_type) for one in response.config_resources]
        return ErrorCode(response.error_code).name, found

    everything = [("g", GROUP), ("m", METRICS), ("0", LOGGER), ("0", BROKER), ("a1", TOPIC)]
    assert await listed() == ("NONE", everything)
    assert await listed(version=0) == ("NONE", [("m", METRICS)])
    assert await listed(TOPIC, GROUP) == ("NONE", [("g", GROUP), ("a1", TOPIC)])
    assert await listed(9) == ("UNSUPPORTED_VERSION", [])


@pytest.mark.parametrize("name", ["", "0"])
@pytest.mark.parametrize(
    ("setting", "value", "reason"),
    [
        ("config.providers", "file", "not looked up"),
    ],
)
async def test_a_change_that_would_not_be_done_is_refused(admin, setting, value, reason, name):
    assert await admin.change(BROKER, name, (setting, SET, value)) == "INVALID_CONFIG"
    assert reason in admin.message
    assert await admin.replace(BROKER, name, (setting, value)) == "INVALID_CONFIG"
    assert reason in admin.message
    assert admin.broker.registry.stored(Room.BROKERS, name or "default") == {}
    before = await admin.one(BROKER, name or "0", "max.connections")
    assert before[0] == str(2**31 - 1)


async def test_a_brokers_own_security_is_refused(admin):
    change = ("ssl.client.auth", SET, "required")
    assert await admin.change(BROKER, "0", change) == "INVALID_CONFIG"
    assert "it is set of one listener" in admin.message
    for name in ("ssl.keystore.password", "listener.name.x.ssl.keystore.password"):
        assert await admin.change(BROKER, "0", (name, SET, "hush")) == "INVALID_CONFIG"
        assert "hush" not in admin.message


async def test_what_has_no_effect_is_told(admin, caplog):
    caplog.set_level(logging.WARNING)
    changes = [
        (BROKER, "0", ("num.io.threads", SET, "9"), ("log.retention.ms", SET, "9")),
        (GROUP, "g", ("streams.num.standby.replicas", SET, "1")),  # acts, as all of groups do
        (METRICS, "m", ("interval.ms", SET, "1000")),  # acts: broker/telemetry/
    ]
    for kind, name, *operations in changes:
        assert await admin.change(kind, name, *operations) == "NONE"
        assert await admin.change(kind, name, *operations) == "NONE"  # as it is: nothing to tell
    told = [one.args for one in caplog.records if one.getMessage() == "setting_without_effect"]
    assert [(note["owner"], note["settings"]) for note in told] == [
        ("brokers/0", "num.io.threads"),
    ]


async def test_settings_of_an_absent_topic_are_refused_in_the_words_of_kafka(admin):
    change = ("retention.ms", SET, "1")
    assert await admin.change(TOPIC, "absent", change) == "UNKNOWN_TOPIC_OR_PARTITION"
    assert admin.message == "The topic 'absent' does not exist."
