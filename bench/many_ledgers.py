"""What walks all ledgers of a cluster, when these are very many: the auditor, a bookie's collection
of garbage, the sweep of ledgers that no partition has.

    python -m bench.many_ledgers [--ledgers 10000,100000,1000000] [--stores sqlite,zookeeper]
        [--partitions 1000] [--zookeeper-ledgers-max 200000] [--directory DIRECTORY]

The metadata of so many ledgers is put into a store (SQLite: by SQL, so that a million takes half a
minute; ZooKeeper: a server of its own, by multis), with the documents and archives of the
partitions that have them. Each is closed, on 3 of 100 bookies. Then, each in a process of its own:

    audit       one round of the auditor; all bookies are registered
    collect     a look of a bookie that has one ledger in twenty at which of them are gone
    sweep       the sweep of orphans; every partition has been taken over since, so that no
                ledger's own words tell that it may stay

Of each: seconds, and of those the processor time of the loop's thread; metadata requests and nodes
read; how much the most of resident memory was above that before; and the longest step of a task, in
the loop's thread's own time: how long the process could answer nobody. That excludes what other
programs took; calls of the garbage collector, which looks as a server's does, are in it.
"""

import argparse
import gc
import json
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import trio

from bench import rounds
from bench.longest_step import LongestStep
from bench.peers import ZooKeeper
from broker.cluster.ownership import Incarnation
from broker.log.life.chain import Chain, archive_bytes, archive_path
from broker.log.life.ledger_info import LedgerInfo
from broker.log.life.orphans import sweep_orphans
from broker.log.manager import partition_path
from broker.log.settings import LogSettings
from joined.ledger_gc import ABSENT_SECONDS_MIN, MetadataLedgers
from ledger.autorecovery.auditor import Auditor
from ledger.autorecovery.checks import Checks
from ledger.autorecovery.config import AutoRecoveryConfig
from ledger.autorecovery.statistics import AuditorStatistics
from ledger.metadata import LedgerManager, ledger_path
from ledger.underreplication import UnderReplication
from metadata.rules import split_path
from metadata.sqlite import SqliteStore
from metadata.store import CreateOp, NodeExistsError
from metadata.zookeeper import ZooKeeperOptions, ZooKeeperStore
from quire.role import GC_THRESHOLDS
from runtime.env import real_env
from runtime.running import running
from runtime.young_objects import YoungObjects
from wire.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState, serialize

ROOT = "/ledgers"
BOOKIES = [f"10.0.0.{number}:3181" for number in range(100)]
#: Of a bookie's: one ledger in so many.
SHARE = 20
MADE_MS = 1_700_000_000_000
OPS_PER_MULTI = 500


# -- what is put into a store ----------------------------------------------------------------------


def topic_id(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012d}"


def ledger_nodes(count: int, partitions: int) -> Iterator[tuple[str, bytes]]:
    """(path, data) of ledgers, in the order of their ids. Ledger n is partition n % partitions'."""
    stamps = {"application": b"quire", "topic": b"many", "topic_id": topic_id(1).encode()}
    for ledger_id in range(count):
        ensemble = tuple(BOOKIES[(ledger_id * 7 + step * 13) % len(BOOKIES)] for step in range(3))
        partition = b"%d" % (ledger_id % partitions)
        metadata = LedgerMetadata(
            3,
            3,
            2,
            ((0, ensemble),),
            LedgerState.CLOSED,
            last_entry_id=99,
            length=100_000,
            custom_metadata={**stamps, "partition": partition, "leader_epoch": b"1"},
            ctime_ms=MADE_MS,
        )
        yield ledger_path(ROOT, ledger_id), serialize(metadata)


def chain_nodes(count: int, partitions: int) -> Iterator[tuple[str, bytes]]:
    """(path, data) of the partitions' documents, and of their archives as keepers would make
    them."""
    settings = LogSettings()
    for partition in range(partitions):
        path = partition_path(topic_id(1), partition)
        infos = tuple(
            LedgerInfo(ledger_id, 100 * place, 1, MADE_MS, 100 * place + 99, 100, 100_000)
            for place, ledger_id in enumerate(range(partition, count, partitions))
        )
        chain = Chain(leader_epoch=2, ledgers=infos, owner=Incarnation(1, "x"))
        number = 0
        while len(chain.newest) > settings.document_ledgers_max:
            oldest = chain.newest[: settings.archive_ledgers]
            number += 1
            yield archive_path(path, number), archive_bytes(oldest)
            chain = chain.with_archive(number, len(oldest))
        yield path, chain.to_bytes()


