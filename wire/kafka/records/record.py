"""One record of a batch, and the variable-length integers that it is made of.

Bytes of a record («magic» 2, KIP-98): length, one byte of attributes that nobody uses, timestamp
delta, offset delta, key, value, header count, then key and value of each header. All numbers are
zigzag varints; a length of -1 is null. Header keys are never null.

Header keys are UTF-8, but Kafka's broker does not look: other bytes survive a round trip as lone
surrogates, so that rewriting a batch (compaction) changes nothing.
"""

from collections.abc import Iterator
from dataclasses import field

from wire.dataclass import dataclass
from wire.kafka.errors import EncodeError, WireError

_KEY_ERRORS = "surrogateescape"


@dataclass(slots=True)
class Record:
    """A record as it is in its batch: absolute only together with the batch's header.

    `offset_delta` counts from the batch's base offset, `timestamp_delta` is in milliseconds from
    its base timestamp. Headers keep their order; keys may repeat.
    """

    offset_delta: int
    timestamp_delta: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] = field(default_factory=list)


# What the one-byte varints stand for. Looked up, as most numbers of a record have one byte.
_SHORT = tuple((byte >> 1) ^ -(byte & 1) for byte in range(0x80))


def _read_long(data: bytes, position: int, bits: int = 32) -> tuple[int, int]:
    """A zigzag varint of any size: (value, position behind it).

    IndexError at the end of the data; WireError if it has more than `bits` bits.
    """
    byte = data[position]
    if byte >= 0x80 and (second := data[position + 1]) < 0x80:  # the commonest case of this call
        value = byte & 0x7F | second << 7
        return (value >> 1) ^ -(value & 1), position + 2
    value = byte & 0x7F
    shift = 0
    while byte >= 0x80 and shift < bits:
        position += 1
        shift += 7
        byte = data[position]
        value |= (byte & 0x7F) << shift
    if byte >= 0x80 or value >> bits:
        raise WireError(f"varint that ends at byte {position} has more than {bits} bits")
    return (value >> 1) ^ -(value & 1), position + 1


def _read_headers(
    data: bytes, position: int, count: int
) -> tuple[list[tuple[str, bytes | None]], int]:
    short = _SHORT
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        if (byte := data[position]) < 0x80:
            size = short[byte]
            position += 1
        else:
            size, position = _read_long(data, position)
        end = position + size
        if size < 0 or end > len(data):
            raise WireError(f"header key at byte {position} has {size} bytes")
        key = data[position:end].decode("utf-8", _KEY_ERRORS)
        if (byte := data[end]) < 0x80:
            size = short[byte]
            position = end + 1
        else:
            size, position = _read_long(data, end)
        if size == -1:
            headers.append((key, None))
            continue
        end = position + size
        if size < 0 or end > len(data):
            raise WireError(f"header value at byte {position} has {size} bytes")
        headers.append((key, data[position:end]))
        position = end
    return headers, position


def read_records(data: bytes, count: int) -> Iterator[Record]:
    """The `count` records that `data` holds back to back, in order.

    WireError names the byte, counted from the first record, if a record is malformed or bytes are
    left behind the last one. Records before the bad one have been given by then.
    """
    short = _SHORT
    position = start = 0
    try:
        for _ in range(count):
            start = position
            # Written out field by field: a call for each would double the time.
            if (byte := data[position]) < 0x80:
                end = position + 1 + short[byte]
                position += 2  # the length and the attributes
            else:
                size, position = _read_long(data, position)
                end = position + size
                position += 1
            if (byte := data[position]) < 0x80:
                timestamp_delta = short[byte]
                position += 1
            else:
                timestamp_delta, position = _read_long(data, position, 64)
            if (byte := data[position]) < 0x80:
                offset_delta = short[byte]
                position += 1
            else:
                offset_delta, position = _read_long(data, position)
            # A slice that is cut short by the end of the data leaves `position` beyond it, so the
            # next look at a byte is an IndexError; one beyond the record shows in `end`.
            key = value = None
            if (byte := data[position]) < 0x80:
                size = short[byte]
                position += 1
            else:
                size, position = _read_long(data, position)
            if size >= 0:
                key = data[position : position + size]
                position += size
            elif size != -1:
                raise WireError(f"key has {size} bytes")
            if (byte := data[position]) < 0x80:
                size = short[byte]
                position += 1
            else:
                size, position = _read_long(data, position)
            if size >= 0:
                value = data[position : position + size]
                position += size
            elif size != -1:
                raise WireError(f"value has {size} bytes")
            headers: list[tuple[str, bytes | None]] = []
            if (byte := data[position]) == 0:
                position += 1
            else:
                header_count, position = _read_long(data, position)
                if header_count < 0:
                    raise WireError(f"{header_count} headers")
                headers, position = _read_headers(data, position, header_count)
            if position != end:
                raise WireError(f"its length says byte {end}, its fields end at byte {position}")
            yield Record(offset_delta, timestamp_delta, key, value, headers)
    except IndexError:
        raise WireError(f"record at byte {start} is cut short by the end of the batch") from None
    except WireError as error:
        raise WireError(f"record at byte {start}: {error}") from None
    if position != len(data):
        raise WireError(f"{len(data) - position} bytes follow the last of {count} records")


#: The varints of one byte, the commonest: -64 to 63.
_ONE_BYTE = {value: bytes(((value << 1) ^ (value >> 63),)) for value in range(-64, 64)}


def encode_varint(value: int, bits: int = 32) -> bytes:
    """`value` as a zigzag varint. EncodeError if it has no place in `bits` bits."""
    if (encoded := _ONE_BYTE.get(value)) is not None:
        return encoded
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise EncodeError(f"{value} does not fit into {bits} bits")
    rest = value << 1 if value >= 0 else ~(value << 1)
    if rest < 1 << 14:
        return bytes((rest & 0x7F | 0x80, rest >> 7))
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def encode_record(record: Record, timestamp_shift: int = 0) -> bytes:
    """The record's bytes; `timestamp_shift` is added to its timestamp delta.

    EncodeError if a number does not fit its field.
    """
    one_byte = _ONE_BYTE
    body = bytearray(1)  # attributes: none are defined
    delta = record.timestamp_delta + timestamp_shift
    body += one_byte.get(delta) or encode_varint(delta, 64)
    delta = record.offset_delta
    body += one_byte.get(delta) or encode_varint(delta)
    _append_bytes(body, record.key)
    _append_bytes(body, record.value)
    if not record.headers:
        body += b"\x00"
        return encode_varint(len(body)) + body
    body += encode_varint(len(record.headers))
    for key, value in record.headers:
        _append_bytes(body, key.encode("utf-8", _KEY_ERRORS))
        _append_bytes(body, value)
    return encode_varint(len(body)) + body


def _append_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out += b"\x01"  # -1
    else:
        size = len(value)
        out += _ONE_BYTE.get(size) or encode_varint(size)
        out += value
