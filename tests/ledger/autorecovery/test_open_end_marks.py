"""The mark of an open ledger whose bookies are all there: who may take it back, and when."""

from dataclasses import replace

import pytest
import trio

from ledger.autorecovery.audit_marks import AuditMarks
from ledger.autorecovery.report import Reason
from ledger.bookie_client import LacRecord
from ledger.underreplication import UnderReplication
from ledger.writer_marks import WriterMarks
from metadata.memory import MemoryStore
from wire.bookkeeper.ledger_metadata import LedgerState
from wire.bookkeeper.status import Status

CONFIRMED = 10


async def _noticed(cluster, writer, bookie, *, spoil=lambda: None):
    """An auditor saw that the bookie was not registered; it is again, and was spoiled meanwhile."""
    await cluster.lose(bookie)
    await trio.sleep(1.5)
    assert await cluster.marked() == [writer.ledger_id]
    spoil()
    await cluster.register(bookie)
    await trio.sleep(1)


def _reason(service, writer):
    (problem,) = service.worker.held[writer.ledger_id].problems
    return problem.reason


def _entries(cluster, writer, bookie):
    return cluster.world.bookies.bookies[bookie].ledgers[writer.ledger_id].entries


@pytest.mark.parametrize("sizes", [(3, 3, 2), (4, 2, 2)])
async def test_a_bookie_that_was_away_for_a_moment_leaves_no_mark(cluster, autojump_clock, sizes):
    """The ledger is neither closed for it nor fenced."""
    service = await cluster.start(open_ledger_grace_ms=600_000)
    writer = await cluster.write(close=False, sizes=sizes)
    before = await cluster.world.metadata(writer.ledger_id)
    await _noticed(cluster, writer, writer.metadata.last_segment[1][0])
    assert await cluster.marked() == []
    assert await cluster.records.locks() == []
    assert service.worker.held == {}
    assert await cluster.world.metadata(writer.ledger_id) == before
    told = []
    writer.append_nowait([b"more"], lambda *each: told.append(each))
    await trio.sleep(1)
    assert told == [(CONFIRMED, None)]


async def test_an_empty_ledger_that_no_bookie_knows_needs_no_mark(cluster, autojump_clock):
    await cluster.start(open_ledger_grace_ms=600_000)
    writer = await cluster.write(count=0, close=False)
    await _noticed(cluster, writer, writer.metadata.last_segment[1][0])
    assert await cluster.marked() == []


async def test_what_a_check_found_in_a_closed_fragment_of_an_open_ledger(cluster, autojump_clock):
    """It is mended, and the open end has all: nobody has to close the ledger."""
    writer = await cluster.write(close=False)
    gone, bookie, _ = writer.metadata.last_segment[1]
    await cluster.lose(gone)
    writer.append_nowait([b"more"], lambda *_: None)
    await trio.sleep(1)
    await cluster.register(gone)
    assert [first for first, _ in writer.metadata.segments] == [0, CONFIRMED]
    assert bookie in writer.metadata.last_segment[1]
    del _entries(cluster, writer, bookie)[4]
    service = await cluster.start(ledger_check_interval_s=1000, open_ledger_grace_ms=600_000)
    await trio.sleep(5)
    assert service.audit_statistics.ledgers_marked == 1
    assert await cluster.marked() == []
    assert 4 in _entries(cluster, writer, bookie)
    assert not (await cluster.world.metadata(writer.ledger_id)).is_closed


# The last one is beyond the LAC that any bookie was told.
@pytest.mark.parametrize("missing", [0, 4, CONFIRMED - 1])
async def test_a_bookie_that_came_back_without_an_entry(cluster, autojump_clock, missing):
    service = await cluster.start(open_ledger_grace_ms=600_000)
    writer = await cluster.write(close=False)
    bookie = writer.metadata.last_segment[1][0]

    def spoil():
        del _entries(cluster, writer, bookie)[missing]

    await _noticed(cluster, writer, bookie, spoil=spoil)
    await trio.sleep(100)
    assert await cluster.marked() == [writer.ledger_id]
    assert _reason(service, writer) is Reason.UNFINISHED
    assert not (await cluster.world.metadata(writer.ledger_id)).is_closed
    await writer.close()
    await cluster.wait_whole()
    await cluster.check_copies(writer.ledger_id)


