"""One life of a bookie, with all that it does to its disk, and what must be true after a crash.

The life is a script, so that a point in it means the same each time. What was asked for and what
was answered is kept as events, in their order; `expectation` tells what holds at a point.
"""

from __future__ import annotations

import random
import struct
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING, Any, cast

import trio
from crc32c import crc32c

from bookie.bookie import Bookie
from bookie.config import BookieConfig
from bookie.space.gc_config import GcConfig
from runtime.env import Env
from runtime.turn import Turn
from wire.bookkeeper.entry import Digest
from wire.bookkeeper.status import FLAG_DO_FENCING, FLAG_RECOVERY_ADD, Status

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

    from bookie.space.gc_report import GcReport
    from checks.crash_disk import CrashDisk, CrashIndex, Recorder
    from runtime.net import Net

CONFIG = BookieConfig(
    bookie_id="bookie",
    instance_id="instance",
    journal_directory="/journal",
    ledger_directory="/ledgers",
    journal_size_bytes=3072,
    journal_alignment_bytes=128,
    journal_group_size_max_bytes=600,
    journal_turn_size_max_bytes=500,
    journal_queue_size_max_bytes=4096,
    journal_buffered_writes_threshold_bytes=300,
    journal_spare_files_max=1,
    journal_attest_interval_ms=50,
    write_cache_size_bytes=8192,
    write_cache_segment_size_bytes=1024,
    write_cache_preallocated_size_bytes=0,
    flush_entry_log_bytes=700,
    flush_interval_ms=1 << 40,
    entry_log_size_limit_bytes=2600,
    entry_size_max_bytes=512,
    held_adds_max=100,
    held_adds_size_max_bytes=1 << 16,
    read_ahead_size_bytes=1024,
    disk_reserve_size_bytes=0,
    disk_check_interval_ms=1 << 40,
    scrub_interval_ms=0,
    gc=GcConfig(
        wait_ms=1 << 40,
        minor_interval_ms=1 << 41,
        major_interval_ms=1 << 42,
        rate_entries=0,
        force_allow=True,
    ),
)


class VirtualClock:
    __slots__ = ()

    def time_ms(self) -> int:
        return int(trio.current_time() * 1000)

    def monotonic(self) -> float:
        return trio.current_time()


class Metadata:
    """bookie.known_ledgers.KnownLedgers: the ledgers that there are."""

    def __init__(self, ledgers: Iterable[int]) -> None:
        self.ledgers = set(ledgers)

    async def gone(self, ledger_ids: Sequence[int]) -> list[int]:
        return [ledger_id for ledger_id in ledger_ids if ledger_id not in self.ledgers]

    async def confirmed(self) -> list[int]:
        return []

    seconds_to_confirm = inf

    async def over_replicated(
        self, ledger_ids: Sequence[int], give_up: Callable[[list[int]], Awaitable[None]]
    ) -> None:
        return

    async def digest(self, ledger_id: int) -> Digest:
        return Digest()


@asynccontextmanager
async def serving(
    disk: CrashDisk, index: CrashIndex, metadata: Metadata, config: BookieConfig
) -> AsyncIterator[Bookie]:
    """A bookie; leaving is a clean stop."""
    turn = Turn()
    no_net = cast("Net", None)  # nobody connects to it
    env = Env(clock=VirtualClock(), rng=random.Random(0), net=no_net, disk=disk, turn=turn)
    bookie = Bookie(config, env, index=index, known_ledgers=metadata)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turn.serve)
        await nursery.start(lambda task_status: bookie.run(task_status=task_status))
        yield bookie
        nursery.cancel_scope.cancel()


def key_of(ledger_id: int) -> bytes:
    return b"key of ledger %6d" % ledger_id


def make_entry(ledger_id: int, entry_id: int, size: int) -> bytes:
    payload = random.Random(ledger_id << 32 | entry_id).randbytes(size)
    header = struct.pack(">qqqq", ledger_id, entry_id, entry_id - 1, len(payload))
    return header + struct.pack(">I", crc32c(payload, crc32c(header))) + payload


