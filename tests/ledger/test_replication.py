"""Re-replication on naive bookies: what is copied, what is not, and who wins."""

import random

import pytest
import trio

from ledger.distribution import Schedule
from ledger.errors import (
    LedgerReadError,
    MetadataConflictError,
    NotEnoughBookiesError,
)
from ledger.fragments import Fragment, fragments, with_replacements
from ledger.placement import RandomPlacement
from ledger.replication import Copied, ReplicationConfig, Replicator, TargetFailedError
from runtime.throttle import Throttle
from wire.bookkeeper.entry import DigestType, parse_header
from wire.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState
from wire.bookkeeper.status import FLAG_RECOVERY_ADD, Status

SMALL = ReplicationConfig(batch_entries_max=3, batch_size_max_bytes=400)


async def write(writer, count, size=20):
    finished, told = trio.Event(), []

    def done(entry_id, error):
        told.append(error)
        if len(told) == count:
            finished.set()

    for _ in range(count):
        number = writer.last_add_pushed + 1
        writer.append_nowait([b"%d:" % number, bytes(size)], done)
    if count:
        await finished.wait()
    assert told == [None] * count


def replicator(world, config=SMALL):
    return Replicator(world.client.manager, world.bookies, config)


def placement(world, names):
    return RandomPlacement(lambda: names, world.env.rng)


def expected_holders(metadata, entry_id):
    schedule = Schedule(metadata.ensemble_size, metadata.write_quorum_size, 1)
    members = metadata.ensemble_at(entry_id)
    return {members[index] for index in schedule.write_set(entry_id)}


def check_copies(world, ledger_id, metadata, originals):
    """Every entry is, byte for byte, on each bookie of its write set."""
    for entry_id in range(metadata.last_entry_id + 1):
        holders = expected_holders(metadata, entry_id)
        assert len(holders) == metadata.write_quorum_size
        for name in holders:
            stored = world.bookies.bookies[name].ledgers[ledger_id].entries
            assert stored[entry_id] == originals[entry_id], (entry_id, name)


def originals_of(world, ledger_id):
    found = {}
    for bookie in world.bookies.bookies.values():
        if ledger_id in bookie.ledgers:
            found |= bookie.ledgers[ledger_id].entries
    return found


@pytest.mark.parametrize("seed", range(60))
async def test_random_losses(new_world, nursery, seed):
    """Any quorums, digests and histories; as many bookies lost as a ledger can bear."""
    rng = random.Random(seed)
    world = new_world("abcdefghijkl", seed=seed)
    await world.start(nursery)
    ensemble_size = rng.randint(1, 5)
    write_quorum = rng.randint(1, ensemble_size)
    ack_quorum = rng.randint(1, write_quorum)
    writer = await world.create(
        ensemble_size,
        write_quorum,
        ack_quorum,
        digest_type=rng.choice(list(DigestType)),
        password=b"secret",
    )
    gone = []
    for _ in range(rng.randint(0, 3)):
        await write(writer, rng.randint(0, 12), size=rng.choice([0, 20, 700]))
        gone.append(rng.choice(writer.metadata.last_segment[1]))
        world.bookies.dead.add(gone[-1])
    await write(writer, rng.randint(0, 12))
    world.bookies.dead.clear()
    is_left_open = rng.random() < 0.4
    if not is_left_open:
        await writer.close()
    # Entries are on all bookies of their write sets, but where adds failed.
    lost = set(rng.sample(sorted({b for _, s in writer.metadata.segments for b in s}), 1))
    if rng.random() < 0.3 and write_quorum >= 3 and not gone:
        lost.add(rng.choice(sorted(set("abcdefghijkl") - lost)))
    survivors = [name for name in "abcdefghijkl" if name not in lost]
    is_alive = write_quorum == 1 or rng.random() < 0.3
    if not is_alive and not gone:
        world.bookies.dead |= lost
    originals = originals_of(world, writer.ledger_id)
    before = world.bookies.add_count

    told = []
    outcome = await replicator(world).replace_bookies(
        world.client,
        placement(world, survivors),
        writer.ledger_id,
        lost,
        step=lambda entries, size: told.append((entries, size)),
    )
    metadata = await world.metadata(writer.ledger_id)
    assert metadata.is_closed or (is_left_open and not outcome.was_recovered)
    assert lost.isdisjoint(bookie for _, ensemble in metadata.segments for bookie in ensemble)
    for _, ensemble in metadata.segments:
        assert len(set(ensemble)) == ensemble_size
    assert sum(entries for entries, _ in told) == outcome.copied.entries
    assert sum(size for _, size in told) == outcome.copied.size_bytes
    if not outcome.was_recovered:
        assert world.bookies.add_count - before == outcome.copied.entries
    if metadata.is_closed:
        assert metadata.last_entry_id == max(originals, default=-1)
        check_newcomers(world, writer, metadata, originals)


