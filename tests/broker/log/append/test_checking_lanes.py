"""Whoever's batches are long waits for himself: by counting who is checked before whom, on threads
that end when the test says so."""

import gzip
from collections import deque
from dataclasses import dataclass, field, replace
from functools import cache

import pytest
import trio
import zstandard
from crc32c import crc32c
from trio.testing import wait_all_tasks_blocked

from broker.log.append import checking
from broker.log.append.checking import THREAD_BYTES_MAX, THREAD_NS_MAX, TURN_NS_MAX, BatchChecks
from broker.log.append.validation import DECOMPRESSED_BYTES_MAX
from runtime.env import real_env
from tests.broker.log.append.test_checking import Config
from wire.kafka.errors import ErrorCode, KafkaError
from wire.kafka.records.batch import BATCH_OVERHEAD, build_batch
from wire.kafka.records.compression import Compression
from wire.kafka.records.record import Record
from wire.kafka.records.walk import IS_COMPILED

#: Decompressed: long; not quite; what most clients send; fits into a turn.
BOMB, MIDDLE, USUAL, SHORT = 16 << 20, 3 << 20, 400_000, 100
CODECS = list(Compression)[1:]


@cache
def packed(size, compression=Compression.GZIP):
    records = [Record(0, 0, b"k", bytes(size), [])]
    return build_batch(records, compression=compression)


def with_data(batch, data):
    """The same header, of other records."""
    made = bytearray(batch[:BATCH_OVERHEAD]) + data
    made[8:12] = (len(made) - 12).to_bytes(4)
    made[17:21] = crc32c(memoryview(made)[21:]).to_bytes(4)
    return bytes(made)


def liar(size, declared):
    """Its gzip stream says that less comes out."""
    batch = packed(size)
    return with_data(batch, batch[BATCH_OVERHEAD:-4] + declared.to_bytes(4, "little"))


class Batch:
    """What stands for an Append."""

    def __init__(self, name, records):
        self.name = name
        self.records = memoryview(bytearray(records))


class Line:
    """One partition's, as far as checks see it; what is done is told to `done`, in order."""

    def __init__(self, done, *batches, config=None):
        self.batches = deque(batches)
        self.config = config or Config()
        self.done = done
        self.outcome = None

    def unchecked_head(self):
        return (self.batches[0], self.config, False) if self.batches else None

    def was_checked(self, append, outcome):
        assert self.batches.popleft() is append
        self.outcome = outcome
        self.done.append(append.name)
        return bool(self.batches)


@dataclass
class Threads:
    """A disk whose threads end when they are let go."""

    waiting: list = field(default_factory=list)
    most: list = field(default_factory=list)

    async def run(self, function, *args):
        let_go = trio.Event()
        self.waiting.append((args[0], args[-1], let_go))
        self.most.append(sorted(bytes_max for _, bytes_max, _ in self.waiting))
        await let_go.wait()
        return function(*args)

    def sizes(self):
        return [len(records) for records, _, _ in self.waiting]

    async def let_go(self, records):
        found = next(call for call in self.waiting if len(call[0]) == len(records))
        self.waiting.remove(found)
        found[2].set()
        await wait_all_tasks_blocked()


class World:
    def __init__(self, nursery):
        self.threads = Threads()
        self.checks = BatchChecks(replace(real_env(), disk=self.threads))
        self.done = []
        self.nursery = nursery

    def line(self, *batches, **config):
        made = [Batch(name, records) for name, records in batches]
        line = Line(self.done, *made, config=Config(**config))
        self.checks.call(line)
        return line

    async def run(self):
        self.nursery.start_soon(self.checks.run)
        await wait_all_tasks_blocked()


@pytest.fixture
async def world(nursery):
    return World(nursery)


async def test_a_usual_batch_is_checked_beside_any_number_of_bombs(world):
    for _ in range(40):
        world.line(("bomb", packed(BOMB)))
    await world.run()
    assert world.threads.sizes() == [len(packed(BOMB))]
    world.line(("usual", packed(USUAL)))
    await wait_all_tasks_blocked()
    await world.threads.let_go(packed(USUAL))
    assert world.done == ["usual"]
    # The next one, with as many behind it in its own line: one after the other.
    world.line(*((n, packed(USUAL)) for n in range(3)))
    await wait_all_tasks_blocked()
    for _ in range(3):
        await world.threads.let_go(packed(USUAL))
    assert world.done == ["usual", 0, 1, 2]
    assert world.threads.sizes() == [len(packed(BOMB))]


async def test_what_fits_into_a_turn_waits_for_no_thread(world):
    """It is in line only because the turn had no time left when it came."""
    for size in (BOMB, BOMB, MIDDLE, MIDDLE):
        world.line(("large", packed(size)))
    await world.run()
    world.line(("short", packed(SHORT)), ("short too", packed(SHORT)))
    await wait_all_tasks_blocked()
    assert world.done == ["short", "short too"]
    assert world.checks.delayed_count == 2
    assert len(world.threads.waiting) == 2


