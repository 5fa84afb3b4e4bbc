"""What one turn of the loop spends on checks is bounded, and the line keeps its order."""

from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace
from uuid import UUID

import pytest
import trio

from broker.cluster.ownership import Incarnation
from broker.log.append import checking
from broker.log.append.checking import TURN_NS_MAX, BatchChecks
from broker.log.append.producer_state import ProducerState
from broker.log.append.queue import CallbackAppend
from broker.log.life.chain import Chain
from broker.log.life.takeover import TakenOver
from broker.log.partition import PartitionLog, SharedParts
from broker.log.settings import LogSettings
from runtime.env import real_env
from wire.kafka.errors import ErrorCode, KafkaError
from wire.kafka.records.batch import build_batch
from wire.kafka.records.compression import Compression
from wire.kafka.records.record import Record, encode_record
from wire.kafka.records.walk import IS_COMPILED


@dataclass
class Config:
    cleanup_policy: tuple = ("delete",)
    max_message_bytes: int = 1 << 30
    message_timestamp_type: str = "CreateTime"
    message_timestamp_before_max_ms: int = (1 << 63) - 1
    message_timestamp_after_max_ms: int = (1 << 63) - 1
    compression_type: str = "producer"
    quire_locks: str = "off"
    quire_locks_max_per_record: int = 64
    quire_locks_table_size: int = 30_000
    segment_bytes: int = 1 << 30
    quire_ledger_ensemble_size: int = 1
    quire_ledger_write_quorum: int = 1
    quire_ledger_ack_quorum: int = 1
    min_insync_replicas: int = 1


@cache
def built(count, value, compression):
    records = [Record(n, 0, b"k", value, []) for n in range(count)]
    return build_batch(records, compression=compression)


def batch(count=1, value=b"", compression=Compression.NONE):
    return memoryview(bytearray(built(count, value, compression)))


#: More than one turn may look at.
MANY = 150_000


@dataclass
class World:
    """A partition that is online, without a ledger: what is accepted gets numbers and waits."""

    env: object
    checks: BatchChecks
    log: PartitionLog
    finished: list = field(default_factory=list)

    def append(self, records):
        append = CallbackAppend(records, self.finished.append)
        self.log.submit(append)
        return append


@pytest.fixture
async def world():
    env = real_env()
    checks = BatchChecks(env)
    topic = SimpleNamespace(
        name="t", id=UUID(int=1), internal=False, configs={}, replication_factor=None
    )
    shared = SharedParts.of(env, LogSettings())
    shared.checks = checks
    log = PartitionLog(topic, 0, Config(), env, LogSettings(), shared)
    chain = Chain().with_epoch(1, Incarnation(1, "1" * 32))
    log.go_online(TakenOver(chain, 1, [], ProducerState(producers_max=10)))
    return World(env, checks, log)


LARGE = {
    "unpacks to 1 MiB": lambda: batch(1, bytes(1 << 20), compression=Compression.GZIP),
    "many records packed": lambda: batch(MANY, compression=Compression.LZ4),
    "many records": lambda: batch(MANY),
}


@pytest.mark.parametrize("name", LARGE)
async def test_what_is_long_waits_and_all_behind_it(world, nursery, name):
    appends = [world.append(records) for records in (batch(), LARGE[name](), batch(2), batch())]
    assert [append.base_offset for append in appends] == [0, -1, -1, -1]
    assert world.checks.inline_count == 1
    nursery.start_soon(world.checks.run)
    with trio.fail_after(20):
        while world.log._line.unchecked_head() is not None:
            await trio.sleep(0.001)
    large = world.log.next_offset - 4
    assert [append.base_offset for append in appends] == [0, 1, 1 + large, 3 + large]
    assert (world.checks.delayed_count, world.checks.threaded_count) == (2, 1)
    assert not world.finished  # there is no ledger yet
    # The line is empty: what comes now is checked at once.
    assert world.append(batch()).base_offset == 4 + large


async def test_a_turn_checks_so_much_and_no_more(world, nursery):
    """Batches that would each fit: what they are expected to take in one turn is bounded, in
    records and bytes; the rest is checked in later turns, on the loop, in order."""
    count = 10_000 if IS_COMPILED else 100
    appends = [world.append(batch(count)) for _ in range(30)]
    in_turn = sum(append.base_offset >= 0 for append in appends)
    assert 1 <= in_turn <= TURN_NS_MAX / (count * checking.RECORD_NS) + 1
    assert world.checks.inline_count == in_turn
    nursery.start_soon(world.checks.run)
    with trio.fail_after(20):
        while world.log._line.unchecked_head() is not None:
            await trio.sleep(0.001)
    assert [append.base_offset for append in appends] == [count * n for n in range(30)]
    assert (world.checks.delayed_count, world.checks.threaded_count) == (30 - in_turn, 0)
    # A new turn has a new budget.
    world.env.turn.run()
    assert world.append(batch(count)).base_offset == count * 30


def without_keys():
    """Packed, for a compacted topic: each unpacks to 60 KB before it is refused."""
    record = Record(0, 0, None, bytes(60_000), [])
    return build_batch([record], compression=Compression.GZIP)


