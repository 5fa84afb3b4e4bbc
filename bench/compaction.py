"""What the two passes of compaction by key cost, in bytes of the log that they go through.

    python -m bench.compaction

MB/s of this thread's own time, one core, nothing waits: other programs on the machine do not count,
but for what they do to caches. Batches of 64 KiB of records with keys of 16 bytes and random
values; each dead record has a newer one of its key behind the part that is measured.
"""

import random
import time

from broker.log.compact.aborted import TransactionPass
from broker.log.compact.compaction_core import Filter, Mapping, PassRules
from broker.log.compact.key_map import OpenAddressingKeyMap, size_for
from broker.log.compact.packing import Packer
from broker.log.compact.steps import run_inline
from wire.kafka.records.batch import build_batch, parse_header
from wire.kafka.records.compression import Compression
from wire.kafka.records.record import Record
from wire.kafka.records.walk import IS_COMPILED

BATCH_BYTES = 64 * 1024
LOG_BYTES = 16 * 1024 * 1024
SIZE_MAX = 1 << 20
ENTRY_BYTES = 1 << 20
ROUNDS = 3
BASE_MS = 1_800_000_000_000


def log_of(record_bytes: int, codec: Compression) -> list[memoryview]:
    """Batches whose keys are all different: the offset."""
    rng = random.Random(1)
    batches, offset = [], 0
    count = BATCH_BYTES // record_bytes
    while offset * record_bytes < LOG_BYTES:
        # Half of a value compresses, as text would.
        half = (record_bytes - 24) // 2
        records = [
            Record(n, n, b"key-%012d" % (offset + n), rng.randbytes(half) + bytes(half))
            for n in range(count)
        ]
        made = build_batch(records, base_offset=offset, base_timestamp=BASE_MS, compression=codec)
        batches.append(memoryview(made))
        offset += count
    return batches


def map_pass(batches: list[memoryview], key_map: OpenAddressingKeyMap) -> Mapping:
    mapping = Mapping(key_map, TransactionPass(), start_offset=0, size_max=SIZE_MAX)
    for batch in batches:
        run_inline(mapping.add(batch, parse_header(batch)))
    return mapping


def copy_pass(batches: list[memoryview], key_map: OpenAddressingKeyMap, end: int) -> int:
    rules = PassRules(
        now_ms=BASE_MS, delete_retention_ms=1000, last_mapped=end, high_watermark=end + 1,
        size_max=SIZE_MAX,
    )  # fmt: skip
    copying = Filter(rules, key_map, TransactionPass())
    packer = Packer(ENTRY_BYTES)
    size = 0
    for batch in batches:
        header = parse_header(batch)
        kept = run_inline(copying.keep(batch, header, is_compacted=False, is_range_end=False))
        if kept.data is not None:
            for _ in packer.add(kept.data, header.base_offset, header.last_offset):
                pass
            size += len(kept.data)
    return size


def measure(record_bytes: int, codec: Compression, dead_percents: tuple[int, ...]) -> None:
    batches = log_of(record_bytes, codec)
    size_bytes = sum(map(len, batches))
    end = parse_header(batches[-1]).last_offset
    least = float("inf")
    for _ in range(ROUNDS):
        key_map = OpenAddressingKeyMap(size_for(2 * end), hash_key=bytes(16))
        start = time.thread_time()
        mapping = map_pass(batches, key_map)
        least = min(least, time.thread_time() - start)
    name = f"{record_bytes:5} B {codec.name.lower():5}"
    per_record = least * 1e6 / mapping.records_mapped
    fill = len(key_map) / key_map.keys_max
    print(
        f"{name} map           {size_bytes / least / 1e6:8.1f} MB/s"
        f" {per_record:6.2f} us/record, map {fill:.0%} full"
    )
    for percent in dead_percents:
        rng = random.Random(percent)
        dead = rng.sample(range(end + 1), (end + 1) * percent // 100)
        for offset in dead:
            key_map.put(b"key-%012d" % offset, end + 1)
        least = float("inf")
        for _ in range(ROUNDS):
            start = time.thread_time()
            left = copy_pass(batches, key_map, end)
            least = min(least, time.thread_time() - start)
        per_record = least * 1e6 / (end + 1)
        print(
            f"{name} copy {percent:3} % dead {size_bytes / least / 1e6:6.1f} MB/s"
            f" {per_record:6.2f} us/record, {left / size_bytes:4.0%} left"
        )


def main() -> None:
    print("walk compiled" if IS_COMPILED else "walk not compiled")
    for record_bytes in (100, 1000):
        for codec in (Compression.NONE, Compression.LZ4):
            measure(record_bytes, codec, (0, 50, 99))


if __name__ == "__main__":
    main()
