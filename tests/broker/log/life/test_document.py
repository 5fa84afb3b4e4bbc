"""What a document is after an answer was lost: ours, a rival's, or as it was."""

import pytest

from broker.log.life.document import ATTEMPTS_MAX, put_document
from metadata.memory import MemoryStore, MemoryTree
from metadata.store import (
    BadVersionError,
    CreateOp,
    MetadataUnavailableError,
    MetadataUnknownOutcomeError,
)

OURS, RIVALS = b"ours", b"a rival's"
ALSO = [CreateOp("/archive", b"a")]


class Losing(MemoryStore):
    """Loses the first answers to writes, as `fates` says of each: what happened to the write."""

    fates = ()
    write_count = 0
    is_away = False

    async def _write(self, call):
        fate = dict(enumerate(self.fates)).get(self.write_count, "answered")
        self.write_count += 1
        if fate == "answered":
            return await call
        if fate in ("done", "done and away"):
            await call
        else:
            call.close()
        if fate == "a rival was first":
            rival = MemoryStore(self.tree)
            await rival.put("/document", RIVALS, 0)
        if fate == "done and away":
            self.is_away = True
        raise MetadataUnknownOutcomeError("/document")

    async def put(self, path, data, version):
        return await self._write(super().put(path, data, version))

    async def multi(self, ops):
        return await self._write(super().multi(ops))

    async def get(self, path):
        if self.is_away:
            raise MetadataUnavailableError(path, "away")
        return await super().get(path)


@pytest.fixture
async def store():
    made = Losing(MemoryTree())
    await made.create("/document", b"before")
    return made


@pytest.mark.parametrize("also", [(), ALSO])
@pytest.mark.parametrize(
    ("fates", "write_count"),
    [((), 1), (("done",), 1), (("lost",), 2), (("lost", "done"), 2), (("lost", "lost"), 3)],
)
async def test_it_is_written_once(store, also, fates, write_count):
    store.fates = fates
    assert await put_document(store, "/document", OURS, 0, also) == 1
    assert (await store.get("/document")).data == OURS
    assert store.write_count == write_count
    assert await store.exists("/archive") == bool(also)


@pytest.mark.parametrize("also", [(), ALSO])
async def test_a_rivals_next_version_is_not_ours(store, also):
    store.fates = ("a rival was first",)
    with pytest.raises(BadVersionError):
        await put_document(store, "/document", OURS, 0, also)
    assert (await store.get("/document")).data == RIVALS
    assert not await store.exists("/archive")


@pytest.mark.parametrize("also", [(), ALSO])
async def test_nor_is_it_where_the_answer_came(store, also):
    await MemoryStore(store.tree).put("/document", RIVALS, 0)
    with pytest.raises(BadVersionError):
        await put_document(store, "/document", OURS, 0, also)


@pytest.mark.parametrize("also", [(), ALSO])
async def test_who_could_not_look_finds_out_when_it_asks_again(store, also):
    store.fates = ("done and away",)
    with pytest.raises(MetadataUnavailableError):
        await put_document(store, "/document", OURS, 0, also)
    store.is_away = False
    assert await put_document(store, "/document", OURS, 0, also) == 1
    assert (await store.get("/document")).version == 1


async def test_answers_that_are_lost_again_and_again_are_told(store):
    store.fates = ("lost",) * ATTEMPTS_MAX
    with pytest.raises(MetadataUnknownOutcomeError):
        await put_document(store, "/document", OURS, 0)
    assert store.write_count == ATTEMPTS_MAX
    assert (await store.get("/document")).data == b"before"
