"""Auditor and worker together: what is lost comes back, and what cannot is told."""

import trio

from ledger.autorecovery.report import Reason
from ledger.replication import ReplicationConfig
from ledger.underreplication import UnderReplication
from metadata.memory import MemoryStore
from wire.bookkeeper.status import Status


async def test_copies_of_a_lost_bookie_are_made_again(cluster, autojump_clock):
    service = await cluster.start()
    writers = [await cluster.write(sizes=sizes) for sizes in ((3, 3, 2), (4, 2, 2), (3, 3, 3))]
    lost = writers[0].metadata.last_segment[1][0]
    await cluster.lose(lost, with_data=True)
    await trio.sleep(2)
    await cluster.wait_whole()
    for writer in writers:
        assert lost not in set().union(*await cluster.ensembles(writer.ledger_id))
        await cluster.check_copies(writer.ledger_id)
    assert service.work_statistics.ledgers_repaired >= 1
    assert await cluster.records.locks() == []


async def test_a_bookie_that_is_back_in_time_costs_nothing(cluster, autojump_clock):
    service = await cluster.start(lost_bookie_recovery_delay_s=60)
    writer = await cluster.write()
    lost = writer.metadata.last_segment[1][0]
    await cluster.lose(lost)
    await trio.sleep(50)
    assert await cluster.marked() == []
    await cluster.register(lost)
    await trio.sleep(100)
    assert await cluster.marked() == []
    assert service.audit_statistics.delayed_audits_cancelled == 1
    # This time it stays away.
    await cluster.lose(lost)
    await trio.sleep(55)
    assert await cluster.marked() == []
    await trio.sleep(10)
    assert lost not in (await cluster.ensembles(writer.ledger_id))[0]


async def test_a_second_loss_is_not_waited_for(cluster, autojump_clock):
    await cluster.start(lost_bookie_recovery_delay_s=600)
    writer = await cluster.write()
    first, second, _ = writer.metadata.last_segment[1]
    await cluster.lose(first)
    await trio.sleep(5)
    assert await cluster.marked() == []
    await cluster.lose(second)
    await trio.sleep(5)
    assert {first, second}.isdisjoint((await cluster.ensembles(writer.ledger_id))[0])
    await cluster.check_copies(writer.ledger_id)


async def test_an_open_ledger_is_fenced_after_the_grace_period(cluster, autojump_clock):
    service = await cluster.start()
    writer = await cluster.write(close=False)
    lost = writer.metadata.last_segment[1][0]
    cluster.world.bookies.silent.clear()
    await cluster.lose(lost)
    await trio.sleep(1.5)
    (held,) = service.worker.held.values()
    assert [problem.reason for problem in held.problems] == [Reason.OPEN]
    assert not (await cluster.world.metadata(writer.ledger_id)).is_closed
    assert [lock.holder for lock in await cluster.records.locks()] == ["a"]
    await trio.sleep(10)
    assert (await cluster.world.metadata(writer.ledger_id)).is_closed
    await cluster.check_copies(writer.ledger_id)
    assert await cluster.marked() == []


async def test_a_writer_that_goes_on_is_not_fenced(cluster, autojump_clock):
    """It replaces the bookie itself, with its next entry."""
    await cluster.start()
    writer = await cluster.write(close=False)
    lost = writer.metadata.last_segment[1][0]
    await cluster.lose(lost)
    await trio.sleep(1)
    told = []
    writer.append_nowait([b"more"], lambda *each: told.append(each))
    await trio.sleep(20)
    assert told == [(10, None)]
    assert not (await cluster.world.metadata(writer.ledger_id)).is_closed
    assert await cluster.marked() == []
    await writer.close()
    await cluster.check_copies(writer.ledger_id)


async def test_one_copy_and_it_is_gone(cluster, autojump_clock):
    """bk#4872: told, not tried for ever; and repaired when the bookie comes back."""
    service = await cluster.start()
    writer = await cluster.write(sizes=(1, 1, 1))
    (only,) = writer.metadata.last_segment[1]
    await cluster.lose(only)
    await trio.sleep(30)
    before = cluster.world.bookies.add_count
    await trio.sleep(300)
    assert cluster.world.bookies.add_count == before
    (problem,) = service.worker.held[writer.ledger_id].problems
    assert problem.reason is Reason.NO_COPY_LEFT
    assert only in problem.detail
    assert await cluster.marked() == [writer.ledger_id]
    await cluster.register(only)
    await trio.sleep(3)
    assert await cluster.marked() == []
    assert service.worker.held == {}


