"""The v3 messages that carry entries, or are as frequent as they, without the protobuf library.

The library copies a body three times (50 us for 1 MiB, against 2), and takes longer even for small
ones. These here understand only messages in the form in which clients really write them: fields in
order, the flag maybe in front (LightProto, in BookKeeper 4.18), numbers not negative. For whatever
else the decoders return None, and the caller asks the library: so what is accepted, and as what, is
decided by protobuf's rules alone. Encoders write the library's bytes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from wire.bookkeeper.entry import MASTER_KEY_SIZE
from wire.bookkeeper.requests import AddRequest
from wire.bookkeeper.responses import ReadResponse
from wire.bookkeeper.status import (
    FLAG_HIGH_PRIORITY,
    FLAG_RECOVERY_ADD,
    STATUS_OF_V3,
    V3_OF_STATUS,
)

if TYPE_CHECKING:
    from wire.bookkeeper.requests import PlainAdd
    from wire.bookkeeper.status import Status
    from wire.buffers import Buffer, Buffers

#: BKPacketHeader's priority for FLAG_HIGH_PRIORITY; any above 0 is high.
HIGH_PRIORITY = 100

# A varint of up to 63 bits, so never negative; one of up to 28 bits, for sizes and small numbers.
_LONG = rb"([\x80-\xff]{0,8}[\x00-\x7f])"
_SHORT = rb"([\x80-\xff]{0,3}[\x00-\x7f])"
_ADD_REQUEST_HEAD = re.compile(
    rb"\x0a([\x00-\x7f])\x08\x03\x10\x02\x18" + _LONG + rb"(?:\x20" + _SHORT + rb")?"
    rb"\xaa\x06" + _SHORT + rb"(\xa0\x06\x01)?"
    rb"\x08" + _LONG + rb"\x10" + _LONG + rb"\x1a\x14(.{20})\x22" + _SHORT,
    re.DOTALL,
)
#: Of the plain ones: no priority, nothing behind the body. Groups: the header as it is repeated in
#: the answer, the request's size with the ledger, the entry, the master key with the body's size.
_PLAIN_ADD = re.compile(
    rb"(\x0a[\x00-\x7f]\x08\x03\x10\x02\x18[\x80-\xff]{0,8}[\x00-\x7f])"
    rb"\xaa\x06([\x80-\xff]{0,3}[\x00-\x7f]\x08[\x80-\xff]{0,8}[\x00-\x7f])"
    rb"\x10" + _LONG + rb"(\x1a\x14.{20}\x22[\x80-\xff]{0,3}[\x00-\x7f])",
    re.DOTALL,
)
_SIZE_AND_LEDGER = re.compile(_SHORT + rb"\x08" + _LONG)
_ADD_REQUEST_TAIL = re.compile(rb"(?:\x28" + _SHORT + rb")?(\xa0\x06\x01)?")
_READ_RESPONSE_HEAD = re.compile(
    rb"\x0a([\x00-\x7f])\x08\x03\x10\x01\x18" + _LONG + rb"(?:\x20" + _SHORT + rb")?"
    rb"\x10" + _SHORT + rb"\xa2\x06" + _SHORT + rb"\x08" + _SHORT + rb"\x10" + _LONG
    + rb"\x18" + _LONG + rb"\x22" + _SHORT
)  # fmt: skip
_READ_RESPONSE_TAIL = re.compile(rb"(?:\x28" + _LONG + rb")?(?:\x30" + _LONG + rb")?")

#: Bytes of a header without its txnId and priority: four tags, version and operation.
_HEADER_SIZE = 5

_HIGH_PRIORITY_FIELD = b"\x20" + bytes((HIGH_PRIORITY,))

#: Both are the same for many adds of one ledger: its key, and the sizes of entries.
KNOWN_PARTS_MAX = 4000
#: (master key, body's size); (request's size and where it is counted from, ledger id, encoded).
_known_keys: dict[bytes, tuple[bytes, int]] = {}
_known_ledgers: dict[bytes, tuple[int, int, bytes]] = {}
#: Sizes in front of an add's answer, which is always short.
_SIZES = [size.to_bytes(4, "big") for size in range(64)]

#: Varints of up to two bytes, by number.
_VARINTS = [bytes((value,)) for value in range(0x80)] + [
    bytes((value & 0x7F | 0x80, value >> 7)) for value in range(0x80, 0x4000)
]


def decode_add_request(frame: memoryview) -> AddRequest | None:
    """None if the library must be asked."""
    match = _ADD_REQUEST_HEAD.match(frame)
    if match is None:
        return None
    (
        header_size, transaction_id, priority, add_size, front_flag,
        ledger_id, entry_id, master_key, body_size,
    ) = match.groups()  # fmt: skip
    size = len(frame)
    start = match.end()
    end = start + _number(body_size)
    header_end = _header_end(header_size, transaction_id, priority)
    if header_end + 2 + len(add_size) + _number(add_size) != size or end > size:
        return None
    flags = write_flags = 0
    if end != size:
        tail = _ADD_REQUEST_TAIL.fullmatch(frame, end)
        if tail is None:
            return None
        write_flags = _number(tail[1] or b"\0")
        flags = FLAG_RECOVERY_ADD if tail[2] else 0
    if front_flag:
        flags = FLAG_RECOVERY_ADD
    if priority and _number(priority):
        flags |= FLAG_HIGH_PRIORITY
    return AddRequest(
        _number(ledger_id),
        _number(entry_id),
        master_key,
        (frame[start:end],),
        flags,
        write_flags,
        _number(transaction_id),
    )


def decode_plain_add(frame: memoryview) -> PlainAdd | None:
    """An add that is neither of high priority nor recovery's, and without write flags, as nearly
    all are; None: see `decode_add_request`. Its answer is made of what the request has of it, as
    it was encoded there: taking numbers apart and together again is most of what an add costs."""
    match = _PLAIN_ADD.match(frame)
    if match is None:
        return None
    header, size_and_ledger, entry, key_and_size = match.groups()
    known_key = _known_keys.get(key_and_size)
    master_key, body_size = known_key if known_key is not None else _learn_key(key_and_size)
    known = _known_ledgers.get(size_and_ledger)
    add_end, ledger_id, ledger = known if known is not None else _learn_ledger(size_and_ledger)
    start = match.end()
    size = len(frame)
    header_size = len(header)
    if start + body_size != size or header[1] != header_size - 2 or header_size + add_end != size:
        return None
    ids_size = len(ledger) + len(entry)
    answer = b"%b%b\x10\x00\xaa\x06%c\x08\x00\x10%b\x18%b" % (
        _SIZES[header_size + 9 + ids_size], header, 4 + ids_size, ledger, entry,
    )  # fmt: skip
    return 0, master_key, ledger_id, _number(entry), (frame[start:],), answer


def _learn_key(encoded: bytes) -> tuple[bytes, int]:
    if len(_known_keys) >= KNOWN_PARTS_MAX:
        _known_keys.clear()
    known = encoded[2 : 2 + MASTER_KEY_SIZE], _number(encoded[3 + MASTER_KEY_SIZE :])
    _known_keys[encoded] = known
    return known


def _learn_ledger(encoded: bytes) -> tuple[int, int, bytes]:
    if len(_known_ledgers) >= KNOWN_PARTS_MAX:
        _known_ledgers.clear()
    match = _SIZE_AND_LEDGER.fullmatch(encoded)
    assert match is not None, "a part of what _PLAIN_ADD matched"
    add_size, ledger = match.groups()
    # Field 101's tag takes two bytes.
    known = 2 + len(add_size) + _number(add_size), _number(ledger), ledger
    _known_ledgers[encoded] = known
    return known


def decode_read_response(frame: memoryview) -> ReadResponse | None:
    """One with an entry; None if the library must be asked."""
    match = _READ_RESPONSE_HEAD.match(frame)
    if match is None:
        return None
    (
        header_size, transaction_id, priority, _, read_size,
        code, ledger_id, entry_id, body_size,
    ) = match.groups()  # fmt: skip
    size = len(frame)
    start = match.end()
    end = start + _number(body_size)
    status = STATUS_OF_V3.get(_number(code))
    inner = _header_end(header_size, transaction_id, priority) + 1 + len(match[4])
    if inner + 2 + len(read_size) + _number(read_size) != size or end > size or status is None:
        return None
    max_lac = update_time_ms = None
    if end != size:
        tail = _READ_RESPONSE_TAIL.fullmatch(frame, end)
        if tail is None:
            return None
        max_lac = _number(tail[1]) if tail[1] else None
        update_time_ms = _number(tail[2]) if tail[2] else None
    return ReadResponse(
        status,
        _number(ledger_id),
        _number(entry_id),
        frame[start:end],
        max_lac,
        update_time_ms,
        _number(transaction_id),
    )


def encode_add_request(
    transaction_id: int,
    ledger_id: int,
    entry_id: int,
    master_key: bytes,
    entry: Buffers,
    flags: int = 0,
    write_flags: int = 0,
) -> list[Buffer]:
    """The pieces of `entry` go as they are. The frame is the same for every bookie to which the
    transaction id is the same."""
    assert len(master_key) == MASTER_KEY_SIZE
    body_size = sum(map(len, entry))
    tail = b"\x28" + varint(write_flags) if write_flags else b""
    if flags & FLAG_RECOVERY_ADD:
        tail += b"\xa0\x06\x01"
    inner = b"\x08%b\x10%b\x1a\x14%b\x22%b" % (
        varint(ledger_id), varint(entry_id), master_key, varint(body_size),
    )  # fmt: skip
    number = varint(transaction_id)
    if flags & FLAG_HIGH_PRIORITY:
        number += _HIGH_PRIORITY_FIELD
    add_size = varint(len(inner) + body_size + len(tail))
    header_size = _HEADER_SIZE + len(number)
    head_size = 4 + header_size + len(add_size) + len(inner)
    head = b"%b\x0a%c\x08\x03\x10\x02\x18%b\xaa\x06%b%b" % (
        (head_size + body_size + len(tail)).to_bytes(4, "big"),
        header_size, number, add_size, inner,
    )  # fmt: skip
    parts: list[Buffer] = [head, *entry]
    if tail:
        parts.append(tail)
    return parts


def encode_add_response(
    transaction_id: int, status: Status, ledger_id: int, entry_id: int
) -> bytes:
    number = varint(transaction_id)
    code = _CODES[status]
    ledger = varint(ledger_id)
    entry = varint(entry_id)
    header_size = _HEADER_SIZE + len(number)
    add_size = 3 + len(code) + len(ledger) + len(entry)
    return b"%b\x0a%c\x08\x03\x10\x02\x18%b\x10%b\xaa\x06%c\x08%b\x10%b\x18%b" % (
        (6 + header_size + len(code) + add_size).to_bytes(4, "big"),
        header_size, number, code, add_size, code, ledger, entry,
    )  # fmt: skip


def encode_read_response(response: ReadResponse) -> list[Buffer]:
    """The entry goes as it is."""
    code = _CODES[response.status]
    inner = b"\x08%b\x10%b\x18%b" % (
        code, varint(response.ledger_id), varint(response.entry_id),
    )  # fmt: skip
    entry = response.entry
    entry_size = 0
    if entry is not None:
        entry_size = len(entry)
        inner += b"\x22" + varint(entry_size)
    tail = b""
    if response.max_lac is not None:
        tail = b"\x28" + varint(response.max_lac)
    if response.lac_update_time_ms is not None:
        tail += b"\x30" + varint(response.lac_update_time_ms)
    number = varint(response.transaction_id)
    read_size = varint(len(inner) + entry_size + len(tail))
    header_size = _HEADER_SIZE + len(number)
    head_size = 5 + header_size + len(code) + len(read_size) + len(inner)
    head = b"%b\x0a%c\x08\x03\x10\x01\x18%b\x10%b\xa2\x06%b%b" % (
        (head_size + entry_size + len(tail)).to_bytes(4, "big"),
        header_size, number, code, read_size, inner,
    )  # fmt: skip
    if not entry_size:
        return [head + tail]
    assert entry is not None
    return [head, entry, tail] if tail else [head, entry]


def varint(value: int) -> bytes:
    """Of an int64 or uint64; negative ones take ten bytes, as protobuf's int64 do."""
    if 0 <= value < 0x4000:
        return _VARINTS[value]
    if 0 <= value < 0x200000:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    if value < 0:
        value += 1 << 64
    assert 0 <= value < 1 << 64
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _header_end(size: bytes, transaction_id: bytes, priority: bytes | None) -> int:
    """Where field 1 ends; nowhere (a number that fits no frame) if its size is not its fields'."""
    fields_size = _HEADER_SIZE + len(transaction_id)
    if priority:
        fields_size += 1 + len(priority)
    return 2 + fields_size if size[0] == fields_size else -(1 << 40)


def _number(encoded: bytes) -> int:
    """Of a varint whose end is known."""
    size = len(encoded)
    if size == 1:
        return encoded[0]
    if size == 2:
        return encoded[0] & 0x7F | encoded[1] << 7
    if size == 3:
        return encoded[0] & 0x7F | (encoded[1] & 0x7F) << 7 | encoded[2] << 14
    value = shift = 0
    for byte in encoded:
        value |= (byte & 0x7F) << shift
        shift += 7
    return value


#: v3's numbers as varints, by status.
_CODES = [b""] * (max(V3_OF_STATUS) + 1)
for _known, _code in V3_OF_STATUS.items():
    _CODES[_known] = varint(_code)
