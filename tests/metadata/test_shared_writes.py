"""Changes that share requests: how many these are, and that each change keeps its own outcome."""

import pytest
import trio

from metadata import shared_writes
from metadata.memory import MemoryStore, MemoryTree
from metadata.shared_writes import BYTES_MAX, CHANGES_MAX, TOLD_PER_TURN, SharedWrites
from metadata.store import (
    BadVersionError,
    CreateOp,
    MetadataClosedError,
    MetadataUnavailableError,
    MetadataUnknownOutcomeError,
    NodeExistsError,
    NoNodeError,
    PutOp,
)
from runtime.slices import Slices


class Slow(MemoryStore):
    """A request takes a second; `asked` has the number of each one's operations."""

    def __init__(self):
        super().__init__(MemoryTree())
        self.asked = []
        #: Of the last one.
        self.ops = []
        #: Raised by the next requests, in turn; with True the request is done before.
        self.failures = []

    async def put(self, path, data, version):
        await self._before([PutOp(path, data, version)])
        return await super().put(path, data, version)

    async def multi(self, ops):
        await self._before(ops)
        await super().multi(ops)

    async def _before(self, ops):
        self.asked.append(len(ops))
        self.ops = ops
        await trio.sleep(1)
        if self.failures:
            error, is_done = self.failures.pop(0)
            if is_done:
                await super().multi(ops)
            raise error


@pytest.fixture
async def store(autojump_clock):
    store = Slow()
    for number in range(300):
        await store.create(f"/n-{number}")
    return store


async def put_all(writes, numbers, outcomes, data=b"x"):
    async def one(number):
        try:
            outcomes[number] = await writes.put(f"/n-{number}", data, 0)
        except Exception as error:  # of every kind: the test looks at it
            outcomes[number] = error

    async with trio.open_nursery() as nursery:
        for number in numbers:
            nursery.start_soon(one, number)


async def test_one_by_itself_is_an_ordinary_put(autojump_clock, store):
    assert await SharedWrites(store).put("/n-0", b"x", 0) == 1
    assert store.asked == [1]
    with pytest.raises(BadVersionError):
        await SharedWrites(store).put("/n-0", b"y", 0)


async def test_those_that_come_together_share_requests(autojump_clock, store):
    outcomes = {}
    await put_all(SharedWrites(store), range(300), outcomes)
    assert outcomes == dict.fromkeys(range(300), 1)
    assert store.asked == [CHANGES_MAX, 300 - CHANGES_MAX]
    nodes = await store.get_many([f"/n-{number}" for number in range(300)])
    assert {(node.data, node.version) for node in nodes} == {(b"x", 1)}


