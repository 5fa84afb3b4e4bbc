"""What a synced write costs by the file that it goes to, and with a second file beside it.

    python -m bench.journal_files [--megabytes 200] [--directory DIR]

Each write is followed by fdatasync, one after the other, into a file that grows, one whose space
was allocated, and one that was written before; the last also with 4 KiB written and synced in a
second file, which is what a journal would need whose large entries go to a file of their own. Why a
journal becomes an entry log, and when a new one is only allocated: docs/benchmarks.md.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.load import percentile_ms

MIB = 1 << 20
SIZES = (64 << 10, MIB, 4 * MIB)
SMALL = bytes(4096)


def _prepared(path: Path, kind: str, size: int) -> int:
    """The file's descriptor, durable as it is."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    if kind == "allocated":
        os.posix_fallocate(file, 0, size)
    elif kind != "grows":
        for at in range(0, size, MIB):
            os.pwrite(file, bytes(min(MIB, size - at)), at)
    os.fsync(file)
    return file


def _latencies(directory: Path, kind: str, size: int, total: int) -> Iterator[float]:
    file = _prepared(directory / "file", kind, total)
    second = _prepared(directory / "second", "written before", len(SMALL))
    data = os.urandom(size)
    for at in range(0, total - size + 1, size):
        start = time.perf_counter()
        os.pwrite(file, data, at)
        os.fdatasync(file)
        if kind == "and a second":
            os.pwrite(second, SMALL, 0)
            os.fdatasync(second)
        yield time.perf_counter() - start
    os.close(file)
    os.close(second)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=200, help="that each case writes")
    parser.add_argument("--directory", help="on the disk that is asked")
    options = parser.parse_args()
    print("| write | file | MB/s | p50, ms | p99, ms |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        for size in SIZES:
            for kind in ("grows", "allocated", "written before", "and a second"):
                found = list(_latencies(Path(directory), kind, size, options.megabytes * MIB))
                rate = len(found) * size / sum(found) / 1e6
                p50, p99 = percentile_ms(found, 0.5), percentile_ms(found, 0.99)
                print(f"| {size >> 10} KiB | {kind} | {rate:.0f} | {p50:.2f} | {p99:.2f} |")


if __name__ == "__main__":
    main()
