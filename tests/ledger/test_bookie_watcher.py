"""Whose address it is: registrations that come and go, and bookies that take others' places."""

import pytest
import trio

from ledger.bookie_watcher import BookieWatcher, Place
from ledger.network.client import NetworkBookieClient
from metadata.memory import MemoryStore
from tests.ledger.network_node import Node
from tests.ledger.real_parts import networked
from wire.bookkeeper.entry import Digest, DigestType
from wire.bookkeeper.records import (
    BookieServiceInfo,
    Endpoint,
    encode_service_info,
    parse_service_info,
)
from wire.bookkeeper.requests import AuthRequest
from wire.bookkeeper.status import FLAG_DO_FENCING, Status


async def register(store, name, host, port, parent="available"):
    info = BookieServiceInfo((Endpoint("bookie", host, port),))
    path = f"/ledgers/{parent}/{name}"
    await store.create(path, encode_service_info(info), make_parents=True)


@pytest.fixture
async def watched():
    """(store, watcher, what it told)"""
    store = MemoryStore()
    watcher = BookieWatcher(store)
    told = []
    watcher.on_addresses(lambda: told.append(dict(watcher._addresses)))
    async with trio.open_nursery() as nursery:
        await nursery.start(watcher.run)
        yield store, watcher, told
        nursery.cancel_scope.cancel()


async def seen(watcher, *bookies):
    with trio.fail_after(5):
        while watcher.writable | watcher.read_only != set(bookies):
            await trio.sleep(0.01)


async def test_an_address_goes_with_the_registration(watched):
    store, watcher, told = watched
    assert watcher.resolve("b1") is None
    await register(store, "b1", "host", 1)
    await seen(watcher, "b1")
    assert watcher.resolve("b1") == ("host", 1, True, False)
    assert watcher.resolve("b1").is_certain
    await store.delete("/ledgers/available/b1")
    await seen(watcher)
    # For one that proves to be b1.
    assert watcher.resolve("b1") == Place("host", 1, is_registered=False)
    assert not watcher.resolve("b1").is_certain
    await register(store, "b2", "host", 1)
    await seen(watcher, "b2")
    assert watcher.resolve("b1") is None
    assert watcher.resolve("b2").is_certain
    await register(store, "b1", "host", 2, "available/readonly")
    await seen(watcher, "b1", "b2")
    assert watcher.resolve("b1") == Place("host", 2)
    assert told == [
        {"b1": ("host", 1)},
        {},
        {"b2": ("host", 1)},
        {"b1": ("host", 2), "b2": ("host", 1)},
    ]


async def test_two_registered_at_one_address(watched):
    store, watcher, _ = watched
    await register(store, "b1", "host", 1)
    await register(store, "b2", "host", 1)
    await seen(watcher, "b1", "b2")
    for bookie in ("b1", "b2"):
        assert watcher.resolve(bookie) == Place("host", 1, is_contested=True)
        assert not watcher.resolve(bookie).is_certain
    await store.delete("/ledgers/available/b1")
    await seen(watcher, "b2")
    assert watcher.resolve("b2").is_certain
    assert watcher.resolve("b1") is None


async def test_an_id_that_is_an_address(watched):
    """As BookKeeper's resolver; but the bookie there has to prove that it is the one."""
    store, watcher, _ = watched
    assert watcher.resolve("host:3181") == Place("host", 3181, is_registered=False)
    assert watcher.resolve("host:name") is None
    await register(store, "b2", "host", 3181)
    await seen(watcher, "b2")
    assert watcher.resolve("host:3181") is None


class World:
    def __init__(self, env, nursery, directory):
        self.env = env
        self.nursery = nursery
        self.store = MemoryStore()
        self._directory = directory

    async def node(self, name, port=0):
        node = Node(self.env, self._directory, name, port)
        await self.nursery.start(node.run)
        return node


@pytest.fixture
async def world(tmp_path):
    async with networked() as (env, nursery):
        made = World(env, nursery, tmp_path)
        made.first = await made.node("b1")
        yield made


async def following_client(world):
    watcher = BookieWatcher(world.store)
    await world.nursery.start(watcher.run)
    bookies = NetworkBookieClient.following(world.env, watcher)
    await world.nursery.start(bookies.run)
    return watcher, bookies


