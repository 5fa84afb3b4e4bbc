"""What freeing files costs those who sync others.

    python -m bench.freed [--rounds 4] [--seconds 12] [--directory DIR]

A process appends 64 kB at 712/s to a file whose blocks are all there, and syncs it; latency counts
from the moment an append was due. Beside it another frees files of 256 MiB from their ends, in
steps, each synced and followed by a pause. On a mount with `discard` the device hears of freed
blocks with the next commit, and all syncs wait for that (runtime/real_disk.py).
"""

import argparse
import os
import shutil
import tempfile
import time
from multiprocessing import Event, Process, Queue
from pathlib import Path

MIB = 1 << 20
FILE_BYTES, FILES = 256 * MIB, 8
APPEND_BYTES, APPENDS_PER_SECOND = 64_000, 712
#: (bytes of a step, seconds of a pause at least, pauses as long as so many steps took)
CASES = ((8 * MIB, 0.01, 0.0), (MIB, 0.01, 1.0), (MIB // 4, 0.002, 1.0))
SETTLE_SECONDS = 8.0


def fill(path: Path, size_bytes: int) -> None:
    data = os.urandom(MIB)
    with path.open("wb") as file:
        for _ in range(0, size_bytes, MIB):
            file.write(data)
        file.flush()
        os.fsync(file.fileno())


def append(directory: Path, seconds: float) -> list[float]:
    """Latencies, sorted. What is due while a sync runs is written with the next one."""
    path = directory / "appended"
    fill(path, FILE_BYTES)
    time.sleep(1)
    data = os.urandom(APPEND_BYTES)
    latencies: list[float] = []
    number = offset = 0
    fd = os.open(path, os.O_WRONLY)
    start = time.perf_counter()
    while (now := time.perf_counter() - start) < seconds:
        due = number / APPENDS_PER_SECOND
        time.sleep(max(0.0, due - now))
        now = max(now, due)
        count = min(32, 1 + int((now - due) * APPENDS_PER_SECOND))
        for _ in range(count):
            os.pwrite(fd, data, offset)
            offset = (offset + APPEND_BYTES) % (FILE_BYTES - APPEND_BYTES)
        os.fdatasync(fd)
        done = time.perf_counter() - start
        latencies += (done - (number + n) / APPENDS_PER_SECOND for n in range(count))
        number += count
    os.close(fd)
    return sorted(latencies)


def free(
    directory: Path, case: tuple[int, float, float], stop: Event, rate: "Queue[float]"
) -> None:
    step, pause, share = case
    freed, start = 0, time.perf_counter()
    for path in sorted(directory.glob("old*")):
        fd = os.open(path, os.O_RDWR)
        path.unlink()
        for end in range(FILE_BYTES - step, -1, -step):
            before = time.perf_counter()
            os.ftruncate(fd, end)
            os.fsync(fd)
            freed += step
            time.sleep(max(pause, share * (time.perf_counter() - before)))
            if stop.is_set():
                break
        os.close(fd)
        if stop.is_set():
            break
    rate.put(freed / (time.perf_counter() - start) / 1e6)


def measured(directory: Path, case: tuple[int, float, float], seconds: float) -> str:
    for number in range(FILES):
        fill(directory / f"old{number}", FILE_BYTES)
    os.sync()
    time.sleep(SETTLE_SECONDS)
    stop, rate = Event(), Queue()
    process = Process(target=free, args=(directory, case, stop, rate))
    process.start()
    latencies = append(directory, seconds)
    stop.set()
    freed = rate.get()
    process.join()
    for path in directory.glob("old*"):
        path.unlink()
    p50, p99, p999 = (latencies[int(len(latencies) * at)] * 1000 for at in (0.5, 0.99, 0.999))
    return f"{p50:.2f} | {p99:.2f} | {p999:.2f} | {latencies[-1] * 1000:.1f} | {freed:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=12)
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()))
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="quire-freed-", dir=arguments.directory))
    print("| step, kiB | pause, ms | p50, ms | p99 | p99.9 | max | freed, MB/s |")
    print("|---|---|---|---|---|---|---|")
    try:
        for _ in range(arguments.rounds):
            for case in CASES:
                figures = measured(directory, case, arguments.seconds)
                print(f"| {case[0] >> 10} | {case[1] * 1000:g} | {figures} |", flush=True)
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
