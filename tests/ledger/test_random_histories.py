"""Writers, recoverers and failing bookies at once, from a seed, in virtual time. The invariants are
those of BookKeeper's TLA+ specification (invariants R). In five ways of writing: plain, without a
bookie to spare, with delayed ensemble change, with entry ids in any order, and with deferred sync.
"""

import contextlib
import random
from collections import Counter

import pytest
import trio
from trio.testing import MockClock

from ledger.errors import LedgerError
from ledger.writer_core import WriterCore
from wire.bookkeeper.status import FLAG_DO_FENCING

SIZES = [(1, 1, 1), (2, 2, 1), (2, 2, 2), (3, 3, 2), (3, 2, 2), (4, 3, 2), (5, 3, 3)]


def _payload(entry_id):
    return b"entry %d" % entry_id


class History:
    """One run. After it: `acked` are the entries whose writer was told so, at any time; `promised`
    those of them that must be there (all, but with deferred sync only what was forced)."""

    def __init__(self, world, seed, mode="plain"):
        self.world = world
        self.mode = mode
        #: So slowly that those that come back are looked for meanwhile.
        self.slowness = 8.0 if mode == "scarce" else 1.0
        self.promised_count = 0
        self.losses = 0
        self.left_out = None
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
            self.writer = await self.create()
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

    async def create(self):
        client = self.world.client
        make = {
            "adv": client.create_ledger_adv,
            "deferred": client.create_ledger_deferred_sync,
        }.get(self.mode, client.create_ledger)
        names = ("ensemble_size", "write_quorum_size", "ack_quorum_size")
        return await make(**dict(zip(names, self.sizes, strict=True)))

    async def write(self):
        def done(entry_id, error):
            if error is None:
                assert entry_id == len(self.acked), "acks are in order"
                self.acked.append(entry_id)
                if self.mode != "deferred":
                    self.promised_count = len(self.acked)

        entry_ids = list(range(self.rng.randrange(60)))
        if self.mode == "adv":
            # Nearly in order, and now and then one is never given.
            entry_ids.sort(key=lambda entry_id: entry_id + self.rng.random() * 6)
            if entry_ids and self.rng.random() < 0.3:
                self.left_out = entry_ids.pop(self.rng.randrange(len(entry_ids)))
        for entry_id in entry_ids:
            if self.mode == "adv":
                self.writer.add_nowait(entry_id, [_payload(entry_id)], done)
            else:
                self.writer.append_nowait([_payload(entry_id)], done)
            if self.rng.random() < 0.4:
                await trio.sleep(self.rng.random() * 0.05 * self.slowness)
            if self.mode == "deferred" and self.rng.random() < 0.1:
                await self.force()
        if self.left_out is not None or self.rng.random() < 0.2:
            with trio.move_on_after(3):
                with contextlib.suppress(LedgerError):
                    self.ends.append(await self.writer.close())

    async def force(self):
        with contextlib.suppress(LedgerError):
            forced = await self.writer.force()
            assert forced < len(self.acked)
            self.promised_count = max(self.promised_count, forced + 1)

    async def break_bookies(self):
        """At most so many at a time that every write set keeps a bookie with each acked entry."""
        dead = self.world.bookies.dead
        for _ in range(self.rng.randrange(6)):
            await trio.sleep(self.rng.random() * 0.3)
            if dead and self.rng.random() < 0.5:
                dead.discard(self.rng.choice(sorted(dead)))
            elif len(dead) < 2:
                name = self.rng.choice(self.world.names)
                dead.add(name)
                unsynced = self.world.bookies.bookies[name]
                self.losses += any(ledger.unsynced for ledger in unsynced.ledgers.values())
                unsynced.lose_power()

    async def recover(self):
        client = self.world.new_client()
        async with trio.open_nursery() as nursery:
            await nursery.start(client.run)
            await trio.sleep(self.rng.random() * self.slowness)
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
        assert self.promised_count - 1 <= last_entry_id
        length = sum(len(_payload(entry_id)) for entry_id in range(last_entry_id + 1))
        if self.mode == "adv":
            # Entries tell the length in the order of the calls: a recovered end is no sum.
            assert reader.metadata.length >= 0
        elif last_entry_id in self.world.bookies.refused_entries:
            # Who closed it may have known its end from later entries alone (or from the segment
            # before), while those who have the last one were down.
            assert reader.metadata.length in (0, length)
        else:
            assert reader.metadata.length == length
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


MODES = ["plain", "scarce", "delayed", "adv", "deferred"]


def _history(new_world, seed, mode):
    config = {"delay_ensemble_change": True} if mode == "delayed" else {}
    if seed % 3 == 0:
        # Bookies that came back are used again.
        config |= {"bookie_rest_ms": 50, "bookie_quarantine_ms": 50}
    names = "abcdefg"[: 5 + seed % 3]
    if mode == "scarce":
        # As many as the ensemble needs; the sizes are the first that a history draws.
        names = names[: random.Random(seed).choice(SIZES)[0]]
    return History(new_world(names, seed=seed, **config), seed, mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("block", range(10))
def test_histories(new_world, block, mode):
    count = 30 if mode == "plain" else 12
    for seed in range(block * count, (block + 1) * count):
        history = _history(new_world, seed, mode)
        try:
            trio.run(history.main, clock=MockClock(autojump_threshold=0))
        except BaseException as error:
            raise AssertionError(f"seed {seed}, sizes {history.sizes}") from error


#: What must happen at least once, beside what happens to all.
RARE = {
    "plain": {"changed", "closed_by_writer"},
    "scarce": {"kept", "rejoined", "closed_by_writer"},
    "delayed": {"changed", "closed_by_writer", "tolerated"},
    "adv": {"changed", "closed_by_writer", "gap"},
    "deferred": {"lost", "forced"},
}


@pytest.mark.parametrize("mode", MODES)
def test_histories_reach_the_rare_paths(new_world, mode, monkeypatch):
    """The histories above mean something only if these happen in them."""
    seen = Counter()
    is_tolerable = WriterCore._is_tolerable

    def noting_tolerance(*args):
        answer = is_tolerable(*args)
        seen["tolerated"] += answer
        return answer

    monkeypatch.setattr(WriterCore, "_is_tolerable", noting_tolerance)
    for name, word in (("keep_failed", "kept"), ("rejoin", "rejoined")):
        noted = getattr(WriterCore, name)

        def noting_call(core, *args, noted=noted, word=word):
            had_failed = bool(core.failed_indexes)
            answer = noted(core, *args)
            seen[word] += had_failed and not core.changing
            return answer

        monkeypatch.setattr(WriterCore, name, noting_call)
    for seed in range(90):
        history = _history(new_world, seed, mode)
        read = history.world.bookies.read_entry

        async def noting(*args, read=read, **keywords):
            seen["fenced"] += keywords["flags"] & FLAG_DO_FENCING
            return await read(*args, **keywords)

        history.world.bookies.read_entry = noting
        trio.run(history.main, clock=MockClock(autojump_threshold=0))
        end = history.ends[-1]
        is_closed = history.writer._closed is not None
        seen["changed"] += len(end.segments) > 1
        seen["closed_by_writer"] += is_closed
        seen["in_flight_kept"] += end.last_entry_id >= len(history.acked)
        seen["gap"] += is_closed and history.left_out == end.last_entry_id + 1
        seen["lost"] += history.losses
        seen["forced"] += history.promised_count > 0
    wanted = {"fenced", "in_flight_kept"} | RARE[mode]
    assert {name for name in wanted if seen[name]} == wanted, seen