def all_nodes(count: int, partitions: int) -> Iterator[tuple[str, bytes]]:
    yield from ledger_nodes(count, partitions)
    yield from chain_nodes(count, partitions)


def parents_of(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:end]) for end in range(2, len(parts))]


async def make_tree(store) -> None:
    await LedgerManager(store, real_env(), ROOT).ensure_layout()
    await UnderReplication(store, ROOT).ensure_layout()


def fill_sqlite(file: Path, count: int, partitions: int) -> None:
    async def begin() -> None:
        async with opened(str(file)) as store:
            await make_tree(store)

    trio.run(begin)
    known = set()

    def rows() -> Iterator[tuple]:
        for path, data in all_nodes(count, partitions):
            for parent in parents_of(path):
                if parent not in known:
                    known.add(parent)
                    yield (*split_path(parent), b"", 0, 0, 0)
            yield (*split_path(path), data, 0, 0, 0)

    connection = sqlite3.connect(file)
    connection.executemany("INSERT OR IGNORE INTO node VALUES (?, ?, ?, ?, ?, ?)", rows())
    connection.commit()
    connection.close()


async def fill_zookeeper(hosts: str, count: int, partitions: int) -> None:
    known: set[str] = set()
    async with opened(hosts) as store:
        await make_tree(store)
        ops: list[CreateOp] = []
        for path, data in all_nodes(count, partitions):
            for parent in parents_of(path):
                if parent not in known:
                    known.add(parent)
                    try:
                        await store.create(parent, make_parents=True)
                    except NodeExistsError:
                        continue
            ops.append(CreateOp(path, data))
            # ZooKeeper refuses a request above 1 MiB.
            if len(ops) == OPS_PER_MULTI or sum(len(op.data) for op in ops[-20:]) > 300_000:
                await store.multi(ops)
                ops = []
        await store.multi(ops)


def opened(where: str):
    """A store around the block: of a file, or of `host:port`."""
    if where.startswith("/"):
        store = SqliteStore(where, real_env().disk.run)
    else:
        store = ZooKeeperStore(ZooKeeperOptions(where, operation_timeout_ms=60_000))
    return _Opened(store)


class _Opened:
    def __init__(self, store) -> None:
        self._store = store
        self._running = running(store.run)

    async def __aenter__(self):
        await self._running.__aenter__()
        return self._store

    async def __aexit__(self, *error) -> None:
        await self._running.__aexit__(*error)


# -- what is measured ------------------------------------------------------------------------------


class Counted:
    """A store that counts what it is asked for."""

    def __init__(self, store) -> None:
        self._store = store
        self.requests = self.nodes = 0

    def __getattr__(self, name: str):
        return getattr(self._store, name)

    async def get(self, path: str):
        self._count(1)
        return await self._store.get(path)

    async def get_many(self, paths):
        self._count(len(paths))
        return await self._store.get_many(paths)

    async def children(self, path: str):
        self._count(1)
        return await self._store.children(path)

    def _count(self, nodes: int) -> None:
        self.requests += 1
        self.nodes += nodes


def resident_kb(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1])
    raise RuntimeError(f"no {field}")


def forget_peak() -> None:
    """VmHWM begins anew."""
    Path("/proc/self/clear_refs").write_text("5")


