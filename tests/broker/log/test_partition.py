"""The partition log on a real bookie and a real metadata store: append, read, roll, restart, crash.

A naive list of (offset, value) is the model; whatever was acknowledged must be in it, in order.
"""

import contextlib
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from uuid import UUID

import pytest
import trio

from bookie.bookie import Bookie
from bookie.config import BookieConfig
from broker.cluster.ownership import Incarnation
from broker.log import partition
from broker.log.append import producer_snapshot
from broker.log.append.entry_format import (
    FLAG_CONTINUED,
    FLAG_CONTINUES,
    KIND_SNAPSHOT,
    parse_header,
)
from broker.log.life.chain import Chain
from broker.log.life.keeper import Keeper, KeeperParts
from broker.log.life.retention import roll_jitter_ms
from broker.log.life.takeover import ChainStores, Claim
from broker.log.partition import PartitionLog, State
from broker.log.settings import LogSettings
from broker.log.watchers import WATCHERS_AT_LEAST, Watchers
from joined.local_bookie import LocalBookieClient
from ledger.client import LedgerClient
from ledger.config import LedgerClientConfig
from ledger.placement import RandomPlacement
from ledger.reader import LedgerReader
from metadata.memory import MemoryStore
from metadata.shared_writes import SharedWrites
from runtime.env import RealClock, real_env
from runtime.turn import SPENT_UNITS, Turn
from wire.kafka.errors import ErrorCode, KafkaError
from wire.kafka.records.batch import build_batch, iter_records, scan_batches
from wire.kafka.records.record import Record

PATH = "/quire/partitions/x/0"


@dataclass
class Config:
    cleanup_policy: tuple = ("delete",)
    retention_ms: int = -1
    retention_bytes: int = -1
    file_delete_delay_ms: int = 0
    max_compaction_lag_ms: int = (1 << 63) - 1
    segment_ms: int = 604_800_000
    segment_jitter_ms: int = 0
    segment_bytes: int = 1 << 30
    max_message_bytes: int = 8 << 20
    message_timestamp_type: str = "CreateTime"
    message_timestamp_before_max_ms: int = (1 << 63) - 1
    message_timestamp_after_max_ms: int = (1 << 63) - 1
    compression_type: str = "producer"
    quire_archive_required: bool = False
    quire_locks: str = "off"
    quire_locks_max_per_record: int = 64
    quire_locks_table_size: int = 30_000
    quire_ledger_ensemble_size: int = 1
    quire_ledger_write_quorum: int = 1
    quire_ledger_ack_quorum: int = 1
    min_insync_replicas: int = 1


