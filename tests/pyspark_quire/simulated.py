"""A partition's ledgers on naive bookies, and a driver's connection to them, without a server."""

import uuid
from types import SimpleNamespace

import trio

from broker.cluster.topic import TOPICS_PATH, Topic, encode_topic
from broker.log.append.entry_format import KIND_BATCHES, pack_header
from broker.log.life.chain import Chain
from broker.log.life.ledger_info import LedgerInfo
from pyspark_quire.connection import Connection
from pyspark_quire.options_core import parse_options
from pyspark_quire.partitions import document_path
from tests.ledger.conftest import World
from wire.kafka.records.batch import build_batch, parse_header
from wire.kafka.records.control import EndTransactionMarker, build_end_transaction_batch
from wire.kafka.records.record import Record


def records(offset, *values, times=None, **more):
    """A batch as it is stored."""
    times = times or [1000 + n for n in range(len(values))]
    made = [Record(n, times[n], None, value, []) for n, value in enumerate(values)]
    return build_batch(made, base_offset=offset, base_timestamp=0, **more)


def of_transaction(producer, offset, *values):
    more = {"producer_id": producer, "producer_epoch": 0, "base_sequence": 0}
    return records(offset, *values, is_transactional=True, **more)


def marker(producer, offset, *, committed):
    return build_end_transaction_batch(
        EndTransactionMarker(committed=committed, coordinator_epoch=0),
        producer_id=producer,
        producer_epoch=0,
        timestamp_ms=1000,
        base_offset=offset,
    )


def entry(*batches, span=None):
    """`span`: of its offsets, where that is more than its batches have."""
    first = parse_header(batches[0]).base_offset
    count = parse_header(batches[-1]).last_offset + 1 - first
    return pack_header(KIND_BATCHES, first, span or count) + b"".join(batches)


class SimulatedLog:
    """Topic `t` of one partition. Each ledger has three bookies, or as many as there are."""

    def __init__(self, world=None, name="t"):
        self.world = world or World("abc")
        self.topic = Topic(uuid.uuid4(), name, 1, {}, internal=False)
        self.infos = []
        self.log_start = 0
        self.writer = None
        watcher = SimpleNamespace(writable=set(), read_only=set())
        self.connection = Connection(
            self.world.store, "/ledgers", self.world.env, watcher, self.world.client
        )

    @property
    def chain(self):
        return Chain(leader_epoch=1, log_start_offset=self.log_start, ledgers=tuple(self.infos))

    async def open(self, base, *entries):
        """A ledger that is being written. All entries are acknowledged."""
        self.writer = await self.world.create(3, 3, 2)
        self.infos.append(LedgerInfo(self.writer.ledger_id, base, 1, 0))
        await self.append(*entries)

    async def append(self, *entries):
        for each in entries:
            self.writer.append_nowait([each], lambda _, error: None)
            while self.writer.last_add_confirmed < self.writer.last_add_pushed:
                await trio.sleep(0.001)

    async def close(self, last_offset, **facts):
        metadata = await self.writer.close()
        count = metadata.last_entry_id + 1
        self.infos[-1] = LedgerInfo(
            *(self.writer.ledger_id, self.infos[-1].base_offset, 1, 0),
            **{"last_offset": last_offset, "entry_count": count, "size_bytes": 100, **facts},
        )

    async def store_chain(self):
        """And the topic."""
        store, path = self.world.store, document_path(self.topic, 0)
        if await store.exists(path):
            await store.put(path, self.chain.to_bytes(), -1)
            return
        await store.create(path, self.chain.to_bytes(), make_parents=True)
        name = f"{TOPICS_PATH}/{self.topic.name}"
        await store.create(name, encode_topic(self.topic), make_parents=True)


def options(*, is_stream=False, **given):
    found = {"metadata": "zk+hierarchical://h/ledgers", "subscribe": "t", **given}
    return parse_options(found, is_stream=is_stream)
