"""The whole bookie, on a simulated disk: adds, reads, fencing, limits, restarts."""

import struct

import pytest
import trio

from bookie import adds as adds_module
from bookie.errors import BookieStartError
from wire.bookkeeper.status import (
    FLAG_DO_FENCING,
    FLAG_RECOVERY_ADD,
    LAST_ADD_CONFIRMED_ENTRY,
    Status,
)

KEY = b"k" * 20
OTHER_KEY = b"o" * 20


async def test_adds_are_answered_in_order_and_read_back(machine, adds_class, entry_bytes):
    async with machine.running() as bookie:
        adds = adds_class(bookie)
        for entry_id in range(50):
            adds.add(7, entry_id, b"%d" % entry_id)
        assert adds.answers == []
        await adds.wait(50)
        assert adds.answers == [(7, i, Status.EOK) for i in range(50)]
        assert bookie.statistics().journal_syncs <= 3, "one burst, one group, or two at a seam"
        status, entries = bookie.read_entries_nowait(7, 10, 5, 1 << 20)
        assert status is Status.EOK
        assert [bytes(e) for e in entries] == [entry_bytes(7, i, b"%d" % i) for i in range(10, 15)]
        status, entry = await bookie.read_entry(7, LAST_ADD_CONFIRMED_ENTRY)
        assert (status, bytes(entry)) == (Status.EOK, entry_bytes(7, 49, b"49"))


async def test_clean_stop_leaves_nothing_to_replay(machine, adds_class, entry_bytes, caplog):
    async with machine.running() as bookie:
        adds = adds_class(bookie)
        for entry_id in range(30):
            adds.add(1, entry_id)
        await adds.wait(30)
    caplog.set_level("INFO")
    async with machine.running() as bookie:
        assert "replayed groups=0 records=0" in caplog.text
        status, entries = await bookie.read_entries(1, 0, 0, 1 << 20)
        assert status is Status.EOK
        assert [bytes(e) for e in entries] == [entry_bytes(1, i) for i in range(30)]
        assert bookie.list_ledgers() == [1]


async def test_adds_queued_when_the_stop_comes_are_stored(machine, adds_class, entry_bytes):
    async with machine.running() as bookie:
        adds = adds_class(bookie)
        for entry_id in range(20):
            adds.add(1, entry_id)
        before = len(adds.answers)
    assert before == 0
    assert adds.statuses() == [Status.EOK] * 20
    async with machine.running() as bookie:
        _, entries = await bookie.read_entries(1, 0, 0, 1 << 20)
        assert len(entries) == 20


async def test_flushed_entries_are_read_from_the_log(machine, adds_class, entry_bytes):
    async with machine.running() as bookie:
        adds = adds_class(bookie)
        for entry_id in range(40):
            for ledger_id in (3, 1, 2):
                adds.add(ledger_id, entry_id, b"%d/%d" % (ledger_id, entry_id))
        await adds.wait(120)
        await bookie.flush()
        assert bookie.statistics().write_cache_entries == 0
        for ledger_id in (1, 2, 3):
            status, entries = bookie.read_entries_nowait(ledger_id, 0, 0, 1 << 20)
            assert status is Status.EOK
            expected = [entry_bytes(ledger_id, i, b"%d/%d" % (ledger_id, i)) for i in range(40)]
            assert [bytes(e) for e in entries] == expected
        status, entry = await bookie.read_entry(2, LAST_ADD_CONFIRMED_ENTRY)
        assert bytes(entry) == entry_bytes(2, 39, b"2/39")
        assert bookie.statistics().read_log_entries >= 120


async def test_a_read_across_log_and_cache(machine, adds_class, entry_bytes):
    async with machine.running() as bookie:
        adds = adds_class(bookie)
        for entry_id in range(10):
            adds.add(1, entry_id)
        await adds.wait(10)
        await bookie.flush()
        for entry_id in range(10, 20):
            adds.add(1, entry_id)
        await adds.wait(20)
        _, entries = bookie.read_entries_nowait(1, 5, 0, 1 << 20)
        assert [bytes(e) for e in entries] == [entry_bytes(1, i) for i in range(5, 20)]