def misspelt_locks():
    headers = [("quire.lock.rite", b"x")]
    return build_batch([Record(n, 0, b"k", b"", headers) for n in range(300)])


@pytest.mark.parametrize(
    ("changed", "malformed", "at_once"),
    [
        # Where records are walked in Python, one that is packed is too much for its turn.
        ({"cleanup_policy": ("compact",)}, without_keys, int(IS_COMPILED)),
        ({"quire_locks": "optional"}, misspelt_locks, 1),
    ],
    ids=["packed", "locks"],
)
async def test_what_is_refused_has_cost_its_time(world, nursery, changed, malformed, at_once):
    """Batches that are refused after most of the work: no turn does that of hundreds."""
    world.log.config = Config(**changed)
    data = malformed()
    appends = [world.append(memoryview(bytearray(data))) for _ in range(100)]
    assert len(world.finished) == at_once
    nursery.start_soon(world.checks.run)
    with trio.fail_after(20):
        while len(world.finished) < len(appends):
            await trio.sleep(0.001)
    assert world.finished == appends
    assert {append.error for append in appends} == {ErrorCode.INVALID_RECORD}
    is_of_locks = malformed is misspelt_locks
    assert world.checks.lock_counts.malformed == len(appends) * is_of_locks


async def test_what_waits_is_refused_when_the_partition_goes(world, nursery):
    appends = [world.append(records) for records in (batch(MANY), batch(), batch())]
    world.log.go_offline("test")
    assert world.finished == appends
    assert {append.error for append in appends} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}
    nursery.start_soon(world.checks.run)
    await trio.testing.wait_all_tasks_blocked()
    assert world.finished == appends


async def test_what_goes_offline_while_a_thread_looks_is_refused_once(world, nursery):
    appends = [world.append(records) for records in (batch(MANY), batch())]
    nursery.start_soon(world.checks.run)
    with trio.fail_after(20):
        while not world.checks.threaded_count:
            await trio.lowlevel.checkpoint()
    world.log.go_offline("test")
    shared = SharedParts.of(world.env, LogSettings())
    shared.checks = world.checks
    other = PartitionLog(world.log.topic, 1, Config(), world.env, LogSettings(), shared)
    other.go_online(TakenOver(world.log.chain, 1, [], ProducerState(producers_max=10)))
    behind = CallbackAppend(batch(MANY), lambda _: None)
    other.submit(behind)
    with trio.fail_after(20):
        while behind.base_offset < 0:
            await trio.sleep(0.001)
    assert world.finished == appends
    assert {append.error for append in appends} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}


async def test_what_is_being_closed_takes_nothing_from_its_line(world, nursery):
    append = world.append(batch(MANY))
    world.log.is_closing = True
    nursery.start_soon(world.checks.run)
    with trio.fail_after(20):
        while not world.finished:
            await trio.sleep(0.001)
    assert append.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert world.log.next_offset == 0


async def test_a_refusal_in_the_line_is_nobody_elses(world, nursery):
    wrong = batch(MANY)
    wrong[-1] ^= 1
    appends = [world.append(records) for records in (wrong, batch(), batch(MANY), batch())]
    nursery.start_soon(world.checks.run)
    with trio.fail_after(20):
        while world.log._line.unchecked_head() is not None:
            await trio.sleep(0.001)
    assert world.finished == [appends[0]]
    assert appends[0].error is ErrorCode.CORRUPT_MESSAGE
    assert [append.base_offset for append in appends[1:]] == [0, 1, MANY + 1]


async def test_refusals_are_paid_for(world):
    """Bad batches cost as much to look at as good ones."""
    wrong = memoryview(bytearray(batch(100_000)))
    wrong[-1] ^= 1
    refused = 0
    for _ in range(100):
        try:
            if world.checks.check_now(wrong, Config(), internal=False) is None:
                break
        except KafkaError:
            refused += 1
    assert refused <= TURN_NS_MAX / (100_000 * checking.RECORD_NS) + 1


def test_the_cost_of_what_is_no_batch():
    """A few bytes, or a count that lies, cost what there is to look at."""
    for records in (b"", bytes(60), bytes(61), encode_record(Record(0, 0, None, b"v", []))):
        byte_ns, known_ns = checking._costs(memoryview(records), Config(), internal=False)
        assert (byte_ns, known_ns <= 4 * checking.BATCH_NS) == (0, True)
    lying = batch(1)
    lying[57:61] = b"\x7f\xff\xff\xff"
    assert checking._costs(lying, Config(), internal=False)[1] < 100_000


async def test_locks_are_a_part_of_what_a_turn_spends(world):
    """Each of the two would fit."""
    world.log.config.quire_locks = "optional"
    world.log.config.quire_locks_max_per_record = 400
    locks = [("quire.lock.append", b"%d" % n) for n in range(280)]
    locked = build_batch([Record(0, 0, None, b"v", locks)])
    appends = [world.append(memoryview(bytearray(locked))) for _ in range(2)]
    assert [append.base_offset for append in appends] == [0, -1]
    assert world.checks.inline_count == 1