@pytest.mark.parametrize("fault", ["silent", "damaged"])
async def test_a_bookie_that_does_not_tell_how_far_it_is(
    cluster, autojump_clock, monkeypatch, fault
):
    """Nothing is known of it then; the next look may know better."""
    service = await cluster.start(open_ledger_grace_ms=600_000)
    writer = await cluster.write(close=False)
    bookie = writer.metadata.last_segment[1][0]
    read_lac = cluster.world.bookies.read_lac

    async def spoiled(asked, ledger_id):
        record = await read_lac(asked, ledger_id)
        if asked != bookie:
            return record
        if fault == "silent":
            return LacRecord(Status.EIO)
        return LacRecord(Status.EOK, None, bytes(len(record.last_entry)))

    with monkeypatch.context() as patched:
        patched.setattr(cluster.world.bookies, "read_lac", spoiled)
        await _noticed(cluster, writer, bookie)
        assert await cluster.marked() == [writer.ledger_id]
        assert _reason(service, writer) is Reason.UNFINISHED
    await cluster.wait_whole()
    assert not (await cluster.world.metadata(writer.ledger_id)).is_closed


async def test_a_writer_s_own_mark_stays(cluster, autojump_clock):
    """It goes on without the bookie and does not say so twice: that nothing is missing now is no
    promise for the next entry."""
    service = await cluster.start(open_ledger_grace_ms=600_000)
    writer = await cluster.write(close=False, sizes=(6, 6, 4))
    await cluster.lose("c")
    await trio.sleep(1.5)
    told = []
    writer.append_nowait([b"more"], lambda *each: told.append(each))
    await trio.sleep(1)
    assert told == [(CONFIRMED, None)]
    assert writer.is_short
    # As one that was on its way when the bookie went.
    _entries(cluster, writer, "c")[CONFIRMED] = _entries(cluster, writer, "a")[CONFIRMED]
    await cluster.register("c")
    await trio.sleep(100)
    assert await cluster.marked() == [writer.ledger_id]
    assert _reason(service, writer) is Reason.UNFINISHED
    await writer.close()
    await cluster.wait_whole()
    await cluster.check_copies(writer.ledger_id)


async def _without_c(cluster):
    """A writer that goes on without «c», and said so; «c» is there again."""
    writer = await cluster.write(close=False, sizes=(6, 6, 4))
    await cluster.lose("c")
    await trio.sleep(1.5)
    await _append(writer)
    assert writer.is_short
    await cluster.register("c")
    await trio.sleep(1)
    return writer


async def _append(writer):
    told = []
    entry_id = writer.append_nowait([b"more"], lambda *each: told.append(each))
    await trio.sleep(1)
    assert told == [(entry_id, None)]


async def test_a_writer_s_own_mark_goes_once_it_writes_to_the_bookie_again(cluster, autojump_clock):
    """And the bookie has what was written without it."""
    await cluster.start(open_ledger_grace_ms=600_000)
    writer = await _without_c(cluster)
    _entries(cluster, writer, "c")[CONFIRMED] = _entries(cluster, writer, "a")[CONFIRMED]
    await _append(writer)
    assert not writer.is_short
    await cluster.wait_whole()
    assert not (await cluster.world.metadata(writer.ledger_id)).is_closed
    # What it lacks from now on is told anew.
    cluster.world.bookies.dead.add("c")
    await _append(writer)
    assert await cluster.marked() == [writer.ledger_id]
    assert (await cluster.records.ledger(writer.ledger_id)).replicas == ("c",)
    cluster.world.bookies.dead.clear()
    await trio.sleep(100)
    assert await cluster.marked() == [writer.ledger_id]
    await writer.close()
    await cluster.wait_whole()
    await cluster.check_copies(writer.ledger_id)


async def test_a_writer_s_own_mark_stays_while_the_bookie_lacks_what_was_written_without_it(
    cluster, autojump_clock
):
    service = await cluster.start(open_ledger_grace_ms=600_000)
    writer = await _without_c(cluster)
    await _append(writer)
    assert not writer.is_short
    assert CONFIRMED not in _entries(cluster, writer, "c")
    await trio.sleep(100)
    assert await cluster.marked() == [writer.ledger_id]
    assert _reason(service, writer) is Reason.UNFINISHED
    await writer.close()
    await cluster.wait_whole()
    await cluster.check_copies(writer.ledger_id)


async def test_somebody_else_s_word_is_not_taken_back_by_the_writer(cluster, autojump_clock):
    """A scrub found damage: the list of what the bookie has tells nothing of that."""
    await cluster.start(open_ledger_grace_ms=600_000)
    writer = await _without_c(cluster)
    _entries(cluster, writer, "c")[CONFIRMED] = _entries(cluster, writer, "a")[CONFIRMED]
    assert await cluster.world.client.manager.mark_under_replicated(writer.ledger_id, ["a"])
    await _append(writer)
    assert not writer.is_short
    await trio.sleep(100)
    assert await cluster.marked() == [writer.ledger_id]