async def other_at_the_port_of_b1(world):
    """b5, an empty bookie; b1's registration stays."""
    node = world.first
    address = node.address
    await node.stop()
    await world.node("b5", address[1])
    return address


async def answers_of_b1(bookies, key=b"k" * 20):
    status, _ = await bookies.read_entry("b1", 7, 0)
    fenced, _ = await bookies.read_entry("b1", 7, -1, flags=FLAG_DO_FENCING, master_key=key)
    batch, _ = await bookies.read_entries("b1", 7, 0, count_max=1, size_max=100)
    added = []
    bookies.add_entry("b1", 7, 0, key, entry_of(7, 0), 0, added.append)
    while not added:
        await trio.sleep(0.01)
    listed, _ = await bookies.list_entries("b1", 7)
    return [status, fenced, batch, *added, listed, (await bookies.bookie_info("b1")).status]


def entry_of(ledger_id, entry_id):
    digest = Digest(DigestType.CRC32C, b"")
    return digest.seal(ledger_id, entry_id, -1, 1, (b"x",), 1), b"x"


@pytest.mark.parametrize("is_registered", [False, True])
async def test_another_bookie_at_the_port_does_not_answer_for_the_first(world, is_registered):
    """In both versions of the protocol, whatever the metadata say of the address."""
    await register(world.store, "b1", *world.first.address)
    watcher, bookies = await following_client(world)
    assert (await bookies.bookie_info("b1")).status is Status.EOK
    assert (await bookies.read_entry("b1", 7, 0))[0] is Status.ENOLEDGER
    address = await other_at_the_port_of_b1(world)
    if is_registered:
        await register(world.store, "b5", *address)
        await world.store.delete("/ledgers/available/b1")
        while watcher.writable != {"b5"}:
            await trio.sleep(0.01)
    # Connections that broke are made anew after a moment.
    for _ in range(20):
        assert await answers_of_b1(bookies) == [Status.EIO] * 6
        await trio.sleep(0.05)
    if is_registered:
        assert (await bookies.bookie_info("b5")).status is Status.EOK


async def with_a_read_under_way(world):
    """(watcher, its answers, what goes on with it) of a bookie that hangs, as if it was stopped."""
    node = world.first
    await register(world.store, "b1", *node.address)
    watcher, bookies = await following_client(world)
    assert (await bookies.read_entry("b1", 7, 0))[0] is Status.ENOLEDGER
    read, held, answers = node.server._processor.read, [], []
    node.server._processor.read = lambda *request: held.append(request)

    async def ask():
        answers.append((await bookies.read_entry("b1", 7, 0))[0])

    world.nursery.start_soon(ask)
    while not held:
        await trio.sleep(0.01)
    return watcher, answers, lambda: read(*held[0])


async def answered(answers):
    with trio.fail_after(5):
        while not answers:
            await trio.sleep(0.01)
    return answers


async def seen_by_connections(watcher, *bookies):
    await seen(watcher, *bookies)
    await trio.sleep(0.05)


async def test_connections_to_an_address_with_a_new_owner_are_closed(world, monkeypatch):
    """What is under way on them is unknown, at once: nobody proved to be the old bookie."""
    # As a Java bookie, which does not tell which one it is.
    monkeypatch.setattr("bookie.server.processor.IDENTITY_PLUGIN_NAME", "unheard of")
    watcher, answers, _ = await with_a_read_under_way(world)
    # Its registration is gone for a moment: it still serves who is connected.
    await world.store.delete("/ledgers/available/b1")
    await seen_by_connections(watcher)
    assert not answers
    await register(world.store, "b5", *world.first.address)
    assert await answered(answers) == [Status.EIO]
    assert watcher.resolve("b1") is None


async def test_connections_of_a_bookie_that_is_elsewhere_by_now_are_closed(world):
    """It proved which one it is, and is a process that hangs on by now."""
    watcher, answers, _ = await with_a_read_under_way(world)
    await world.store.delete("/ledgers/available/b1")
    await seen_by_connections(watcher)
    assert not answers
    await register(world.store, "b1", "127.0.0.1", 1)
    assert await answered(answers) == [Status.EIO]


