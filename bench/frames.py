"""Kafka frames made once and sent many times: Produce v9, Fetch v12 and how to count the replies.

Independent of the server's own code on purpose: a mistake in one would not hide in the other.
Only what the load needs: one topic, one partition for each Produce, no transactions, no
compression. Layouts: Kafka's JSON message definitions; record batch: KIP-98.
"""

import struct
from dataclasses import dataclass

import crc32c

CLIENT_ID = b"bench"
CORRELATION_OFFSET = 8  # in a request frame, after size, key and version


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def zigzag(value: int) -> bytes:
    return uvarint((value << 1) ^ (value >> 63))


def compact(data: bytes) -> bytes:
    return uvarint(len(data) + 1) + data


def request(api_key: int, api_version: int, body: bytes, correlation_id: int = 0) -> bytes:
    """A whole frame with header v2 (flexible versions)."""
    head = struct.pack(">hhih", api_key, api_version, correlation_id, len(CLIENT_ID))
    payload = head + CLIENT_ID + b"\0" + body
    return struct.pack(">i", len(payload)) + payload


def record(value: bytes, offset_delta: int) -> bytes:
    body = b"\0" + zigzag(0) + zigzag(offset_delta) + zigzag(-1) + zigzag(len(value)) + value
    body += zigzag(0)
    return zigzag(len(body)) + body


def record_batch(values: list[bytes], timestamp_ms: int = 1_700_000_000_000) -> bytes:
    records = b"".join(record(value, index) for index, value in enumerate(values))
    covered = struct.pack(
        ">hiqqqhii",
        0,  # attributes
        len(values) - 1,
        timestamp_ms,
        timestamp_ms,
        -1,  # producer id
        -1,
        -1,
        len(values),
    )
    covered += records
    head = struct.pack(">iBI", -1, 2, crc32c.crc32c(covered))  # leader epoch, magic, crc
    return struct.pack(">qi", 0, len(head) + len(covered)) + head + covered


def produce_frame(topic: str, partition: int, batch: bytes, acks: int = -1) -> bytes:
    return produce_many_frame(topic, [partition], batch, acks)


def produce_many_frame(topic: str, partitions: list[int], batch: bytes, acks: int = -1) -> bytes:
    """The same batch for several partitions."""
    tail = compact(batch) + b"\0"
    partition_data = b"".join(struct.pack(">i", partition) + tail for partition in partitions)
    topic_data = compact(topic.encode()) + uvarint(len(partitions) + 1) + partition_data + b"\0"
    body = b"\0" + struct.pack(">hi", acks, 30_000) + uvarint(2) + topic_data + b"\0"
    return request(0, 9, body)