@dataclass
class World:
    """One bookie, one store, and a partition that can be closed, crashed and opened again."""

    directory: str
    nursery: trio.Nursery
    settings: LogSettings = field(default_factory=LogSettings)
    config: Config = field(default_factory=Config)
    lives: int = 0

    async def start(self):
        self.env = real_env()
        self.nursery.start_soon(self.env.turn.serve)
        self.store = MemoryStore()
        await self.nursery.start(self.store.run)
        await self.store.create(PATH, Chain().to_bytes(), make_parents=True)
        config = BookieConfig(
            bookie_id="b1",
            instance_id="",
            journal_directory=f"{self.directory}/journal",
            ledger_directory=f"{self.directory}/ledgers",
            journal_size_bytes=16 << 20,
            write_cache_size_bytes=32 << 20,
            verify_digest_on_write=True,
        )
        self.bookie = Bookie(config, self.env)
        await self.nursery.start(self.bookie.run)
        self.ledgers = LedgerClient(
            self.store,
            LocalBookieClient({"b1": self.bookie}),
            self.env,
            LedgerClientConfig(window_entries_max=1 << 20, window_bytes_max=1 << 40),
            placement=RandomPlacement(
                lambda: [] if self.bookie.is_read_only else ["b1"], self.env.rng
            ),
        )
        await self.nursery.start(self.ledgers.run)
        await self.open()

    async def open(self):
        topic = SimpleNamespace(
            name="t", id=UUID(int=1), internal=False, configs={}, replication_factor=None
        )
        self.log = PartitionLog(topic, 0, self.config, self.env, self.settings)
        self.lives += 1
        self.incarnation = Incarnation(1, f"{self.lives:032x}")
        self.keeper = Keeper(self.log, Claim(PATH, self.incarnation), self.keeper_parts())
        self.scope = trio.CancelScope()
        self.nursery.start_soon(self._keep)
        with trio.fail_after(20):
            await self.log.wait_loaded()
        assert self.log.state is State.ONLINE

    def keeper_parts(self):
        return KeeperParts(
            ChainStores(self.store, self.ledgers, self.settings, SharedWrites(self.store)), self.env
        )

    async def _keep(self):
        with self.scope:
            await self.keeper.run()

    async def restart(self):
        """A clean stop, then a new owner."""
        with trio.fail_after(20):
            await self.keeper.close()
        self.scope.cancel()
        await self.open()

    async def crash(self):
        """The owner vanishes: nothing is sealed or closed."""
        self.scope.cancel()
        self.log.go_offline("crash")
        await self.open()

    async def append(self, *values, **kwargs):
        with trio.fail_after(20):
            return await self.log.append(batch(*values, **kwargs))

    async def values(self, offset=None):
        """(offset, value) of every record from `offset` on."""
        position = self.log.log_start_offset if offset is None else offset
        found = []
        with trio.fail_after(30):
            while position < self.log.high_watermark:
                got = await self.log.read(position, 1 << 16)
                for record in records_of(got):
                    if record[0] >= position:
                        found.append(record)
                assert got.next_offset > position
                position = got.next_offset
        return found


def batch(*values, timestamp=1000, step=1, **kwargs):
    records = [Record(i, i * step, None, value, []) for i, value in enumerate(values)]
    return build_batch(records, base_timestamp=timestamp, **kwargs)


def records_of(result):
    data = memoryview(b"".join(result.parts))
    position = 0
    for header in scan_batches(data):
        body = data[position : position + header.size]
        position += header.size
        for record in iter_records(body, header, size_max=1 << 30):
            yield header.base_offset + record.offset_delta, record.value


@pytest.fixture
async def world(tmp_path, nursery):
    made = World(str(tmp_path), nursery)
    await made.start()
    return made


async def test_append_and_read_back(world):
    assert (await world.append(b"a", b"b")).base_offset == 0
    assert (await world.append(b"c")).base_offset == 2
    assert await world.values() == [(0, b"a"), (1, b"b"), (2, b"c")]
    # A fetch in the middle of a batch gives the whole batch.
    assert [v for _, v in records_of(await world.log.read(1, 1 << 20))] == [b"a", b"b", b"c"]
    assert (await world.log.read(3, 1 << 20)).parts == []
    for offset in (-1, 4):
        with pytest.raises(KafkaError) as caught:
            await world.log.read(offset, 1 << 20)
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


async def test_what_is_queued_together_travels_together(world):
    done = []
    for number in range(100):
        view = memoryview(bytearray(batch(b"%d" % number)))
        world.log.append_nowait(view, lambda append: done.append(append.base_offset))
    with trio.fail_after(10):
        while len(done) < 100:
            await trio.sleep(0.001)
    assert done == list(range(100))
    assert world.log.segments[-1].reader.last_add_confirmed <= 3
    assert len(await world.values()) == 100


async def test_size_limits(world):
    for number in range(20):
        await world.append(bytes([number]) * 1000)
    one = await world.log.read(0, 10)
    assert len(list(records_of(one))) == 1
    none = await world.log.reader.read(0, 10, at_least_one=False)
    assert none.parts == []
    some = await world.log.read(0, 5000)
    assert 3 <= len(list(records_of(some))) <= 4
    assert some.size_bytes <= 5000


