"""What the message tests share: Kafka's own definitions, and random messages."""

import json
import os
import random
import re
import uuid
import zipfile
from pathlib import Path

import pytest

from wire.kafka.compiling import carried_fields, tagged_fields
from wire.kafka.message import (
    BOOL,
    BYTES,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    RECORDS,
    STRING,
    UINT16,
    UUID,
    ZERO_UUID,
    Array,
    Primitive,
    fields_of,
)
from wire.kafka.structs import Struct

#: Where `make peers` puts Apache Kafka's jars.
DEFAULT_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")

RANGES = {
    INT8: (-(1 << 7), (1 << 7) - 1),
    INT16: (-(1 << 15), (1 << 15) - 1),
    UINT16: (0, (1 << 16) - 1),
    INT32: (-(1 << 31), (1 << 31) - 1),
    INT64: (-(1 << 63), (1 << 63) - 1),
}
LETTERS = "abcxyz-_.0189 äß€漢🙂"


@pytest.fixture(scope="session")
def kafka_definitions():
    """Kafka 4.3's JSON message definitions by message name, from the kafka-clients jar."""
    folder = Path(os.environ.get("QUIRE_KAFKA_JARS") or DEFAULT_CACHE / "quire/jars/kafka")
    jars = sorted(folder.glob("kafka-clients-4.3.*.jar"))
    if not jars:
        pytest.fail(
            f"no kafka-clients-4.3.*.jar in {folder}: run `make peers`, or set QUIRE_KAFKA_JARS "
            "to the folder of Apache Kafka's jars"
        )
    definitions = {}
    with zipfile.ZipFile(jars[-1]) as jar:
        for name in jar.namelist():
            if name.startswith("common/message/") and name.endswith(".json"):
                text = jar.read(name).decode()
                definition = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
                definitions[definition["name"]] = definition
    return definitions


class MessageMaker:
    """Makes messages with values in every field of a version, edge values among them.

    `decorate(name, kind, rng)` may give a value of its own for a primitive field, or None.
    """

    def __init__(self, decorate=None):
        self._decorate = decorate

    def make(self, cls, version, rng: random.Random, depth=0):
        made = cls()
        for name, spec in carried_fields(cls, version) + tagged_fields(cls, version):
            if spec.tag is not None and rng.random() < 0.4:
                continue
            setattr(made, name, self._value(name, spec, version, rng, depth))
        return made

    def _value(self, name, spec, version, rng, depth):
        kind = spec.kind
        if spec.nullable.covers(version) and rng.random() < 0.25:
            return None
        if not isinstance(kind, Array):
            return self._single(name, kind, version, rng, depth)
        count = rng.choice([0, 1, 1, 2, 3]) if depth < 3 else rng.choice([0, 1])
        if isinstance(kind.element, Primitive) and rng.random() < 0.03:
            count = 130
        return [self._single(name, kind.element, version, rng, depth) for _ in range(count)]

    def _single(self, name, kind, version, rng, depth):
        if not isinstance(kind, Primitive):
            return self.make(kind, version, rng, depth + 1)
        if self._decorate is not None:
            decorated = self._decorate(name, kind, rng)
            if decorated is not None:
                return decorated
        if kind in RANGES:
            low, high = RANGES[kind]
            edges = [low, high, 0, 1, max(low, -1)]
            return rng.choice(edges) if rng.random() < 0.3 else rng.randint(low, high)
        if kind is BOOL:
            return rng.random() < 0.5
        if kind is FLOAT64:
            return rng.choice([0.0, -1.5, 1e300, rng.random()])
        if kind is UUID:
            return ZERO_UUID if rng.random() < 0.2 else uuid.UUID(int=rng.getrandbits(128))
        if kind is STRING:
            size = rng.choice([0, 1, 7, 31, 63]) if rng.random() < 0.9 else rng.choice([127, 300])
            return "".join(rng.choice(LETTERS) for _ in range(size))
        assert kind is BYTES or kind is RECORDS
        return rng.randbytes(rng.choice([0, 1, 60, 126, 127, 128, 3000]))


@pytest.fixture(scope="session")
def message_maker():
    return MessageMaker


def plain(value):
    """A message as comparable values: records as bytes, tagged structs of defaults as None."""
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, list):
        return [plain(each) for each in value]
    if not isinstance(value, Struct):
        return value
    values = []
    for name, spec in fields_of(type(value)):
        each = getattr(value, name)
        if spec.tag is not None and isinstance(each, Struct) and each == type(each)():
            each = None
        values.append(plain(each))
    return type(value), values


@pytest.fixture(scope="session")
def as_plain():
    return plain