@pytest.mark.parametrize("cached_share", [1.0, 0.0, 0.5])
@pytest.mark.parametrize("flush", [True, False])
async def test_limits_of_a_read(machine, adds_class, entry_bytes, flush, cached_share):
    async with machine.running() as bookie:
        adds = adds_class(bookie)
        for entry_id in range(20):
            adds.add(1, entry_id, b"x" * 100)
        await adds.wait(20)
        if flush:
            await bookie.flush()
        machine.disk.faults.cached_share = cached_share
        size = len(entry_bytes(1, 0, b"x" * 100))
        for count_max, size_max, expected in [
            (3, 1 << 20, 3),
            (0, 4 * size, 4),
            (0, 4 * size - 1, 3),
            (5, 1, 1),
            (1, 0, 1),
            (0, 1 << 20, 20),
        ]:
            status, entries = await bookie.read_entries(1, 0, count_max, size_max)
            assert status is Status.EOK
            assert len(entries) == expected, (count_max, size_max)
            assert [bytes(e) for e in entries] == [
                entry_bytes(1, i, b"x" * 100) for i in range(expected)
            ]


async def test_what_is_not_there(machine, adds_class):
    async with machine.running() as bookie:
        adds = adds_class(bookie)
        adds.add(1, 5)
        await adds.wait(1)
        for _ in range(2):
            assert await bookie.read_entries(9, 0, 1, 1) == (Status.ENOLEDGER, [])
            assert await bookie.read_entries(1, 6, 1, 1) == (Status.ENOENTRY, [])
            assert (await bookie.read_entry(9, -1))[0] is Status.ENOLEDGER
            assert await bookie.force_ledger(9) is Status.ENOLEDGER
            await bookie.flush()


async def test_bad_adds(machine, adds_class, entry_bytes):
    async with machine.running() as bookie:
        adds = adds_class(bookie)
        adds.add(1, 0)
        adds.add(1, 1, key=OTHER_KEY)
        adds.add(1, 2, entry=[b"short"])
        adds.add(1, 3, entry=[entry_bytes(1, 4)])
        adds.add(1, -3)
        adds.add(1, 5, b"x" * 5000)
        adds.add(1, 6)
        await adds.wait(7)
        answers = {entry_id: status for _, entry_id, status in adds.answers}
        assert answers == {
            0: Status.EOK,
            1: Status.EUA,
            2: Status.EBADREQ,
            3: Status.EBADREQ,
            -3: Status.EBADREQ,
            5: Status.EBADREQ,
            6: Status.EOK,
        }
        for entry_id in range(1, 6):
            assert (await bookie.read_entry(1, entry_id))[0] is Status.ENOENTRY
        assert bytes((await bookie.read_entry(1, 6))[1]) == entry_bytes(1, 6)


