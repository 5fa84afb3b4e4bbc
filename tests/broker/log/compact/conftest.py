"""A broker with one compacted topic on bookies in memory, its cleaner, and what tests ask of both.

Ledgers roll by age: `fill` writes and waits until what it wrote is closed.
"""

from types import SimpleNamespace

import pytest
import trio

from broker.log.compact.cleaner import CleanerSettings, LogCleaner
from broker.log.partition import State
from wire.kafka.records.batch import build_batch, iter_records, scan_batches
from wire.kafka.records.record import Record

NOW_MS = 1_700_000_000_000
ROLL_SECONDS = 2.2
POLICY = {"cleanup_policy": "compact", "segment_ms": 1000, "file_delete_delay_ms": 60_000}


def keyed(*pairs, base_timestamp=NOW_MS, **options):
    """A batch of (key, value)."""
    records = [Record(n, n, key, value, []) for n, (key, value) in enumerate(pairs)]
    return build_batch(records, base_timestamp=base_timestamp, **options)


def records_in(parts):
    """(offset, key, value, timestamp) of every record."""
    data, position = b"".join(parts), 0
    for header in scan_batches(data):
        body = data[position : position + header.size]
        position += header.size
        for record in iter_records(body, header, size_max=1 << 30):
            offset = header.base_offset + record.offset_delta
            yield offset, record.key, record.value, header.timestamp_of(record)


async def read_records(log, offset=None, size_max=1 << 16):
    found, offset = [], log.log_start_offset if offset is None else offset
    start = offset
    while offset < log.high_watermark:
        got = await log.read(offset, size_max)
        assert got.next_offset > offset, f"no progress at {offset}"
        found += records_in(got.parts)
        offset = got.next_offset
    return [each for each in found if each[0] >= start]


def table_of(records):
    """Key -> the newest value; deleted ones are left out."""
    table = {}
    for _, key, value, _ in records:
        if value is None:
            table.pop(key, None)
        else:
            table[key] = value
    return table


class Shop:
    """A cluster with one broker that leads topic «t»."""

    def __init__(self, sim, nursery):
        self.sim, self.nursery = sim, nursery
        self.cluster = None
        self.settings = CleanerSettings()
        #: Everything that was written and acknowledged: (offset, key, value).
        self.written = []

    async def open(self, partitions=1, *, settings=None, **configs):
        self.cluster = self.sim.Cluster(settings=settings)
        self.broker = await self.cluster.start(self.nursery, 1)
        await self.cluster.create_topic(self.broker, partitions, **{**POLICY, **configs})
        for partition in range(partitions):
            self.cluster.assignments.assign(self.cluster.topic.id, partition, 1)
        self.cleaner = self.make_cleaner(self.broker)
        await self.online(self.broker)
        return self

    def make_cleaner(self, broker):
        """One that does not run yet."""
        return LogCleaner(
            broker.manager, broker.ledgers, broker.env, self.cluster.settings, self.settings
        )

    async def online(self, broker, partition=0):
        with trio.fail_after(60):
            while (log := broker.log(partition)) is None or log.state is not State.ONLINE:
                await trio.sleep(0.01)
        return log

    @property
    def log(self):
        return self.broker.log()

    def ids(self, log=None):
        return [info.ledger_id for info in (log or self.log).chain.ledgers]

    async def put(self, *pairs, log=None, **options):
        """One batch; its base offset."""
        append = await (log or self.log).append(keyed(*pairs, **options))
        offsets = range(append.base_offset, append.last_offset + 1)
        self.written += [(n, *pair) for n, pair in zip(offsets, pairs, strict=True)]
        return append.base_offset

    async def roll(self, log=None):
        """Until the open ledger is closed."""
        log = log or self.log
        with trio.fail_after(60):
            while log.writer is not None:
                await trio.sleep(ROLL_SECONDS)

    async def fill(self, *batches, log=None, **options):
        """A closed ledger of these batches, each a list of (key, value)."""
        for pairs in batches:
            await self.put(*pairs, log=log, **options)
        await self.roll(log)

    async def set_config(self, **configs):
        texts = {name.replace("_", "."): str(value) for name, value in configs.items()}
        await self.broker.catalog.change_configs("t", lambda _: texts)
        await trio.sleep(0.1)

    async def take_over(self, *, kill=False):
        """By the next life of the broker, after a clean stop or a crash; its log."""
        if kill:
            await self.broker.kill()
        else:
            await self.broker.stop()
        node_id = self.broker.incarnation.node_id + 1
        self.broker = await self.cluster.start(self.nursery, node_id)
        for partition in range(self.cluster.topic.partition_count):
            self.cluster.assignments.assign(self.cluster.topic.id, partition, node_id)
        self.cleaner = self.make_cleaner(self.broker)
        return await self.online(self.broker)

    async def headers(self, log):
        """Of all batches."""
        offset = log.log_start_offset
        while offset < log.high_watermark:
            got = await log.read(offset, 1 << 16)
            for header in scan_batches(b"".join(got.parts)):
                yield header
            offset = got.next_offset

    async def compact(self, log=None, partition=0):
        """A pass now; its state afterwards."""
        log = log or self.log
        self.cleaner.ask(log)
        with trio.fail_after(600):
            candidate = await self.cleaner._look()
            assert candidate is not None, self.cleaner.state_of(log)
            assert candidate.log is log
            await self.cleaner._clean(candidate)
        return self.cleaner.state_of(log)

    def stored_ids(self):
        """Ledgers that metadata has, whoever names them."""
        found = set()
        table = self.cluster.tree.table

        def walk(path):
            for name in table.children(path):
                child = f"{path}/{name}" if path != "/" else f"/{name}"
                if name.startswith("L") and table.find(child).data.startswith(b"BookieMetadata"):
                    digits = child.removeprefix("/ledgers/").replace("/", "").replace("L", "")
                    found.add(int(digits))
                else:
                    walk(child)

        walk("/ledgers")
        return found


@pytest.fixture
def shop(sim, nursery, autojump_clock):
    return Shop(sim, nursery)


@pytest.fixture
def compaction():
    """Helpers of these tests."""
    return SimpleNamespace(
        keyed=keyed, records_in=records_in, read_records=read_records, table_of=table_of, now=NOW_MS
    )
