"""What figures were measured on, and what it gives at best, asked in the same run.

    python -m bench.machine

The disk is asked three things, in a file that was written and synced before, so that no block is
looked for: how long `fdatasync` takes after 4 KiB and after 64 KiB, medians; and what one writer
gets that syncs each megabyte, one after the other, which is the most that any server which syncs
can write there. The loop is Python's own: a second run on a slower machine shows in it.
"""

import json
import mmap
import os
import platform
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.rounds import note, workspace
from quire import python_build

FILE_BYTES = 64 << 20
SYNCS = 200
LOOP_TURNS = 2_000_000


@dataclass(frozen=True, slots=True)
class Machine:
    """One line each of `lines`; times in milliseconds."""

    processor: str
    cores: int
    memory_gib: float
    kernel: str
    filesystem: str
    python: str
    is_optimised: bool
    loop_ms: float
    sync_4k_ms: float
    sync_64k_ms: float
    synced_mb_per_second: float

    def lines(self) -> list[str]:
        build = "optimised" if self.is_optimised else f"built without {python_build.OPTIMISED}"
        syncs = f"of 4 KiB {self.sync_4k_ms:.2f} ms, of 64 KiB {self.sync_64k_ms:.2f} ms"
        writer = f"{self.synced_mb_per_second:,.0f} MB/s"
        return [
            f"processor: {self.processor}, {self.cores} cores, {self.memory_gib:.0f} GiB",
            f"system: {self.kernel}, {self.filesystem}",
            f"Python: {self.python}, {build}; {LOOP_TURNS:,} turns of a loop {self.loop_ms:.0f} ms",
            f"disk: fdatasync {syncs}; one writer, a sync for each MB: {writer}",
        ]

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def measure() -> Machine:
    with workspace("machine") as directory:
        disk = _disk(directory / "probe")
        filesystem = _filesystem(directory)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(memory / (1 << 30), 1),
        kernel=f"{platform.system()} {platform.release()}",
        filesystem=filesystem,
        python=platform.python_version(),
        is_optimised=python_build.of_this_python(),
        loop_ms=_loop_ms(),
        sync_4k_ms=disk[0],
        sync_64k_ms=disk[1],
        synced_mb_per_second=disk[2],
    )


def _disk(path: Path) -> tuple[float, float, float]:
    # Aligned, as a server's own buffers are.
    block = mmap.mmap(-1, 1 << 20)
    block.write(os.urandom(1 << 20))
    view = memoryview(block)
    number = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        for at in range(0, FILE_BYTES, 1 << 20):
            os.pwrite(number, view, at)
        os.fsync(number)
        small = statistics.median(_syncs(number, view[:4096], SYNCS))
        middle = statistics.median(_syncs(number, view[:65_536], SYNCS))
        large = _syncs(number, view[:1_000_000], FILE_BYTES // 1_000_000)
    finally:
        os.close(number)
    return small * 1000, middle * 1000, len(large) / sum(large)


def _syncs(number: int, data: memoryview, count: int) -> list[float]:
    """Seconds of each write with its sync, one behind the other."""
    taken = []
    for at in range(count):
        start = time.perf_counter()
        os.pwrite(number, data, at * len(data) % (FILE_BYTES - len(data)))
        os.fdatasync(number)
        taken.append(time.perf_counter() - start)
    return taken


def _loop_ms() -> float:
    start = time.process_time()
    total = 0
    for value in range(LOOP_TURNS):
        total += value * value % 7
    return (time.process_time() - start) * 1000


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def _filesystem(directory: Path) -> str:
    """The kind of the mount that has the directory."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    above = [mount for mount in mounts if directory.resolve().is_relative_to(mount[1])]
    return max(above, key=lambda mount: len(mount[1]))[2] if above else "unknown"


def main() -> None:
    machine = measure()
    for line in machine.lines():
        note(line)
    print(json.dumps(machine.as_json()))


if __name__ == "__main__":
    main()