async def audit(store, count: int) -> None:
    statistics = AuditorStatistics()
    watcher = SimpleNamespace(
        writable=frozenset(BOOKIES), read_only=frozenset(), subscribe=lambda listener: None
    )
    records = UnderReplication(store, ROOT)
    parts = SimpleNamespace(
        config=AutoRecoveryConfig(
            ledger_check_interval_s=0, placement_check_interval_s=0, replicas_check_interval_s=0
        ),
        env=real_env(),
        store=store,
        client=SimpleNamespace(manager=LedgerManager(store, real_env(), ROOT)),
        bookies=None,
        watcher=watcher,
        locations=dict,
        min_racks=1,
        root=ROOT,
        records=records,
        audit_marks=None,
    )
    auditor = Auditor(parts, Checks(parts, statistics), statistics, lambda: None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(auditor.run)
        while not statistics.audit.count:  # noqa: ASYNC110
            await trio.sleep(0.05)
        nursery.cancel_scope.cancel()


async def collect(store, count: int) -> None:
    manager = LedgerManager(store, real_env(), ROOT)
    known = MetadataLedgers(manager, 0, ABSENT_SECONDS_MIN)
    had = list(range(0, count, SHARE))
    # A few that the metadata does not know are there as well.
    gone = await known.gone([*had, *range(count, count + 10)])
    assert not gone, "only the second look tells"


async def sweep(store, count: int) -> None:
    async def delete_ledger(ledger_id: int) -> None:
        raise AssertionError(f"{ledger_id} has a partition")

    ledgers = SimpleNamespace(manager=SimpleNamespace(root=ROOT), delete_ledger=delete_ledger)
    assert await sweep_orphans(store, ledgers) == 0


JOBS: dict[str, Callable] = {"audit": audit, "collect": collect, "sweep": sweep}


def run_job(name: str, where: str, count: int) -> dict[str, float]:
    """In this process."""
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    longest = LongestStep()
    figures: dict[str, float] = {}

    async def measure() -> None:
        async with opened(where) as store:
            await store.exists(ROOT)
            counted = Counted(store)
            before_kb = resident_kb("VmRSS")
            forget_peak()
            trio.lowlevel.add_instrument(longest)
            trio.lowlevel.add_instrument(YoungObjects())
            cpu, start = time.thread_time(), time.monotonic()
            await JOBS[name](counted, count)
            figures["seconds"] = time.monotonic() - start
            figures["loop seconds"] = time.thread_time() - cpu
            trio.lowlevel.remove_instrument(longest)
            figures["requests"] = counted.requests
            figures["nodes read"] = counted.nodes
            figures["memory MB"] = (resident_kb("VmHWM") - before_kb) / 1024
            figures["longest step ms"] = longest.seconds * 1000

    trio.run(measure)
    return figures


UNITS = {"seconds": "s", "loop seconds": "s", "memory MB": "MB", "longest step ms": "ms"}


def measure_store(
    table: rounds.Table, column: str, where: str, count: int, cases: list[str]
) -> None:
    for name in cases:
        command = [sys.executable, "-m", "bench.many_ledgers", "--job", name, where, str(count)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{name} failed: {done.stderr}")
        for what, value in json.loads(done.stdout).items():
            table.add(column, (f"{count:,} ledgers: {name}: {what}", UNITS.get(what, ""), value))


class LargeZooKeeper(ZooKeeper):
    def command(self) -> list[str]:
        return ["-Xmx3g" if word == "-Xmx256m" else word for word in super().command()]


def measure_zookeeper(
    table: rounds.Table, directory: Path, count: int, partitions: int, cases: list[str]
) -> None:
    zookeeper = LargeZooKeeper(directory / "zookeeper")
    zookeeper.directory.mkdir(parents=True)
    zookeeper.start()
    try:
        trio.run(fill_zookeeper, zookeeper.hosts, count, partitions)
        measure_store(table, "ZooKeeper", zookeeper.hosts, count, cases)
    finally:
        zookeeper.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ledgers", default="10000,100000,1000000")
    parser.add_argument("--stores", default="sqlite,zookeeper")
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--zookeeper-ledgers-max", type=int, default=200_000)
    parser.add_argument("--cases", default=",".join(JOBS))
    parser.add_argument("--directory", type=Path, help="for the stores; else a temporary one")
    parser.add_argument("--job", nargs=3, metavar=("CASE", "WHERE", "COUNT"), help="one case here")
    options = parser.parse_args()
    if options.job:
        name, where, count = options.job
        print(json.dumps(run_job(name, where, int(count))))
        return
    cases = options.cases.split(",")
    table = rounds.Table(["SQLite", "ZooKeeper"])
    for count in map(int, options.ledgers.split(",")):
        directory = Path(tempfile.mkdtemp(prefix="quire-ledgers-", dir=options.directory))
        try:
            if "sqlite" in options.stores:
                file = directory / "metadata.sqlite"
                fill_sqlite(file, count, options.partitions)
                measure_store(table, "SQLite", str(file), count, cases)
            if "zookeeper" in options.stores and count <= options.zookeeper_ledgers_max:
                measure_zookeeper(table, directory, count, options.partitions, cases)
        finally:
            shutil.rmtree(directory, ignore_errors=True)
    print(table.markdown())


if __name__ == "__main__":
    main()