async def test_digests_are_checked_on_write_if_so_configured(
    machine_class, adds_class, entry_bytes
):
    machine = machine_class(verify_digest_on_write=True)
    async with machine.running() as bookie:
        adds = adds_class(bookie)
        good = entry_bytes(1, 0)
        adds.add(1, 0, entry=[good])
        for bit in (16 * 8, 32 * 8, 36 * 8, len(good) * 8 - 1):
            bad = bytearray(entry_bytes(1, 1))
            bad[bit // 8] ^= 1 << bit % 8
            adds.add(1, 1, entry=[bad])
        await adds.wait(5)
        assert sorted(adds.statuses()) == [Status.EOK] + [Status.EBADREQ] * 4


async def test_large_entries_of_another_digest_where_nobody_verifies(
    machine, monkeypatch, wait_until
):
    """What stands behind their header is no CRC32C, and is not taken for one."""
    monkeypatch.setattr(adds_module, "JOINED_SIZE_MIN", 0)
    answers = []
    entry = struct.pack(">qqqq", 1, 0, -1, 100) + b"h" * 20 + b"payload" * 14
    async with machine.running_until_crash() as bookie:
        bookie.add_entry(1, 0, KEY, [entry], 0, answers.append)
        await wait_until(lambda: answers == [Status.EOK])
    async with machine.running() as bookie:
        assert list(await bookie.entries(1)) == [0]


async def test_fencing_refuses_adds_but_not_recovery_adds(machine, adds_class):
    async with machine.running() as bookie:
        adds = adds_class(bookie)
        adds.add(1, 0)
        status, _ = await bookie.read_entry(
            1, LAST_ADD_CONFIRMED_ENTRY, flags=FLAG_DO_FENCING, master_key=KEY
        )
        assert status is Status.EOK
        assert adds.statuses() == [Status.EOK], "the fence waited for what was before it"
        adds.add(1, 1)
        adds.add(1, 2, flags=FLAG_RECOVERY_ADD)
        await adds.wait(3)
        assert adds.answers[1:] == [(1, 1, Status.EFENCED), (1, 2, Status.EOK)]
    machine.crash()
    async with machine.running() as bookie:
        adds = adds_class(bookie)
        adds.add(1, 3)
        assert adds.statuses() == [Status.EFENCED], "a fenced ledger stays fenced"


async def test_a_fence_that_only_the_journal_has_is_replayed(machine, adds_class):
    """The power fails before a checkpoint stores the ledger's state. A writer that was fenced
    would be answered EOK by this bookie, and recovery has closed its ledger by then."""
    async with machine.running_until_crash() as bookie:
        adds = adds_class(bookie)
        adds.add(1, 0)
        await adds.wait(1)
        status, _ = await bookie.read_entry(1, 0, flags=FLAG_DO_FENCING, master_key=KEY)
        assert status is Status.EOK
    assert machine.index.ledgers() == []
    async with machine.running() as bookie:
        adds = adds_class(bookie)
        adds.add(1, 1)
        adds.add(1, 2, flags=FLAG_RECOVERY_ADD)
        await adds.wait(2)
        assert sorted(adds.answers) == [(1, 1, Status.EFENCED), (1, 2, Status.EOK)]


async def test_fencing_needs_the_key_and_makes_an_unknown_ledger(machine, adds_class):
    async with machine.running() as bookie:
        fence = {"flags": FLAG_DO_FENCING}
        assert (await bookie.read_entry(1, -1, **fence))[0] is Status.EUA
        assert bookie.list_ledgers() == []
        assert (await bookie.read_entry(1, -1, **fence, master_key=KEY))[0] is Status.ENOENTRY
        assert (await bookie.read_entry(1, -1, **fence, master_key=OTHER_KEY))[0] is Status.EUA
        adds = adds_class(bookie)
        adds.add(1, 0)
        assert adds.statuses() == [Status.EFENCED]


async def test_a_second_fence_waits_for_the_sync_of_the_first(machine, adds_class):
    async with machine.running() as bookie:
        adds = adds_class(bookie)
        adds.add(1, 0)
        await adds.wait(1)
        # Longer than a busy machine takes to begin the second fence.
        machine.disk.faults.sync_seconds = (1.0, 1.0)
        order = []

        async def fence(name):
            syncs = machine.disk.sync_count
            status, _ = await bookie.read_entry(1, -1, flags=FLAG_DO_FENCING, master_key=KEY)
            assert status is Status.EOK
            assert machine.disk.sync_count > syncs, "answered before the fence was durable"
            order.append(name)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fence, "first")
            await trio.testing.wait_all_tasks_blocked(0.002)
            nursery.start_soon(fence, "second")
            await trio.testing.wait_all_tasks_blocked(0.002)
            adds.add(1, 1)
            assert adds.answers[-1] == (1, 1, Status.EFENCED), "fenced in memory at once"
        assert sorted(order) == ["first", "second"]
        machine.disk.faults.sync_seconds = (0.0, 0.0)


async def test_explicit_lac_survives(machine):
    async with machine.running() as bookie:
        assert bookie.get_explicit_lac(1) == (Status.ENOLEDGER, None)
        assert await bookie.set_explicit_lac(1, KEY, b"packet") is Status.EOK
        assert await bookie.set_explicit_lac(1, OTHER_KEY, b"other") is Status.EUA
        assert bookie.get_explicit_lac(1) == (Status.EOK, b"packet")
    machine.crash()
    async with machine.running() as bookie:
        assert bookie.get_explicit_lac(1) == (Status.EOK, b"packet")


