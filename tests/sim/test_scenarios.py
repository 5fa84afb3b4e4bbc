"""Named scenarios of the ledger protocol: bugs that BookKeeper had, as scripts in a world of real
bookies and ledger clients (conftest.py). Each passes, and fails without the rule that keeps it
away, which the test takes out."""

import sys
from pathlib import Path

import pytest
import trio

sys.path.insert(0, str(Path(__file__).parents[2]))

from bookie.ledger_operations import LedgerOperations
from bookie.ledger_table import LedgerTable
from ledger.distribution import Schedule
from ledger.errors import LedgerReadError, NotEnoughBookiesError
from ledger.open_ledger import OpenLedger
from ledger.recovery_core import EndCore, EntryCore
from ledger.writer_core import WriterCore
from sim.history import Violation
from sim.nodes import BOOKIE_PORT
from wire.bookkeeper.ledger_metadata import LedgerState
from wire.bookkeeper.status import FLAG_DO_FENCING, LAST_ADD_CONFIRMED_ENTRY, Status

THREE = {"ensemble_size": 3, "write_quorum_size": 3, "ack_quorum_size": 2}


async def end_below_the_last_segment(world):
    """bk#2615: all that the last ensemble's bookies can tell of the LAC is older than that
    ensemble. Entries 0 and 1 are on bookies 1 and 2, which fail and are gone when the ledger is
    recovered; entry 2 is on the ensemble that follows, and says that nothing was acked before
    it."""
    writer_client = await world.ledger_client("writer")
    fates = writer_client.fates
    fates.lost |= {(3, 0), (3, 1)}
    fates.failed |= {(1, 2), (2, 2)}
    writer = await writer_client.ledgers.create_ledger(**THREE)
    writer_client.append(writer, 3)
    await world.until(lambda: len(writer_client.acked) == 2)
    fates.release(1, 2)
    fates.release(2, 2)
    await world.until(lambda: len(writer_client.acked) == 3)
    assert [first for first, _ in writer.metadata.segments] == [0, 2]
    for bookie in world.bookies[:2]:
        bookie.crash(is_silent=False)
    other = await world.ledger_client("other")
    await other.ledgers.open_ledger(writer.ledger_id, recover=True)
    await world.start_again(1, 2)
    await world.judge(other, writer.ledger_id, writer_client.acked)


def test_end_below_the_last_segment(run_script, monkeypatch):
    run_script(end_below_the_last_segment)
    original = EndCore.__init__

    def forgets_the_segment(self, schedule, _last_segment_first):
        original(self, schedule, 0)

    monkeypatch.setattr(EndCore, "__init__", forgets_the_segment)
    with pytest.raises(LedgerReadError, match="whether entry 0 exists cannot be known"):
        run_script(end_below_the_last_segment)


async def ensemble_that_metadata_never_saw(world):
    """bk#1591: two bookies fail while the writer does not reach the metadata. Somebody else, who
    does, asks the bookies that the metadata names."""
    writer_client = await world.ledger_client("writer")
    fates = writer_client.fates
    fates.failed |= {(1, 1), (2, 1)}
    fates.lost |= {(3, 1)}
    writer = await writer_client.ledgers.create_ledger(**THREE)
    writer_client.append(writer)
    await world.until(lambda: writer_client.acked)
    writer_client.store.cut()
    writer_client.append(writer)
    fates.release(1, 1)
    fates.release(2, 1)
    await trio.sleep(1)
    other = await world.ledger_client("other")
    await other.ledgers.open_ledger(writer.ledger_id, recover=True)
    writer_client.store.heal()
    await world.until(lambda: 1 in writer_client.acked or writer.error is not None)
    await world.judge(other, writer.ledger_id, writer_client.acked)


def test_ensemble_that_metadata_never_saw(run_script, monkeypatch):
    run_script(ensemble_that_metadata_never_saw)

    async def not_stored(_self, _request, _ensemble):
        """As if it were."""

    monkeypatch.setattr(OpenLedger, "store_ensemble", not_stored)
    with pytest.raises(Violation, match="lost: entry 1 "):
        run_script(ensemble_that_metadata_never_saw)


