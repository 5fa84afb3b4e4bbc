"""Frames between `remote` and `served` (docs/formats.md, «metadata.sock»). Pure.

A frame is an int32 size and a body of that many bytes: a kind (one byte), a number (uint32: the
request's, or the watch's), then fields up to the body's end. A field is a tag and its value, big
endian throughout:

    n               nothing
    i  int64        a number; truth values are 0 and 1
    s  uint32 size  text in UTF-8
    b  uint32 size  bytes
    l  uint32 count fields, among which are no lists of lists

Both sides are of one program and one version: HELLO's first field says which, and another one is
refused. What does not follow this raises FrameError, which closes the connection.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from metadata.store import (
    BadVersionError,
    CheckOp,
    CreateOp,
    DeleteOp,
    MetadataError,
    MetadataUnavailableError,
    MetadataUnknownOutcomeError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    PutOp,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from metadata.store import Op
    from wire.buffers import Buffer

PROTOCOL_VERSION = 3
#: Bounds what one side makes the other keep: a frame, and in it the data of a node.
FRAME_SIZE_MAX_BYTES = 32 << 20
DATA_SIZE_MAX_BYTES = 16 << 20
SIZE_BYTES = 4
SECRET_SIZE_BYTES = 16

_HEAD = Struct(">iBI")
_BODY_HEAD = Struct(">BI")
_SIZE = Struct(">I")
_NUMBER = Struct(">q")
_LIST_DEPTH_MAX = 2

Field = None | int | str | bytes | list["Field"]


class FrameError(ValueError):
    """A frame is not what the module's docstring says; tells what and where."""


class Kind(IntEnum):
    #: version, session id (0: a new one), secret, time-out in ms, name -> id, secret, time-out,
    #: whether it is the session that was asked for
    HELLO = 0
    #: Shows that the client lives; no fields, no answer's fields.
    PING = 1
    #: Ends the session; answered when its ephemeral nodes are gone.
    CLOSE = 2
    #: paths -> a list: data and version of each in turn, None twice for a missing one; of as many
    #: paths, from the first on, as a frame takes
    GET_MANY = 3
    #: path -> 0 or 1
    EXISTS = 4
    #: path, data, is ephemeral, is sequence, makes parents -> path
    CREATE = 5
    #: path, data, version -> version
    PUT = 6
    #: path, version
    DELETE = 7
    #: path -> names
    CHILDREN = 8
    #: ops as lists: (0, path, data, ephemeral, parents), (1, path, data, version), (2, path,
    #: version)
    MULTI = 9
    #: path -> 0 or 1
    OWNS = 10
    #: path, whether it is of the children; the number is the watch's; no answer
    WATCH = 11
    #: No answer; the number is the watch's.
    UNWATCH = 12
    #: An answer: kind of error, path, words
    ERROR = 13
    #: From the server: the watch of that number fired.
    EVENT = 14
    #: path; answered when the server's own store is up to date
    SYNC = 15
    #: path, count -> numbers
    TAKE_NUMBERS = 16


class Message(NamedTuple):
    kind: Kind
    number: int
    fields: list[Field]


def encode(kind: Kind, number: int, *fields: Field) -> bytes:
    """The whole frame, with its size. FrameError if it is too large."""
    parts: list[bytes] = [b""]
    for field in fields:
        _put(parts, field, _LIST_DEPTH_MAX)
    size = sum(map(len, parts)) + _BODY_HEAD.size
    if size > FRAME_SIZE_MAX_BYTES:
        raise FrameError(f"{size} bytes are more than a frame of {FRAME_SIZE_MAX_BYTES} takes")
    parts[0] = _HEAD.pack(size, kind, number)
    return b"".join(parts)


def _put(parts: list[bytes], field: Field, depth: int) -> None:
    match field:
        case None:
            parts.append(b"n")
        case int():
            parts.append(b"i" + _NUMBER.pack(field))
        case str():
            data = field.encode()
            parts += (b"s" + _SIZE.pack(len(data)), data)
        case bytes():
            parts += (b"b" + _SIZE.pack(len(field)), field)
        case list():
            assert depth > 0, "lists are two deep at most"
            parts.append(b"l" + _SIZE.pack(len(field)))
            for inner in field:
                _put(parts, inner, depth - 1)