async def test_who_waits_for_the_last_add_confirmed_is_woken_by_an_entry(machine, adds_class):
    async with machine.running() as bookie:
        adds = adds_class(bookie)
        adds.add(1, 0)
        await adds.wait(1)
        _, followed = await bookie.lacs.follow(1)
        woken = []
        followed.wait(followed.lac, lambda: woken.append(followed.lac))
        adds.add(1, 1, entry=[struct.pack(">qqqq", 1, 1, 0, 0) + b"no digest"])
        await adds.wait(2)
        assert woken == [0]


async def test_a_full_cache_holds_adds_then_refuses_them(machine_class, adds_class):
    machine = machine_class(journal_queue_size_max_bytes=1 << 20)
    machine.disk.faults.sync_seconds = (0.05, 0.05)
    async with machine.running() as bookie:
        adds = adds_class(bookie)
        for entry_id in range(60):
            adds.add(1, entry_id, b"x" * 1000)
        statistics = bookie.statistics()
        assert statistics.held_adds == 15, "held, up to held_adds_size_max_bytes"
        assert statistics.held_bytes <= machine.config.held_adds_size_max_bytes
        assert statistics.refused_adds > 20
        assert statistics.write_cache_size_bytes <= machine.config.write_cache_size_bytes
        await adds.wait(60)
        accepted = [i for _, i, status in adds.answers if status is Status.EOK]
        refused = [i for _, i, status in adds.answers if status is Status.ETOOMANYREQUESTS]
        assert accepted == list(range(len(accepted))), "in order, those that were held last"
        assert refused == list(range(len(accepted), 60))
        assert len(accepted) + len(refused) == 60
        assert bookie.statistics().held_adds == 0
        adds.add(1, 60)
        await adds.wait(61)
        assert adds.answers[-1] == (1, 60, Status.EOK)
        for entry_id in accepted:
            assert (await bookie.read_entry(1, entry_id))[0] is Status.EOK
    # What was held is as durable as the rest.
    machine.crash()
    async with machine.running() as bookie:
        for entry_id in accepted:
            assert (await bookie.read_entry(1, entry_id))[0] is Status.EOK


async def test_a_small_add_does_not_overtake_a_large_one_that_is_held(machine_class, adds_class):
    """There would be room in the write cache for the small one."""
    machine = machine_class(journal_queue_size_max_bytes=1 << 20)
    machine.disk.faults.sync_seconds = (0.05, 0.05)
    async with machine.running() as bookie:
        adds = adds_class(bookie)
        count = 0
        while not bookie.statistics().held_adds:
            adds.add(1, count, b"x" * 1000)
            count += 1
        for _ in range(5):
            adds.add(1, count, b"")
            count += 1
        assert bookie.statistics().held_adds == 6
        await adds.wait(count)
        assert adds.answers == [(1, i, Status.EOK) for i in range(count)]


async def test_a_full_journal_queue_holds_adds(machine_class, adds_class):
    machine = machine_class(journal_queue_size_max_bytes=1000)
    async with machine.running() as bookie:
        adds = adds_class(bookie)
        for entry_id in range(12):
            adds.add(1, entry_id, b"x" * 500)
        assert bookie.statistics().held_adds == 10
        await adds.wait(12)
        assert adds.answers == [(1, i, Status.EOK) for i in range(12)]


async def test_done_may_add_again(machine, wait_until):
    async with machine.running() as bookie:
        order = []

        def add(entry_id):
            def done(status):
                order.append((entry_id, status))
                if entry_id < 30:
                    add(entry_id + 3)

            from_bytes = make(entry_id)
            bookie.add_entry(1, entry_id, KEY, [from_bytes], 0, done)

        def make(entry_id):
            return (1).to_bytes(8, "big") + entry_id.to_bytes(8, "big") + bytes(24)

        for entry_id in range(3):
            add(entry_id)
        await wait_until(lambda: len(order) == 33)
        assert order == [(i, Status.EOK) for i in range(33)]