async def test_a_bookie_that_hung_and_was_replaced(cluster, autojump_clock):
    """Its fragment is closed, and lacks copies in the middle that nobody sends again."""
    writer = await cluster.write(close=False)
    *_, bookie = writer.metadata.last_segment[1]
    cluster.world.bookies.held.add(bookie)
    for _ in range(3):
        await _append(writer)
    cluster.world.bookies.dead.add(bookie)
    # It takes the last of them only.
    cluster.world.bookies.answers[bookie, CONFIRMED + 2] = Status.EOK
    entry = _entries(cluster, writer, writer.metadata.last_segment[1][0])[CONFIRMED + 2]
    _entries(cluster, writer, bookie)[CONFIRMED + 2] = entry
    cluster.world.bookies.release()
    cluster.world.bookies.held.clear()
    await _append(writer)
    assert [first for first, _ in writer.metadata.segments] == [0, CONFIRMED + 3]
    cluster.world.bookies.dead.clear()
    assert await cluster.marked() == [writer.ledger_id]
    await cluster.start(open_ledger_grace_ms=600_000)
    await cluster.wait_whole()
    for entry_id in range(CONFIRMED + 3):
        holders = cluster.world.bookies.holders(writer.ledger_id, entry_id)
        assert holders >= set((await cluster.world.metadata(writer.ledger_id)).segments[0][1])


async def test_a_mark_that_a_writer_renews_while_the_copies_are_checked(
    cluster, autojump_clock, monkeypatch
):
    await cluster.start(open_ledger_grace_ms=600_000)
    writer = await cluster.write(close=False)
    bookie = writer.metadata.last_segment[1][0]
    list_entries = cluster.world.bookies.list_entries
    renewed = []

    async def listed(asked, ledger_id):
        if not renewed:
            renewed.append(asked)
            manager = cluster.world.client.manager
            assert await manager.mark_under_replicated(ledger_id, [bookie])
        return await list_entries(asked, ledger_id)

    monkeypatch.setattr(cluster.world.bookies, "list_entries", listed)
    await _noticed(cluster, writer, bookie)
    await trio.sleep(100)
    assert renewed
    assert await cluster.marked() == [writer.ledger_id]


async def test_a_ledger_that_is_being_recovered_keeps_its_mark(cluster, autojump_clock):
    """Who recovers it asks for the copies when it is closed, and may die before."""
    service = await cluster.start(open_ledger_grace_ms=600_000)
    writer = await cluster.write(close=False)
    bookie = writer.metadata.last_segment[1][0]
    await cluster.lose(bookie)
    await trio.sleep(1.5)
    manager = cluster.world.client.manager
    versioned = await manager.read(writer.ledger_id)
    await manager.update(
        writer.ledger_id, versioned, lambda found: replace(found, state=LedgerState.IN_RECOVERY)
    )
    await cluster.register(bookie)
    await trio.sleep(5)
    assert await cluster.marked() == [writer.ledger_id]
    assert _reason(service, writer) is Reason.UNFINISHED


async def test_who_wrote_to_a_mark(new_world):
    store = MemoryStore()
    records = UnderReplication(store)
    marks = AuditMarks(store, records, "/ledgers")

    async def is_only_audits(ledger_id):
        return await marks.is_only_audits(ledger_id, (await records.task(ledger_id)).version)

    assert not await marks.is_only_audits(5, 0)
    assert await marks.mark(5, ["b"], 1)
    assert not await marks.mark(5, ["b"], 2)
    assert await is_only_audits(5)
    assert not await marks.is_only_audits(5, 1)
    # Audits may come one after the other.
    assert await marks.mark(5, ["a", "b"], 3)
    assert (await records.ledger(5)).replicas == ("b", "a")
    assert await is_only_audits(5)
    # What an audit knows already does not change the mark, whoever says so.
    assert not await records.mark(5, ["a"], 4)
    assert await is_only_audits(5)
    # A writer's word is not taken back, though it names nobody else.
    assert not await records.mark(5, ["a"], 5, again=True)
    assert not await is_only_audits(5)
    assert await marks.mark(5, ["c"], 6)
    assert not await is_only_audits(5)
    assert (await records.ledger(5)).replicas == ("b", "a", "c")
    # Nor is one that was there first.
    assert await records.mark(6, ["a"], 1, again=True)
    assert not await marks.mark(6, ["a"], 2)
    assert not await is_only_audits(6)
    # A writer's stays one, whatever audits add to it.
    writers = WriterMarks(store, new_world().env, "/ledgers")
    assert await writers.mark(7, ["a"])
    assert not await marks.mark(7, ["a"], 1)
    assert await marks.mark(7, ["b"], 1)
    assert not await is_only_audits(7)
    assert await writers.leave_to_auditors(7, lambda: True)
    assert await is_only_audits(7)
    assert (await records.ledger(7)).replicas == ("a", "b")