@dataclass(slots=True)
class Expectation:
    """At a point. What was asked for after the last operation cannot have left anything."""

    #: What was given, by (ledger, entry); and what of it was acknowledged.
    written: dict[tuple[int, int], bytes] = field(default_factory=dict)
    acknowledged: set[tuple[int, int]] = field(default_factory=set)
    #: Ledgers that may be fenced, and those that are.
    fencing: set[int] = field(default_factory=set)
    fenced: set[int] = field(default_factory=set)
    #: By ledger: the LAC packet that was acknowledged last, and all that may have come after it.
    packets: dict[int, set[bytes | None]] = field(default_factory=dict)
    #: Ledgers that may be deleted, and those that are.
    dying: set[int] = field(default_factory=set)
    deleted: set[int] = field(default_factory=set)
    #: What the metadata knows.
    ledgers: set[int] = field(default_factory=set)

    def copy(self) -> Expectation:
        return Expectation(
            dict(self.written),
            set(self.acknowledged),
            set(self.fencing),
            set(self.fenced),
            {ledger_id: set(packets) for ledger_id, packets in self.packets.items()},
            set(self.dying),
            set(self.deleted),
            set(self.ledgers),
        )

    def key(self) -> tuple[object, ...]:
        """Equal if all that holds is equal."""
        return (
            tuple(self.written),
            tuple(sorted(self.acknowledged)),
            tuple(sorted(self.fencing)),
            tuple(sorted(self.fenced)),
            tuple(sorted((i, frozenset(packets)) for i, packets in self.packets.items())),
            tuple(sorted(self.dying)),
            tuple(sorted(self.deleted)),
            tuple(sorted(self.ledgers)),
        )


class Story:
    """Events, each with the number of the operation that came next."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        #: What a value is depends on what is told.
        self.events: list[tuple[int, str, Any]] = []
        recorder.count_events = lambda: len(self.events)

    def tell(self, what: str, value: object) -> None:
        self.events.append((self._recorder.number, what, value))

    def expectation(self, number: int, event_count: int) -> Expectation:
        """At the point with this number."""
        found = Expectation()
        for at, what, value in self.events[:event_count]:
            came_through = at < number
            if what == "add" and came_through:
                found.written[value[0]] = value[1]
            elif what == "added":
                found.acknowledged.add(value)
            elif what == "fence":
                found.fencing.add(value)
            elif what == "fenced":
                found.fenced.add(value)
            elif what == "packet" and came_through:
                found.packets.setdefault(value[0], {None}).add(value[1])
            elif what == "packet stored":
                found.packets[value[0]] = {value[1]}
            elif what == "new ledger":
                found.ledgers.add(value)
            elif what == "no ledger":
                found.ledgers.discard(value)
                if came_through:
                    found.dying.add(value)
            elif what == "delete" and came_through:
                found.dying.add(value)
            elif what == "deleted":
                found.deleted.add(value)
        return found


class Life:
    """What is done to a bookie, and told to the story."""

    def __init__(self, bookie: Bookie, story: Story, metadata: Metadata) -> None:
        self.bookie = bookie
        self.story = story
        self.metadata = metadata
        self._open = 0
        self._answered = trio.Event()
        self._next_ids: dict[int, int] = {}

    def new_ledgers(self, *ledger_ids: int) -> None:
        for ledger_id in ledger_ids:
            self.metadata.ledgers.add(ledger_id)
            self.story.tell("new ledger", ledger_id)

    def add(
        self, ledger_id: int, size: int, *, entry_id: int | None = None, flags: int = 0
    ) -> None:
        if entry_id is None:
            entry_id = self._next_ids.get(ledger_id, 0)
            self._next_ids[ledger_id] = entry_id + 1
        key = (ledger_id, entry_id)
        entry = make_entry(*key, size)

        def done(status: Status) -> None:
            assert status is Status.EOK, status
            self.story.tell("added", key)
            self._open -= 1
            if not self._open:
                self._answered.set()

        self.story.tell("add", (key, entry))
        self._open += 1
        self.bookie.add_entry(*key, key_of(ledger_id), [entry], flags, done)

    async def added(self) -> None:
        while self._open:
            self._answered = trio.Event()
            await self._answered.wait()

    async def fence(self, ledger_id: int) -> None:
        self.story.tell("fence", ledger_id)
        status, _ = await self.bookie.read_entry(
            ledger_id, 0, flags=FLAG_DO_FENCING, master_key=key_of(ledger_id)
        )
        assert status in (Status.EOK, Status.ENOENTRY), status
        self.story.tell("fenced", ledger_id)

    async def store_packet(self, ledger_id: int, packet: bytes) -> None:
        self.story.tell("packet", (ledger_id, packet))
        status = await self.bookie.set_explicit_lac(ledger_id, key_of(ledger_id), packet)
        assert status is Status.EOK, status
        self.story.tell("packet stored", (ledger_id, packet))

    async def delete(self, ledger_id: int) -> None:
        """As a client of the bookie's own interface does, the metadata having been told."""
        self.story.tell("delete", ledger_id)
        self.forget(ledger_id)
        assert await self.bookie.delete_ledger(ledger_id) is Status.EOK
        self.story.tell("deleted", ledger_id)

    def forget(self, *ledger_ids: int) -> None:
        for ledger_id in ledger_ids:
            self.metadata.ledgers.discard(ledger_id)
            self.story.tell("no ledger", ledger_id)

    async def collect(self, *, minor: bool = False, major: bool = False) -> GcReport:
        gone = [i for i in self.bookie.list_ledgers() if i not in self.metadata.ledgers]
        report = await self.bookie.collect_garbage(force_minor=minor, force_major=major)
        for ledger_id in gone:
            assert ledger_id not in self.bookie.list_ledgers()
            self.story.tell("deleted", ledger_id)
        return report