def batch_of(size_bytes: int, record_size_bytes: int = 1000) -> bytes:
    """A batch of about `size_bytes`, of records of at most `record_size_bytes`; incompressible
    enough not to flatter anybody."""
    value = bytes((index * 167 + 13) % 251 for index in range(min(record_size_bytes, size_bytes)))
    count = max(1, size_bytes // len(value))
    return record_batch([value] * count)


class ProduceError(RuntimeError):
    """A reply that is no success."""


@dataclass
class ProduceReplies:
    """Counts Produce v9 replies in a stream of bytes.

    A reply without errors to a request for one partition of a given topic has one known length,
    so that a burst of replies is checked with three strided slices instead of a loop."""

    topic: str
    count: int = 0

    def __post_init__(self) -> None:
        # correlation, header's tags, topics, name, partitions, index | error, offsets
        before = 4 + 1 + 1 + len(compact(self.topic.encode())) + 1 + 4
        self.error_offset = 4 + before
        self.size = self.error_offset + 2 + 8 + 8 + 8 + 1 + 1 + 1 + 1 + 4 + 1
        self.prefix = struct.pack(">i", self.size - 4)
        self.rest = b""

    def feed(self, data: bytes) -> int:
        """How many whole replies `data` completes. ProduceError if one reports an error."""
        if self.rest:
            data = self.rest + data
        size = self.size
        whole = len(data) // size
        end = whole * size
        self.rest = data[end:]
        for index in range(4):
            if data[index:end:size] != self.prefix[index : index + 1] * whole:
                raise ProduceError(f"unexpected Produce reply: {bytes(data[:200])!r}")
        for index in (self.error_offset, self.error_offset + 1):
            if data[index:end:size] != bytes(whole):
                raise ProduceError(f"Produce failed: {error_codes(data[:end], self)}")
        self.count += whole
        return whole


def error_codes(data: bytes, replies: ProduceReplies) -> set[int]:
    at = replies.error_offset
    return {
        struct.unpack_from(">h", data, start + at)[0] for start in range(0, len(data), replies.size)
    }


def parse_produce(data: memoryview) -> list[tuple[int, int]]:
    """(partition, error) of a Produce v9 response for one topic, without its size."""
    at = skip_tags(data, 4)
    _, at = read_uvarint(data, at)
    size, at = read_uvarint(data, at)
    count, at = read_uvarint(data, at + size - 1)
    out = []
    for _ in range(count - 1):
        out.append(struct.unpack_from(">ih", data, at))
        record_errors, at = read_uvarint(data, at + 30)
        for _ in range(record_errors - 1):
            size, at = read_uvarint(data, at + 4)
            at = skip_tags(data, at + max(0, size - 1))
        size, at = read_uvarint(data, at)
        at = skip_tags(data, at + max(0, size - 1))
    return out


def fetch_frame(
    topic: str,
    partitions: dict[int, int],
    max_bytes: int,
    partition_max_bytes: int,
    isolation: int = 0,
) -> bytes:
    """Asks for `partitions` (index -> offset) without a fetch session. `isolation` 1: for what is
    committed."""
    parts = b"".join(
        struct.pack(">iiqiqi", index, -1, offset, -1, -1, partition_max_bytes) + b"\0"
        for index, offset in partitions.items()
    )
    topic_data = compact(topic.encode()) + uvarint(len(partitions) + 1) + parts + b"\0"
    head = struct.pack(">iiiibii", -1, 500, 1, max_bytes, isolation, 0, -1)
    return request(1, 12, head + uvarint(2) + topic_data + b"\x01\x01\0")


def read_uvarint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def skip_tags(data: memoryview, at: int) -> int:
    count, at = read_uvarint(data, at)
    for _ in range(count):
        _, at = read_uvarint(data, at)
        size, at = read_uvarint(data, at)
        at += size
    return at


def parse_fetch(data: memoryview) -> list[tuple[int, int, int, memoryview]]:
    """(partition, error, high watermark, records) of a Fetch v12 response without its size."""
    at = skip_tags(data, 4)
    _throttle, error, _session = struct.unpack_from(">ihi", data, at)
    if error:
        raise RuntimeError(f"Fetch failed: {error}")
    topics, at = read_uvarint(data, at + 10)
    out = []
    for _ in range(topics - 1):
        size, at = read_uvarint(data, at)
        partitions, at = read_uvarint(data, at + size - 1)
        for _ in range(partitions - 1):
            index, error, high, _stable, _start = struct.unpack_from(">ihqqq", data, at)
            aborted, at = read_uvarint(data, at + 30)
            for _ in range(aborted - 1):
                at = skip_tags(data, at + 16)
            size, at = read_uvarint(data, at + 4)  # after the preferred replica
            out.append((index, error, high, data[at : at + max(0, size - 1)]))
            at = skip_tags(data, at + max(0, size - 1))
        at = skip_tags(data, at)
    return out


def count_batches(records: memoryview) -> tuple[int, int, int]:
    """(whole batches, their bytes, the offset after the last one); a cut batch at the end, which
    a server may send, is left out."""
    end = len(records)
    if end < 61:
        return 0, 0, -1
    size = 12 + struct.unpack_from(">i", records, 8)[0]
    count = end // size
    # Batches of one size, the usual case here, are recognised by their lengths without a loop.
    lengths = (bytes(records[at : count * size : size]) for at in range(8, 12))
    if count and all(column == column[:1] * count for column in lengths):
        at = count * size
        last = at - size
    else:
        count = at = last = 0
    while at + 61 <= end:
        size = 12 + struct.unpack_from(">i", records, at + 8)[0]
        if at + size > end:
            break
        last = at
        at += size
        count += 1
    if not count:
        return 0, 0, -1
    (base,) = struct.unpack_from(">q", records, last)
    (last_delta,) = struct.unpack_from(">i", records, last + 23)
    return count, at, base + last_delta + 1
