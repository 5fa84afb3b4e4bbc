"""How a Kafka message is declared: one mutable slots dataclass for all of its versions.

    @declared
    class TopicProduceData(Struct):
        name: str = field(STRING, "0-12")
        partition_data: list[PartitionProduceData] = field(array(PartitionProduceData), "0+")

    @request(ApiKey.PRODUCE, "3-13", flexible="9+")
    @declared
    class ProduceRequest(Message):
        acks: int = field(INT16, "0+")
        topic_data: list[TopicProduceData] = field(array(TopicProduceData), "0+")

Fields travel in the order of their lines; tagged ones (KIP-482) after all others. A version range
is «a+», «a-b» or «a». Names are those of Kafka's JSON definitions in snake_case. Every field has a
default, so a message is built from what matters: `field`'s, or else zero, "", b"", [] or a fresh
struct. A field that a version does not carry has its default after decoding, and is left out when
encoding, whatever its value: who answers several versions need not clear it.

Nothing here runs per message: `wire.kafka.codec` compiles each (class, version) on first use.
"""

from __future__ import annotations

import dataclasses
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypeAlias, TypeVar
from uuid import UUID as UUIDValue

from wire.buffers import Buffer, Buffers
from wire.dataclass import dataclass
from wire.kafka.structs import Struct

if TYPE_CHECKING:
    from collections.abc import Callable

    from wire.kafka.api_keys import ApiKey

#: Stands for «and all that follow» in a version range; versions are int16 on the wire.
VERSION_MAX = 32767

#: Kafka's «no id»: topic ids and member ids that are not known.
ZERO_UUID = UUIDValue(int=0)

INT32_MIN = -(1 << 31)
INT32_MAX = (1 << 31) - 1
INT64_MAX = (1 << 63) - 1

#: What a `records` field takes when encoding: one buffer, or several that follow one another, or
#: null. Decoding gives a memoryview into the frame, or None.
RecordsValue: TypeAlias = Buffer | Buffers | None

_METADATA_KEY = "kafka"
_NO_DEFAULT: Final = object()

#: As a `FieldSpec.default`: an empty list or a fresh struct, made for each message.
FRESH: Final = object()


class Primitive(Enum):
    """The primitive types of Kafka's JSON definitions, by their names there."""

    BOOL = "bool"
    INT8 = "int8"
    INT16 = "int16"
    UINT16 = "uint16"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT64 = "float64"
    UUID = "uuid"
    STRING = "string"
    BYTES = "bytes"
    RECORDS = "records"


BOOL = Primitive.BOOL
INT8 = Primitive.INT8
INT16 = Primitive.INT16
UINT16 = Primitive.UINT16
INT32 = Primitive.INT32
INT64 = Primitive.INT64
FLOAT64 = Primitive.FLOAT64
UUID = Primitive.UUID
STRING = Primitive.STRING
BYTES = Primitive.BYTES
RECORDS = Primitive.RECORDS

_ZERO_OF: dict[Primitive, object] = {
    BOOL: False,
    INT8: 0,
    INT16: 0,
    UINT16: 0,
    INT32: 0,
    INT64: 0,
    FLOAT64: 0.0,
    UUID: ZERO_UUID,
    STRING: "",
    BYTES: b"",
    RECORDS: None,
}


class VersionRange(NamedTuple):
    """Versions `low` to `high`, both included; empty when `high` is below `low`."""

    low: int
    high: int

    @classmethod
    def parse(cls, text: str) -> VersionRange:
        if text.endswith("+"):
            return cls(int(text[:-1]), VERSION_MAX)
        low, separator, high = text.partition("-")
        return cls(int(low), int(high) if separator else int(low))

    def covers(self, version: int) -> bool:
        return self.low <= version <= self.high


NO_VERSIONS = VersionRange(0, -1)


@dataclass(slots=True, frozen=True)
class Array:
    """The type of a list field."""

    element: Primitive | type[Struct]


FieldType = Primitive | Array | type["Struct"]


@dataclass(slots=True, frozen=True)
class FieldSpec:
    """What `field` said about one field. `tag` is None for a field in the ordinary sequence."""

    kind: FieldType
    versions: VersionRange
    nullable: VersionRange
    tag: int | None
    tagged: VersionRange
    default: object


@dataclass(slots=True, frozen=True)
class MessageInfo:
    """What `request` or `response` said. `versions` are those that the declaration covers."""

    key: ApiKey
    is_request: bool
    versions: range
    flexible: VersionRange


class Message(Struct):
    """Base of the messages that travel in a frame of their own."""

    __slots__ = ()
    INFO: ClassVar[MessageInfo]


def array(element: Primitive | type[Struct]) -> Array:
    """The type of a list of `element`; arrays of arrays do not exist in the protocol."""
    return Array(element)


def field(
    kind: FieldType,
    versions: str,
    *,
    null: str | None = None,
    default: object = _NO_DEFAULT,
    tag: int | None = None,
    tagged: str | None = None,
) -> Any:  # noqa: ANN401  # the annotation of the field's line is its type
    """Declare a field: its type, the versions that carry it, those in which it may be null.

    With `tag` it travels as a tagged field, in the versions of `tagged` (all of `versions` if not
    given). A tagged field that has its default is not sent.
    """
    carried = VersionRange.parse(versions)
    if default is _NO_DEFAULT and isinstance(kind, Primitive):
        default = _ZERO_OF[kind]
    made_fresh = default is _NO_DEFAULT  # a list or a struct: each message needs its own
    spec = FieldSpec(
        kind,
        carried,
        NO_VERSIONS if null is None else VersionRange.parse(null),
        tag,
        NO_VERSIONS if tag is None else carried if tagged is None else VersionRange.parse(tagged),
        FRESH if made_fresh else default,
    )
    metadata = {_METADATA_KEY: spec}
    if not made_fresh:
        return dataclasses.field(default=default, metadata=metadata)
    factory: Callable[[], object] = list if isinstance(kind, Array | Primitive) else kind
    return dataclasses.field(default_factory=factory, metadata=metadata)


def fields_of(cls: type[Struct]) -> list[tuple[str, FieldSpec]]:
    """The declared fields of a class, in wire order."""
    declared = dataclasses.fields(cls)
    return [(each.name, each.metadata[_METADATA_KEY]) for each in declared]


#: The declared classes by key; filled as the modules of `wire.kafka.messages` are imported.
REQUESTS: dict[int, type[Message]] = {}
RESPONSES: dict[int, type[Message]] = {}

M = TypeVar("M", bound=type[Message])


def request(key: ApiKey, versions: str, *, flexible: str | None) -> Callable[[M], M]:
    """Class decorator: the request of `key`; `flexible` None means that no version is."""
    return _declare(key, versions, flexible, is_request=True)


def response(key: ApiKey, versions: str, *, flexible: str | None) -> Callable[[M], M]:
    """Class decorator: the response of `key`."""
    return _declare(key, versions, flexible, is_request=False)


def _declare(
    key: ApiKey, versions: str, flexible: str | None, *, is_request: bool
) -> Callable[[M], M]:
    declared = VersionRange.parse(versions)
    info = MessageInfo(
        key,
        is_request,
        range(declared.low, declared.high + 1),
        NO_VERSIONS if flexible is None else VersionRange.parse(flexible),
    )
    registry = REQUESTS if is_request else RESPONSES

    def decorate(cls: M) -> M:
        assert key not in registry, f"{key.name} is declared twice"
        cls.INFO = info
        registry[key] = cls
        return cls

    return decorate