async def test_turns_go_to_those_who_need_least_of_them(world):
    size = 200_000 if IS_COMPILED else 5_000
    for n in range(20):
        world.line((n, packed(size)))
    world.line(("short", packed(SHORT)))
    world.nursery.start_soon(world.checks.run)
    passes = 0
    with trio.fail_after(20):
        while len(world.done) < 21:
            await trio.lowlevel.checkpoint()
            passes += 1
    assert world.done == ["short", *range(20)]
    assert passes >= 20  # others had the loop between any two of them
    assert not world.threads.most


async def test_a_turn_pays_for_finding_places(world):
    """Of many that are short that costs more than their checks do."""
    count = 2000
    world.line(*((n, packed(SHORT, Compression.NONE)) for n in range(count)))
    world.nursery.start_soon(world.checks.run)
    passes = 0
    with trio.fail_after(20):
        while len(world.done) < count:
            await trio.lowlevel.checkpoint()
            passes += 1
    assert passes >= count * checking.PLACE_NS // TURN_NS_MAX


async def test_locks_that_do_not_fit_have_a_turn_of_their_own(world):
    """What they cost is found when they are read; two of these do not fit into one turn."""
    locks = [("quire.lock.append", b"%d" % n) for n in range(280)]
    locked = build_batch([Record(0, 0, None, b"v", locks)])
    settings = {"quire_locks": "optional", "quire_locks_max_per_record": 400}
    world.line(*((n, locked) for n in range(4)), **settings)
    await world.run()
    assert world.done == [0, 1, 2, 3]
    assert (world.checks.delayed_count, world.checks.threaded_count) == (4, 0)


async def test_a_bomb_that_is_checked_is_the_only_one_that_a_long_batch_waits_for(world):
    for _ in range(10):
        world.line(("bomb", packed(BOMB)))
    await world.run()
    world.line(("not as long", packed(9 << 20)))
    await wait_all_tasks_blocked()
    await world.threads.let_go(packed(BOMB))
    await world.threads.let_go(packed(9 << 20))
    assert world.done == ["bomb", "not as long"]


def packed_otherwise(size):
    """As Java's producers pack: the frame does not tell how much comes out."""
    batch = packed(size, Compression.ZSTD)
    inside = zstandard.ZstdDecompressor().decompress(batch[BATCH_OVERHEAD:])
    stream = zstandard.ZstdCompressor().compressobj()
    return with_data(batch, stream.compress(inside) + stream.flush())


PACKERS = {codec.name: (lambda size, codec=codec: packed(size, codec)) for codec in CODECS}
PACKERS["streamed"] = packed_otherwise


@pytest.mark.parametrize("large", PACKERS)
@pytest.mark.parametrize("usual", PACKERS)
async def test_a_usual_batch_is_behind_one_that_costs_more(world, large, usual):
    large, usual = PACKERS[large](MIDDLE), PACKERS[usual](500_000)
    for n in range(20):
        world.line((n, large))
    await world.run()
    world.line(("usual", usual))
    await wait_all_tasks_blocked()
    assert world.threads.sizes() == [len(large)]
    await world.threads.let_go(large)
    await world.threads.let_go(usual)
    assert world.done == [0, "usual"]


async def test_nobody_waits_for_ever_behind_those_who_cost_little(world):
    """Five partitions always have another usual batch: each has its turn, and who costs many times
    as much is checked when they have had as much time."""
    for name in "abcde":
        world.line(*((name, packed(USUAL)) for _ in range(100)))
    world.line(("large", packed(MIDDLE)))
    await world.run()
    while "large" not in world.done:
        await world.threads.let_go(bytes(world.threads.sizes()[0]))
    counts = [world.done.count(name) for name in "abcde"]
    assert max(counts) - min(counts) <= 1
    assert MIDDLE // USUAL - 1 <= sum(counts) <= MIDDLE // USUAL + 7


async def test_the_order_of_a_line_stays_through_all_lanes(world):
    sizes = (SHORT, USUAL, BOMB, SHORT, BOMB, USUAL, SHORT, MIDDLE)
    world.line(*((n, packed(size)) for n, size in enumerate(sizes)))
    world.line(("other", packed(USUAL)))
    await world.run()
    while world.threads.waiting:
        await world.threads.let_go(bytes(world.threads.sizes()[0]))
    assert [name for name in world.done if name != "other"] == list(range(len(sizes)))


async def test_memory_is_that_of_one_long_and_one_that_is_not(world):
    sizes = (BOMB, USUAL, MIDDLE, BOMB, THREAD_BYTES_MAX - 100, THREAD_BYTES_MAX, USUAL)
    batches = [packed(size) for size in sizes]
    batches.append(packed(10 << 20, Compression.LZ4))  # in less time than a bound on that alone has
    for n in range(len(batches) * 3):
        world.line(*((n, batch) for batch in batches[n % len(batches) :]))
    await world.run()
    while world.threads.waiting:
        _, _, let_go = world.threads.waiting.pop(0)
        let_go.set()
        await wait_all_tasks_blocked()
    assert len(world.done) == 3 * sum(range(1, len(batches) + 1))
    assert max(len(held) for held in world.threads.most) == 2
    for held in world.threads.most:
        assert sum(held) <= DECOMPRESSED_BYTES_MAX + THREAD_BYTES_MAX
        assert held[0] <= THREAD_BYTES_MAX or len(held) == 1
    assert world.checks.threaded_count == len(world.done)