async def test_a_deleted_ledger_is_refused_and_its_logs_go(machine, adds_class):
    async with machine.running() as bookie:
        adds = adds_class(bookie)
        for entry_id in range(60):
            adds.add(1, entry_id, b"x" * 1000)
            await adds.wait(entry_id + 1)
        adds.add(2, 0)
        await adds.wait(61)
        await bookie.flush()
        logs = bookie.statistics().entry_logs
        assert logs >= 3
        assert await bookie.delete_ledger(1) is Status.EOK
        assert bookie.list_ledgers() == [2]
        adds.add(1, 60)
        adds.add(1, 61, flags=FLAG_RECOVERY_ADD)
        assert adds.statuses()[-2:] == [Status.EFENCED] * 2
        assert await bookie.read_entries(1, 0, 1, 1) == (Status.ENOLEDGER, [])
        await bookie.flush()
        assert bookie.statistics().entry_logs <= 2
        assert machine.index.last_entry_id(1) == -1
        assert (await bookie.read_entry(2, 0))[0] is Status.EOK
        assert await bookie.delete_ledger(99) is Status.EOK
    async with machine.running() as bookie:
        assert bookie.list_ledgers() == [2]


async def test_a_held_add_does_not_make_a_ledger_that_was_deleted_before_its_turn(
    machine, adds_class
):
    machine.disk.faults.sync_seconds = (0.01, 0.01)
    async with machine.running() as bookie:
        adds = adds_class(bookie)
        for entry_id in range(16):
            adds.add(1, entry_id, bytes(1000))
        assert len(bookie._adds.held) > 0
        adds.add(2, 0)
        assert bookie.list_ledgers() == [1]
        assert await bookie.delete_ledger(2) is Status.EOK
        await adds.wait(17)
        assert (2, 0, Status.EFENCED) in adds.answers
        assert bookie.list_ledgers() == [1]


async def test_a_deletion_is_durable_before_the_index_knows(machine, adds_class):
    async with machine.running_until_crash() as bookie:
        adds = adds_class(bookie)
        adds.add(1, 0)
        adds.add(2, 0)
        await adds.wait(2)
        await bookie.flush()
        assert await bookie.delete_ledger(1) is Status.EOK
    assert machine.index.last_entry_id(1) == 0
    async with machine.running() as bookie:
        assert bookie.list_ledgers() == [2]
        assert machine.index.last_entry_id(1) == -1


async def test_a_second_deletion_waits_for_the_first(machine, adds_class, autojump_clock):
    async with machine.running() as bookie:
        adds = adds_class(bookie)
        adds.add(1, 0)
        await adds.wait(1)
        await bookie.flush()
        machine.disk.faults.sync_seconds = (1.0, 1.0)
        ends = []

        async def delete():
            assert await bookie.delete_ledger(1) is Status.EOK
            ends.append(trio.current_time() - start)

        start = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(delete)
            await trio.sleep(0.01)
            nursery.start_soon(delete)
        assert min(ends) >= 0.9
        machine.disk.faults.sync_seconds = (0.0, 0.0)


async def the_next_journal_is_prepared(bookie):
    """From then on the next sync of the disk is not the preparation's."""
    while bookie._files._next is None:
        await trio.sleep(0.001)


async def fail_in_the_middle(machine, adds_class, kept):
    async with machine.running() as bookie:
        adds = adds_class(bookie)
        kept.append(adds)
        adds.add(1, 0)
        await adds.wait(1)
        await the_next_journal_is_prepared(bookie)
        machine.disk.faults.failing_sync_number = machine.disk.sync_count + 1
        adds.add(1, 1)
        adds.add(1, 2)
        await trio.sleep(5)


async def test_a_failed_sync_ends_the_bookie_and_acknowledges_nothing(machine, adds_class):
    kept = []
    with pytest.raises(BaseExceptionGroup) as error:
        await fail_in_the_middle(machine, adds_class, kept)
    assert error.group_contains(OSError)
    assert kept[0].statuses() == [Status.EOK, Status.EIO, Status.EIO]
    kept[0].add(1, 3)
    assert kept[0].statuses()[-1] is Status.EIO