def decode(body: Buffer) -> Message:
    """A frame's body. Everything in the message is a copy. FrameError."""
    if len(body) < _BODY_HEAD.size:
        raise FrameError(f"a frame of {len(body)} bytes has no head")
    kind, number = _BODY_HEAD.unpack_from(body)
    try:
        known = Kind(kind)
    except ValueError as error:
        raise FrameError(f"there is no kind {kind}") from error
    fields: list[Field] = []
    position = _BODY_HEAD.size
    while position < len(body):
        field, position = _take(body, position, _LIST_DEPTH_MAX)
        fields.append(field)
    return Message(known, number, fields)


def _take(body: Buffer, position: int, depth: int) -> tuple[Field, int]:
    """The field at `position`, and where it ends."""
    tag = body[position : position + 1]
    start = position + 1
    if tag == b"n":
        return None, start
    if tag == b"i":
        _check_room(body, start, _NUMBER.size)
        return _NUMBER.unpack_from(body, start)[0], start + _NUMBER.size
    if tag not in (b"s", b"b", b"l"):
        raise FrameError(f"no field starts with {bytes(tag)!r}, at {position}")
    _check_room(body, start, _SIZE.size)
    (size,) = _SIZE.unpack_from(body, start)
    start += _SIZE.size
    _check_room(body, start, size)  # a list's fields, too, have a byte each
    if tag == b"l":
        if not depth:
            raise FrameError(f"a list at {position} is too deep")
        items: list[Field] = []
        for _ in range(size):
            item, start = _take(body, start, depth - 1)
            items.append(item)
        return items, start
    data = bytes(body[start : start + size])
    if tag == b"b":
        return data, start + size
    try:
        return data.decode(), start + size
    except UnicodeDecodeError as error:
        raise FrameError(f"the text at {position} is not UTF-8") from error


def _check_room(body: Buffer, start: int, size: int) -> None:
    if start + size > len(body):
        raise FrameError(f"a field ends at {start + size}, and the frame at {len(body)}")


# -- operations and errors ---------------------------------------------------------------------


def op_field(op: Op) -> list[Field]:
    match op:
        case CreateOp():
            return [0, op.path, bytes(op.data), int(op.ephemeral), int(op.make_parents)]
        case PutOp():
            return [1, op.path, bytes(op.data), op.version]
        case DeleteOp():
            return [2, op.path, op.version]
        case CheckOp():
            return [3, op.path, op.version]


def parse_op(field: Field) -> Op:
    """FrameError."""
    match field:
        case [0, str(path), bytes(data), int(ephemeral), int(make_parents)]:
            return CreateOp(path, data, bool(ephemeral), bool(make_parents))
        case [1, str(path), bytes(data), int(version)]:
            return PutOp(path, data, version)
        case [2, str(path), int(version)]:
            return DeleteOp(path, version)
        case [3, str(path), int(version)]:
            return CheckOp(path, version)
    raise FrameError(f"no operation of a multi: {str(field)[:100]}")


_ERRORS: tuple[type[MetadataError], ...] = (
    MetadataError,
    NoNodeError,
    NodeExistsError,
    BadVersionError,
    NotEmptyError,
    MetadataUnknownOutcomeError,
    MetadataUnavailableError,
)
_NUMBERS = {kind: number for number, kind in enumerate(_ERRORS)}


def encode_error(number: int, error: MetadataError) -> bytes:
    kind = next((_NUMBERS[each] for each in type(error).__mro__ if each in _NUMBERS), 0)
    words = str(error).removeprefix(error.path).removeprefix(": ")
    return encode(Kind.ERROR, number, kind, error.path, words)


def parse_error(fields: Iterable[Field]) -> MetadataError:
    """FrameError."""
    match list(fields):
        case [int(kind), str(path), str(words)] if 0 <= kind < len(_ERRORS):
            return _ERRORS[kind](path, words)
    raise FrameError("an error without kind, path and words")
