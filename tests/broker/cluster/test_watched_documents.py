"""Documents that every broker has in memory: loaded, changed, followed, and given up."""

import functools
import json

import pytest
import trio

from broker.cluster import watched_documents
from broker.cluster.watched_documents import EMPTY, WatchedDocuments
from metadata.memory import MemoryStore, MemoryTree
from metadata.store import MetadataUnavailableError, MetadataUnknownOutcomeError, NoNodeError

PATH = "/quire/things"


@pytest.fixture
def open_documents(nursery):
    tree = MemoryTree()

    async def open_one(*, is_following=True):
        store = MemoryStore(tree)
        await nursery.start(store.run)
        documents = WatchedDocuments(store, PATH, json.loads)
        documents.told = []
        documents.on_change = documents.told.append
        await documents.load()
        if is_following:
            await nursery.start(documents.run)
        return store, documents

    return open_one


async def settled():
    await trio.testing.wait_all_tasks_blocked(0.002)


def set_to(value):
    return lambda before: json.dumps(value).encode()


async def test_all_that_is_stored_is_read_at_the_start_in_portions(open_documents, monkeypatch):
    monkeypatch.setattr(watched_documents, "READ_COUNT", 3)
    _, one = await open_documents()
    for number in range(10):
        await one.change(f"ä/{number}", set_to([number]))
    _, two = await open_documents(is_following=False)
    assert dict(two.items()) == dict(one.items()) == {f"ä/{n}": [n] for n in range(10)}
    assert len(two) == 10


async def test_what_is_emptied_stays_as_a_node_and_what_is_removed_does_not(open_documents):
    store, one = await open_documents()
    _, two = await open_documents()
    await one.change("a", set_to([1]))
    await one.change("b", set_to([2]))
    await settled()
    await two.change("a", lambda before: EMPTY)
    await two.remove("b")
    await two.remove("b")
    assert dict(two.items()) == {}
    await settled()
    assert dict(one.items()) == {}
    assert await store.children(PATH) == ["61"]
    assert one.told == ["a", "b", "a", "b"]
    await one.change("a", lambda before: None if before is None else EMPTY)
    assert (await store.get(f"{PATH}/61")).data == EMPTY


async def test_a_change_is_decided_on_what_is_stored_and_not_on_what_is_remembered(open_documents):
    _, one = await open_documents(is_following=False)
    _, two = await open_documents(is_following=False)
    await one.change("a", set_to([1]))
    seen = []
    await two.change("a", lambda before: seen.append(before) or set_to([*before, 2])(before))
    assert seen == [[1]]
    assert two.get("a") == [1, 2]
    assert one.get("a") == [1]
    await one.change("a", lambda before: set_to([*before, 3])(before))
    assert one.get("a") == [1, 2, 3]


async def test_a_hundred_changes_by_two_are_all_made(open_documents):
    _, one = await open_documents()
    _, two = await open_documents()

    async def add(documents):
        for _ in range(50):
            await documents.change("a", lambda before: set_to([sum(before or [0]) + 1])(before))

    async with trio.open_nursery() as both:
        both.start_soon(add, one)
        both.start_soon(add, two)
    await settled()
    assert one.get("a") == two.get("a") == [100]


async def test_after_a_lost_session_all_is_read_again(open_documents):
    store, one = await open_documents()
    _, two = await open_documents()
    await two.change("a", set_to([1]))
    await settled()
    store.expire_session()
    await two.change("a", set_to([2]))
    await two.change("b", set_to([3]))
    await two.remove("a")
    await settled()
    assert dict(one.items()) == {"b": [3]}


@pytest.mark.parametrize("error", [MetadataUnavailableError, MetadataUnknownOutcomeError])
async def test_what_metadata_does_not_answer_is_told_and_not_remembered(
    open_documents, monkeypatch, error
):
    _, one = await open_documents(is_following=False)
    monkeypatch.setattr(MemoryStore, "create", functools.partial(_away, error))
    with pytest.raises(error):
        await one.change("a", set_to([1]))
    assert one.get("a") is None
    assert one.told == []


async def _away(error, path, *arguments, **options):
    raise error(str(path))


async def test_what_is_damaged_is_as_if_it_were_not_there_until_it_is_put_right(
    open_documents, caplog
):
    store, one = await open_documents()
    await store.create(f"{PATH}/61", b"{", make_parents=True)
    await settled()
    assert one.get("a") is None
    assert "document_not_understood" in caplog.text
    await one.change("a", set_to([1]))
    assert one.get("a") == [1]


async def test_a_read_that_is_older_than_memory_is_not_taken(open_documents, monkeypatch):
    _, one = await open_documents()
    store, _ = await open_documents(is_following=False)
    values = []
    one.on_change = lambda name: values.append(one.get(name))
    may_answer, is_asked = trio.Event(), trio.Event()
    get_many = MemoryStore.get_many

    async def slowly(store, paths):
        found = await get_many(store, paths)
        if not is_asked.is_set() and paths:
            is_asked.set()
            await may_answer.wait()
        return found

    monkeypatch.setattr(MemoryStore, "get_many", slowly)
    with trio.fail_after(5):
        await store.create(f"{PATH}/61", b"[1]", make_parents=True)
        await is_asked.wait()
        await one.change("a", set_to([2]))
        may_answer.set()
    await settled()
    assert values == [[2]]


async def test_metadata_is_asked_to_catch_up_before_a_change_is_decided(
    open_documents, monkeypatch
):
    """What another broker made a moment ago is not there in an older read, and nothing would be
    refused that is not written."""
    _, one = await open_documents(is_following=False)
    _, two = await open_documents(is_following=False)
    await two.change("a", set_to([1]))
    get, sync, caught_up = MemoryStore.get, MemoryStore.sync, []

    async def old_get(store, path):
        if not caught_up:
            raise NoNodeError(path)
        return await get(store, path)

    async def noted_sync(store, path):
        caught_up.append(path)
        await sync(store, path)

    monkeypatch.setattr(MemoryStore, "get", old_get)
    monkeypatch.setattr(MemoryStore, "sync", noted_sync)
    seen = []
    await one.change("a", seen.append)
    assert seen == [[1]]