def check_newcomers(world, writer, metadata, originals):
    """Whoever came into an ensemble has all that its place there asks for."""
    before = dict(writer.metadata.segments)
    schedule = Schedule(metadata.ensemble_size, metadata.write_quorum_size, 1)
    for fragment in fragments(writer.ledger_id, metadata):
        old = before.get(fragment.first_entry_id)
        for index, name in enumerate(fragment.ensemble):
            if old is not None and old[index] == name:
                continue
            for entry_id in fragment.entry_ids(schedule, [index]):
                stored = world.bookies.bookies[name].ledgers[writer.ledger_id].entries[entry_id]
                assert len(stored) == len(originals[entry_id])
                assert parse_header(stored).length == parse_header(originals[entry_id]).length


@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 3, 2), (3, 2, 2), (5, 3, 2), (4, 1, 1)])
@pytest.mark.parametrize("digest", list(DigestType))
async def test_all_copies_are_there_and_no_more(world, sizes, digest):
    writer = await world.create(*sizes, digest_type=digest, password=b"p")
    await write(writer, 50)
    await writer.close()
    originals = originals_of(world, writer.ledger_id)
    lost = writer.metadata.last_segment[1][0]
    had = set(world.bookies.bookies[lost].ledgers[writer.ledger_id].entries)
    outcome = await replicator(world).replace_bookies(
        world.client, placement(world, world.names), writer.ledger_id, {lost}
    )
    metadata = await world.metadata(writer.ledger_id)
    check_copies(world, writer.ledger_id, metadata, originals)
    size = sum(len(originals[entry_id]) for entry_id in had)
    assert outcome.copied == Copied(len(had), size)
    (target,) = set(metadata.last_segment[1]) - set(writer.metadata.last_segment[1])
    assert set(world.bookies.bookies[target].ledgers[writer.ledger_id].entries) == had
    assert (metadata.last_entry_id, metadata.length) == (49, writer.metadata.length)


async def test_two_lost_at_once(world):
    writer = await world.create(4, 3, 3)
    await write(writer, 40)
    await writer.close()
    originals = originals_of(world, writer.ledger_id)
    lost = set(writer.metadata.last_segment[1][:2])
    world.bookies.dead |= lost
    survivors = [name for name in world.names if name not in lost]
    await replicator(world).replace_bookies(
        world.client, placement(world, survivors), writer.ledger_id, lost
    )
    check_copies(world, writer.ledger_id, await world.metadata(writer.ledger_id), originals)


async def test_copies_go_to_fenced_bookies_and_say_that_they_are_copies(world):
    writer = await world.create(2, 2, 2)
    await write(writer, 10)
    await writer.close()
    lost, stays = writer.metadata.last_segment[1]
    target = next(name for name in world.names if name not in (lost, stays))
    key = world.bookies.bookies[lost].ledgers[writer.ledger_id].master_key
    world.bookies.bookies[target].read(writer.ledger_id, -1, 1, key)
    assert world.bookies.bookies[target].ledgers[writer.ledger_id].fenced
    flags = []
    add_entry = world.bookies.add_entry
    world.bookies.add_entry = lambda *a: flags.append(a[5]) or add_entry(*a)
    await replicator(world).replace_bookies(
        world.client, placement(world, [target]), writer.ledger_id, {lost}
    )
    assert flags == [FLAG_RECOVERY_ADD] * 10