@pytest.mark.parametrize("how", ["restart", "crash"])
async def test_a_new_owner_sees_everything(world, how):
    model = []
    for round_number in range(4):
        for number in range(30):
            value = b"%d-%d" % (round_number, number)
            append = await world.append(value)
            model.append((append.base_offset, value))
        epoch = world.log.leader_epoch
        await getattr(world, how)()
        assert world.log.leader_epoch == epoch + 1
        assert await world.values() == model
    assert [offset for offset, _ in model] == list(range(120))
    # Epochs are answered from metadata: each owner wrote 30 records.
    for owner in range(4):
        assert world.log.end_offset_for_epoch(owner) == (owner, 30 * (owner + 1))
    assert world.log.end_offset_for_epoch(9) == (-1, -1)


@pytest.mark.parametrize("how", ["restart", "crash"])
async def test_an_idempotent_producer_survives_the_owner(world, how):
    kwargs = {"producer_id": 7, "producer_epoch": 0}
    for sequence in range(5):
        await world.append(b"%d" % sequence, base_sequence=sequence, **kwargs)
    await getattr(world, how)()
    again = await world.append(b"4", base_sequence=4, **kwargs)
    assert again.base_offset == 4
    assert world.log.next_offset == 5
    with pytest.raises(KafkaError) as caught:
        await world.append(b"9", base_sequence=9, **kwargs)
    assert caught.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert (await world.append(b"5", base_sequence=5, **kwargs)).base_offset == 5


async def test_duplicates_in_flight_wait_for_their_original(world):
    answers = []
    for _ in range(3):
        view = memoryview(bytearray(batch(b"x", producer_id=1, producer_epoch=0, base_sequence=0)))
        world.log.append_nowait(view, lambda append: answers.append(append.base_offset))
    assert answers == []
    with trio.fail_after(10):
        while len(answers) < 3:
            await trio.sleep(0.001)
    assert answers == [0, 0, 0]
    assert await world.values() == [(0, b"x")]


async def test_ledgers_roll_by_size(world):
    world.config.segment_bytes = 20_000
    for number in range(60):
        await world.append(bytes([number]) * 1000)
    assert len(world.log.chain.ledgers) > 2
    model = [(number, bytes([number]) * 1000) for number in range(60)]
    assert await world.values() == model
    for offset in (0, 17, 30, 59):
        assert await world.values(offset) == model[offset:]
    for how in ("crash", "restart"):
        await getattr(world, how)()
        assert await world.values() == model


async def test_rolling_under_load_keeps_order(world):
    world.config.segment_bytes = 50_000
    done = []
    for number in range(500):
        view = memoryview(bytearray(batch(b"%05d" % number * 200)))
        world.log.append_nowait(view, lambda append: done.append(append.base_offset))
        if number % 50 == 0:
            # However slow the disk is: what is not acknowledged is less than two ledgers' worth.
            with trio.fail_after(60):
                while len(done) < number - 20:
                    await trio.sleep(0.002)
    with trio.fail_after(60):
        while len(done) < 500:
            await trio.sleep(0.01)
    assert done == list(range(500))
    assert len(world.log.chain.ledgers) > 3
    assert [value[:5] for _, value in await world.values()] == [b"%05d" % n for n in range(500)]


@pytest.mark.timeout(30)
@pytest.mark.parametrize("stops_early", [False, True])
async def test_a_batch_larger_than_an_entry_spans_several(
    tmp_path, nursery, monkeypatch, stops_early
):
    if stops_early:
        # As where the ensemble changes within the batch, or in front of a damaged copy.
        real_read, real_read_nowait = LedgerReader.read, LedgerReader.read_nowait

        async def read(self, first, *, count_max, size_max):
            return await real_read(self, first, count_max=1, size_max=size_max)

        def read_nowait(self, first, *, count_max, size_max):
            return real_read_nowait(self, first, count_max=1, size_max=size_max)

        monkeypatch.setattr(LedgerReader, "read", read)
        monkeypatch.setattr(LedgerReader, "read_nowait", read_nowait)
    world = World(str(tmp_path), nursery, LogSettings(entry_bytes_max=10_000))
    await world.start()
    sizes = [10, 35_000, 20, 10_001, 90_000, 1]
    model = []
    for number, size in enumerate(sizes):
        value = bytes([number]) * size
        model.append(((await world.append(value)).base_offset, value))
    assert await world.values() == model
    for offset in range(len(sizes)):
        assert await world.values(offset) == model[offset:]
    await world.crash()
    assert await world.values() == model
    await world.restart()
    assert await world.values() == model


