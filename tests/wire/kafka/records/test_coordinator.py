"""Coordinator records: field by field against Kafka's definitions, byte by byte against Kafka."""

import json
import os
import re
import zipfile
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.kafka.errors import EncodeError, WireError
from wire.kafka.message import Array, Primitive, fields_of
from wire.kafka.records.coordinator import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
    decode_group_key,
    decode_transaction_key,
    decode_value,
    encode_key,
    encode_value,
)
from wire.kafka.records.share_group import ShareGroupMetadataKey
from wire.kafka.records.streams_group import StreamsGroupMetadataKey

T0 = 1_700_000_000_000
DEFINITIONS = json.loads((Path(__file__).parent / "vectors" / "coordinator.json").read_text())
CLASSES = {
    "OffsetCommitKey": OffsetCommitKey,
    "OffsetCommitValue": OffsetCommitValue,
    "GroupMetadataKey": GroupMetadataKey,
    "GroupMetadataValue": GroupMetadataValue,
    "MemberMetadata": MemberMetadata,
    "TransactionLogKey": TransactionLogKey,
    "TransactionLogValue": TransactionLogValue,
    "PartitionsSchema": PartitionsSchema,
}

OFFSET = OffsetCommitValue(
    offset=123456789012, leader_epoch=6, metadata="meta", commit_timestamp=T0
)
MEMBER = MemberMetadata(
    member_id="m-1",
    group_instance_id="static-1",
    client_id="c",
    client_host="/10.0.0.1",
    rebalance_timeout=300_000,
    session_timeout=45_000,
    subscription=b"\1\2\3",
    assignment=b"\4\5",
)
GROUP = GroupMetadataValue(
    protocol_type="consumer",
    generation=12,
    protocol="range",
    leader="m-1",
    current_state_timestamp=T0,
    members=[MEMBER],
)
EMPTY_GROUP = GroupMetadataValue(protocol=None, leader=None)
TRANSACTION = TransactionLogValue(
    producer_id=42,
    producer_epoch=3,
    transaction_timeout_ms=60_000,
    transaction_status=1,
    transaction_partitions=[PartitionsSchema("t", [0, 2])],
    transaction_last_update_timestamp_ms=T0,
    transaction_start_timestamp_ms=T0 - 1,
)


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _check_fields(name: str, fields: list[dict], structs: dict[str, list[dict]]) -> None:
    """Every field of Kafka's definition is ours, in the same order, with the same properties."""
    ours = fields_of(CLASSES[name])
    assert [each for each, _ in ours] == [_snake(each["name"]) for each in fields]
    for (field_name, spec), theirs in zip(ours, fields, strict=True):
        where = f"{name}.{field_name}"
        kind = theirs["type"]
        assert isinstance(spec.kind, Array) == kind.startswith("[]"), where
        element = spec.kind.element if isinstance(spec.kind, Array) else spec.kind
        expected = kind.removeprefix("[]")
        if isinstance(element, Primitive):
            assert element.value == expected, where
        else:
            assert element.__name__ == expected, where
            _check_fields(expected, theirs.get("fields") or structs[expected], structs)
        versions = theirs.get("versions") or theirs["taggedVersions"]
        assert str(spec.versions.low) == re.split(r"[-+]", versions)[0], where
        assert (spec.versions.high > 100) == versions.endswith("+"), where
        assert spec.tag == theirs.get("tag"), where
        assert (spec.nullable.low <= spec.nullable.high) == ("nullableVersions" in theirs), where
        if "nullableVersions" in theirs:
            assert f"{spec.nullable.low}+" == theirs["nullableVersions"], where
        if (default := theirs.get("default")) is not None:
            assert spec.default == (None if default == "null" else int(default)), where


@pytest.mark.parametrize("definition", DEFINITIONS, ids=[each["name"] for each in DEFINITIONS])
def test_declared_as_kafka_does(definition):
    name = definition["name"]
    info = CLASSES[name].INFO
    low, _, high = definition["validVersions"].partition("-")
    assert info.versions == range(int(low), int(high or low) + 1)
    flexible = definition["flexibleVersions"]
    if flexible == "none":
        assert not any(info.flexible.covers(version) for version in info.versions)
    else:
        assert f"{info.flexible.low}+" == flexible
    structs = {each["name"]: each["fields"] for each in definition.get("commonStructs", [])}
    _check_fields(name, definition["fields"], structs)


def _facts(definition):
    """A definition without its prose, as the copy here is."""
    if isinstance(definition, dict):
        return {name: _facts(each) for name, each in definition.items() if name != "about"}
    if isinstance(definition, list):
        return [_facts(each) for each in definition]
    return definition


def _jars():
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(os.environ.get("QUIRE_KAFKA_JARS") or cache / "quire" / "jars" / "kafka")
    assert folder.is_dir(), f"Kafka's jars are not in {folder}: run `make peers`"
    return folder


def test_definitions_are_those_of_the_jars():
    found = {}
    for jar in _jars().glob("kafka-*coordinator-[0-9]*.jar"):
        with zipfile.ZipFile(jar) as archive:
            for member in archive.namelist():
                name = Path(member).stem
                if member.startswith("common/message/") and name in CLASSES:
                    text = archive.read(member).decode()
                    definition = json.loads(re.sub(r"(?m)^\s*//.*$", "", text))
                    found[name] = _facts(definition)
    assert found == {each["name"]: each for each in DEFINITIONS}