async def test_an_open_fragment_is_not_copied(world):
    writer = await world.create(2, 2, 1)
    await write(writer, 5)
    metadata = await world.metadata(writer.ledger_id)
    (fragment,) = fragments(writer.ledger_id, metadata)
    assert not fragment.is_closed
    target = next(name for name in world.names if name not in fragment.ensemble)
    with pytest.raises(ValueError, match="open fragment"):
        await replicator(world).replicate(fragment, metadata, {0: target})
    outcome = await replicator(world).replace_bookies(
        world.client,
        placement(world, world.names),
        writer.ledger_id,
        {fragment.ensemble[0]},
        skip_open=True,
    )
    assert outcome.open_end_skipped
    assert outcome.copied == Copied()
    assert await world.metadata(writer.ledger_id) == metadata


async def test_the_writer_of_an_open_ledger_goes_on(world):
    """Closed fragments of a ledger that is written to are copied under its writer."""
    writer = await world.create(3, 3, 2)
    await write(writer, 10)
    first = writer.metadata.last_segment[1]
    world.bookies.dead.add(first[0])
    await write(writer, 10)
    assert len(writer.metadata.segments) == 2
    survivors = [name for name in world.names if name != first[0]]
    outcome = await replicator(world).replace_bookies(
        world.client, placement(world, survivors), writer.ledger_id, {first[0]}
    )
    assert (outcome.fragments, outcome.was_recovered) == (1, False)
    world.bookies.dead.add(writer.metadata.last_segment[1][1])
    await write(writer, 10)
    closed = await writer.close()
    assert len(closed.segments) == 3
    assert first[0] not in closed.segments[0][1]
    assert closed.last_entry_id == 29


async def test_an_open_end_with_a_lost_bookie_is_recovered(world):
    writer = await world.create(3, 3, 2)
    await write(writer, 10)
    lost = writer.metadata.last_segment[1][1]
    world.bookies.dead.add(lost)
    survivors = [name for name in world.names if name != lost]
    outcome = await replicator(world).replace_bookies(
        world.client, placement(world, survivors), writer.ledger_id, {lost}
    )
    assert outcome.was_recovered
    metadata = await world.metadata(writer.ledger_id)
    assert metadata.is_closed
    assert metadata.last_entry_id == 9
    assert lost not in metadata.last_segment[1]
    for entry_id in range(10):
        assert expected_holders(metadata, entry_id) <= world.bookies.holders(
            writer.ledger_id, entry_id
        )


async def test_a_damaged_copy_is_not_spread(world):
    writer = await world.create(3, 3, 3)
    await write(writer, 10)
    await writer.close()
    originals = originals_of(world, writer.ledger_id)
    lost, damaged, _ = writer.metadata.last_segment[1]
    for entry_id in (0, 4, 9):
        world.bookies.corrupt(damaged, writer.ledger_id, entry_id)
    world.bookies.dead.add(lost)
    survivors = [name for name in world.names if name != lost]
    await replicator(world).replace_bookies(
        world.client, placement(world, survivors), writer.ledger_id, {lost}
    )
    (target,) = set((await world.metadata(writer.ledger_id)).last_segment[1]) - set(
        writer.metadata.last_segment[1]
    )
    assert world.bookies.bookies[target].ledgers[writer.ledger_id].entries == originals


@pytest.mark.parametrize("sizes", [(3, 3, 2), (4, 2, 2)])
async def test_an_entry_that_nobody_has_leaves_the_metadata_as_it_is(world, sizes):
    writer = await world.create(*sizes)
    await write(writer, 20)
    await writer.close()
    before = await world.client.manager.read(writer.ledger_id)
    for bookie in world.bookies.bookies.values():
        if writer.ledger_id in bookie.ledgers:
            bookie.ledgers[writer.ledger_id].entries.pop(12, None)
    lost = writer.metadata.ensemble_at(12)[12 % sizes[0]]
    with pytest.raises(LedgerReadError, match=r"entry 12: no bookie gives it .*ENOENTRY"):
        await replicator(world).replace_bookies(
            world.client, placement(world, world.names), writer.ledger_id, {lost}
        )
    assert await world.client.manager.read(writer.ledger_id) == before