async def test_retention_by_bytes_drops_whole_ledgers(world):
    world.config.segment_bytes = 10_000
    world.config.retention_bytes = 25_000
    for number in range(100):
        await world.append(bytes([number]) * 1000)
    before = {info.ledger_id for info in world.log.chain.ledgers}
    world.keeper.check_retention()
    with trio.fail_after(10):
        while world.log.chain.deleting or world.log.log_start_offset == 0:
            await trio.sleep(0.01)
    start = world.log.log_start_offset
    assert 25_000 <= world.log.size_bytes < 40_000
    assert await world.values() == [(n, bytes([n]) * 1000) for n in range(start, 100)]
    gone = before - {info.ledger_id for info in world.log.chain.ledgers}
    assert gone
    for ledger_id in gone:
        with contextlib.suppress(Exception):
            await world.ledgers.open_ledger(ledger_id, recover=False)
            pytest.fail("a dropped ledger is still in metadata")
    await world.crash()
    assert world.log.log_start_offset == start


async def test_retention_by_time_rolls_so_that_it_can_act(world):
    world.config.retention_ms = 1
    await world.append(b"old", timestamp=1000)
    await trio.sleep(1.1)
    world.keeper.check_retention()
    with trio.fail_after(10):
        while world.log.chain.ledgers[-1].is_open:
            await trio.sleep(0.01)
        world.keeper.check_retention()
        while world.log.log_start_offset != 1:
            await trio.sleep(0.01)
    assert await world.values() == []
    assert (await world.append(b"new", timestamp=1)).base_offset == 1
    await world.crash()
    assert await world.values() == [(1, b"new")]


class ClockAt(RealClock):
    """Stands still, for who asks what time it is."""

    def __init__(self, now_ms):
        self._now_ms = now_ms

    def time_ms(self):
        return self._now_ms


async def test_a_ledger_rolls_earlier_by_its_jitter(world):
    """An hour's segment with an hour's jitter less what is left of it after now."""
    world.config.segment_ms = 3_600_000
    await world.append(b"x", timestamp=1000)
    info = world.log.chain.ledgers[-1]
    assert roll_jitter_ms(3_600_000, 3_600_000, info.ledger_id) > 0
    world.keeper.check_retention()
    assert world.log.chain.ledgers[-1].is_open
    left_ms = 3_600_000 - roll_jitter_ms(3_600_000, 3_600_000, info.ledger_id)
    world.config.segment_jitter_ms = 3_600_000
    world.keeper._env = replace(world.env, clock=ClockAt(info.created_ms + left_ms - 1))
    world.keeper.check_retention()
    await trio.sleep(0.05)
    assert world.log.chain.ledgers[-1].is_open
    world.keeper._env = replace(world.env, clock=ClockAt(info.created_ms + left_ms))
    world.keeper.check_retention()
    with trio.fail_after(10):
        while world.log.chain.ledgers[-1].is_open:
            await trio.sleep(0.01)


async def test_an_append_finds_that_its_ledger_is_old(world):
    """Also one that became so by a setting: nothing else looks here."""
    await world.append(b"1")
    world.keeper.configure(replace(world.config, segment_ms=300))
    await trio.sleep(1.2)  # nobody looks each millisecond
    assert world.log.chain.ledgers[-1].is_open
    await world.append(b"2")
    with trio.fail_after(10):
        while world.log.chain.ledgers[-1].is_open:
            await trio.sleep(0.01)
    await world.append(b"3")
    await world.append(b"4")
    await trio.sleep(1.2)
    assert [info.base_offset for info in world.log.chain.ledgers] == [0, 2]
    await world.append(b"5")
    with trio.fail_after(10):
        while world.log.chain.ledgers[-1].is_open:
            await trio.sleep(0.01)
    assert [info.base_offset for info in world.log.chain.ledgers] == [0, 2]
    assert await world.values() == [(number, b"%d" % (number + 1)) for number in range(5)]