async def test_a_broken_invariant_of_the_journal_ends_the_bookie_and_acknowledges_nothing(
    machine, adds_class
):
    kept = []

    async def break_it():
        async with machine.running() as bookie:
            adds = adds_class(bookie)
            kept.append(adds)
            adds.add(1, 0)
            await adds.wait(1)
            bookie._journal._offset += 1
            adds.add(1, 1)
            await trio.sleep(60)

    with pytest.raises(BaseExceptionGroup) as error:
        await break_it()
    assert error.group_contains(AssertionError, match="aligned")
    assert kept[0].statuses().count(Status.EOK) == 1
    kept[0].add(1, 2)
    assert kept[0].statuses()[-1] is not Status.EOK


async def test_a_failed_flush_moves_no_mark(machine, adds_class, entry_bytes):
    async with machine.running_until_crash() as bookie:
        adds = adds_class(bookie)
        for entry_id in range(10):
            adds.add(1, entry_id)
        await adds.wait(10)
        await the_next_journal_is_prepared(bookie)
        machine.disk.faults.failing_sync_number = machine.disk.sync_count + 1
        await bookie.flush()
        adds.add(1, 10)
        assert adds.statuses()[-1] is Status.EIO, "the bookie has ended"
    machine.disk.faults.failing_sync_number = None
    async with machine.running() as bookie:
        _, entries = await bookie.read_entries(1, 0, 0, 1 << 20)
        assert [bytes(e) for e in entries] == [entry_bytes(1, i) for i in range(10)]


async def test_a_full_disk_loses_nothing(machine, adds_class, entry_bytes):
    async with machine.running_until_crash() as bookie:
        adds = adds_class(bookie)
        for entry_id in range(10):
            adds.add(1, entry_id)
        await adds.wait(10)
        machine.disk.faults.capacity_bytes = machine.disk.used_bytes
        with trio.move_on_after(0.01):
            await bookie.flush()
        assert bookie.is_read_only
        adds.add(1, 10)
        assert adds.statuses()[-1] is Status.EREADONLY
    machine.disk.faults.capacity_bytes = 1 << 40
    async with machine.running() as bookie:
        _, entries = await bookie.read_entries(1, 0, 0, 1 << 20)
        assert [bytes(e) for e in entries] == [entry_bytes(1, i) for i in range(10)]


async def test_one_bookie_per_directory(machine):
    async with machine.running():
        with pytest.raises(BaseExceptionGroup) as error:
            async with machine.running():
                pass
        assert error.group_contains(BookieStartError, match="in use")


async def test_a_failure_is_told_though_it_was_cancelled_at_the_same_time(machine, adds_class):
    """Nobody may take it for a clean stop."""

    async def fail():
        async with machine.running() as bookie:
            adds = adds_class(bookie)
            adds.add(1, 0)
            await adds.wait(1)
            bookie.crash()

    with pytest.raises(ExceptionGroup) as caught:
        await fail()
    assert caught.group_contains(OSError, match="crashed")


@pytest.mark.parametrize("number", [1, 2, 3])  # of the syncs of a stop
async def test_a_failure_ends_a_clean_stop_that_waits_for_a_disk(
    number, machine, adds_class, autojump_clock
):
    """Else the bookie would be there, and answer nothing, for as long as that disk hangs."""
    disk = machine.disk
    syncs = 0

    def hang_at_sync(event, _detail):
        nonlocal syncs
        syncs += event == "sync"
        if event == "sync" and syncs == number:
            disk.halt()

    async def fail_later(bookie):
        await trio.sleep(1)
        bookie.crash()

    async def fail_while_stopping():
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery, machine.running() as bookie:
                adds = adds_class(bookie)
                adds.add(1, 0)
                await adds.wait(1)
                disk.faults.sync_seconds = (0.001, 0.001)
                disk.observe = hang_at_sync
                nursery.start_soon(fail_later, bookie)

    with pytest.raises(ExceptionGroup) as caught:
        await fail_while_stopping()
    assert caught.group_contains(OSError, match="crashed")
    assert syncs == number