async def test_too_few_bookies(cluster, autojump_clock):
    service = await cluster.start()
    writer = await cluster.write(sizes=(3, 3, 2))
    ensemble = writer.metadata.last_segment[1]
    others = sorted(set("abcdef").difference(ensemble))
    await cluster.lose(*others, ensemble[0])
    # Long enough for the pauses to have grown beyond what follows.
    await trio.sleep(100)
    (problem,) = service.worker.held[writer.ledger_id].problems
    assert problem.reason is Reason.TOO_FEW_BOOKIES
    await cluster.register(others[0])
    await trio.sleep(3)
    assert await cluster.ensembles(writer.ledger_id) == [{*ensemble[1:], others[0]}]
    assert await cluster.marked() == []


async def test_two_lost_and_room_for_one(cluster, autojump_clock):
    await cluster.start()
    writer = await cluster.write(sizes=(3, 3, 2))
    ensemble = writer.metadata.last_segment[1]
    others = sorted(set("abcdef").difference(ensemble))
    await cluster.lose(*others[1:], *ensemble[:2])
    await trio.sleep(10)
    (now,) = await cluster.ensembles(writer.ledger_id)
    assert others[0] in now
    assert len(now & set(ensemble[:2])) == 1
    assert await cluster.marked() == [writer.ledger_id]


async def test_an_entry_that_nobody_gives(cluster, autojump_clock):
    """The rest of the ledger's fragments is repaired; the same copies are not made twice."""
    service = await cluster.start()
    writer = await cluster.write(count=200)
    ledger_id = writer.ledger_id
    ensemble = writer.metadata.last_segment[1]
    for bookie in ensemble[1:]:
        cluster.world.bookies.corrupt(bookie, ledger_id, 150)
    await cluster.lose(ensemble[0])
    await trio.sleep(5)
    (problem,) = service.worker.held[ledger_id].problems
    assert (problem.reason, problem.entry_id) == (Reason.UNREADABLE_ENTRY, 150)
    before = cluster.world.bookies.add_count
    await trio.sleep(300)
    assert cluster.world.bookies.add_count == before
    assert service.work_statistics.entries_unreadable > 2
    await cluster.register(ensemble[0])
    await trio.sleep(5)
    assert await cluster.marked() == []


async def test_nothing_is_repaired_while_it_is_disabled(cluster, autojump_clock):
    await cluster.start()
    await cluster.records.disable()
    writer = await cluster.write()
    lost = writer.metadata.last_segment[1][0]
    await cluster.lose(lost)
    await trio.sleep(100)
    assert await cluster.marked() == []
    await cluster.records.enable()
    await trio.sleep(10)
    assert lost not in (await cluster.ensembles(writer.ledger_id))[0]


async def test_entries_that_a_bookie_lacks(cluster, autojump_clock):
    """Found by the counts of copies; with no other bookie they go back where they belong."""
    writer = await cluster.write(sizes=(6, 6, 4))
    striped = await cluster.write(count=30, sizes=(6, 2, 2))
    for each in (writer, striped):
        for bookie in "bc":
            entries = cluster.world.bookies.bookies[bookie].ledgers[each.ledger_id].entries
            for entry_id in sorted(entries)[2:5]:
                del entries[entry_id]
    service = await cluster.start(replicas_check_interval_s=1000)
    await trio.sleep(20)
    assert await cluster.marked() == []
    for each in (writer, striped):
        await cluster.check_copies(each.ledger_id)
    assert service.audit_statistics.ledgers_below_write_quorum >= 1


async def test_what_is_missing_in_the_middle_is_found_by_default(cluster, autojump_clock):
    """Nobody has marked it: writer and recoverer died. The bookie gets only what it lacks."""
    writer = await cluster.write(count=50)
    striped = await cluster.write(count=30, sizes=(6, 2, 2))
    bookie = writer.metadata.last_segment[1][1]
    for each in (writer, striped):
        entries = cluster.world.bookies.bookies[bookie].ledgers[each.ledger_id].entries
        for entry_id in sorted(entries)[2:5]:
            del entries[entry_id]
    ensembles = await cluster.ensembles(writer.ledger_id)
    service = await cluster.start(ledger_check_interval_s=1000)
    await trio.sleep(20)
    assert await cluster.marked() == []
    for each in (writer, striped):
        await cluster.check_copies(each.ledger_id)
    assert await cluster.ensembles(writer.ledger_id) == ensembles
    assert service.work_statistics.entries_written == 6