@pytest.mark.parametrize("declared", [0, 10, USUAL, MIDDLE])
async def test_who_lies_about_his_size_gets_no_more_than_what_he_said(world, declared):
    """On the loop and beside others no more comes out; then he is long."""
    liars = [world.line(("liar", liar(BOMB, declared))) for _ in range(5)]
    await world.run()
    lying = liars[0].batches[0].records
    while len(world.threads.waiting) > 1 or world.threads.waiting[0][1] < DECOMPRESSED_BYTES_MAX:
        (call,) = (call for call in world.threads.waiting if call[1] < DECOMPRESSED_BYTES_MAX)
        assert call[1] <= max(declared, len(lying))
        world.threads.waiting.remove(call)
        call[2].set()
        await wait_all_tasks_blocked()
    assert world.done == []
    world.line(("usual", packed(USUAL)))
    await wait_all_tasks_blocked()
    await world.threads.let_go(packed(USUAL))
    assert world.done == ["usual"]
    while world.threads.waiting:
        assert world.threads.waiting[0][1] == DECOMPRESSED_BYTES_MAX
        await world.threads.let_go(lying)
    assert world.done == ["usual"] + ["liar"] * 5
    assert {line.outcome.code for line in liars} == {ErrorCode.CORRUPT_MESSAGE}
    assert world.checks.threaded_count == 6


async def test_what_a_lie_takes_of_a_turn_is_what_was_declared(world, monkeypatch):
    limits = []
    real = checking.checked_batch

    def watched(*args, **kwargs):
        limits.append(kwargs["decompressed_bytes_max"])
        return real(*args, **kwargs)

    monkeypatch.setattr(checking, "checked_batch", watched)
    lying = liar(1 << 20, 10)
    world.line(("liar", lying))
    await world.run()
    assert limits == [len(lying)]


async def test_what_takes_long_is_long_however_small(world):
    """Packed anew by the topic's own codec: ten times the time of unpacking."""
    line = world.line(("anew", packed(2 << 20, Compression.LZ4)), compression_type="gzip")
    await world.run()
    ((_, bytes_max, _),) = world.threads.waiting
    assert bytes_max == DECOMPRESSED_BYTES_MAX
    world.line(("usual", packed(USUAL)))
    await wait_all_tasks_blocked()
    await world.threads.let_go(packed(USUAL))
    assert world.done == ["usual"]
    await world.threads.let_go(line.batches[0].records)
    assert world.done == ["usual", "anew"]


async def test_a_failure_in_a_lane_is_nobody_elses(world, caplog):
    def fails(*_):
        raise MemoryError

    wrong = world.line(("wrong", packed(BOMB)), ("behind", packed(SHORT)))
    world.line(("other", packed(BOMB)))
    run = world.threads.run
    world.threads.run = lambda _, *args: run(fails, *args)
    await world.run()
    world.threads.run = run
    await world.threads.let_go(packed(BOMB))
    await world.threads.let_go(packed(BOMB))
    assert world.done == ["wrong", "behind", "other"]
    assert not isinstance(wrong.outcome, KafkaError)
    assert "check_failed" in caplog.text


def test_a_record_is_walked_once_however_large():
    """One large record, and as many as there may be: unpacked they cost a turn the same, for nobody
    has counted; a thread's time is that of the records that the header tells."""
    many = [Record(n, 0, None, b"", []) for n in range(50_000)]
    batches = (packed(50_000 * 9), build_batch(many, compression=Compression.GZIP))
    expected = []
    for batch in batches:
        records = memoryview(batch)
        size = checking._size_inside(records, internal=False)
        expected.append(checking._expected_ns(records, Config(), size, internal=False))
    (one_turn_ns, one_ns), (many_turn_ns, many_ns) = expected
    assert one_turn_ns == pytest.approx(many_turn_ns, rel=0.1)
    assert many_ns - one_ns == pytest.approx(50_000 * checking.RECORD_NS, rel=0.1)
    assert one_ns <= one_turn_ns
    assert many_ns <= many_turn_ns
    assert TURN_NS_MAX < THREAD_NS_MAX


@pytest.mark.parametrize("size", [0, 1, 22, 23, 60, 61, 62])
def test_what_is_no_batch_has_a_size(size):
    for byte in (0, 1, 4, 7, 255):
        records = memoryview(bytes([byte]) * size)
        inside = checking._size_inside(records, internal=False)
        assert size <= inside <= DECOMPRESSED_BYTES_MAX
        assert checking._expected_ns(records, Config(), inside, internal=False)[1] >= 0
    assert checking._size_inside(memoryview(packed(BOMB)), internal=True) == len(packed(BOMB))


def test_a_bomb_of_gzip_is_what_it_says():
    assert len(gzip.decompress(packed(BOMB)[BATCH_OVERHEAD:])) > BOMB
    assert checking._size_inside(memoryview(packed(BOMB)), internal=False) > BOMB