async def test_a_request_has_a_size(autojump_clock, store):
    outcomes = {}
    await put_all(SharedWrites(store), range(6), outcomes, bytes(BYTES_MAX * 2 // 5))
    assert store.asked == [2, 2, 2]
    await put_all(SharedWrites(store), [7, 8], outcomes, bytes(BYTES_MAX + 1))
    assert store.asked[3:] == [1, 1], "one that is larger goes by itself"
    assert set(outcomes.values()) == {1}


async def test_each_hears_its_own_refusal(autojump_clock, store):
    """The others are done, though what they shared was refused."""
    await store.put("/n-3", b"somebody else", 0)
    await store.delete("/n-5")
    outcomes = {}
    await put_all(SharedWrites(store), range(10), outcomes)
    assert isinstance(outcomes.pop(3), BadVersionError)
    missing = outcomes.pop(5)
    assert isinstance(missing, NoNodeError)
    assert missing.path == "/n-5"
    assert set(outcomes.values()) == {1}
    assert (await store.get("/n-3")).data == b"somebody else"


async def test_a_change_of_several_ops_stays_whole(autojump_clock, store):
    writes = SharedWrites(store)
    await store.create("/taken")
    errors = []

    async def change(number, new):
        try:
            await writes.multi([PutOp(f"/n-{number}", b"x", 0), CreateOp(new)])
        except NodeExistsError as error:
            errors.append((number, error.path))

    async with trio.open_nursery() as nursery:
        for number, new in enumerate(["/a", "/taken", "/b"]):
            nursery.start_soon(change, number, new)
    assert errors == [(1, "/taken")]
    assert [(await store.get(f"/n-{number}")).version for number in range(3)] == [1, 0, 1]
    assert await store.exists("/a")
    assert await store.exists("/b")


@pytest.mark.parametrize(
    ("kind", "is_done"),
    [
        (MetadataUnavailableError, False),
        (MetadataClosedError, False),
        (MetadataUnknownOutcomeError, False),
        (MetadataUnknownOutcomeError, True),
    ],
)
async def test_what_nobody_knows_is_not_sent_again(autojump_clock, store, kind, is_done):
    outcomes = {}
    store.failures = [(kind("/n-0", "lost"), is_done)]
    await put_all(SharedWrites(store), range(5), outcomes)
    assert {type(each) for each in outcomes.values()} == {kind}
    assert [each.path for _, each in sorted(outcomes.items())] == [f"/n-{n}" for n in range(5)]
    assert store.asked == [5]


async def test_when_the_one_who_writes_is_cancelled(autojump_clock, store, nursery):
    """Those of its request cannot know whether it was sent; those who wait go on."""
    writes, outcomes = SharedWrites(store), {}
    nursery.start_soon(put_all, writes, [0], outcomes)
    await trio.sleep(0.5)  # the others come together, after it
    scopes = [trio.CancelScope() for _ in range(3)]

    async def one(number):
        with scopes[number - 1]:
            await put_all(writes, [number], outcomes)

    for number in (1, 2, 3):
        nursery.start_soon(one, number)
    await trio.sleep(1)
    assert store.asked == [1, 3]
    asked_first = store.ops[0].path
    nursery.start_soon(put_all, writes, [10, 11], outcomes)
    await trio.sleep(0.1)
    assert len(store.asked) == 2, "one request at a time"
    # Who of them sends it is the first that asked.
    sender = int(asked_first.removeprefix("/n-"))
    scopes[sender - 1].cancel()
    await trio.sleep(5)
    unknown = {n for n, each in outcomes.items() if isinstance(each, MetadataUnknownOutcomeError)}
    assert unknown == {1, 2, 3} - {sender}
    assert {number: outcomes[number] for number in (0, 10, 11)} == {0: 1, 10: 1, 11: 1}


async def test_one_that_is_cancelled_while_it_waits_is_never_sent(autojump_clock, store, nursery):
    writes = SharedWrites(store)
    nursery.start_soon(writes.put, "/n-0", b"x", 0)
    await trio.sleep(0.5)
    with trio.move_on_after(0.2):
        await writes.put("/n-1", b"x", 0)
    await trio.sleep(5)
    assert (await store.get("/n-1")).version == 0
    await writes.put("/n-1", b"x", 0)


async def test_one_that_is_cancelled_when_it_is_its_turn_leaves_it_to_the_next(
    autojump_clock, store, monkeypatch, nursery
):
    writes, outcomes, scope = SharedWrites(store), {}, trio.CancelScope()

    async def put_and_cancel(path, data, version):
        await trio.sleep(1)
        done = await MemoryStore.put(store, path, data, version)
        scope.cancel()  # who waits runs after the one whose request this is
        return done

    async def cancelled():
        with scope:
            await put_all(writes, [1], outcomes)

    monkeypatch.setattr(store, "put", put_and_cancel)
    nursery.start_soon(put_all, writes, [0], outcomes)
    await trio.sleep(0.2)
    nursery.start_soon(cancelled)
    await trio.sleep(0.2)
    with trio.fail_after(5):
        await put_all(writes, [2], outcomes)
    assert outcomes == {0: 1, 2: 1}


async def test_who_was_told_goes_on_in_slices(autojump_clock, store, monkeypatch):
    """Each wakes a task: all of them would be one turn of the loop."""
    done, done_before_turns = [], []

    class Watched(Slices):
        async def turn(self):
            done_before_turns.append(len(done))
            await super().turn()

    monkeypatch.setattr(shared_writes, "Slices", Watched)
    writes = SharedWrites(store)

    async def one(number):
        await writes.put(f"/n-{number}", b"x", 0)
        done.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(CHANGES_MAX):
            nursery.start_soon(one, number)
    assert len(done_before_turns) == (CHANGES_MAX - 1) // TOLD_PER_TURN
    for turns, count in enumerate(done_before_turns):
        assert count <= turns * TOLD_PER_TURN