async def test_delete_records(world):
    for number in range(10):
        await world.append(b"%d" % number)
    with trio.fail_after(10):
        assert await world.keeper.delete_records(4) == 4
        assert await world.keeper.delete_records(2) == 4
    with pytest.raises(KafkaError) as caught:
        await world.log.read(3, 100)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    with pytest.raises(KafkaError):
        await world.keeper.delete_records(11)
    await world.crash()
    assert world.log.log_start_offset == 4
    assert [offset for offset, _ in await world.values()] == list(range(4, 10))
    with trio.fail_after(10):
        assert await world.keeper.delete_records(-1) == 10
    assert await world.values() == []
    assert (await world.append(b"x")).base_offset == 10


async def test_offsets_by_time(world):
    world.config.segment_bytes = 3000
    times = [100, 300, 200, 500, 400, 900]
    for time in times:
        await world.append(b"x" * 1000, timestamp=time)
    for how in (None, "restart", "crash"):
        if how:
            await getattr(world, how)()
        for wanted in (0, 100, 101, 300, 301, 500, 501, 900):
            naive = next(i for i, time in enumerate(times) if time >= wanted)
            assert await world.log.reader.offset_for_timestamp(wanted) == (naive, times[naive])
        assert await world.log.reader.offset_for_timestamp(901) is None
        assert await world.log.reader.max_timestamp_offset() == (5, 900)


async def test_log_append_time(world):
    world.config.message_timestamp_type = "LogAppendTime"
    append = await world.append(b"x", b"y", timestamp=5)
    assert append.log_append_time_ms == pytest.approx(world.env.clock.time_ms(), abs=10_000)
    assert await world.log.reader.offset_for_timestamp(append.log_append_time_ms) == (
        0,
        append.log_append_time_ms,
    )
    header = scan_batches(memoryview(b"".join((await world.log.read(0, 1000)).parts)))[0]
    assert header.max_timestamp == append.log_append_time_ms


async def test_a_second_owner_ends_the_first(world):
    await world.append(b"one")
    first = world.log
    second = Keeper(
        PartitionLog(first.topic, 0, world.config, world.env, world.settings),
        Claim(PATH, Incarnation(2, "f" * 32)),
        world.keeper_parts(),
    )
    world.nursery.start_soon(second.run)
    with trio.fail_after(10):
        await second._log.wait_loaded()
    with pytest.raises(KafkaError) as caught:
        await world.append(b"two")
    assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert first.state is State.OFFLINE
    world.log = second._log
    assert (await world.append(b"three")).base_offset == 1
    assert await world.values() == [(0, b"one"), (1, b"three")]


async def test_watchers_hear_of_progress_once_per_burst(world):
    heard = []
    world.log.watch(lambda: heard.append(world.log.high_watermark))
    for number in range(50):
        world.log.append_nowait(memoryview(bytearray(batch(b"%d" % number))), lambda _: None)
    with trio.fail_after(10):
        while world.log.high_watermark < 50:
            await trio.sleep(0.001)
    await trio.sleep(0.01)
    assert len(heard) <= 3
    assert heard[-1] == 50