async def test_a_target_that_fails_is_replaced(world):
    writer = await world.create(2, 2, 2)
    await write(writer, 20)
    await writer.close()
    lost, stays = writer.metadata.last_segment[1]
    others = [name for name in world.names if name not in (lost, stays)]
    for name in others[:-1]:
        world.bookies.answers[name, 13] = Status.EREADONLY
    outcome = await replicator(world).replace_bookies(
        world.client, placement(world, others), writer.ledger_id, {lost}
    )
    assert outcome.copied.entries == 20
    assert set((await world.metadata(writer.ledger_id)).last_segment[1]) == {stays, others[-1]}
    # And when there is no other one, that is the answer.
    world.bookies.answers[others[-1], 13] = Status.EIO
    fragment = Fragment(writer.ledger_id, 0, 19, (lost, stays))
    with pytest.raises(TargetFailedError, match="entry 13 not copied"):
        await replicator(world).replicate(fragment, writer.metadata, {0: others[-1]})
    with pytest.raises(NotEnoughBookiesError):
        await replicator(world).replace_bookies(
            world.client, placement(world, others[:-1]), writer.ledger_id, {others[-1]}
        )


async def test_a_busy_target_is_asked_again(world, autojump_clock):
    writer = await world.create(1, 1, 1)
    await write(writer, 10)
    await writer.close()
    (lost,) = writer.metadata.last_segment[1]
    target = next(name for name in world.names if name != lost)
    busy = iter([Status.ETOOMANYREQUESTS] * 7)
    add_entry = world.bookies.add_entry

    def add(bookie, ledger, entry_id, key, entry, flags, done):
        if (status := next(busy, None)) is not None:
            done(status)
        else:
            add_entry(bookie, ledger, entry_id, key, entry, flags, done)

    world.bookies.add_entry = add
    await replicator(world).replace_bookies(
        world.client, placement(world, [target]), writer.ledger_id, {lost}
    )
    assert world.bookies.bookies[target].ledgers[writer.ledger_id].entries.keys() == set(range(10))


async def test_only_one_of_two_replicators_changes_the_ensemble(world):
    writer = await world.create(2, 2, 2)
    await write(writer, 20)
    await writer.close()
    lost, stays = writer.metadata.last_segment[1]
    (fragment,) = fragments(writer.ledger_id, writer.metadata)
    one, two = [name for name in world.names if name not in (lost, stays)][:2]
    conflicts = []

    async def run(target):
        try:
            await replicator(world).replicate(fragment, writer.metadata, {0: target})
        except MetadataConflictError as error:
            conflicts.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, one)
        nursery.start_soon(run, two)
    assert len(conflicts) == 1
    metadata = await world.metadata(writer.ledger_id)
    assert set(metadata.last_segment[1]) in ({one, stays}, {two, stays})
    # The same target twice is no conflict.
    (winner,) = set(metadata.last_segment[1]) - {stays}
    await replicator(world).replicate(fragment, writer.metadata, {0: winner})
    # Both at it ledger by ledger: the loser finds nothing left to do.
    outcome = await replicator(world).replace_bookies(
        world.client, placement(world, world.names), writer.ledger_id, {lost}
    )
    assert outcome.fragments == 0


async def test_an_older_bookie_without_batch_reads(world):
    writer = await world.create(2, 2, 2)
    await write(writer, 20)
    await writer.close()
    calls = []

    async def read_entries(bookie, *_args, **_keywords):
        calls.append(bookie)
        await trio.lowlevel.checkpoint()
        return Status.EBADREQ, []

    world.bookies.read_entries = read_entries
    lost = writer.metadata.last_segment[1][0]
    outcome = await replicator(world).replace_bookies(
        world.client, placement(world, world.names), writer.ledger_id, {lost}
    )
    assert outcome.copied.entries == 20
    assert len(calls) == 2, "it is not asked for every entry"


async def test_a_silent_bookie_is_waited_for_once(world):
    """One that stays in the ensemble, but does not answer now."""
    writer = await world.create(3, 3, 2)
    await write(writer, 40)
    await writer.close()
    lost, silent, _ = writer.metadata.last_segment[1]
    asked = []
    read_entries = world.bookies.read_entries

    async def counted(bookie, *arguments, **keywords):
        asked.append(bookie)
        if bookie == silent:
            await trio.lowlevel.checkpoint()
            return Status.EIO, []
        return await read_entries(bookie, *arguments, **keywords)

    world.bookies.read_entries = counted
    survivors = [name for name in world.names if name != lost]
    await replicator(world).replace_bookies(
        world.client, placement(world, survivors), writer.ledger_id, {lost}
    )
    assert asked.count(silent) <= 1