async def test_a_ledger_that_goes_on_without_a_bookie_is_repaired_when_it_is_closed(
    cluster, autojump_clock
):
    """Its mark is kept till then, and it is not fenced: the bookie is there, and refuses."""
    writer = await cluster.write(close=False, sizes=(6, 6, 4))
    for entry_id in range(10, 13):
        cluster.world.bookies.answers["c", entry_id] = Status.EREADONLY
    told = []
    for _ in range(3):
        writer.append_nowait([b"more"], lambda *each: told.append(each))
    service = await cluster.start()
    await trio.sleep(100)
    assert told == [(10, None), (11, None), (12, None)]
    assert await cluster.marked() == [writer.ledger_id]
    assert service.worker.held[writer.ledger_id].problems[0].reason is Reason.UNFINISHED
    cluster.world.bookies.answers.clear()
    # It takes entries again, so that both ends look well.
    for _ in range(2):
        writer.append_nowait([b"more"], lambda *each: told.append(each))
        await trio.sleep(1)
    assert told[-1] == (14, None)
    await writer.close()
    await cluster.wait_whole()
    await cluster.check_copies(writer.ledger_id)


async def test_damage_is_found_by_the_check_of_all_ledgers(cluster, autojump_clock):
    writer = await cluster.write()
    bad = writer.metadata.last_segment[1][1]
    cluster.world.bookies.corrupt(bad, writer.ledger_id, 9)
    service = await cluster.start(ledger_check_interval_s=1000)
    await trio.sleep(10)
    assert await cluster.marked() == []
    assert bad not in (await cluster.ensembles(writer.ledger_id))[0]
    assert service.audit_statistics.ledgers_checked == 1
    assert await cluster.records.check_time_ms("checkallledgerscheck") is not None


async def test_two_processes_share_the_work(cluster, autojump_clock):
    """One audits, both repair; a lock that somebody has is left alone."""
    services = [await cluster.start(name) for name in "xy"]
    writers = [await cluster.write(count=30) for _ in range(12)]
    other = UnderReplication(MemoryStore(cluster.world.store.tree))
    kept = writers[0].ledger_id
    assert await other.lock(kept, "java")
    lost = writers[0].metadata.last_segment[1][0]
    await cluster.lose(lost)
    await trio.sleep(10)
    assert await cluster.marked() == [kept]
    assert lost in (await cluster.ensembles(kept))[0]
    await other.unlock(kept)
    await trio.sleep(10)
    assert await cluster.marked() == []
    assert [each.audit_statistics.is_auditor for each in services] == [True, False]
    for writer in writers:
        await cluster.check_copies(writer.ledger_id)


async def test_a_ledger_that_is_marked_again_meanwhile(cluster, autojump_clock):
    """What came to the mark while it was repaired is not taken away with it."""
    service = await cluster.start(
        replication=ReplicationConfig(batch_entries_max=2, entries_per_second=20)
    )
    writer = await cluster.write(count=100)
    first, second, _ = writer.metadata.last_segment[1]
    await cluster.lose(first)
    await trio.sleep(3)
    assert service.worker.busy == {writer.ledger_id}
    await cluster.lose(second)
    await trio.sleep(60)
    assert await cluster.marked() == []
    assert {first, second}.isdisjoint((await cluster.ensembles(writer.ledger_id))[0])
    await cluster.check_copies(writer.ledger_id)


async def test_a_session_that_is_lost_in_the_middle_of_a_copy(cluster, autojump_clock):
    service = await cluster.start(
        replication=ReplicationConfig(batch_entries_max=2, entries_per_second=20)
    )
    writer = await cluster.write(count=100)
    lost = writer.metadata.last_segment[1][0]
    await cluster.lose(lost)
    await trio.sleep(3)
    assert service.worker.busy == {writer.ledger_id}
    service.store.expire_session()
    await trio.sleep(0.2)
    assert service.worker.busy == frozenset()
    assert lost in (await cluster.ensembles(writer.ledger_id))[0]
    await trio.sleep(60)
    assert await cluster.marked() == []
    await cluster.check_copies(writer.ledger_id)
    assert await cluster.records.auditor() == "a"


async def test_a_deleted_ledger_is_not_repaired(cluster, autojump_clock):
    await cluster.start()
    writer = await cluster.write()
    await cluster.records.mark(writer.ledger_id, ["a"], 1)
    await cluster.records.mark(4711, ["a"], 1)
    await cluster.world.client.delete_ledger(writer.ledger_id)
    await trio.sleep(10)
    assert await cluster.marked() == []


