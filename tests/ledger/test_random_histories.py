"""Writers, recoverers and failing bookies at once, from a seed, in virtual time. The invariants are
those of BookKeeper's TLA+ specification (ledgers.md 2.3)."""

import contextlib
import random

import pytest
import trio
from trio.testing import MockClock

from ledger.errors import LedgerError, NotEnoughBookiesError
from wire.bookkeeper.status import FLAG_DO_FENCING

SIZES = [(1, 1, 1), (2, 2, 1), (2, 2, 2), (3, 3, 2), (3, 2, 2), (4, 3, 2), (5, 3, 3)]


def _payload(entry_id):
    return b"entry %d" % entry_id


class History:
    """One run. After it: `acked` are the entries whose writer was told so, at any time."""

    def __init__(self, world, seed):
        self.world = world
        self.rng = random.Random(seed)
        self.sizes = self.rng.choice(SIZES)
        self.acked = []
        self.ends = []
        self.finished = False

    async def main(self):
        with trio.fail_after(600):  # virtual: everything ends
            await self.run()

    async def run(self):
        async with trio.open_nursery() as nursery:
            await self.world.start(nursery)
            self.world.bookies.delay_s = self.rng.choice([0.01, 0.1])
            self.writer = await self.world.create(*self.sizes)
            async with trio.open_nursery() as actors:
                actors.start_soon(self.write)
                actors.start_soon(self.break_bookies)
                for _ in range(self.rng.randrange(1, 4)):
                    actors.start_soon(self.recover)
            # All is well again: now recovery must succeed, however the earlier ones ended.
            self.world.bookies.dead.clear()
            reader = await self.recover_once(self.world.new_client())
            await self.check(reader)
            nursery.cancel_scope.cancel()

    async def write(self):
        def done(entry_id, error):
            if error is None:
                assert entry_id == len(self.acked), "acks are in order"
                self.acked.append(entry_id)

        for _ in range(self.rng.randrange(60)):
            self.writer.append_nowait([_payload(self.writer.last_add_pushed + 1)], done)
            if self.rng.random() < 0.4:
                await trio.sleep(self.rng.random() * 0.05)
        if self.rng.random() < 0.2:
            with trio.move_on_after(3):
                with contextlib.suppress(LedgerError):
                    self.ends.append(await self.writer.close())

    async def break_bookies(self):
        """At most so many at a time that every write set keeps a bookie with each acked entry."""
        dead = self.world.bookies.dead
        for _ in range(self.rng.randrange(6)):
            await trio.sleep(self.rng.random() * 0.3)
            if dead and self.rng.random() < 0.5:
                dead.discard(self.rng.choice(sorted(dead)))
            elif len(dead) < 2:
                dead.add(self.rng.choice(self.world.names))

    async def recover(self):
        client = self.world.new_client()
        async with trio.open_nursery() as nursery:
            await nursery.start(client.run)
            await trio.sleep(self.rng.random() * 1.0)
            for _ in range(3):
                try:
                    await self.recover_once(client)
                    break
                except LedgerError:
                    await trio.sleep(self.rng.random() * 0.3)
            nursery.cancel_scope.cancel()

    async def recover_once(self, client):
        reader = await client.open_ledger(self.writer.ledger_id, recover=True)
        self.ends.append(reader.metadata)
        return reader

    async def check(self, reader):
        last_entry_id = reader.metadata.last_entry_id
        # The ledger has one end, whoever asked.
        assert {(end.last_entry_id, end.length) for end in self.ends} == {
            (last_entry_id, reader.metadata.length)
        }
        # NoDivergenceBetweenClientAndMetaData
        assert self.acked == list(range(len(self.acked)))
        assert len(self.acked) - 1 <= last_entry_id
        length = sum(len(_payload(entry_id)) for entry_id in range(last_entry_id + 1))
        if reader.metadata.last_segment[0] != last_entry_id + 1:
            assert reader.metadata.length == length
        else:
            # Nothing was written to the last segment, and the last entry's bookies may be down.
            assert reader.metadata.length in (0, length)
        # AllAckedEntriesAreReadable, NoOutOfOrderEntries: by a reader that starts anew.
        payloads = []
        while len(payloads) <= last_entry_id:
            payloads += await reader.read(len(payloads), count_max=50, size_max=1 << 20)
        assert payloads == [_payload(entry_id) for entry_id in range(last_entry_id + 1)]
        # AllCommittedEntriesReachAckQuorum, on the bookies that the metadata names.
        _, write_quorum_size, ack_quorum_size = self.sizes
        for entry_id in range(last_entry_id + 1):
            ensemble = reader.metadata.ensemble_at(entry_id)
            write_set = {ensemble[(entry_id + i) % len(ensemble)] for i in range(write_quorum_size)}
            holders = self.world.bookies.holders(self.writer.ledger_id, entry_id)
            assert len(write_set & holders) >= ack_quorum_size


@pytest.mark.parametrize("block", range(10))
def test_histories(new_world, block):
    for seed in range(block * 30, block * 30 + 30):
        history = History(new_world("abcdefg"[: 5 + seed % 3], seed=seed), seed)
        try:
            trio.run(history.main, clock=MockClock(autojump_threshold=0))
        except BaseException as error:
            raise AssertionError(f"seed {seed}, sizes {history.sizes}") from error


def test_histories_reach_the_rare_paths(new_world):
    """The histories above mean something only if these happen in them."""
    seen = {"changed": 0, "refused": 0, "fenced": 0, "closed_by_writer": 0, "in_flight_kept": 0}
    for seed in range(60):
        history = History(new_world("abcdefg"[: 5 + seed % 3], seed=seed), seed)
        read = history.world.bookies.read_entry

        async def noting(*args, read=read, **keywords):
            seen["fenced"] += keywords["flags"] & FLAG_DO_FENCING
            return await read(*args, **keywords)

        history.world.bookies.read_entry = noting
        trio.run(history.main, clock=MockClock(autojump_threshold=0))
        end = history.ends[-1]
        seen["changed"] += len(end.segments) > 1
        seen["refused"] += isinstance(history.writer.error, NotEnoughBookiesError)
        seen["closed_by_writer"] += history.writer._closed is not None
        seen["in_flight_kept"] += end.last_entry_id >= len(history.acked)
    assert all(seen.values()), seen
