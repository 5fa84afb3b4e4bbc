"""Every declared message, field and version against Kafka 4.3's own JSON definitions.

What the definitions no longer say (fields of versions that Kafka 4 dropped) is listed here by hand;
tests against kafka-python's old classes prove those bytes.
"""

import re

import pytest
from kio.schema.errors import ErrorCode as KioErrorCode

from wire.kafka import codec
from wire.kafka.api_keys import CONTROLLER_KEYS, REMOVED_KEYS, ApiKey
from wire.kafka.compiling import carried_fields, tagged_fields
from wire.kafka.errors import ErrorCode
from wire.kafka.message import FRESH, REQUESTS, RESPONSES, ZERO_UUID, Array, Primitive, fields_of

#: (message, struct, field): what only dropped versions had.
DROPPED_FIELDS = {
    ("ListOffsetsRequest", "ListOffsetsPartition", "max_num_offsets"): "0",
    ("ListOffsetsResponse", "ListOffsetsPartitionResponse", "old_style_offsets"): "0",
    ("OffsetCommitRequest", "OffsetCommitRequestPartition", "commit_timestamp"): "1",
    ("DescribeConfigsResponse", "DescribeConfigsResourceResult", "is_default"): "0",
}
#: Kafka 3.9 served these from version 0, and so far down they are declared; 4.3 starts later.
FROM_ZERO = {
    ApiKey.FETCH,
    ApiKey.LIST_OFFSETS,
    ApiKey.OFFSET_COMMIT,
    ApiKey.OFFSET_FETCH,
    ApiKey.CREATE_TOPICS,
    ApiKey.DELETE_TOPICS,
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
    ApiKey.WRITE_TXN_MARKERS,
    ApiKey.DESCRIBE_ACLS,
    ApiKey.CREATE_ACLS,
    ApiKey.DELETE_ACLS,
    ApiKey.DESCRIBE_CONFIGS,
    ApiKey.ALTER_REPLICA_LOG_DIRS,
    ApiKey.DESCRIBE_LOG_DIRS,
    ApiKey.CREATE_DELEGATION_TOKEN,
    ApiKey.RENEW_DELEGATION_TOKEN,
    ApiKey.EXPIRE_DELEGATION_TOKEN,
    ApiKey.DESCRIBE_DELEGATION_TOKEN,
}
#: Versions that Kafka 4.3 defines but marks as unstable.
UNSTABLE = {"INIT_PRODUCER_ID": 6}

CLASSES = [*REQUESTS.values(), *RESPONSES.values()]


def snake(name):
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def covers(text, version):
    if not text or text == "none":
        return False
    low, _, high = text.partition("-")
    if text.endswith("+"):
        return version >= int(text[:-1])
    return int(low) <= version <= int(high or low)


class Expected:
    """Reads one definition as (name, type, nullable, tag, default, fields) per version."""

    def __init__(self, definition):
        self.commons = {c["name"]: c["fields"] for c in definition.get("commonStructs", [])}

    def fields(self, fields, version):
        ordinary, tagged = [], []
        for each in fields:
            if not covers(each["versions"], version):
                continue
            tag = each["tag"] if covers(each.get("taggedVersions"), version) else None
            base = each["type"].removeprefix("[]")
            nested = None
            if base[0].isupper():
                nested = self.fields(each.get("fields") or self.commons[base], version)
            item = (
                snake(each["name"]),
                each["type"] if nested is None else each["type"].replace(base, "struct"),
                covers(each.get("nullableVersions"), version),
                tag,
                self.default(each, base, tag),
                nested,
            )
            (ordinary if tag is None else tagged).append(item)
        return ordinary + sorted(tagged, key=lambda item: item[3])

    def default(self, each, base, tag):
        text = each.get("default")
        if text == "null":
            return None
        if each["type"].startswith("[]"):
            return "fresh"
        if base[0].isupper():
            # A tagged struct that was not sent is None in a message of ours.
            return None if tag is not None else "fresh"
        if base == "bool":
            return str(text or "false").lower() == "true"
        if base == "float64":
            return float(text or 0)
        if base == "uuid":
            return ZERO_UUID
        if base == "string":
            return text or ""
        if base in ("bytes", "records"):
            return b"" if base == "bytes" else None
        return int(str(text or 0), 0)


def declared(cls, version):
    items = []
    for name, spec in carried_fields(cls, version) + tagged_fields(cls, version):
        element = spec.kind.element if isinstance(spec.kind, Array) else spec.kind
        nested = None if isinstance(element, Primitive) else declared(element, version)
        text = element.value if nested is None else "struct"
        items.append(
            (
                name,
                f"[]{text}" if isinstance(spec.kind, Array) else text,
                spec.nullable.covers(version),
                spec.tag if spec.tagged.covers(version) else None,
                "fresh" if spec.default is FRESH else spec.default,
                nested,
            )
        )
    return items