async def test_many_watchers_are_told_over_several_turns(world, monkeypatch):
    """Each as dear as a whole turn. All hear of what was last, in order, and none twice as often
    as another."""
    heard = []

    def watcher(number):
        def look():
            world.env.turn.spent_units += SPENT_UNITS + 1
            heard.append((number, world.log.high_watermark))

        return look

    for number in range(30):
        world.log.watch(watcher(number))
    tell_some, most = Watchers._tell_some, 0

    def counted(self):
        nonlocal most
        before = len(heard)
        tell_some(self)
        most = max(most, len(heard) - before)

    monkeypatch.setattr(Watchers, "_tell_some", counted)
    for number in range(3):
        await world.append(b"%d" % number)
    with trio.fail_after(10):
        while len({number for number, end in heard if end == 3}) < 30:
            await trio.sleep(0.001)
    assert 0 < most <= WATCHERS_AT_LEAST
    assert [number for number, _ in heard] == [n % 30 for n in range(len(heard))]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda b: b[:40], ErrorCode.INVALID_RECORD),
        (lambda b: b"", ErrorCode.INVALID_RECORD),
        (lambda b: b + b, ErrorCode.INVALID_RECORD),
        (lambda b: b[:-1] + bytes([b[-1] ^ 1]), ErrorCode.CORRUPT_MESSAGE),
        (lambda b: b[:16] + b"\x01" + b[17:], ErrorCode.INVALID_RECORD),
        (lambda b: b[:8] + b"\x7f" + b[9:], ErrorCode.INVALID_RECORD),
    ],
)
async def test_bad_batches_are_refused_with_kafkas_codes(world, change, code):
    answers = []
    world.log.append_nowait(
        memoryview(bytearray(change(batch(b"x")))), lambda append: answers.append(append.error)
    )
    assert answers == [code]
    assert (await world.append(b"fine")).base_offset == 0


async def test_without_bookies_that_take_writes_it_waits_and_serves_the_rest(world):
    """A full disk: no spinning, no new ledgers, no numbering of what is refused."""
    producer = {"producer_id": 5, "producer_epoch": 0}
    await world.append(b"one", base_sequence=0, **producer)
    await world.append(b"two", base_sequence=1, **producer)
    world.bookie.set_read_only("the disk is full")
    with pytest.raises(KafkaError) as caught:
        await world.append(b"three", base_sequence=2, **producer)
    assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER  # its ledger is lost
    await world.open()
    ledgers, epoch = len(world.log.chain.ledgers), world.log.leader_epoch
    ledger_ids = world.bookie.list_ledgers()
    for _ in range(20):
        with pytest.raises(KafkaError) as caught:
            await world.append(b"three", base_sequence=2, **producer)
        assert caught.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert (len(world.log.chain.ledgers), world.log.leader_epoch) == (ledgers, epoch)
    assert world.bookie.list_ledgers() == ledger_ids
    # A retry of what is stored is answered as ever; reads and deletions go on.
    assert (await world.append(b"two", base_sequence=1, **producer)).base_offset == 1
    assert await world.values() == [(0, b"one"), (1, b"two")]
    with trio.fail_after(10):
        assert await world.keeper.delete_records(1) == 1
    world.bookie.set_writable()
    with trio.fail_after(10):
        while world.log.is_suspended:
            await trio.sleep(0.05)
    assert (await world.append(b"three", base_sequence=2, **producer)).base_offset == 2
    assert await world.values() == [(1, b"two"), (2, b"three")]
    assert world.log.leader_epoch == epoch


@pytest.mark.parametrize("is_late", [False, True])
async def test_what_follows_a_refused_first_batch_does_not_come_before_it(
    world, monkeypatch, is_late
):
    """Several batches of a new producer are in flight while bookies come back."""
    producer = {"producer_id": 5, "producer_epoch": 0}
    await world.append(b"of another")
    world.bookie.set_read_only("the disk is full")
    with pytest.raises(KafkaError):
        await world.append(b"of another")  # its ledger is lost
    await world.open()
    with pytest.raises(KafkaError) as caught:
        await world.append(b"one", base_sequence=0, **producer)
    assert caught.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    world.bookie.set_writable()
    with trio.fail_after(30):
        while world.log.is_suspended:
            await trio.sleep(0.05)
    monkeypatch.setattr(partition, "ON_ITS_WAY_MS", 0 if is_late else 60_000)
    with pytest.raises(KafkaError) as caught:
        await world.append(b"two", base_sequence=1, **producer)
    # Soon it is refused as that was, and its producer tries both again, in their order, without a
    # new epoch. Later something is missing.
    assert caught.value.code is (
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER if is_late else ErrorCode.NOT_ENOUGH_REPLICAS
    )
    await world.append(b"one", base_sequence=0, **producer)
    await world.append(b"two", base_sequence=1, **producer)
    assert [value for _, value in await world.values()] == [b"of another", b"one", b"two"]


