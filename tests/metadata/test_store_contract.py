"""What every MetadataStore must do (metadata/store.py). The fixture `store` is parametrised."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from metadata.store import (
    BadVersionError,
    CheckOp,
    CreateOp,
    DeleteOp,
    MetadataClosedError,
    MetadataError,
    Node,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    PutOp,
    SessionState,
)


async def test_a_node_from_birth_to_death(store):
    assert await store.create("/a", b"one") == "/a"
    assert await store.get("/a") == Node(b"one", 0)
    assert await store.put("/a", b"two", 0) == 1
    assert await store.put("/a", b"three", -1) == 2
    assert await store.get("/a") == Node(b"three", 2)
    assert await store.exists("/a")
    await store.delete("/a", 2)
    assert not await store.exists("/a")
    with pytest.raises(NoNodeError, match="/a"):
        await store.get("/a")
    await store.create("/a", b"again")
    assert await store.get("/a") == Node(b"again", 0)


async def test_a_put_must_name_the_version(store):
    await store.create("/a", b"one")
    await store.put("/a", b"two", 0)
    for version in (0, 2, 7):
        with pytest.raises(BadVersionError, match=r"version is (1, expected|not) "):
            await store.put("/a", b"lost", version)
    assert await store.get("/a") == Node(b"two", 1)
    with pytest.raises(NoNodeError):
        await store.put("/b", b"", -1)


async def test_a_delete_must_name_the_version_and_have_no_children(store):
    await store.create("/a")
    await store.create("/a/b")
    with pytest.raises(BadVersionError):
        await store.delete("/a/b", 1)
    with pytest.raises(NotEmptyError):
        await store.delete("/a")
    await store.delete("/a/b", 0)
    await store.delete("/a")
    with pytest.raises(NoNodeError):
        await store.delete("/a")


async def test_creating_twice_or_without_a_parent(store):
    await store.create("/a", b"x")
    with pytest.raises(NodeExistsError):
        await store.create("/a", b"y")
    assert (await store.get("/a")).data == b"x"
    with pytest.raises(NoNodeError, match="/b"):
        await store.create("/b/c", b"")
    with pytest.raises(NodeExistsError):
        await store.create("/", b"")


async def test_parents_are_made_on_demand(store):
    assert await store.create("/a/b/c/d", b"leaf", make_parents=True) == "/a/b/c/d"
    assert await store.get("/a/b") == Node(b"", 0)
    assert await store.get("/a/b/c/d") == Node(b"leaf", 0)
    await store.create("/a/b/c/e", b"", make_parents=True)
    assert await store.children("/a/b/c") == ["d", "e"]


async def test_children_are_names_in_order(store):
    assert await store.children("/") == []
    for name in ("m", "a", "Z", "é", "a0", "a-"):
        await store.create(f"/{name}")
    await store.create("/a/inner")
    assert await store.children("/") == sorted(["m", "a", "Z", "é", "a0", "a-"])
    assert await store.children("/a") == ["inner"]
    assert await store.children("/m") == []
    with pytest.raises(NoNodeError):
        await store.children("/nobody")


async def test_sequence_numbers_rise_and_are_never_used_again(store):
    await store.create("/ids")
    made = [await store.create("/ids/ID-", sequence=True) for _ in range(3)]
    assert made == [f"/ids/ID-{n:010d}" for n in range(3)]
    for path in made:
        await store.delete(path)
    later = await store.create("/ids/ID-", b"data", sequence=True)
    assert int(later[-10:]) >= 3
    assert (await store.get(later)).data == b"data"
    assert await store.create("/s/n-", sequence=True, make_parents=True) == "/s/n-0000000000"
    assert await store.create("/s/", sequence=True) == "/s/0000000001"
    with pytest.raises(NoNodeError):
        await store.create("/nobody/n-", sequence=True)


async def test_numbers_are_taken_as_by_nodes(store):
    assert await store.take_numbers("/ids/ID-", 3) == [0, 1, 2]
    assert await store.children("/ids") == []
    assert await store.create("/ids/ID-", sequence=True, ephemeral=True) == "/ids/ID-0000000003"
    assert await store.take_numbers("/ids/ID-", 1) == [4]
    assert await store.take_numbers("/ids/other-", 2) == [5, 6]
    assert await store.children("/ids") == ["ID-0000000003"]
    await store.create("/mine", ephemeral=True)
    with pytest.raises(MetadataError, match="/mine"):
        await store.take_numbers("/mine/ID-", 2)


async def test_numbers_taken_at_once_are_nobody_elses(harness):
    store = await harness.open()
    other = await harness.beside(store)
    taken = []

    async def take(one, count):
        taken.extend(await one.take_numbers("/deep/ids/ID-", count))

    async def make(one):
        made = await one.create("/deep/ids/ID-", sequence=True, ephemeral=True, make_parents=True)
        taken.append(int(made.removeprefix("/deep/ids/ID-")))

    async with trio.open_nursery() as nursery:
        for one in (store, other):
            nursery.start_soon(take, one, 20)
            nursery.start_soon(take, one, 1)
            nursery.start_soon(make, one)
    assert sorted(taken) == list(range(44))
    await other.aclose()
    await store.aclose()


async def test_numbers_survive_the_session(harness):
    store = await harness.open()
    first = (await store.take_numbers("/ids/n-", 5))[-1]
    await store.aclose()
    store = await harness.open()
    assert await store.take_numbers("/ids/n-", 1) == [first + 1]
    await store.aclose()


async def test_sequence_numbers_survive_the_session(harness):
    store = await harness.open()
    await store.create("/ids")
    first = await store.create("/ids/n-", sequence=True, ephemeral=True)
    await store.aclose()
    store = await harness.open()
    assert await store.children("/ids") == []
    assert await store.create("/ids/n-", sequence=True) > first
    await store.aclose()


async def test_ephemeral_nodes_end_with_the_session(harness):
    store = await harness.open()
    await store.create("/available")
    await store.create("/available/bookie", b"here", ephemeral=True)
    await store.create("/available/lasting", b"there")
    assert await store.children("/available") == ["bookie", "lasting"]
    with pytest.raises(MetadataError, match="ephemeral"):
        await store.create("/available/bookie/child")
    await store.aclose()
    store = await harness.open()
    assert await store.children("/available") == ["lasting"]
    assert await store.get("/available/lasting") == Node(b"there", 0)
    await store.aclose()


async def test_many_at_once(store):
    for n in range(5):
        await store.create(f"/n{n}", b"%d" % n)
    found = await store.get_many(["/n3", "/missing", "/n0", "/n3"])
    assert found == [Node(b"3", 0), None, Node(b"0", 0), Node(b"3", 0)]
    assert await store.get_many([]) == []


async def test_multi_does_all(store):
    await store.create("/a", b"1")
    await store.create("/old")
    await store.multi(
        [
            PutOp("/a", b"2", 0),
            DeleteOp("/old"),
            CreateOp("/new", b"n"),
            CreateOp("/new/child/deep", b"d", make_parents=True),
            PutOp("/new", b"m", 0),
        ]
    )
    assert await store.get("/a") == Node(b"2", 1)
    assert not await store.exists("/old")
    assert await store.get("/new") == Node(b"m", 1)
    assert (await store.get("/new/child/deep")).data == b"d"
    await store.multi([])


async def test_multi_does_nothing_if_one_is_refused(store):
    await store.create("/a", b"1")
    await store.create("/b", b"1")
    with pytest.raises(BadVersionError) as raised:
        await store.multi(
            [
                CreateOp("/c"),
                CreateOp("/c/n-"),
                PutOp("/a", b"2", 0),
                DeleteOp("/b"),
                PutOp("/a", b"3", 0),
            ]
        )
    assert raised.value.path == "/a"
    assert await store.get("/a") == Node(b"1", 0)
    assert await store.get("/b") == Node(b"1", 0)
    assert await store.children("/") == ["a", "b"]
    with pytest.raises(NodeExistsError):
        await store.multi([DeleteOp("/b"), CreateOp("/a")])
    assert await store.exists("/b")
    with pytest.raises(NoNodeError):
        await store.multi([PutOp("/nobody", b"", 0)])


async def test_multi_checks_what_it_does_not_change(store):
    await store.create("/a", b"1")
    await store.create("/id", b"x")
    await store.multi([CheckOp("/id"), CheckOp("/id", 0), PutOp("/a", b"2", 0)])
    assert await store.get("/a") == Node(b"2", 1)
    assert await store.get("/id") == Node(b"x", 0)
    with pytest.raises(BadVersionError) as raised:
        await store.multi([PutOp("/a", b"3", 1), CheckOp("/id", 1)])
    assert raised.value.path == "/id"
    with pytest.raises(NoNodeError) as raised:
        await store.multi([PutOp("/a", b"3", 1), CheckOp("/nobody")])
    assert raised.value.path == "/nobody"
    assert await store.get("/a") == Node(b"2", 1)
    # It sees what the ops before it do.
    ops = [CreateOp("/new"), CheckOp("/new", 0), PutOp("/id", b"y", 0), CheckOp("/id", 1)]
    await store.multi(ops)
    with pytest.raises(NoNodeError):
        await store.multi([DeleteOp("/new"), CheckOp("/new")])
    assert await store.exists("/new")
    await store.multi([CheckOp("/new", 0)])


async def test_a_node_made_anew_is_told_from_the_old_one_by_a_check(store):
    """The version alone does not tell: deleted and made again it starts at 0 (ABA)."""
    await store.multi([CreateOp("/name", b"first"), CreateOp("/id-1")])
    seen = await store.get("/name")
    await store.multi([DeleteOp("/name", 0), DeleteOp("/id-1")])
    await store.multi([CreateOp("/name", b"second"), CreateOp("/id-2")])
    assert (await store.get("/name")).version == seen.version
    with pytest.raises(NoNodeError):
        await store.multi([CheckOp("/id-1", 0), PutOp("/name", b"of the first", seen.version)])
    assert await store.get("/name") == Node(b"second", 0)


async def test_multi_counts_children_only_if_it_happened(store):
    await store.create("/s")
    with pytest.raises(NoNodeError):
        await store.multi([CreateOp("/s/x"), DeleteOp("/nobody")])
    assert await store.create("/s/n-", sequence=True) == "/s/n-0000000000"


async def test_one_of_many_rivals_wins(store):
    await store.create("/a", b"")
    outcomes = []

    async def rival(n):
        try:
            outcomes.append((n, await store.put("/a", b"%d" % n, 0)))
        except BadVersionError:
            outcomes.append((n, None))

    async with trio.open_nursery() as nursery:
        for n in range(20):
            nursery.start_soon(rival, n)
    winners = [n for n, version in outcomes if version == 1]
    assert len(outcomes) == 20
    assert len(winners) == 1
    assert await store.get("/a") == Node(b"%d" % winners[0], 1)


async def _fires(watch):
    """Whether the watch tells of a change, however long a server takes to say so."""
    with trio.move_on_after(30) as scope:
        await watch.changed()
    return not scope.cancelled_caught


async def _stays_quiet(watch):
    """Whether the watch tells of none, without waiting for one yet to come."""
    with trio.move_on_after(0.2) as scope:
        await watch.changed()
    return scope.cancelled_caught


async def test_a_watch_tells_of_every_kind_of_change(store):
    watch = store.watch("/a")
    await store.create("/a")
    assert await _fires(watch)
    await store.put("/a", b"1", 0)
    await store.put("/a", b"2", 1)
    # A store that is told by a server may hear of the second change a round trip after its end,
    # and looks what it was in another one.
    for _ in range(2):
        await store.exists("/a")
    assert await _fires(watch)
    assert await _stays_quiet(watch)
    await store.create("/a/child")
    assert await _stays_quiet(watch)
    await store.delete("/a/child")
    await store.delete("/a")
    assert await _fires(watch)
    watch.close()
    watch.close()


async def test_a_childrens_watch_tells_of_names_only(store):
    await store.create("/a")
    watch = store.watch_children("/a")
    await store.create("/a/b")
    assert await _fires(watch)
    await store.put("/a/b", b"data", 0)
    await store.put("/a", b"data", 0)
    await store.create("/a/b/grandchild")
    assert await _stays_quiet(watch)
    await store.delete("/a/b/grandchild")
    await store.delete("/a/b")
    assert await _fires(watch)
    watch.close()


async def test_a_watch_wakes_one_who_waits(store):
    watch = store.watch("/a")
    seen = []

    async def waiter():
        await watch.changed()
        seen.append(await store.exists("/a"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(waiter)
        await wait_all_tasks_blocked()
        assert seen == []
        await store.create("/a")
    assert seen == [True]


async def test_multi_fires_watches_only_if_it_happened(store):
    await store.create("/a")
    watch = store.watch("/a")
    with pytest.raises(NoNodeError):
        await store.multi([PutOp("/a", b"", 0), DeleteOp("/nobody")])
    assert await _stays_quiet(watch)
    await store.multi([PutOp("/a", b"", 0)])
    assert await _fires(watch)


async def test_watches_fire_when_the_session_ends(store):
    watch = store.watch("/a")
    await store.aclose()
    assert await _fires(watch)


@pytest.mark.parametrize(
    "path", ["", "a", "/a/", "//", "/a//b", "/a/../b", "/.", "/a\0b", "/\ud800"]
)
async def test_bad_paths_are_refused(store, path):
    for call in (store.get, store.exists, store.create, store.children, store.delete):
        with pytest.raises(ValueError, match=r"path|surrogates"):
            await call(path)
    with pytest.raises(ValueError, match=r"path|surrogates"):
        await store.multi([CreateOp(path)])
    with pytest.raises(ValueError, match=r"path|surrogates"):
        store.watch(path)


async def test_the_root_stays(store):
    with pytest.raises(MetadataError, match="root"):
        await store.delete("/")
    assert await store.put("/", b"data", -1) == 1
    assert (await store.get("/")).data == b"data"


async def test_a_closed_store_says_so(store):
    await store.aclose()
    await store.aclose()
    with pytest.raises(MetadataClosedError, match="closed"):
        await store.get("/a")


async def test_data_of_any_bytes_and_size(store):
    data = bytes(range(256)) * 2_000
    await store.create("/big", data)
    assert (await store.get("/big")).data == data
    await store.put("/big", b"", 0)
    assert await store.get("/big") == Node(b"", 1)


async def test_who_owns_an_ephemeral_node(harness):
    store = await harness.open()
    await store.create("/mine", ephemeral=True)
    await store.create("/lasting")
    assert await store.owns("/mine")
    assert not await store.owns("/lasting")
    assert not await store.owns("/missing")
    with pytest.raises(ValueError, match="path"):
        await store.owns("x")
    await store.aclose()


async def test_listeners_are_told_of_the_end(harness):
    store = await harness.open()
    told, once = [], []
    store.subscribe(told.append)
    end = store.subscribe(once.append)
    store.subscribe(told.append)
    end()
    end()
    await store.aclose()
    assert told == [SessionState.LOST] * 2
    assert once == []


async def test_a_watch_of_children_may_come_before_the_parent(store):
    watch = store.watch_children("/late")
    await store.create("/late", b"")
    assert await _stays_quiet(watch)
    await store.create("/late/child", b"")
    assert await _fires(watch)
    await store.delete("/late/child")
    assert await _fires(watch)
    await store.delete("/late")
    await store.create("/late/again", make_parents=True)
    assert await _fires(watch)
    watch.close()


async def test_two_watches_of_one_node_are_told_each(store):
    await store.create("/a")
    first, second = store.watch("/a"), store.watch("/a")
    await store.put("/a", b"1", 0)
    assert await _fires(first)
    assert await _fires(second)
    first.close()
    await store.put("/a", b"2", 1)
    assert await _fires(second)
    second.close()
    third = store.watch("/a")
    await store.put("/a", b"3", 2)
    assert await _fires(third)


async def test_multi_with_parents_of_its_own_and_nodes_that_go(store):
    await store.create("/x/y", make_parents=True)
    await store.multi(
        [
            DeleteOp("/x/y"),
            DeleteOp("/x"),
            CreateOp("/x/z/deep", b"1", make_parents=True),
            CreateOp("/x/z/other", b"2", make_parents=True),
            CreateOp("/p/q", b"3", make_parents=True),
        ]
    )
    assert await store.children("/x/z") == ["deep", "other"]
    assert await store.children("/x") == ["z"]
    assert (await store.get("/p/q")).data == b"3"
    with pytest.raises(NodeExistsError) as raised:
        await store.multi([CreateOp("/n/m", make_parents=True), CreateOp("/p/q")])
    assert raised.value.path == "/p/q"
    assert not await store.exists("/n")
    with pytest.raises(NodeExistsError):
        await store.multi([CreateOp("/")])
    with pytest.raises(MetadataError, match="root"):
        await store.multi([DeleteOp("/")])


async def test_a_thousand_at_once(store):
    """More than there are slots for, in one burst."""
    await store.create("/t")
    made = []

    async def make(n):
        made.append(await store.create(f"/t/{n:04d}", b"%d" % n))

    async with trio.open_nursery() as nursery:
        for n in range(1_200):
            nursery.start_soon(make, n)
    assert sorted(made) == [f"/t/{n:04d}" for n in range(1_200)]
    nodes = await store.get_many([f"/t/{n:04d}" for n in range(1_200)])
    assert [node.data for node in nodes] == [b"%d" % n for n in range(1_200)]


async def test_what_others_changed_is_read_after_a_sync(store, harness):
    other = await harness.beside(store)
    for number in range(10):
        await other.create(f"/folder/{number}", b"it", make_parents=True)
        if number % 2:
            await other.delete(f"/folder/{number}")
        await store.sync(f"/folder/{number}")
        assert await store.exists(f"/folder/{number}") == (number % 2 == 0)
        assert len(await store.children("/folder")) == number // 2 + 1
    await other.aclose()


async def test_what_others_changed_is_read_after_a_refusal(store, harness):
    """Whoever lost a compare-and-set reads what he lost it to."""
    other = await harness.beside(store)
    await store.create("/a", b"one")
    await other.put("/a", b"two", 0)
    with pytest.raises(BadVersionError):
        await store.put("/a", b"mine", 0)
    assert await store.get("/a") == Node(b"two", 1)
    await other.create("/b", b"theirs")
    with pytest.raises(NodeExistsError):
        await store.create("/b", b"mine")
    assert (await store.get_many(["/b"]))[0] == Node(b"theirs", 0)
    await other.delete("/b")
    with pytest.raises(NoNodeError):
        await store.multi([CheckOp("/b", 0)])
    assert not await store.exists("/b")
    await other.aclose()


async def test_what_a_watch_told_of_is_read(store, harness):
    other = await harness.beside(store)
    await store.create("/a", b"one")
    watch = store.watch("/a")
    assert (await store.get("/a")).data == b"one"
    await other.put("/a", b"two", 0)
    with trio.fail_after(30):
        await watch.changed()
    assert (await store.get("/a")).data == b"two"
    watch.close()
    await other.aclose()


async def test_a_sync_asks_for_no_node_and_changes_nothing(store):
    await store.sync("/not/there")
    await store.sync("/")
    assert not await store.exists("/not")
    with pytest.raises(ValueError, match="start"):
        await store.sync("nowhere")
    await store.aclose()
    with pytest.raises(MetadataClosedError):
        await store.sync("/a")
