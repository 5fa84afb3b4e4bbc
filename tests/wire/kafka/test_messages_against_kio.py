"""Byte for byte against kio, for every (message, version) that it knows.

Random messages of ours are encoded, read by kio, compared value by value, and written by kio again:
its bytes must be ours. Then our decoder reads them back.
"""

import dataclasses
import datetime
import importlib
import io
import random
import uuid
from enum import Enum

import pytest
from kio.serial import entity_reader, entity_writer

from wire.kafka import codec
from wire.kafka.compiling import carried_fields, tagged_fields
from wire.kafka.message import (
    INT16,
    INT32,
    INT64,
    REQUESTS,
    RESPONSES,
    ZERO_UUID,
    fields_of,
)

SAMPLES = 12
MILLISECOND = datetime.timedelta(milliseconds=1)
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def kio_class(cls, version):
    """Kio's class of a message, or None if it has none of this version."""
    api = cls.INFO.key.name.lower()
    kind = "request" if cls.INFO.is_request else "response"
    try:
        module = importlib.import_module(f"kio.schema.{api}.v{version}.{kind}")
    except ModuleNotFoundError:
        return None
    return getattr(module, cls.__name__)


CASES = [
    (cls, version)
    for registry in (REQUESTS, RESPONSES)
    for cls in registry.values()
    for version in cls.INFO.versions
]
KNOWN = [case for case in CASES if kio_class(*case) is not None]


def suit_kio(name, kind, rng):
    """Values that kio's richer types can hold: known error codes, dates after 1970."""
    if kind is INT16 and name.endswith("error_code"):
        return rng.randint(-1, 120)
    if kind is INT64 and ("timestamp" in name or name.endswith("_ms")):
        return rng.randint(0, 4_000_000_000_000)
    if kind is INT32 and name.endswith("_ms"):
        return rng.randint(-(1 << 31), (1 << 31) - 1)
    return None


def as_ours(value):
    """A kio value in our terms."""
    if isinstance(value, datetime.datetime):
        return (value - EPOCH) // MILLISECOND
    if isinstance(value, datetime.timedelta):
        return value // MILLISECOND
    if isinstance(value, Enum):
        return int(value.value)
    return value


def assert_same(ours, theirs, version):
    """Field by field, in the order of Kafka's definitions."""
    known = carried_fields(type(ours), version) + tagged_fields(type(ours), version)
    carried = {name for name, _ in known}
    names = [name for name, _ in fields_of(type(ours)) if name in carried]
    their_names = [field.name for field in dataclasses.fields(theirs)]
    assert len(names) == len(their_names), (names, their_names)
    for name, their_name in zip(names, their_names, strict=True):
        assert same_name(name, their_name), (name, their_name)
        assert_same_value(getattr(ours, name), getattr(theirs, their_name), version, name)


def same_name(ours, theirs):
    return theirs in (ours, ours.removesuffix("_ms")) or ours.replace("_", "") == theirs.replace(
        "_", ""
    )


def assert_same_value(ours, theirs, version, name):
    if isinstance(ours, list):
        assert len(ours) == len(theirs), name
        for our_item, their_item in zip(ours, theirs, strict=True):
            assert_same_value(our_item, their_item, version, name)
    elif dataclasses.is_dataclass(ours):
        assert_same(ours, theirs, version)
    elif isinstance(ours, uuid.UUID):
        assert ours == (ZERO_UUID if theirs is None else theirs), name
    elif ours is None and dataclasses.is_dataclass(theirs):
        assert theirs == type(theirs)(), name  # a tagged struct that was not sent
    else:
        assert ours == as_ours(theirs), name


def test_kio_knows_most():
    assert len(KNOWN) > 500, "kio lost messages: this file would prove little"
    assert {cls.INFO.key for cls, _ in KNOWN} == set(REQUESTS)


@pytest.mark.parametrize(
    ("cls", "version"), KNOWN, ids=[f"{cls.__name__}-{version}" for cls, version in KNOWN]
)
def test_same_bytes(cls, version, message_maker, as_plain):
    theirs_class = kio_class(cls, version)
    read, write = entity_reader(theirs_class), entity_writer(theirs_class)
    maker = message_maker(suit_kio)
    rng = random.Random(f"kio {cls.__name__} {version}")
    for _ in range(SAMPLES):
        ours = maker.make(cls, version, rng)
        encoded = codec.encode(ours, version)
        theirs, size = read(encoded, 0)
        assert size == len(encoded)
        assert_same(ours, theirs, version)
        buffer = io.BytesIO()
        write(buffer, theirs)
        assert buffer.getvalue() == encoded
        decoded, end = codec.decode(cls, version, buffer.getvalue())
        assert end == size
        assert as_plain(decoded) == as_plain(ours)