def without_dropped(cls, message, version, items, definition_names):
    """Our items less the fields listed in DROPPED_FIELDS; asserts that those are where they say."""
    result = []
    for item, (name, spec) in zip(
        items, carried_fields(cls, version) + tagged_fields(cls, version), strict=True
    ):
        expected = DROPPED_FIELDS.get((message, cls.__name__, name))
        if expected is not None:
            assert covers(expected, version)
            definition_names.add((message, cls.__name__, name))
            continue
        element = spec.kind.element if isinstance(spec.kind, Array) else spec.kind
        nested = item[5]
        if nested is not None:
            nested = without_dropped(element, message, version, nested, definition_names)
        result.append((*item[:5], nested))
    return result


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_fields_are_those_of_kafka(cls, kafka_definitions):
    definition = kafka_definitions[cls.__name__]
    assert definition["apiKey"] == cls.INFO.key
    assert definition["type"] == ("request" if cls.INFO.is_request else "response")
    expected = Expected(definition)
    dropped = set()
    for version in cls.INFO.versions:
        assert cls.INFO.flexible.covers(version) == covers(definition["flexibleVersions"], version)
        ours = without_dropped(cls, cls.__name__, version, declared(cls, version), dropped)
        assert ours == expected.fields(definition["fields"], version), f"version {version}"
    assert dropped == {item for item in DROPPED_FIELDS if item[0] == cls.__name__}


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_versions_are_those_of_kafka(cls, kafka_definitions):
    low, _, high = kafka_definitions[cls.__name__]["validVersions"].partition("-")
    name = cls.INFO.key.name
    high = int(high or low)
    assert kafka_definitions[cls.__name__].get("latestVersionUnstable", False) == (
        name in UNSTABLE and cls.INFO.is_request
    )
    if name in UNSTABLE:
        assert high == UNSTABLE[name]
        high -= 1
    assert cls.INFO.versions == range(0 if cls.INFO.key in FROM_ZERO else int(low), high + 1)


def test_keys_are_those_of_the_broker_listener(kafka_definitions):
    requests = [d for d in kafka_definitions.values() if d["type"] == "request"]
    alive = [d for d in requests if d["validVersions"] != "none"]
    assert {d["apiKey"] for d in requests} == set(ApiKey)
    assert {d["apiKey"] for d in alive if "broker" in d["listeners"]} == set(REQUESTS)
    assert {d["apiKey"] for d in alive if "broker" not in d["listeners"]} == CONTROLLER_KEYS
    assert {d["apiKey"] for d in requests} - {d["apiKey"] for d in alive} == REMOVED_KEYS
    assert set(REQUESTS) == set(RESPONSES)
    for d in requests:
        assert snake(d["name"].removesuffix("Request")) == ApiKey(d["apiKey"]).name.lower()


def test_no_declared_field_is_out_of_reach():
    """A field that no version carries would be a line that means nothing."""
    for cls in CLASSES:
        reachable = set()
        for version in cls.INFO.versions:
            collect(cls, version, reachable)
        for struct, name in every_field(cls, set()):
            assert (struct, name) in reachable, f"{struct.__name__}.{name} in {cls.__name__}"


def collect(cls, version, into):
    for name, spec in carried_fields(cls, version) + tagged_fields(cls, version):
        into.add((cls, name))
        element = spec.kind.element if isinstance(spec.kind, Array) else spec.kind
        if not isinstance(element, Primitive):
            collect(element, version, into)


def every_field(cls, into):
    for name, spec in fields_of(cls):
        into.add((cls, name))
        element = spec.kind.element if isinstance(spec.kind, Array) else spec.kind
        if not isinstance(element, Primitive):
            every_field(element, into)
    return into


def test_lookups():
    assert codec.request_class(0).__name__ == "ProduceRequest"
    assert codec.response_class(0).__name__ == "ProduceResponse"
    assert codec.request_class(0).INFO.versions == range(3, 14)
    assert not codec.flexible(0, 8)
    assert codec.flexible(0, 9)
    for lookup in (codec.request_class, codec.response_class):
        with pytest.raises(ValueError, match="key 999"):
            lookup(999)


def test_error_codes_are_those_of_kafka():
    ours = {(code.name.lower(), code.value, code.retriable) for code in ErrorCode}
    theirs = {(code.name, code.value, code.retriable) for code in KioErrorCode}
    assert theirs <= ours
    # Kio follows another Kafka than 4.3; the codes themselves are without a gap.
    assert sorted(code.value for code in ErrorCode) == list(range(-1, 134))
