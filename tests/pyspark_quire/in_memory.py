"""Metadata of a cluster in memory, and ledgers that are lists of payloads: for what a hostile or
careless hand may leave there."""

from types import SimpleNamespace
from uuid import UUID

from broker.cluster.topic import PARTITIONS_PATH, TOPICS_PATH, Topic, encode_topic
from broker.log.append.entry_format import KIND_BATCHES, pack_header
from broker.log.life.chain import Chain
from broker.log.life.ledger_info import LedgerInfo
from ledger.errors import NoSuchLedgerError
from ledger.metadata import ledger_path
from metadata.memory import MemoryStore
from wire.bookkeeper.ledger_metadata import LedgerMetadata, serialize
from wire.kafka.records.batch import build_batch
from wire.kafka.records.record import Record

ROOT = "/ledgers"


def topic(name="t", number=1, partitions=1, **configs):
    configs = {key.replace("_", "."): text for key, text in configs.items()}
    return Topic(UUID(int=number), name, partitions, configs, internal=False)


def closed(number, base, end, **more):
    """A ledger of the chain with offsets `base` to `end`, the latter excluded."""
    return LedgerInfo(number, base, 0, 0, end - 1, 1, 100 * (end - base), **more)


def batch(base, count, **more):
    records = [Record(n, n, b"k", b"v%d" % (base + n)) for n in range(count)]
    return build_batch(records, base_offset=base, **more)


def entry(first, count, body, flags=0, kind=KIND_BATCHES):
    return pack_header(kind, first, count, flags) + bytes(body)


class Reader:
    """Of a ledger whose entries are these payloads."""

    def __init__(self, payloads, ledger_id=7):
        self.ledger_id = ledger_id
        self.payloads = payloads
        self.last_add_confirmed = len(payloads) - 1
        self.metadata = SimpleNamespace(is_closed=True)

    async def read(self, first_entry_id, *, count_max, size_max):
        found, size = [], 0
        for payload in self.payloads[first_entry_id : first_entry_id + count_max]:
            size += len(payload)
            if found and size > size_max:
                break
            found.append(memoryview(payload))
        return found


class Ledgers:
    def __init__(self, payloads):
        self._payloads = payloads

    async def open_ledger(self, ledger_id, *, recover):
        assert not recover
        if ledger_id not in self._payloads:
            raise NoSuchLedgerError(ledger_id, "is not there")
        return Reader(self._payloads[ledger_id], ledger_id)


class Cluster:
    """A connection as `pyspark_quire.connection.connected` gives it."""

    def __init__(self, payloads=None):
        self.store = MemoryStore()
        self.root = ROOT
        self.watcher = SimpleNamespace(writable={"b1"}, read_only=set())
        self.ledgers = Ledgers(payloads or {})

    def addresses(self):
        return {"b1": ("127.0.0.1", 1)}

    async def add(self, made, *ledgers, start=0, has_metadata=True):
        """A topic of one partition with these ledgers."""
        await self.store.create(f"{TOPICS_PATH}/{made.name}", encode_topic(made), make_parents=True)
        chain = Chain(0, start, ledgers)
        path = f"{PARTITIONS_PATH}/{made.id}/0"
        await self.store.create(path, chain.to_bytes(), make_parents=True)
        for info in ledgers if has_metadata else ():
            metadata = LedgerMetadata(1, 1, 1, ((0, ("b1",)),))
            if not info.is_open:
                metadata = metadata.closed_at(info.entry_count - 1, info.size_bytes)
            await self.store.create(
                ledger_path(ROOT, info.ledger_id), serialize(metadata), make_parents=True
            )
