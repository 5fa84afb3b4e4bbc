"""How a server behaves that runs for long: flush, garbage collection and compaction under load.

    python -m bench.lasting steady [--seconds 600] [--share 0.5] [--kb 64] [--mb-per-second N]
    python -m bench.lasting cold [--size-mb 4000]
    python -m bench.lasting restart [--size-mb 1000]
    python -m bench.lasting index [--entries 5000000]

`steady` writes batches, at a share of the rate that the server takes at most or so many MB/s, to
topics of short and of long retention, so that every entry log holds both and has to be compacted.
Latencies are counted from the moment a request was due, not from when it was sent, so that a stall
counts for every request that it delays. It is run three times: with retention, collection and
compaction; with flushes only; and with neither, as long as the write cache lasts.

`cold` reads from the disk what the page cache does not hold, next to a writer. `restart` kills a
server whose journal holds so much, and times the next start. `index` fills the index alone.
"""

import argparse
import os
import random
import resource
import select
import shutil
import struct
import tempfile
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from bench import clients, frames, load
from bench.servers import Quire

BATCH_BYTES = 64_000
#: On a mount with `discard`: ten gigabytes that went keep the device busy for longer than the sync.
SETTLE_SECONDS = 20.0
PARTITIONS = 4
DIRECTORY = Path(tempfile.gettempdir()) / "quire-lasting"
MB = 1_000_000


class TunedQuire(Quire):
    """`quire standalone` with settings."""

    settings: dict[str, object]

    def __init__(self, directory: Path, **settings: object) -> None:
        super().__init__(directory)
        self.settings = {name.replace("__", "."): value for name, value in settings.items()}

    def command(self) -> list[str]:
        sets = [f"--set={name}={value}" for name, value in self.settings.items()]
        return [*super().command(), *sets]

    def ledger_bytes(self) -> int:
        """What the entry logs take on the disk."""
        root = self.directory / "data" / "bookie" / "ledgers"
        total = 0
        for path in root.rglob("*.log"):
            try:
                total += path.stat().st_size
            except FileNotFoundError:
                continue
        return total


def create(server: Quire, topic: str, **configs: object) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap, **clients.QUIET})
    config = {name.replace("__", "."): str(value) for name, value in configs.items()}
    config["retention.ms"] = "-1"  # the frames' records are from 2023
    admin.create_topics([NewTopic(topic, PARTITIONS, 1, config=config)])[topic].result(60)


@dataclass
class Paced:
    """Requests sent when they are due, over one connection for each topic."""

    server: Quire
    topics: list[str]
    requests_per_second: float
    batch_bytes: int = BATCH_BYTES
    latencies: list[float] = field(default_factory=list)
    sent: int = 0

    def run(self, seconds: float, look: "Look | None" = None) -> None:
        batch = frames.batch_of(self.batch_bytes)
        socks, due, replies, rings = [], [], [], []
        for topic in self.topics:
            socks.append(load.connect(self.server.address))
            due.append(deque())
            replies.append(frames.ProduceReplies(topic))
            rings.append(load.Ring(topic, range(PARTITIONS), batch, 1))
        poller = select.poll()
        for sock in socks:
            poller.register(sock.fileno(), select.POLLIN)
        index_of = {sock.fileno(): index for index, sock in enumerate(socks)}
        start = time.perf_counter()
        number = 0
        while True:
            now = time.perf_counter() - start
            while number / self.requests_per_second <= now and now < seconds:
                at = number % len(socks)
                for part in rings[at].take(1):
                    socks[at].sendall(part)
                due[at].append(start + number / self.requests_per_second)
                number += 1
            if now >= seconds and not any(due):
                break
            wait = number / self.requests_per_second - now if now < seconds else 0.1
            for fd, _ in poller.poll(max(0.0, wait) * 1000):
                at = index_of[fd]
                done = replies[at].feed(socks[at].recv(1 << 16))
                received = time.perf_counter()
                for _ in range(done):
                    self.latencies.append(received - due[at].popleft())
            if look is not None:
                look.maybe()
        self.sent = number
        for sock in socks:
            sock.close()

    def figures(self) -> str:
        ordered = sorted(self.latencies)

        def at(share: float) -> float:
            return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000

        return (
            f"p50 {at(0.5):7.2f}  p99 {at(0.99):7.2f}  p99.9 {at(0.999):7.2f}  "
            f"max {ordered[-1] * 1000:7.1f} ms  ({len(ordered)} requests)"
        )