async def short_life(life: Life) -> None:
    """A small one, for crashes in starts after crashes in starts."""
    life.new_ledgers(1, 2)
    for size in (90, 150):
        for ledger_id in (1, 2):
            life.add(ledger_id, size)
    await life.added()
    await life.bookie.flush()
    life.add(1, 60)
    await life.added()
    await life.fence(1)
    await life.delete(2)
    await life.bookie.flush()
    await life.collect(major=True)


async def long_life(life: Life) -> None:
    """All that a bookie does; the steps that are asked for are in checks/crash_steps.py."""
    bookie = life.bookie
    life.new_ledgers(*range(1, 9))
    for size in (30, 200, 90):
        for ledger_id in (1, 2, 3, 4, 8):
            life.add(ledger_id, size)
    await life.added()
    await life.store_packet(2, b"first packet")
    await life.fence(3)
    await bookie.flush()
    # Ledgers 4 and 5 are in logs of their own, and go as a whole.
    for size in (300, 350, 400, 300):
        life.add(4, size)
        life.add(5, size)
        life.add(8, size)
    await life.added()
    await bookie.flush()
    await life.delete(5)
    life.forget(4)
    life.add(1, 120)
    life.add(3, 77, flags=FLAG_RECOVERY_ADD)
    life.add(2, 30, entry_id=0)  # once more, as a recovery does
    await life.added()
    await life.collect()
    # A log of which less than a fifth is alive, among adds and a flush.
    for size in (400, 450, 60, 380, 410, 300):
        life.add(6 if size > 100 else 7, size)
    await life.added()
    await bookie.flush()
    await life.store_packet(2, b"second packet")
    life.forget(6)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(collect_some, life, {"minor": True})
        for size in (50, 180, 250):
            life.add(1, size)
            life.add(7, size)
            await trio.sleep(0.002)
    await life.added()
    await trio.sleep(0.2)  # the journal attests
    await life.delete(1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(collect_some, life, {"major": True})
        nursery.start_soon(bookie.flush)
        for size in (40, 140, 240):
            life.add(2, size)
            await trio.sleep(0.003)
    await life.added()
    await bookie.flush()
    # A deletion that is not durable yet when a checkpoint looks for such.
    async with trio.open_nursery() as nursery:
        nursery.start_soon(life.fence, 7)
        await trio.sleep(0.0001)
        nursery.start_soon(bookie.flush)
        await trio.sleep(0.0001)
        nursery.start_soon(life.delete, 8)
    await life.collect(major=True)
    life.add(2, 100)
    await life.added()


async def collect_some(life: Life, kinds: dict[str, bool]) -> None:
    await life.collect(**kinds)


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    life: Callable[[Life], Awaitable[None]]
    #: How often the starts after a crash are crashed too: quickly, and in a full run.
    quick_depth: int
    full_depth: int
    sync_seconds: tuple[float, float] = (0.0, 0.0)
    config: BookieConfig = CONFIG


SLOW = (0.0005, 0.003)
SCENARIOS = (
    Scenario("a short life", short_life, 1, 2),
    Scenario("a long life", long_life, 0, 1),
    Scenario("a long life, syncs take time", long_life, 0, 1, SLOW),
    Scenario(
        "a long life, syncs take time, two ledger directories",
        long_life,
        0,
        0,
        SLOW,
        replace(CONFIG, more_ledger_directories=("/more",)),
    ),
    Scenario(
        "a long life, journals become entry logs",
        long_life,
        0,
        1,
        SLOW,
        replace(CONFIG, journal_kept_entry_min_bytes=100),
    ),
)
