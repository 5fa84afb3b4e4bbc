"""A writer's mark of its own ledger: who may change it, and that what comes late does no harm."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from ledger.pipeline import LOOK_SECONDS
from ledger.underreplication import UnderReplication
from ledger.writer_marks import AUDITOR, WRITER, WriterMarks
from metadata.memory import MemoryStore
from metadata.store import MetadataUnavailableError, MetadataUnknownOutcomeError
from wire.bookkeeper.records import underreplicated_path

PATH = f"/ledgers/underreplication/ledgers/{underreplicated_path(5)}"


def yes():
    return True


@pytest.fixture
def marks(new_world):
    world = new_world("abc")
    made = WriterMarks(world.store, world.env, "/ledgers")
    made.records = UnderReplication(world.store)
    made.store = world.store
    return made


async def _data(marks):
    return (await marks.store.get(PATH)).data


async def test_a_writer_takes_back_what_it_said_itself(marks):
    assert await marks.leave_to_auditors(5, yes)  # nothing is there
    assert await marks.mark(5, ["b"])
    assert (await _data(marks)).endswith(WRITER)
    assert await marks.leave_to_auditors(5, lambda: False)
    assert (await _data(marks)).endswith(WRITER)
    version = (await marks.records.task(5)).version
    assert await marks.leave_to_auditors(5, yes)
    assert (await _data(marks)).endswith(AUDITOR)
    assert (await marks.records.task(5)).version > version
    # The next word is the writer's again, and a new version though it says the same.
    version = (await marks.records.task(5)).version
    assert await marks.mark(5, ["b", "a"])
    assert (await _data(marks)).endswith(WRITER)
    assert (await marks.records.ledger(5)).replicas == ("b", "a")
    assert await marks.mark(5, ["b"])
    assert (await marks.records.task(5)).version == version + 2


async def test_a_writer_takes_back_nobody_else_s_word(marks):
    assert await marks.records.mark(5, ["b"], 1)
    before = await _data(marks)
    assert await marks.leave_to_auditors(5, yes)
    assert await _data(marks) == before
    assert await marks.mark(5, ["b"])
    assert not (await _data(marks)).endswith((WRITER, AUDITOR))
    assert (await marks.records.ledger(5)).ctime_ms == 1
    assert await marks.leave_to_auditors(5, yes)
    assert not (await _data(marks)).endswith((WRITER, AUDITOR))


async def test_what_is_said_while_it_is_taken_back_holds(marks, monkeypatch):
    """The writer goes on without a bookie again, between the question and the change."""
    assert await marks.mark(5, ["b"])
    asked = []
    original = MemoryStore.put

    async def put(self, path, data, version):
        if not asked:
            asked.append(data)
            assert await marks.mark(5, ["b"])
        return await original(self, path, data, version)

    monkeypatch.setattr(MemoryStore, "put", put)
    assert await marks.leave_to_auditors(5, lambda: not asked)
    assert asked[0].endswith(AUDITOR)
    assert (await _data(marks)).endswith(WRITER)


async def test_the_answer_of_the_metadata_is_lost_or_there_is_none(marks, monkeypatch):
    original, calls = MemoryStore.put, []

    async def put(self, path, data, version):
        calls.append(data)
        await original(self, path, data, version)
        raise MetadataUnknownOutcomeError(path, "lost")

    assert await marks.mark(5, ["b"])
    with monkeypatch.context() as patched:
        patched.setattr(MemoryStore, "put", put)
        assert await marks.leave_to_auditors(5, yes)
    assert len(calls) == 1
    assert (await _data(marks)).endswith(AUDITOR)

    async def away(*_):
        raise MetadataUnavailableError("/", "no metadata")

    monkeypatch.setattr(MemoryStore, "get_many", away)
    assert not await marks.leave_to_auditors(5, yes)
    assert not await marks.mark(5, ["b"])


async def _append(writer, count, done):
    for _ in range(count):
        writer.append_nowait([b"x"], done)
    await wait_all_tasks_blocked()


async def test_a_mark_that_is_made_when_the_bookie_is_back_is_left_to_auditors_too(
    nursery, new_world, acks, autojump_clock, monkeypatch
):
    """The metadata were away while the ledger went on without it."""
    world = new_world("abc")
    await world.start(nursery)
    writer = await world.create(3, 3, 2)
    original, tries = WriterMarks.mark, []

    async def away(self, ledger_id, missing):
        tries.append(set(missing))
        return len(tries) > 3 and await original(self, ledger_id, missing)

    monkeypatch.setattr(WriterMarks, "mark", away)
    world.bookies.dead.add("a")
    await _append(writer, 1, acks)
    world.bookies.dead.clear()
    await trio.sleep(LOOK_SECONDS)
    await _append(writer, 1, acks)
    assert not writer.is_short
    assert tries == [{"a"}]
    await trio.sleep(60)
    assert len(tries) == 4
    path = f"/ledgers/underreplication/ledgers/{underreplicated_path(writer.ledger_id)}"
    assert (await world.store.get(path)).data.endswith(AUDITOR)


async def test_a_bookie_that_hangs_is_told_when_it_is_replaced_and_after_the_end(
    nursery, new_world, acks, autojump_clock
):
    world = new_world("abcd")
    await world.start(nursery)
    records = UnderReplication(world.store)
    for is_closed in (False, True):
        writer = await world.create(3, 3, 2)
        *_, bookie = writer.metadata.last_segment[1]
        world.bookies.held.add(bookie)
        await _append(writer, 5, acks)
        assert writer.last_add_confirmed == 4
        if is_closed:
            await writer.close()
        await trio.sleep(1)
        assert await records.ledger(writer.ledger_id) is None
        world.bookies.dead.add(bookie)
        world.bookies.release()
        await trio.sleep(1)
        marked = await records.ledger(writer.ledger_id)
        assert marked is not None
        assert marked.replicas == (bookie,)
        segments = (await world.metadata(writer.ledger_id)).segments
        assert [first for first, _ in segments] == ([0] if is_closed else [0, 5])
        world.bookies.held.clear()
        world.bookies.dead.clear()


async def test_a_bookie_that_was_replaced_and_came_again_is_told_again(
    nursery, new_world, acks, autojump_clock
):
    """Its mark may be done by then: the fragment that lacked copies is closed."""
    world = new_world("abcd")
    await world.start(nursery)
    records = UnderReplication(world.store)
    writer = await world.create(3, 3, 2)
    *others, bookie = writer.metadata.last_segment[1]

    async def hangs(bookie):
        world.bookies.held.add(bookie)
        await _append(writer, 1, acks)
        world.bookies.dead.add(bookie)
        world.bookies.release()
        await trio.sleep(1)
        world.bookies.held.clear()
        world.bookies.dead.clear()
        task = await records.task(writer.ledger_id)
        assert bookie in task.marked.replicas
        assert await records.finish(writer.ledger_id, task.version)

    await hangs(bookie)
    await trio.sleep(3600)  # until it may be chosen again
    (spare,) = set(writer.metadata.last_segment[1]).difference(others)
    await hangs(spare)
    assert bookie in writer.metadata.last_segment[1]
    await hangs(bookie)
    assert acks.ids == [0, 1, 2]


async def test_the_last_one_that_it_goes_on_without_is_replaced(
    nursery, new_world, acks, autojump_clock
):
    """The other one whom the mark names is in the ensemble, and is sent all entries by then."""
    world = new_world("abcde")
    await world.start(nursery)
    writer = await world.create(4, 4, 2)
    first, second, *_ = ensemble = writer.metadata.last_segment[1]
    (spare,) = set("abcde").difference(ensemble)
    world.names.remove(spare)
    world.bookies.dead |= {first, second}
    await _append(writer, 2, acks)
    world.bookies.dead.discard(second)
    await trio.sleep(LOOK_SECONDS)
    await _append(writer, 1, acks)
    path = f"/ledgers/underreplication/ledgers/{underreplicated_path(writer.ledger_id)}"
    assert (await world.store.get(path)).data.endswith(WRITER)
    world.names.append(spare)
    await trio.sleep(LOOK_SECONDS)
    await _append(writer, 1, acks)
    await trio.sleep(1)
    assert not writer.is_short
    assert set(writer.metadata.last_segment[1]) == set("abcde") - {first}
    assert (await world.store.get(path)).data.endswith(AUDITOR)