async def test_the_same_delay_again_triggers_an_audit(cluster, autojump_clock):
    """As `trigger-audit` writes it; a new number does not."""
    await cluster.start(lost_bookie_recovery_delay_s=1000)
    writer = await cluster.write()
    lost = writer.metadata.last_segment[1][0]
    await cluster.lose(lost)
    await trio.sleep(5)
    await cluster.records.set_recovery_delay_s(2000)
    await trio.sleep(5)
    assert lost in (await cluster.ensembles(writer.ledger_id))[0]
    await cluster.records.set_recovery_delay_s(2000)
    await trio.sleep(5)
    assert lost not in (await cluster.ensembles(writer.ledger_id))[0]


async def test_what_was_lost_before_it_started(cluster, autojump_clock):
    writer = await cluster.write()
    lost = writer.metadata.last_segment[1][0]
    await cluster.lose(lost)
    await cluster.start()
    await trio.sleep(5)
    assert lost not in (await cluster.ensembles(writer.ledger_id))[0]


async def test_a_lost_bookie_without_a_cookie(cluster, autojump_clock):
    """As a careless hand leaves it: the bookie check goes by what the ledgers name, but does not
    take those for lost that are waited for."""
    writer = await cluster.write(sizes=(6, 6, 4))
    other, lost, *_ = writer.metadata.last_segment[1]
    await cluster.lose(lost)
    service = await cluster.start(bookie_check_interval_s=1000, lost_bookie_recovery_delay_s=500)
    await trio.sleep(5)
    assert service.audit_statistics.audit.count == 1
    assert await cluster.marked() == []
    await cluster.register(lost)
    await trio.sleep(5)
    await cluster.lose(other)
    await cluster.world.store.delete(f"/ledgers/cookies/{other}")
    await cluster.start("second", bookie_check_interval_s=1000, lost_bookie_recovery_delay_s=500)
    service.store.expire_session()
    await trio.sleep(5)
    assert (await cluster.records.ledger(writer.ledger_id)).replicas == (other,)


async def test_locks_of_failed_ledgers_come_back_after_a_lost_session(cluster, autojump_clock):
    service = await cluster.start()
    writer = await cluster.write(sizes=(6, 6, 4))
    await cluster.lose("a")
    await trio.sleep(10)
    assert [lock.ledger_id for lock in await cluster.records.locks()] == [writer.ledger_id]
    service.store.expire_session()
    assert await cluster.records.locks() == []
    await trio.sleep(60)
    assert [lock.ledger_id for lock in await cluster.records.locks()] == [writer.ledger_id]


async def test_racks_are_looked_at(cluster, autojump_clock):
    for bookie in "abcdef":
        cluster.racks[bookie] = "/x/1" if bookie in "abc" else "/x/2"
    others = [await cluster.write(sizes=(6, 6, 4)), await cluster.write(sizes=(1, 1, 1))]
    cluster.world.names[:] = "abc"
    await cluster.write(sizes=(2, 2, 2))
    service = await cluster.start(placement_check_interval_s=1000)
    await trio.sleep(5)
    assert len(others) == 2
    assert service.audit_statistics.ledgers_not_adhering == 1
    assert service.audit_statistics.ledgers_softly_adhering == 0


async def test_a_bad_record_does_not_end_it(cluster, autojump_clock):
    """Somebody has written what is no mark, and what is no number."""
    service = await cluster.start()
    writer = await cluster.write()
    base = "/ledgers/underreplication"
    path = f"{base}/ledgers/0000/0000/0000/0fff/urL0000004095"
    await cluster.world.store.create(path, b"no mark", make_parents=True)
    await cluster.world.store.put(f"{base}/lostBookieRecoveryDelay", b"soon", -1)
    lost = writer.metadata.last_segment[1][0]
    await cluster.lose(lost)
    await trio.sleep(10)
    assert lost not in (await cluster.ensembles(writer.ledger_id))[0]
    (problem,) = service.worker.held[4095].problems
    assert problem.reason is Reason.METADATA


async def test_no_check_takes_a_bookie_for_lost_that_is_waited_for(cluster, autojump_clock):
    writer = await cluster.write(sizes=(6, 6, 4))
    lost = writer.metadata.last_segment[1][0]
    await cluster.lose(lost)
    service = await cluster.start(
        bookie_check_interval_s=100,
        ledger_check_interval_s=100,
        replicas_check_interval_s=100,
        lost_bookie_recovery_delay_s=500,
    )
    await trio.sleep(450)
    now = service.audit_statistics
    assert min(now.audit.count, now.ledger_check.count, now.replicas_check.count) == 5
    assert await cluster.marked() == []
    await trio.sleep(100)
    assert await cluster.marked() == [writer.ledger_id]