async def ack_of_a_replaced_bookie(world):
    """bk#3005: bookie 1 has acked entry 0 when it is replaced, bookie 2 acks after that. Together
    they are two, but one of them is none of the ledger's any more. Then the other is down for a
    while, as one may be."""
    client = await world.ledger_client("writer")
    fates = client.fates
    fates.late |= {(2, 0)}
    fates.lost |= {(3, 0), (4, 0)}
    fates.failed |= {(1, 1)}
    writer = await client.ledgers.create_ledger(**THREE)
    client.append(writer)
    await world.until(lambda: fates.is_held(2, 0))
    await trio.sleep(0.1)
    client.append(writer)
    fates.release(1, 1)
    await world.until(lambda: "bookie-4" in str(writer.metadata.last_segment))
    fates.release(2, 0)
    await trio.sleep(0.1)
    world.bookies[1].crash(is_silent=False)
    other = await world.ledger_client("other")
    await other.ledgers.open_ledger(writer.ledger_id, recover=True)
    await world.start_again(2)
    await world.judge(other, writer.ledger_id, client.acked)


def test_ack_of_a_replaced_bookie(run_script, monkeypatch):
    run_script(ack_of_a_replaced_bookie)
    original = WriterCore.ensemble_changed

    def keeps_acks(self, ensemble):
        acks = [(pending, pending.acks) for pending in self.pending]
        answer = original(self, ensemble)
        for pending, before in acks:
            pending.acks |= before
        return answer

    monkeypatch.setattr(WriterCore, "ensemble_changed", keeps_acks)
    with pytest.raises(Violation, match="lost: entry 0 "):
        run_script(ack_of_a_replaced_bookie)


async def acks_during_the_change(world):
    """bk#4097, bk#4651: the new ensemble is on its way to the metadata, as valid from entry 0 on,
    when entry 0 gets its acks, one from the bookie that is being replaced."""
    client = await world.ledger_client("writer")
    fates = client.fates
    fates.late |= {(1, 0), (2, 0)}
    fates.lost |= {(3, 0)}
    fates.failed |= {(1, 1)}
    writer = await client.ledgers.create_ledger(**THREE)
    client.append(writer, 2)
    await world.until(lambda: fates.is_held(1, 0) and fates.is_held(2, 0))
    world.store_faults.latency_seconds = (0.5, 0.5)
    fates.release(1, 1)
    await trio.sleep(0.1)
    fates.release(1, 0)
    fates.release(2, 0)
    await world.until(lambda: "bookie-4" in str(writer.metadata.segments))
    await world.until(lambda: len(client.acked) == 2)
    world.store_faults.latency_seconds = (0, 0)
    await writer.close()
    await world.judge(client, writer.ledger_id, client.acked)


def test_acks_during_the_change(run_script, monkeypatch):
    run_script(acks_during_the_change)
    confirm = WriterCore.confirm

    def goes_on(self):
        was_changing, self.changing = self.changing, False
        try:
            return confirm(self)
        finally:
            self.changing = was_changing

    def is_complete(self):
        is_waiting = bool(self.pending)
        return is_waiting and self.pending[0].acks.bit_count() >= self.schedule.ack_quorum_size

    monkeypatch.setattr(WriterCore, "confirm", goes_on)
    monkeypatch.setattr(WriterCore, "_is_head_complete", is_complete)
    with pytest.raises(Violation, match="thin: entry 0 "):
        run_script(acks_during_the_change)


async def silence_is_no_answer(world):
    """bk#2281: entry 0 is on bookies 1 and 2. One is down, one never got it, and the third takes
    its time to say that it has it."""
    client = await world.ledger_client("writer")
    client.fates.lost |= {(3, 0)}
    writer = await client.ledgers.create_ledger(**THREE)
    client.append(writer)
    await world.until(lambda: client.acked)
    world.bookies[0].crash(is_silent=False)
    other = await world.ledger_client("other")
    other.fates.slow_reads[2] = 1.0
    await other.ledgers.open_ledger(writer.ledger_id, recover=True)
    await world.start_again(1)
    await world.judge(other, writer.ledger_id, client.acked)


def test_silence_is_no_answer(run_script, monkeypatch):
    run_script(silence_is_no_answer)
    original = EntryCore.reply

    def takes_errors_for_answers(self, status, is_valid):
        return original(self, status if status is Status.EOK else Status.ENOENTRY, is_valid)

    monkeypatch.setattr(EntryCore, "reply", takes_errors_for_answers)
    with pytest.raises(Violation, match="lost: entry 0 "):
        run_script(silence_is_no_answer)


