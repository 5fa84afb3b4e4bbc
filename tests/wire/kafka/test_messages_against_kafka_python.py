"""Byte for byte against kafka-python: its message classes, and its old ones for dropped versions.

As with kio: random messages of ours are read by kafka-python, compared value by value, and written
again. Its old classes know Fetch 0-3, ListOffsets 0 and the like, which kio does not.
"""

import importlib
import pkgutil
import random
import uuid
import warnings

import pytest

from wire.kafka import codec
from wire.kafka.compiling import carried_fields, tagged_fields
from wire.kafka.message import INT32, REQUESTS, RESPONSES, ZERO_UUID, Array, fields_of
from wire.kafka.messages import ApiVersionsResponse
from wire.kafka.structs import Struct

with warnings.catch_warnings():
    # kafka-python reads its definitions by a deprecated function of importlib.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.protocol
    import kafka.protocol.old
    from kafka.protocol.api_message import ApiMessage

SAMPLES = 12
CASES = [
    (cls, version)
    for registry in (REQUESTS, RESPONSES)
    for cls in registry.values()
    for version in cls.INFO.versions
]


def modules(package):
    for item in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not item.ispkg:
            yield importlib.import_module(item.name)


def new_classes():
    found = {}
    for module in modules(kafka.protocol):
        for name, value in vars(module).items():
            if (
                isinstance(value, type)
                and issubclass(value, ApiMessage)
                and value is not ApiMessage
            ):
                found[name] = value
    return found


def old_classes():
    found = {}
    for module in modules(kafka.protocol.old):
        for value in vars(module).values():
            name, separator, version = getattr(value, "__name__", "").partition("_v")
            if isinstance(value, type) and separator and version.isdecimal():
                found[name, int(version)] = value
    return found


with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    NEW, OLD = new_classes(), old_classes()


#: Its old DescribeLogDirs request has one partition where Kafka's has an array of them.
WRONG_OLD = {("DescribeLogDirsRequest", 0)}


def knows(theirs, version):
    low, high = theirs.valid_versions
    return low <= version <= high


NEW_CASES = [(c, v) for c, v in CASES if c.__name__ in NEW and knows(NEW[c.__name__], v)]
OLD_CASES = [
    (c, v)
    for c, v in CASES
    if (c.__name__, v) in OLD and (c, v) not in NEW_CASES and (c.__name__, v) not in WRONG_OLD
]


def ids(cases):
    return [f"{cls.__name__}-{version}" for cls, version in cases]


def test_kafka_python_knows_much():
    assert len(NEW_CASES) > 380
    dropped = {(c.__name__, v) for c, v in OLD_CASES} - {(c.__name__, v) for c, v in NEW_CASES}
    assert {("FetchRequest", 0), ("FetchResponse", 3), ("ListOffsetsResponse", 0)} <= dropped
    assert {("OffsetCommitRequest", 1), ("DescribeConfigsResponse", 0)} <= dropped


def suit_kafka_python(name, kind, rng):
    """Authorized operations must be bits that it knows."""
    if kind is INT32 and name.endswith("authorized_operations"):
        return rng.getrandbits(12) << 1
    return None


def suit_api_versions(name, kind, rng):
    """It reads whatever follows an error by version 0's layout, as for UNSUPPORTED_VERSION."""
    return 0 if name == "error_code" else None


def assert_same(ours, theirs, version):
    """Our struct against their container, by name."""
    for name, _ in carried_fields(type(ours), version) + tagged_fields(type(ours), version):
        # kafka-python turns these bit fields into sets; the bytes still tell.
        if not name.endswith("authorized_operations"):
            assert_same_value(getattr(ours, name), getattr(theirs, name), version, name)


def assert_same_value(ours, theirs, version, name):
    if isinstance(ours, list):
        assert len(ours) == len(theirs), name
        for our_item, their_item in zip(ours, theirs, strict=True):
            assert_same_value(our_item, their_item, version, name)
    elif isinstance(ours, Struct) and theirs is None:
        assert ours == type(ours)(), name  # a tagged struct of defaults is not sent
    elif isinstance(ours, Struct):
        assert_same(ours, theirs, version)
    elif isinstance(ours, uuid.UUID):
        assert ours == (ZERO_UUID if theirs is None else theirs), name
    else:
        assert ours == theirs, name


@pytest.mark.parametrize(("cls", "version"), NEW_CASES, ids=ids(NEW_CASES))
def test_same_bytes(cls, version, message_maker, as_plain):
    theirs_class = NEW[cls.__name__]
    suit = suit_api_versions if cls is ApiVersionsResponse else suit_kafka_python
    maker = message_maker(suit)
    rng = random.Random(f"kafka-python {cls.__name__} {version}")
    for _ in range(SAMPLES):
        ours = maker.make(cls, version, rng)
        encoded = codec.encode(ours, version)
        theirs = theirs_class.decode(encoded, version=version)
        assert_same(ours, theirs, version)
        theirs._header = None  # `decode` leaves it unset, and `encode` reads it
        their_bytes = theirs.encode(version=version)
        assert their_bytes == encoded
        decoded, end = codec.decode(cls, version, their_bytes)
        assert end == len(encoded)
        assert as_plain(decoded) == as_plain(ours)


def as_tuple(ours, version):
    """A message as the tuple that kafka-python's old schemas take."""
    values = []
    for name, spec in fields_of(type(ours)):
        if not spec.versions.covers(version):
            continue
        value = getattr(ours, name)
        if isinstance(spec.kind, Array) and value is not None:
            value = [as_item(v, version) for v in value]
        assert not isinstance(value, Struct)
        values.append(value)
    return tuple(values)


def as_item(value, version):
    """An array's element; a struct of one field is that field alone in the old schemas."""
    if not isinstance(value, Struct):
        return value
    values = as_tuple(value, version)
    return values[0] if len(values) == 1 else values


@pytest.mark.parametrize(("cls", "version"), OLD_CASES, ids=ids(OLD_CASES))
def test_same_bytes_as_the_old_classes(cls, version, message_maker, as_plain):
    schema = OLD[cls.__name__, version].SCHEMA
    maker = message_maker()
    rng = random.Random(f"old kafka-python {cls.__name__} {version}")
    for _ in range(SAMPLES):
        ours = maker.make(cls, version, rng)
        their_bytes = schema.encode(as_tuple(ours, version))
        assert their_bytes == codec.encode(ours, version)
        decoded, end = codec.decode(cls, version, their_bytes)
        assert end == len(their_bytes)
        assert as_plain(decoded) == as_plain(ours)
