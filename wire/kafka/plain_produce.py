"""The Produce request that nearly all are, taken apart in one step, and its answer made in one.

Ordinary is: version 7 or later, acks of 1 or all, no transactional id, one topic, one partition,
records that are not null, nothing that could be left out (tagged fields, bytes behind the body),
lengths in their shortest form, a client id in ASCII. For such a frame `plain_produce` says where
all of that is, without an object for each part of the message. Everything else is None, also what
is malformed: the declared message (wire/kafka/messages/produce.py) tells them apart, and says of an
ordinary one the same (tests/wire/kafka/test_plain_produce.py).

`_produce.c` does it, where there was a compiler when the package was installed, unless the
environment says otherwise (wire/compiled.py); else `plain_produce` is None, and every request is
decoded as declared: that is its second form.

An answer begins with the bytes by which the request names its place: one topic, one partition.

Owner of the state: nobody.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from wire.compiled import check_allowed
from wire.kafka.primitives import read_varint, uuid_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from wire.buffers import Buffer


#: Version, correlation id, acks (-1 or 1), the place, where the records begin and end in the frame.
PlainProduce: TypeAlias = tuple[int, int, int, bytes, int, int]

VERSION_MIN, VERSION_MAX = 7, 13
_ERRORS_VERSION = 8
_FLEXIBLE_VERSION = 9
_TOPIC_ID_VERSION = 13

_INDEX = Struct(">i")


class Place(NamedTuple):
    """What the bytes of a place say; which of topic and id is there depends on the version."""

    topic: str
    topic_id: UUID | None
    partition: int


def place_of(version: int, place: bytes) -> Place:
    """UnicodeDecodeError if the topic's name is not UTF-8. `place`: of `plain_produce`."""
    (partition,) = _INDEX.unpack_from(place, len(place) - _INDEX.size)
    if version >= _TOPIC_ID_VERSION:
        return Place("", uuid_of(place[1:17]), partition)
    if version >= _FLEXIBLE_VERSION:
        size, start = read_varint(place, 1)
        return Place(str(place[start : start + size - 1], "utf-8"), None, partition)
    return Place(str(place[6:-8], "utf-8"), None, partition)


def answer_maker(version: int, place: bytes) -> Callable[[int, int, int, int], bytes]:
    """(correlation id, base offset, log append time, log start offset) -> the frame, with its size,
    of an answer without an error to a request for that place. As encoded from a ProduceResponse
    with one such partition."""
    if version >= _FLEXIBLE_VERSION:
        head = b"\0" + place + b"\0\0"  # the header's tagged fields, place, error
        # Record errors, message, three ends of tagged fields around the throttle time.
        tail = b"\x01\0" + b"\0" + b"\0" + bytes(4) + b"\0"
    else:
        head = place + b"\0\0"
        errors = bytes(4) + b"\xff\xff" if version >= _ERRORS_VERSION else b""
        tail = errors + bytes(4)
    layout = Struct(f">ii{len(head)}sqqq{len(tail)}s")
    size = layout.size - 4
    pack = layout.pack

    def answer(correlation_id: int, base: int, append_time_ms: int, log_start: int) -> bytes:
        return pack(size, correlation_id, head, base, append_time_ms, log_start, tail)

    return answer


plain_produce: Callable[[Buffer], PlainProduce | None] | None
try:
    check_allowed()
    from wire.kafka._produce import plain_produce
except ImportError:  # not wanted, or no compiler was there when the package was installed
    plain_produce = None
