"""Random adds, syncs that take a while, puts-off, waits and power failures: whatever was answered
is there, in order, and whoever waits is told."""

import random
import struct

import pytest
import trio
import trio.testing

from runtime.sim_disk import SimDisk
from tests.bookie.journal.test_journal import Rig, replayed
from wire.bookkeeper.status import Status


class SlowSyncs:
    """The journal's file. A sync covers what was written until it ends, and is told then."""

    def __init__(self, file, syncs):
        self.file, self.syncs = file, syncs

    def __getattr__(self, name):
        return getattr(self.file, name)

    def sync(self, done):
        self.syncs.append((self.file, done))


class Walk:
    def __init__(self, rng, rig, is_slow):
        self.rng, self.rig = rng, rig
        self.syncs = [] if is_slow else None
        self.count = 0
        self.unsynced = set()
        self.durable, self.written, self.waited = [], [], []

    def use_slow_syncs(self):
        journal = self.rig.journal
        if self.syncs is not None and not isinstance(journal._file, SlowSyncs):
            journal._file = SlowSyncs(journal._file, self.syncs)

    def add_some(self):
        journal = self.rig.journal
        for _ in range(self.rng.randrange(1, 12)):
            size, entry_id = self.rng.choice([1, 30, 300, 1500]), self.count
            record = struct.pack(">iqq", 16 + size, 1, entry_id) + bytes([entry_id % 256]) * size
            is_unsynced = self.rng.random() < 0.5
            answered = self.written if is_unsynced else self.durable

            def done(status, answered=answered, entry_id=entry_id):
                if status is Status.EOK:
                    answered.append(entry_id)

            append = journal.append_unsynced if is_unsynced else journal.append
            if is_unsynced:
                self.unsynced.add(entry_id)
            append(memoryview(record), 0, len(record), done)
            self.count += 1

    def end_sync(self):
        if self.syncs:
            file, done = self.syncs.pop(0)
            file.sync(done)

    def run_later(self):
        turn = self.rig.turn
        turn.spent_units = 0
        for _ in range(len(turn._later)):
            turn._later.popleft()()
        turn.run()

    async def prepare(self):
        if self.rig.files._next is None:
            await self.rig.files.prepare()
        self.rig.journal.pump()

    async def wait(self, group, upto):
        await self.rig.journal.wait_durable(group)
        self.waited.append(upto)

    async def step(self, nursery):
        what = self.rng.randrange(10)
        if what < 4:
            self.add_some()
        elif what == 4 and self.count:
            nursery.start_soon(self.wait, self.rig.journal.cut(), self.count - 1)
            if self.rng.random() < 0.5:
                self.rig.journal.pump()
        elif what == 5:
            self.end_sync()
        elif what == 6:
            await self.prepare()
        elif what == 7:
            await trio.lowlevel.checkpoint()
        else:
            self.run_later()
        self.use_slow_syncs()

    def found(self):
        entries = [entry_id for _, entry_id, _ in replayed(self.rig.disk)[0]]
        assert entries == list(range(len(entries)))
        return len(entries)

    def check(self):
        durable = [each for each in range(self.count) if each not in self.unsynced]
        assert self.durable == durable[: len(self.durable)]
        assert self.written == sorted(self.unsynced)[: len(self.written)]
        assert max(self.written, default=-1) < self.found(), "answered, and not even written"

    async def drain(self):
        for _ in range(20_000):
            if not (self.rig.turn._later or self.syncs or self.rig.journal.queued_bytes):
                break
            await self.prepare()
            self.use_slow_syncs()
            self.run_later()
            self.use_slow_syncs()
            self.end_sync()
            self.use_slow_syncs()
            await trio.lowlevel.checkpoint()
        assert len(self.durable) + len(self.written) == self.count, "all are answered"
        await trio.testing.wait_all_tasks_blocked()


@pytest.mark.parametrize("seed", range(60))
async def test_what_was_answered_is_there(tiny, seed):
    rng = random.Random(seed)
    config = tiny(
        journal_size_bytes=rng.choice([16 << 10, 64 << 10]),
        journal_group_size_max_bytes=rng.choice([1000, 4000]),
        journal_buffered_writes_threshold_bytes=rng.choice([100, 2000, 10_000]),
    )
    rig = await Rig(
        SimDisk(random.Random(seed)), config, rng.choice([64, 100, 333, 1000, 5000])
    ).open()
    walk = Walk(rng, rig, is_slow=rng.random() < 0.8)
    walk.use_slow_syncs()
    async with trio.open_nursery() as nursery:
        for _ in range(rng.randrange(5, 120)):
            await walk.step(nursery)
            walk.check()
        if rng.random() < 0.5:
            await walk.drain()
            assert not nursery.child_tasks, "whoever waits is told"
        else:
            rig.disk.crash()
        nursery.cancel_scope.cancel()
    assert max([*walk.durable, *walk.waited], default=-1) < walk.found()
    assert not rig.errors