def test_keys_are_java_s(vectors):
    offset_key = OffsetCommitKey("g", "t", 3)
    for key, name, decoder in (
        (offset_key, "offset_key", decode_group_key),
        (GroupMetadataKey("gü"), "group_key", decode_group_key),
        (TransactionLogKey("tx"), "transaction_key", decode_transaction_key),
    ):
        assert encode_key(key) == vectors[name]
        assert decoder(vectors[name]) == key
    assert decode_group_key(vectors["legacy_offset_key"]) == offset_key
    assert decode_group_key(b"\x00\x0b\x00\x01g") == ShareGroupMetadataKey("g")
    assert decode_group_key(b"\x00\x11\x00\x01g") == StreamsGroupMetadataKey("g")
    assert decode_group_key(b"\x00\x18\x00\x01g") is None  # of no kind that is known
    assert decode_transaction_key(b"\x00\x01") is None


def _without(value, **changes):
    """`value` as a version without these fields carries it."""
    cls = type(value)
    return cls(**{name: getattr(value, name) for name, _ in fields_of(cls)} | changes)


@pytest.mark.parametrize("version", range(5))
def test_offset_values_are_java_s(vectors, version):
    value = OFFSET if version >= 3 else _without(OFFSET, leader_epoch=-1)
    if version == 1:
        value = _without(value, expire_timestamp=T0 + 9000)
    data = vectors[f"offset_value_v{version}"]
    assert decode_value(OffsetCommitValue, data) == value
    assert encode_value(value, version) == data
    assert encode_value(_without(value, leader_epoch=6), version) == data


def test_offset_value_of_today(vectors):
    value = _without(OFFSET, topic_id=UUID("01234567-89ab-cdef-0fed-cba987654321"))
    assert encode_value(value) == vectors["offset_value_topic_id_v4"]
    assert decode_value(OffsetCommitValue, encode_value(value)) == value
    assert encode_value(_without(value, expire_timestamp=T0 + 9000)) == vectors["offset_value_v1"]


@pytest.mark.parametrize("version", range(5))
def test_group_values_are_java_s(vectors, version):
    member = MEMBER
    if version < 3:
        member = _without(member, group_instance_id=None)
    if version < 1:
        member = _without(member, rebalance_timeout=-1)
    value = _without(GROUP, members=[member])
    if version < 2:
        value.current_state_timestamp = -1
    data = vectors[f"group_value_v{version}"]
    assert decode_value(GroupMetadataValue, data) == value
    assert encode_value(value, version) == data
    assert encode_value(GROUP, version) == data
    empty = vectors[f"group_value_empty_v{version}"]
    assert decode_value(GroupMetadataValue, empty) == EMPTY_GROUP
    assert encode_value(EMPTY_GROUP, version) == empty
    if version == 3:
        assert encode_value(GROUP) == data


@pytest.mark.parametrize("version", range(2))
def test_transaction_values_are_java_s(vectors, version):
    data = vectors[f"transaction_value_v{version}"]
    assert decode_value(TransactionLogValue, data) == TRANSACTION
    assert encode_value(TRANSACTION, version) == data
    empty = TransactionLogValue(
        producer_id=42, producer_epoch=3, transaction_timeout_ms=60_000, transaction_partitions=None
    )
    data = vectors[f"transaction_value_empty_v{version}"]
    assert encode_value(empty, version) == data
    assert decode_value(TransactionLogValue, data) == empty


def test_transaction_value_of_today(vectors):
    value = _without(
        TRANSACTION,
        previous_producer_id=41,
        next_producer_id=43,
        next_producer_epoch=0,
        client_transaction_version=2,
    )
    assert encode_value(value) == vectors["transaction_value_tagged_v1"]
    assert decode_value(TransactionLogValue, encode_value(value)) == value


def test_tombstones():
    for cls in (OffsetCommitValue, GroupMetadataValue, TransactionLogValue):
        assert decode_value(cls, None) is None


@pytest.mark.parametrize(
    ("decoder", "data", "message"),
    [
        (decode_group_key, None, "key of __consumer_offsets is null"),
        (decode_group_key, b"\0", "key of __consumer_offsets is 1 bytes"),
        (decode_group_key, b"\0\1\0\1g", "OffsetCommitKey"),
        (decode_group_key, b"\0\2\0\1gx", "GroupMetadataKey of version 0: 1 bytes too many"),
        (decode_transaction_key, None, "key of __transaction_state is null"),
        (lambda data: decode_value(OffsetCommitValue, data), b"", "OffsetCommitValue is 0 bytes"),
        (lambda data: decode_value(OffsetCommitValue, data), b"\0\5", "has no version 5"),
        (lambda data: decode_value(OffsetCommitValue, data), b"\xff\xff", "has no version -1"),
    ],
)
def test_errors(decoder, data, message):
    with pytest.raises(WireError, match=message):
        decoder(data)


def test_values_that_do_not_fit():
    with pytest.raises(EncodeError):
        encode_key(OffsetCommitKey("g", "t", 2**31))


@given(data=st.binary(max_size=80), version=st.integers(-1, 6))
def test_any_bytes(data, version):
    prefixed = version.to_bytes(2, "big", signed=True) + data
    for decoder in (
        decode_group_key,
        decode_transaction_key,
        *(
            lambda each, cls=cls: decode_value(cls, each)
            for cls in (OffsetCommitValue, GroupMetadataValue, TransactionLogValue)
        ),
    ):
        for each in (data, prefixed):
            with suppress(WireError):
                decoder(each)


@given(position=st.integers(0, 500), value=st.integers(0, 255), cut=st.integers(0, 3))
def test_damaged_java_bytes(vectors, position, value, cut):
    for name, data in vectors.items():
        if "_value_" not in name:
            continue
        cls = {"offset": OffsetCommitValue, "group": GroupMetadataValue}.get(
            name.split("_")[0], TransactionLogValue
        )
        damaged = bytearray(data)
        damaged[position % len(data)] = value
        with suppress(WireError):
            decode_value(cls, bytes(damaged[: len(data) - cut]))
