"""Kafka requests made by hand, down to the byte, for what a well-behaved client never sends.

Only struct and a CRC: no codec, ours or anyone's, that could share a mistake with a server.
Versions are the last non-flexible ones (big-endian, lengths before strings, -1 for null).
"""

import os
import socket
import struct
import time
from dataclasses import dataclass, field

import crc32c

PRODUCE, FETCH, LIST_OFFSETS, METADATA = 0, 1, 2, 3
FIND_COORDINATOR, API_VERSIONS, CREATE_TOPICS, INIT_PRODUCER_ID = 10, 18, 19, 22

# Error codes by number, for messages and for the recorded answers of the control.
ERRORS = {
    -1: "UNKNOWN_SERVER_ERROR",
    0: "NONE",
    1: "OFFSET_OUT_OF_RANGE",
    2: "CORRUPT_MESSAGE",
    3: "UNKNOWN_TOPIC_OR_PARTITION",
    6: "NOT_LEADER_OR_FOLLOWER",
    10: "MESSAGE_TOO_LARGE",
    17: "INVALID_TOPIC_EXCEPTION",
    18: "RECORD_LIST_TOO_LARGE",
    19: "NOT_ENOUGH_REPLICAS",
    21: "INVALID_REQUIRED_ACKS",
    32: "INVALID_TIMESTAMP",
    35: "UNSUPPORTED_VERSION",
    36: "TOPIC_ALREADY_EXISTS",
    37: "INVALID_PARTITIONS",
    38: "INVALID_REPLICATION_FACTOR",
    40: "INVALID_CONFIG",
    42: "INVALID_REQUEST",
    43: "UNSUPPORTED_FOR_MESSAGE_FORMAT",
    45: "OUT_OF_ORDER_SEQUENCE_NUMBER",
    46: "DUPLICATE_SEQUENCE_NUMBER",
    47: "INVALID_PRODUCER_EPOCH",
    48: "INVALID_TXN_STATE",
    49: "INVALID_PRODUCER_ID_MAPPING",
    50: "INVALID_TRANSACTION_TIMEOUT",
    53: "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    56: "KAFKA_STORAGE_ERROR",
    59: "UNKNOWN_PRODUCER_ID",
    74: "FENCED_LEADER_EPOCH",
    75: "UNKNOWN_LEADER_EPOCH",
    76: "UNSUPPORTED_COMPRESSION_TYPE",
    87: "INVALID_RECORD",
    90: "PRODUCER_FENCED",
}


def error_name(code: int) -> str:
    return ERRORS.get(code, str(code))


class Closed(Exception):
    """The server closed the connection instead of answering."""


def string(text: str | None) -> bytes:
    if text is None:
        return struct.pack(">h", -1)
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def sized(data: bytes | None) -> bytes:
    return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data


def array(*items: bytes) -> bytes:
    return struct.pack(">i", len(items)) + b"".join(items)


def varint(value: int) -> bytes:
    """Zigzag, as records use it."""
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value & ~0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def header(api_key: int, version: int, correlation_id: int, client_id: str | None = "raw") -> bytes:
    return struct.pack(">hhi", api_key, version, correlation_id) + string(client_id)


