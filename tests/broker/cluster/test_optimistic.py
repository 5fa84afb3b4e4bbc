"""The loop of optimistic concurrency under rivals and lost answers: nothing is lost or made twice.

The store is real (in memory); what is between it and who changes something fails as it is told."""

import json

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from broker.cluster import optimistic
from metadata.memory import MemoryStore, MemoryTree
from metadata.store import (
    MetadataUnavailableError,
    MetadataUnknownOutcomeError,
    Node,
    NoNodeError,
)

PATH = "/list"

#: What becomes of a write: done; done, and the answer is lost; lost on the way there; or a rival
#: writes before it.
EVENTS = ("done", "answer lost", "request lost", "rival")


class Author:
    """Adds its name to the list of authors, which is the node's data."""

    def __init__(self, name, tree, events):
        self.name = name
        self.tree = tree
        self.store = MemoryStore(tree)
        self.events = list(events)
        self.rivals = []
        self.seen = None
        self.looks = 0
        self.decided_on = []

    async def look(self, before=None):
        self.looks += 1
        await trio.lowlevel.checkpoint()  # others write meanwhile
        try:
            self.seen = await self.store.get(PATH)
        except NoNodeError:
            self.seen = None
        return False

    def decide(self, node):
        self.decided_on.append(node)
        names = [] if node is None else json.loads(node.data)
        return None if self.name in names else [*names, self.name]

    async def put(self, node, names):
        data = json.dumps(names).encode()
        if node is None:
            await self.store.create(PATH, data)
        else:
            await self.store.put(PATH, data, node.version)

    async def write(self, node, names):
        await trio.lowlevel.checkpoint()
        event = self.events.pop(0) if self.events else "done"
        if event == "request lost":
            raise MetadataUnknownOutcomeError(PATH)
        if event == "rival":
            rival = Author(f"rival {len(self.rivals)} of {self.name}", self.tree, ())
            self.rivals.append(rival.name)
            await rival.change()
        await self.put(node, names)
        if event == "answer lost":
            raise MetadataUnknownOutcomeError(PATH)

    async def change(self, **options):
        await self.look()
        # A change that sees nothing newer fails, and does not run for ever.
        bound = optimistic.ATTEMPTS_MAX
        options = {"recognise": self.look, "attempts_max": bound, **options}
        return await optimistic.change(
            lambda: self.seen, self.decide, self.write, look_again=self.look, **options
        )


async def stored(tree):
    try:
        return json.loads((await MemoryStore(tree).get(PATH)).data)
    except NoNodeError:
        return []


async def test_who_was_too_late_decides_on_what_the_rival_wrote():
    author = Author("me", MemoryTree(), ["rival"])
    assert await author.change(attempts_max=2) == ["rival 0 of me", "me"]
    assert [node and json.loads(node.data) for node in author.decided_on] == [
        None,
        ["rival 0 of me"],
    ]


#: All failures of four of them are fewer than ATTEMPTS_MAX.
scripts = st.lists(st.sampled_from(EVENTS), max_size=8)


@given(st.lists(scripts, min_size=1, max_size=4))
def test_each_change_is_made_once_and_none_is_lost(scripts):
    """All at once on one node: what is decided again knows its own work."""

    async def main():
        tree = MemoryTree()
        authors = [Author(str(number), tree, events) for number, events in enumerate(scripts)]
        async with trio.open_nursery() as nursery:
            for author in authors:
                nursery.start_soon(author.change)
        names = await stored(tree)
        made = [name for author in authors for name in (author.name, *author.rivals)]
        assert sorted(names) == sorted(made)

    trio.run(main)


@given(scripts)
def test_who_cannot_tell_hears_of_the_loss(events):
    """Without `recognise` the change is made once, or an error says that nobody knows."""

    async def main():
        tree = MemoryTree()
        author = Author("me", tree, events)
        lost = next((event for event in events if event != "rival"), "done")
        try:
            decided = await author.change(recognise=None)
        except MetadataUnknownOutcomeError:
            assert lost in ("answer lost", "request lost")
            assert (await stored(tree)).count("me") == (lost == "answer lost")
        else:
            assert lost == "done"
            assert await stored(tree) == decided
            assert decided.count("me") == 1

    trio.run(main)


@given(scripts)
def test_every_decision_is_on_something_newer(events):
    """What was seen before a write that failed is never decided on again, but after a request
    that did not arrive: then it is still what is stored."""

    async def main():
        author = Author("me", MemoryTree(), events)
        await author.change()
        versions = [-1 if node is None else node.version for node in author.decided_on]
        assert versions == sorted(versions)
        again = len(versions) - len(set(versions))
        assert again <= events.count("request lost")
        assert author.looks == len(versions)

    trio.run(main)


async def test_one_who_recognises_its_work_does_not_decide_again():
    author = Author("me", MemoryTree(), ["answer lost"])

    async def recognise(before):
        await author.look()
        return "me" in json.loads(author.seen.data)

    assert await author.change(recognise=recognise) == ["me"]
    assert len(author.decided_on) == 1


async def test_a_decision_for_nothing_writes_nothing():
    tree = MemoryTree()
    author = Author("me", tree, [])
    author.decide = lambda node: None
    assert await author.change() is None
    assert await stored(tree) == []


async def test_too_many_lost_races_are_an_outage():
    tree = MemoryTree()
    author = Author("me", tree, ["rival"] * 9)
    with pytest.raises(MetadataUnavailableError, match="changed 3 times meanwhile"):
        await author.change(attempts_max=3)
    assert len(await stored(tree)) == 3
    assert await author.change(attempts_max=7)


async def test_what_a_decision_raises_ends_it():
    author = Author("me", MemoryTree(), ["rival"])

    def refuse(node):
        if node is not None:
            raise ValueError("not on top of another")
        return ["me"]

    author.decide = refuse
    with pytest.raises(ValueError, match="not on top"):
        await author.change()


@pytest.mark.parametrize(
    ("event", "is_done"), [("done", True), ("answer lost", False), ("request lost", False)]
)
async def test_one_attempt_is_for_sure_or_not(event, is_done):
    author = Author("me", MemoryTree(), [event])
    assert await optimistic.attempt(author.write(None, ["me"])) is is_done


async def test_one_attempt_on_what_is_old_is_refused():
    author = Author("me", MemoryTree(), [])
    await author.put(None, ["other"])
    assert not await optimistic.attempt(author.put(Node(b"[]", 7), ["me"]))
    assert not await optimistic.attempt(author.put(None, ["me"]))