async def test_memory_is_two_batches(world):
    writer = await world.create(2, 2, 2)
    await write(writer, 60, size=100)
    await writer.close()
    lost = writer.metadata.last_segment[1][0]
    held, highest = 0, 0
    add_entry = world.bookies.add_entry

    def add(*arguments):
        nonlocal held, highest
        held += 1
        highest = max(highest, held)
        add_entry(*arguments)

    def step(entries, _size):
        nonlocal held
        held -= entries

    world.bookies.add_entry = add
    await replicator(world).replace_bookies(
        world.client, placement(world, world.names), writer.ledger_id, {lost}, step=step
    )
    assert 1 <= highest <= 3


async def test_rates(world, autojump_clock):
    writer = await world.create(1, 1, 1)
    await write(writer, 100, size=1000)
    await writer.close()
    for config, seconds in (
        (ReplicationConfig(batch_entries_max=5, entries_per_second=10), 9.5),
        (ReplicationConfig(batch_entries_max=5, bytes_per_second=10_000), 9.8),
        (ReplicationConfig(batch_entries_max=5), 0.0),
    ):
        (lost,) = (await world.metadata(writer.ledger_id)).last_segment[1]
        start = trio.current_time()
        await replicator(world, config).replace_bookies(
            world.client, placement(world, world.names), writer.ledger_id, {lost}
        )
        assert trio.current_time() - start == pytest.approx(seconds, abs=0.6)


async def test_a_rate_forgets_long_pauses(autojump_clock):
    rate = Throttle(10)
    await rate.take(1)
    await trio.sleep(100)
    start = trio.current_time()
    for _ in range(11):
        await rate.take(1)
    assert trio.current_time() - start == pytest.approx(0.9)


def metadata_of(*segments, last=None):
    sizes = (len(segments[0][1]), 2, 2)
    made = LedgerMetadata(*sizes, segments)
    return made if last is None else made.closed_at(last, 100)


def test_fragments_and_their_ends():
    abc, abd = ("a", "b", "c"), ("a", "b", "d")
    ends = [each.last_entry_id for each in fragments(1, metadata_of((0, abc), (10, abd)))]
    assert ends == [9, None]
    ends = [each.last_entry_id for each in fragments(1, metadata_of((0, abc), (10, abd), last=19))]
    assert ends == [9, 19]
    # Closed in front of its last segment, and empty.
    ends = [each.last_entry_id for each in fragments(1, metadata_of((0, abc), (10, abd), last=9))]
    assert ends == [9, 9]
    (empty,) = fragments(1, metadata_of((0, abc), last=-1))
    assert list(empty.entry_ids(Schedule(3, 2, 2), [0, 1, 2])) == []
    (whole,) = fragments(1, metadata_of((0, abc), last=6))
    assert list(whole.entry_ids(Schedule(3, 2, 2), [1])) == [0, 1, 3, 4, 6]
    assert list(whole.entry_ids(Schedule(3, 2, 2), [1, 2])) == list(range(7))
    assert whole.indexes_of({"b", "x", "c"}) == (1, 2)
    in_recovery = metadata_of((0, abc), (10, abd))
    in_recovery = LedgerMetadata(3, 2, 2, in_recovery.segments, LedgerState.IN_RECOVERY)
    assert [each.is_closed for each in fragments(1, in_recovery)] == [True, False]


def test_the_premise_of_a_replacement():
    metadata = metadata_of((0, ("a", "b", "c")), (10, ("a", "b", "d")), last=19)
    first, second = fragments(1, metadata)
    changed = with_replacements(first, {0: "x"}, metadata)
    assert changed.segments == ((0, ("x", "b", "c")), (10, ("a", "b", "d")))
    assert with_replacements(first, {0: "x"}, changed) is None
    assert with_replacements(second, {0: "x", 1: "y"}, changed).segments[1][1] == ("x", "y", "d")
    with pytest.raises(MetadataConflictError):
        with_replacements(first, {0: "y"}, changed)
    with pytest.raises(MetadataConflictError):
        with_replacements(first, {0: "c"}, metadata)
    with pytest.raises(MetadataConflictError):
        with_replacements(Fragment(1, 5, 9, ("a", "b", "c")), {0: "x"}, metadata)