def frame(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


class Reader:
    """Reads an answer from its start; what is left must be nothing (`end`)."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def take(self, size: int) -> bytes:
        out = self.data[self.position : self.position + size]
        if len(out) != size:
            raise ValueError(f"answer ends at {len(self.data)}, wanted {self.position + size}")
        self.position += size
        return out

    def number(self, code: str) -> int:
        return struct.unpack(">" + code, self.take(struct.calcsize(">" + code)))[0]

    def string(self) -> str | None:
        size = self.number("h")
        return None if size < 0 else self.take(size).decode()

    def sized(self) -> bytes | None:
        size = self.number("i")
        return None if size < 0 else self.take(size)

    def end(self) -> None:
        if self.position != len(self.data):
            raise ValueError(f"{len(self.data) - self.position} bytes too many in the answer")


class Connection:
    """One socket; `call` sends a request and gives the answer's body."""

    def __init__(self, port: int, host: str = "127.0.0.1", timeout_s: float = 60) -> None:
        self.socket = socket.create_connection((host, port), timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.correlation_id = 0

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive(self, size: int) -> bytes:
        """Exactly `size` bytes; Closed when the server ends the stream before."""
        out = bytearray()
        while len(out) < size:
            try:
                piece = self.socket.recv(min(1 << 20, size - len(out)))
            except ConnectionError as error:
                raise Closed(str(error)) from None
            if not piece:
                raise Closed(f"after {len(out)} of {size} bytes")
            out += piece
        return bytes(out)

    def receive_frame(self) -> bytes:
        (size,) = struct.unpack(">i", self.receive(4))
        return self.receive(size)

    def call(self, api_key: int, version: int, body: bytes) -> Reader:
        self.correlation_id += 1
        self.send(frame(header(api_key, version, self.correlation_id) + body))
        answer = Reader(self.receive_frame())
        correlation_id = answer.number("i")
        assert correlation_id == self.correlation_id, (correlation_id, self.correlation_id)
        return answer

    def is_closed_by_server(self, timeout_s: float = 60) -> bool:
        """Wait for the server's end of stream or reset; False when it neither comes."""
        self.socket.settimeout(timeout_s)
        try:
            while self.socket.recv(65536):
                pass
        except TimeoutError:
            return False
        except ConnectionError:
            pass
        return True

    # One method per request, with what it answers.

    def api_versions(self) -> dict[int, tuple[int, int]]:
        answer = self.call(API_VERSIONS, 0, b"")
        assert answer.number("h") == 0
        rows = [
            (answer.number("h"), answer.number("h"), answer.number("h"))
            for _ in range(answer.number("i"))
        ]
        answer.end()
        return {key: (low, high) for key, low, high in rows}

    def create_topic(
        self, name: str, partitions: int = 1, configs: dict[str, str] | None = None
    ) -> int:
        rows = [string(key) + string(value) for key, value in (configs or {}).items()]
        topic = string(name) + struct.pack(">ih", partitions, 1) + array() + array(*rows)
        body = array(topic) + struct.pack(">i?", 20000, False)
        answer = self.call(CREATE_TOPICS, 4, body)
        answer.number("i")  # throttle time
        assert answer.number("i") == 1
        assert answer.string() == name
        return answer.number("h")

    def init_producer_id(self, transactional_id: str | None = None) -> tuple[int, int, int]:
        """(error, producer id, epoch)."""
        deadline = time.monotonic() + 20
        while True:
            if transactional_id is not None:
                # As a client does; this is also what makes the coordinator's topic.
                self.call(FIND_COORDINATOR, 1, string(transactional_id) + b"\1")
            answer = self.call(INIT_PRODUCER_ID, 1, string(transactional_id) + b"\0\0\xea\x60")
            answer.number("i")
            result = answer.number("h"), answer.number("q"), answer.number("h")
            # 14, 15, 16: the coordinator is still coming up
            if result[0] not in (14, 15, 16) or time.monotonic() > deadline:
                return result
            time.sleep(0.05)

    def produce(
        self,
        topic: str,
        records: bytes | None,
        *,
        partition: int = 0,
        acks: int = -1,
        transactional_id: str | None = None,
    ) -> "ProduceAnswer | None":
        """Produce v8; None for acks 0, to which there is no answer."""
        body = string(transactional_id) + struct.pack(">hi", acks, 15000)
        body += array(string(topic) + array(struct.pack(">i", partition) + sized(records)))
        if acks == 0:
            self.correlation_id += 1
            self.send(frame(header(PRODUCE, 8, self.correlation_id) + body))
            return None
        answer = self.call(PRODUCE, 8, body)
        assert answer.number("i") == 1
        assert answer.string() == topic
        assert answer.number("i") == 1
        assert answer.number("i") == partition
        result = ProduceAnswer(
            error=error_name(answer.number("h")),
            base_offset=answer.number("q"),
            append_time_ms=answer.number("q"),
            log_start_offset=answer.number("q"),
        )
        for _ in range(answer.number("i")):
            result.record_errors.append((answer.number("i"), answer.string()))
        result.message = answer.string()
        answer.number("i")
        answer.end()
        return result

    def fetch(
        self, topic: str, offset: int, *, partition: int = 0, max_bytes: int = 1 << 20
    ) -> tuple[str, int, bytes]:
        """Fetch v4: (error, high watermark, records)."""
        body = struct.pack(">iiiib", -1, 100, 1, max_bytes, 0)
        body += array(string(topic) + array(struct.pack(">iqi", partition, offset, max_bytes)))
        answer = self.call(FETCH, 4, body)
        answer.number("i")
        assert answer.number("i") == 1
        assert answer.string() == topic
        assert answer.number("i") == 1
        assert answer.number("i") == partition
        error, high_watermark = error_name(answer.number("h")), answer.number("q")
        answer.number("q")  # last stable offset
        for _ in range(max(0, answer.number("i"))):
            answer.take(16)  # aborted transactions
        records = answer.sized() or b""
        answer.end()
        return error, high_watermark, records

    def end_offset(self, topic: str, partition: int = 0) -> int:
        body = struct.pack(">i", -1) + array(
            string(topic) + array(struct.pack(">iq", partition, -1))
        )
        answer = self.call(LIST_OFFSETS, 1, body)
        answer.number("i"), answer.string(), answer.number("i"), answer.number("i")
        assert answer.number("h") == 0
        answer.number("q")
        return answer.number("q")


@dataclass(slots=True)
class ProduceAnswer:
    error: str
    base_offset: int
    append_time_ms: int
    log_start_offset: int
    record_errors: list[tuple[int, str | None]] = field(default_factory=list)
    message: str | None = None


def record(index: int, value: bytes | None, key: bytes | None = None, time_delta: int = 0) -> bytes:
    body = b"\0" + varint(time_delta) + varint(index)
    for part in (key, value):
        body += varint(-1) if part is None else varint(len(part)) + part
    body += varint(0)  # headers
    return varint(len(body)) + body


def batch(
    values: list[bytes | None],
    *,
    key: bytes | None = None,
    base_offset: int = 0,
    leader_epoch: int = -1,
    magic: int = 2,
    attributes: int = 0,
    timestamp_ms: int | None = None,
    max_timestamp_ms: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    last_offset_delta: int | None = None,
    count: int | None = None,
    size_change: int = 0,
    crc_change: int = 0,
    body: bytes | None = None,
) -> bytes:
    """A record batch; every header field can be made to lie, with a right CRC over the lie."""
    now = int(time.time() * 1000) if timestamp_ms is None else timestamp_ms
    if body is None:
        body = b"".join(record(index, value, key) for index, value in enumerate(values))
    tail = struct.pack(
        ">hiqqqhii",
        attributes,
        len(values) - 1 if last_offset_delta is None else last_offset_delta,
        now,
        now if max_timestamp_ms is None else max_timestamp_ms,
        producer_id,
        producer_epoch,
        base_sequence,
        len(values) if count is None else count,
    )
    tail += body
    crc = (crc32c.crc32c(tail) + crc_change) & 0xFFFFFFFF
    size = 9 + len(tail) + size_change
    return struct.pack(">qiibI", base_offset, size, leader_epoch, magic, crc) + tail


def answers(host: str, port: int) -> bool:
    """Whether somebody answers ApiVersions there."""
    try:
        with Connection(port, host, timeout_s=5) as connection:
            return bool(connection.api_versions())
    except (OSError, Closed):
        return False


def random_bytes(size: int) -> bytes:
    return os.urandom(size)