async def only_copy_restarts(world):
    """bk#3952: of two bookies one is enough for an ack, and that one restarts. Nobody else can
    tell what was acked: a recovery has to wait for it, and finds everything then."""
    client = await world.ledger_client("writer")
    client.fates.lost |= {(2, 0)}
    writer = await client.ledgers.create_ledger(
        ensemble_size=2, write_quorum_size=2, ack_quorum_size=1
    )
    client.append(writer)
    await world.until(lambda: client.acked)
    world.bookies[0].crash(is_silent=False)
    other = await world.ledger_client("other")
    try:
        await other.ledgers.open_ledger(writer.ledger_id, recover=True)
    except NotEnoughBookiesError:
        versioned = await other.ledgers.manager.read(writer.ledger_id)
        assert versioned.metadata.state is LedgerState.IN_RECOVERY
    await world.start_again(1)
    await world.judge(other, writer.ledger_id, client.acked)


def test_only_copy_restarts(run_script, monkeypatch):
    run_script(only_copy_restarts)
    # The next rule holds the first one's place: both are out.
    original = Schedule.__init__

    def one_is_enough(self, *sizes):
        original(self, *sizes)
        self.negative_size = 1

    monkeypatch.setattr(Schedule, "__init__", one_is_enough)
    monkeypatch.setattr(Schedule, "is_covered", lambda _self, known_mask: known_mask != 0)
    with pytest.raises(Violation, match="lost: entry 0 "):
        run_script(only_copy_restarts)


async def deleted_under_its_writer(world):
    """bk#4462: the writer's session is over and it does not know. Somebody else recovers its ledger
    and deletes it, the bookies collect it. What the writer adds now would be in no ledger."""
    client = await world.ledger_client("writer")
    writer = await client.ledgers.create_ledger(**THREE)
    client.append(writer)
    await world.until(lambda: client.acked)
    client.store.cut()
    other = await world.ledger_client("other")
    await other.ledgers.open_ledger(writer.ledger_id, recover=True)
    await other.ledgers.delete_ledger(writer.ledger_id)
    ledger_id = writer.ledger_id
    await world.until(
        lambda: not any(ledger_id in node.bookie.list_ledgers() for node in world.bookies)
    )
    client.append(writer)
    await trio.sleep(2)
    if 1 in client.acked:
        raise Violation("lost", "entry 1 was acked, of a ledger that is deleted")


def test_deleted_under_its_writer(run_script, monkeypatch):
    run_script(deleted_under_its_writer)
    monkeypatch.setattr(LedgerTable, "is_deleted", lambda *_: False)
    with pytest.raises(Violation, match="lost: entry 1 "):
        run_script(deleted_under_its_writer)


async def fence_and_power(world):
    """Disks are slow. As soon as a bookie has answered a fencing read its power fails. What was
    not synced may outlive that, so it is done again and again."""
    for number in range(4):
        client = await world.ledger_client(f"writer-{number}")
        other = await world.ledger_client(f"other-{number}")
        writer = await client.ledgers.create_ledger(**THREE)
        client.append(writer)
        await world.until(lambda client=client: client.acked)
        key = writer._master_key
        for node in world.bookies[:3]:
            node.disk.faults.sync_seconds = (0.3, 0.3)
            status, _ = await other.fates.read_entry(
                f"{node.name}:{BOOKIE_PORT}",
                writer.ledger_id,
                LAST_ADD_CONFIRMED_ENTRY,
                flags=FLAG_DO_FENCING,
                master_key=key,
            )
            assert status is Status.EOK
            node.crash(is_silent=True)
        await world.start_again(1, 2, 3)
        fenced = [node.bookie.is_fenced(writer.ledger_id, key) for node in world.bookies[:3]]
        if not all(fenced):
            raise Violation("unfenced", f"fences were answered, and are there: {fenced}")
        await world.until(lambda client=client: len(client.writable) == len(world.bookies))


def test_fence_and_power(run_script, monkeypatch):
    run_script(fence_and_power)

    async def at_once(_self, _group):
        return True

    monkeypatch.setattr(LedgerOperations, "_is_made_durable", at_once)
    with pytest.raises(Violation, match="unfenced: "):
        run_script(fence_and_power)
    with pytest.raises(Violation, match="early answer: "):
        run_script(fence_and_power, witness=1)