@pytest.mark.parametrize("is_registered", [True, False])
async def test_a_proven_connection_outlives_a_claim_to_its_address(world, is_registered):
    """Of a bookie that was here before, whose session is not over; or one that is configured
    wrongly. This one's own session may end meanwhile."""
    watcher, answers, go_on = await with_a_read_under_way(world)
    await register(world.store, "b9", *world.first.address)
    await seen_by_connections(watcher, "b1", "b9")
    if not is_registered:
        await world.store.delete("/ledgers/available/b1")
        await seen_by_connections(watcher, "b9")
    assert not answers
    go_on()
    assert await answered(answers) == [Status.ENOLEDGER]


async def nobody_comes(world):
    """The registrations stay as they are."""


async def another_gets_the_address(world):
    await world.store.delete("/ledgers/available/b1")
    await register(world.store, "b5", *world.first.address)


async def another_claims_the_address(world):
    await register(world.store, "b5", *world.first.address)


async def the_bookie_goes_elsewhere(world):
    await world.store.delete("/ledgers/available/b1")
    await register(world.store, "b1", "127.0.0.1", 1)


async def the_session_ends(world):
    await world.store.delete("/ledgers/available/b1")


@pytest.mark.parametrize(
    ("happens", "status", "refused_count"),
    [
        (nobody_comes, Status.ENOLEDGER, 0),
        (another_gets_the_address, Status.EIO, 1),
        (another_claims_the_address, Status.EIO, 1),
        (the_bookie_goes_elsewhere, Status.EIO, 1),
        (the_session_ends, Status.EIO, 1),
    ],
)
async def test_a_greeting_without_proof_counts_for_the_place_it_began_with(
    world, monkeypatch, happens, status, refused_count
):
    """While a connection is greeted it is nobody's yet, so news of its address find nothing to
    close. A bookie that does not tell who it is may be another one by the end of the greeting, and
    its «no such ledger» would be taken for the first one's."""
    monkeypatch.setattr("bookie.server.processor.IDENTITY_PLUGIN_NAME", "unheard of")
    node = world.first
    handlers, held, answers = node.server._processor._handlers, [], []
    auth = handlers[AuthRequest]
    handlers[AuthRequest] = lambda *request: held.append(request)
    await register(world.store, "b1", *node.address)
    watcher, bookies = await following_client(world)
    told = []
    watcher.on_addresses(lambda: told.append(dict(watcher._addresses)))

    async def ask():
        answers.append((await bookies.read_entry("b1", 7, 0))[0])

    world.nursery.start_soon(ask)
    with trio.fail_after(30):
        while not held:
            await trio.sleep(0.01)
        await happens(world)
        await followed(world, watcher)
        assert bool(told) == (happens is not nobody_comes)
        assert not answers
        auth(*held[0])
        while not answers:
            await trio.sleep(0.01)
    assert answers == [status]
    assert bookies.wrong_bookie_count == refused_count


async def followed(world, watcher):
    """Until the watcher has each registered bookie's address as the metadata have it."""
    expected = {}
    for bookie in await world.store.children("/ledgers/available"):
        node = await world.store.get(f"/ledgers/available/{bookie}")
        endpoint = parse_service_info(node.data, bookie).bookie_endpoint
        expected[bookie] = (endpoint.host, endpoint.port)
    while watcher._addresses != expected:
        await trio.sleep(0.01)


@pytest.mark.parametrize("happens", [another_claims_the_address, the_session_ends])
async def test_who_does_not_tell_is_not_believed_at_a_place_that_is_not_certain(
    world, monkeypatch, happens
):
    """It listens where b1 was, and may be anybody: without a registration of b1 alone at that
    address, only a bookie that proves to be b1 answers for it."""
    monkeypatch.setattr("bookie.server.processor.IDENTITY_PLUGIN_NAME", "unheard of")
    await register(world.store, "b1", *world.first.address)
    watcher, bookies = await following_client(world)
    await happens(world)
    with trio.fail_after(30):
        await followed(world, watcher)
        assert not watcher.resolve("b1").is_certain
        assert (await bookies.read_entry("b1", 7, 0))[0] is Status.EIO
    assert bookies.wrong_bookie_count == 1
