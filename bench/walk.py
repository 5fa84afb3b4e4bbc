"""What it costs to look at all records of a batch, in each way that there is.

    python -m bench.walk

Milliseconds of this thread's own time for a batch, the least of many: other programs on the machine
do not count, but for what they do to caches.
"""

import random
import time
from collections.abc import Callable

from aiokafka.record._crecords import DefaultRecordBatch

from wire.kafka.records.batch import build_batch, check_crc, parse_header
from wire.kafka.records.record import Record, read_records
from wire.kafka.records.walk import (
    INT64_MAX,
    INT64_MIN,
    IS_COMPILED,
    spans,
    spans_pure,
    walk,
    walk_pure,
)

CASES = ((1_000_000, 100), (1_000_000, 1000), (16_384, 100), (1_000, 1_000))
ROUNDS = 30
BASE_MS = 1_800_000_000_000


def least_ms(function: Callable[[], object]) -> float:
    least = float("inf")
    for _ in range(ROUNDS):
        start = time.thread_time()
        function()
        least = min(least, time.thread_time() - start)
    return least * 1000


def batch_of(size_bytes: int, record_bytes: int, rng: random.Random) -> tuple[bytes, int]:
    """A batch with keys, of records that are half to one and a half times `record_bytes`."""
    records = []
    for number in range(size_bytes // record_bytes):
        size = rng.randrange(record_bytes // 2, record_bytes * 3 // 2) - 18
        key = b"user-%d" % rng.randrange(10**6)
        records.append(Record(number, number // 3, key, rng.randbytes(size), []))
    return build_batch(records, base_timestamp=BASE_MS), len(records)


def starts(body: bytes) -> list[int]:
    """Where records begin, by their lengths alone: what any vectorised look at the fields needs
    first, and can only have one after the other."""
    position, size = 0, len(body)
    found = []
    while position < size:
        found.append(position)
        byte = body[position]
        if byte < 0x80:
            position += 1 + (byte >> 1)
        elif (second := body[position + 1]) < 0x80:
            position += 2 + ((byte & 0x7F | second << 7) >> 1)
        else:
            position += 3 + ((byte & 0x7F | (second & 0x7F) << 7 | body[position + 2] << 14) >> 1)
    return found


def main() -> None:
    rng = random.Random(1)
    print("compiled" if IS_COMPILED else "not compiled")
    for size, record_bytes in CASES:
        batch, count = batch_of(size, record_bytes, rng)
        header, body = parse_header(batch), batch[61:]
        args = body, count, BASE_MS, INT64_MIN, INT64_MAX, True
        writable = bytearray(batch)
        ways: dict[str, Callable[[], object]] = {
            "walk": lambda args=args: walk(*args),
            "walk_pure": lambda args=args: walk_pure(*args),
            "spans": lambda body=body, count=count: spans(body, 0, count, len(body)),
            "spans_pure": lambda body=body, count=count: spans_pure(body, 0, count, len(body)),
            "read_records": lambda body=body, count=count: list(read_records(body, count)),
            "starts alone": lambda body=body: starts(body),
            "aiokafka": lambda writable=writable: list(DefaultRecordBatch(writable)),
            "checksum": lambda batch=batch, header=header: check_crc(batch, header),
        }
        print(f"{count} records, {len(batch)} bytes")
        for name, function in ways.items():
            print(f"    {name:14} {least_ms(function):9.4f} ms")


if __name__ == "__main__":
    main()