@pytest.mark.parametrize("how", ["restart", "crash"])
async def test_producers_of_a_snapshot_in_parts_come_back(world, monkeypatch, how):
    """More producers than a part holds: every one's retry is a duplicate after a take-over, also
    of those that appended behind the snapshot."""
    monkeypatch.setattr(producer_snapshot, "PART_PRODUCERS_MAX", 3)

    async def send(producer_id, sequence):
        return await world.append(
            b"v", producer_id=producer_id, producer_epoch=0, base_sequence=sequence
        )

    placed = {}
    for producer_id in range(10):
        placed[producer_id, 0] = (await send(producer_id, 0)).base_offset
    if how == "crash":
        world.log.queue.push_snapshot()
        await world.log.queue.wait_drained()
    placed[4, 1] = (await send(4, 1)).base_offset
    placed[77, 0] = (await send(77, 0)).base_offset
    for _ in range(2):
        await getattr(world, how)()
        assert len(world.log.producers) == 11
        for (producer_id, sequence), offset in placed.items():
            assert (await send(producer_id, sequence)).base_offset == offset
    assert world.log.next_offset == 12
    entries = await world.ledgers.open_ledger(world.log.segments[0].info.ledger_id, recover=False)
    kinds = []
    for entry_id in range(entries.last_add_confirmed + 1):
        [payload] = await entries.read(entry_id, count_max=1, size_max=1)
        header = parse_header(payload)
        if header.kind == KIND_SNAPSHOT:
            kinds.append(header.flags)
    assert kinds[:4] == [FLAG_CONTINUES] + [FLAG_CONTINUES | FLAG_CONTINUED] * 2 + [FLAG_CONTINUED]


@pytest.mark.parametrize("is_sealed", [False, True])
async def test_a_snapshot_in_parts_is_of_one_moment_and_takes_a_turn_for_each(
    world, monkeypatch, caplog, is_sealed
):
    """Batches that come between two parts are written behind the last, so that the snapshot knows
    nothing of them; a ledger that is sealed then ends with a snapshot of its own."""
    monkeypatch.setattr(producer_snapshot, "PART_PRODUCERS_MAX", 3)
    world.settings = replace(world.settings, entries_in_flight_eager=100)  # nothing waits for acks
    await world.restart()
    facts = {"producer_epoch": 0}
    for producer_id in range(10):
        await world.append(b"v", producer_id=producer_id, base_sequence=0, **facts)
    queue, pushed, appended = world.log.queue, [], []
    first_part = world.log.writer.last_add_pushed + 1
    defer = Turn.later

    def later(turn, function):
        pushed.append(world.log.writer.last_add_pushed - first_part)
        if len(pushed) == 2:
            for producer_id, sequence in ((4, 1), (99, 0)):
                sent = batch(b"w", producer_id=producer_id, base_sequence=sequence, **facts)
                world.log.append_nowait(memoryview(bytearray(sent)), appended.append)
            if is_sealed:
                queue.seal()
        defer(turn, function)

    monkeypatch.setattr(Turn, "later", later)
    queue.push_snapshot()
    assert pushed == [0], "one part for each turn"
    await queue.wait_drained()
    if is_sealed:
        await world.restart()
    else:
        while len(appended) < 2:
            await trio.sleep(0.001)
        assert pushed == [0, 1, 2]
        assert world.log.segments[-1].snapshot_entry == first_part
        await world.crash()
    assert len(world.log.producers) == 11
    assert [(each.base_offset, each.error) for each in appended] == [(10, 0), (11, 0)]
    for producer_id, sequence, offset in ((4, 1, 10), (99, 0, 11)):
        retried = await world.append(b"w", producer_id=producer_id, base_sequence=sequence, **facts)
        assert retried.base_offset == offset
    assert world.log.next_offset == 12
    assert "snapshot_unusable" not in caplog.text