@dataclass
class Look:
    """Samples of the disk's use and the process's memory during a run."""

    server: TunedQuire
    live_bytes: float
    interval_seconds: float = 5.0
    used: list[int] = field(default_factory=list)
    memory_mb: list[float] = field(default_factory=list)
    last: float = 0.0

    def maybe(self) -> None:
        now = time.perf_counter()
        if now - self.last >= self.interval_seconds:
            self.last = now
            self.used.append(self.server.ledger_bytes())
            self.memory_mb.append(self.server.memory_mb("RssAnon"))

    def figures(self) -> str:
        later = self.used[len(self.used) // 3 :]
        mean = sum(later) / len(later)
        return (
            f"entry logs {mean / MB:.0f} MB on average, {max(later) / MB:.0f} at most; "
            f"retained {self.live_bytes / MB:.0f} MB: {mean / self.live_bytes:.2f} times; "
            f"memory {self.memory_mb[-1]:.0f} MB"
        )


LASTING = {
    "log.retention.check.interval.ms": 1000,
    "gcWaitTime": 2000,
    "minorCompactionInterval": 10,
    "majorCompactionInterval": 20,
    # Half of what is written outlives its neighbours, and is copied once or twice.
    "compactionRateByBytes": 128 << 20,
    "logSizeLimit": 256 << 20,
}
FLUSH_ONLY = {"minorCompactionThreshold": 0, "majorCompactionThreshold": 0}
NO_FLUSH = {**FLUSH_ONLY, "flushInterval": 3_600_000, "dbStorage_writeCacheMaxSizeMb": 8000}
#: Kept of each partition: most of what is written dies young, the rest lives for minutes.
SHORT_BYTES, LONG_BYTES = 64 << 20, 1 << 30
SEGMENT_BYTES = 16 << 20


def fresh(**settings: object) -> TunedQuire:
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    # On a mount with `discard` the device hears of what the last case left with the next commit,
    # and all syncs wait for that.
    os.sync()
    time.sleep(SETTLE_SECONDS)
    server = TunedQuire(DIRECTORY)
    server.settings = dict(settings)
    server.start()
    return server


def top_rate(seconds: float, batch_bytes: int) -> float:
    """Requests a second that a fresh server takes at most."""
    server = fresh(**LASTING)
    try:
        create(server, "top", retention__bytes=SHORT_BYTES, segment__bytes=SEGMENT_BYTES)
        batch = frames.batch_of(batch_bytes)
        result = load.produce_pipelined(server.address, "top", range(PARTITIONS), batch, 5, seconds)
        return result.requests_per_second
    finally:
        server.discard()


def steady(arguments: argparse.Namespace) -> None:
    batch_bytes = arguments.kb * 1000
    if arguments.mb_per_second is None:
        rate = top_rate(15, batch_bytes) * arguments.share
    else:
        rate = arguments.mb_per_second * MB / batch_bytes
    megabytes = rate * batch_bytes / MB
    print(f"{rate:.0f} requests/s of {arguments.kb} kB = {megabytes:.0f} MB/s", flush=True)
    cases = [
        ("retention, gc, compaction", LASTING, arguments.seconds, True),
        ("flush only", FLUSH_ONLY, min(arguments.seconds, 45), False),
        ("neither", NO_FLUSH, min(arguments.seconds, 3_000 * MB / (rate * batch_bytes)), False),
    ]
    for name, settings, seconds, limited in cases:
        server = fresh(**settings)
        try:
            kept = (SHORT_BYTES, LONG_BYTES) if limited else (-1, -1)
            for topic, size in zip(("short", "long"), kept, strict=True):
                create(server, topic, retention__bytes=size, segment__bytes=SEGMENT_BYTES)
            look = Look(server, PARTITIONS * sum(kept) if limited else 1)
            cpu = server.cpu_seconds()
            paced = Paced(server, ["short", "long"], rate, batch_bytes)
            paced.run(seconds, look)
            cpu = (server.cpu_seconds() - cpu) / (paced.sent * batch_bytes / 1e9)
            print(f"{name:26s} {paced.figures()}  CPU {cpu:.2f} s/GB", flush=True)
            if limited:
                print(f"{'':26s} {look.figures()}", flush=True)
        finally:
            server.discard()


def drop_page_cache(directory: Path) -> None:
    os.sync()
    for path in directory.rglob("*.log"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cold(arguments: argparse.Namespace) -> None:
    server = fresh(logSizeLimit=256 << 20)
    try:
        create(server, "old", segment__bytes=256 << 20)
        create(server, "new", segment__bytes=256 << 20)
        rate = 4000.0
        fill = Paced(server, ["old"], rate)
        fill.run(arguments.size_mb * MB / (rate * BATCH_BYTES))
        time.sleep(12)  # the last of it is flushed
        alone = Paced(server, ["new"], 500)
        alone.run(10)
        print(f"writer alone         {alone.figures()}")
        drop_page_cache(DIRECTORY)
        beside = Paced(server, ["new"], 500)
        done: list[tuple[float, float]] = []
        reader = threading.Thread(target=lambda: done.append(read_all(server, "old")))
        reader.start()
        beside.run(10)
        reader.join()
        print(f"writer beside reader {beside.figures()}")
        print(f"cold reads           {done[0][0] / done[0][1] / MB:.0f} MB/s")
        print(
            f"the same, warm       {(warm := read_all(server, 'old'))[0] / warm[1] / MB:.0f} MB/s"
        )
    finally:
        server.discard()


def read_all(server: Quire, topic: str) -> tuple[float, float]:
    """(bytes of batches, seconds) of reading every partition to its end."""
    sock = load.connect(server.address)
    offsets = dict.fromkeys(range(PARTITIONS), 0)
    total = 0.0
    start = time.perf_counter()
    with sock:
        while offsets:
            sock.sendall(frames.fetch_frame(topic, offsets, 16 << 20, 4 << 20))
            for index, error, high, records in frames.parse_fetch(receive(sock)):
                if error:
                    raise RuntimeError(f"partition {index}: error {error}")
                _, size, following = frames.count_batches(records)
                total += size
                if following >= 0:
                    offsets[index] = following
                if offsets[index] >= high:
                    del offsets[index]
    return total, time.perf_counter() - start


def receive(sock: object) -> memoryview:
    head = bytearray(4)
    read_into(sock, memoryview(head))
    body = memoryview(bytearray(struct.unpack(">i", head)[0]))
    read_into(sock, body)
    return body


def read_into(sock, view: memoryview) -> None:
    while len(view):
        count = sock.recv_into(view)
        if not count:
            raise load.ConnectionLostError
        view = view[count:]


def restart(arguments: argparse.Namespace) -> None:
    size = arguments.size_mb * MB
    server = fresh(flushInterval=3_600_000, dbStorage_writeCacheMaxSizeMb=3 * arguments.size_mb)
    try:
        create(server, "t")
        rate = 2000.0
        Paced(server, ["t"], rate).run(size / (rate * BATCH_BYTES))
        server.kill()
        for name, settings in (("replay", server.settings), ("after a clean stop", {})):
            server.settings = settings
            start = time.perf_counter()
            server.start()
            seconds = time.perf_counter() - start
            print(f"start, {name:20s} {seconds:6.2f} s  ({size / seconds / MB:.0f} MB/s)")
            server.stop()
    finally:
        server.discard()


def index(arguments: argparse.Namespace) -> None:
    from bookie.storage.rocks_index import RocksIndex

    shutil.rmtree(DIRECTORY, ignore_errors=True)
    DIRECTORY.mkdir(parents=True)
    database = RocksIndex(str(DIRECTORY), 64 << 20)
    database.open()
    count = arguments.entries
    per_ledger = 50_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    for first in range(0, count, 200):
        ledger_id, entry_id = divmod(first, per_ledger)
        ids = range(entry_id, entry_id + 200)
        database.put(ledger_id, ids, [(ledger_id << 32) + each for each in ids])
        if first % 100_000 == 0:
            database.sync()
    database.sync()
    seconds = time.perf_counter() - start
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    used = sum(path.stat().st_size for path in DIRECTORY.rglob("*") if path.is_file())
    rng = random.Random(1)
    start = time.perf_counter()
    looks = 20_000
    for _ in range(looks):
        at = rng.randrange(count)
        if not database.get(*divmod(at, per_ledger)):
            assert divmod(at, per_ledger)[0] == 0, "location 0 is «none»"
    get_us = (time.perf_counter() - start) / looks * 1e6
    database.close()
    shutil.rmtree(DIRECTORY)
    scale = 100_000_000 / count
    print(f"{count} entries: {seconds:.1f} s, {used / MB:.0f} MB on disk, peak +{grown:.0f} MB")
    print(f"random get {get_us:.1f} us")
    print(f"100 million, extrapolated: {seconds * scale:.0f} s, {used * scale / MB:.0f} MB on disk")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("steady", "cold", "restart", "index"))
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--share", type=float, default=0.5)
    parser.add_argument("--kb", type=int, default=BATCH_BYTES // 1000, help="of a batch")
    parser.add_argument("--mb-per-second", type=float, help="instead of a share")
    parser.add_argument("--size-mb", type=int)
    parser.add_argument("--entries", type=int, default=5_000_000)
    arguments = parser.parse_args()
    if arguments.size_mb is None:
        arguments.size_mb = 1000 if arguments.what == "restart" else 4000
    {"steady": steady, "cold": cold, "restart": restart, "index": index}[arguments.what](arguments)


if __name__ == "__main__":
    main()
