"""Sessions, lost connections, bounds and bad bytes of metadata/served.py and metadata/remote.py."""

import os
import stat
from contextlib import asynccontextmanager

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from metadata.memory import MemoryStore, MemoryTree
from metadata.remote import RemoteOptions, RemoteStore
from metadata.remote_frames import (
    FrameError,
    Kind,
    decode,
    encode,
    encode_error,
    op_field,
    parse_error,
    parse_op,
)
from metadata.served import MetadataServer, ServedLimits
from metadata.store import (
    BadVersionError,
    CreateOp,
    DeleteOp,
    MetadataError,
    MetadataUnavailableError,
    MetadataUnknownOutcomeError,
    PutOp,
    SessionState,
)
from runtime.env import real_env

leaves = st.one_of(
    st.none(), st.integers(-(2**63), 2**63 - 1), st.text(max_size=9), st.binary(max_size=9)
)
fields = st.one_of(leaves, st.lists(st.one_of(leaves, st.lists(leaves, max_size=3)), max_size=3))


@given(st.sampled_from(Kind), st.integers(0, 2**32 - 1), st.lists(fields, max_size=4))
def test_frames_round_trip(kind, number, values):
    frame = encode(kind, number, *values)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert decode(memoryview(frame)[4:]) == (kind, number, values)


@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_a_frame_or_refused(data):
    try:
        message = decode(data)
    except FrameError:
        return
    assert encode(*message[:2], *message.fields)[4:] == data


@given(st.sampled_from(Kind), st.lists(fields, max_size=3), st.data())
def test_a_frame_cut_short_never_gives_more_than_it_has(kind, values, data):
    frame = encode(kind, 1, *values)[4:]
    cut = data.draw(st.integers(0, len(frame)))
    try:
        message = decode(frame[:cut])
    except FrameError:
        return
    assert message.fields == values[: len(message.fields)]


def test_operations_and_errors_round_trip():
    for op in (CreateOp("/a", b"x", True, True), PutOp("/a", b"", 3), DeleteOp("/é", -1)):
        assert parse_op(op_field(op)) == op
    with pytest.raises(FrameError):
        parse_op([3, "/a"])
    error = parse_error(decode(encode_error(1, BadVersionError("/a", "version is 3"))[4:]).fields)
    assert type(error) is BadVersionError
    assert (error.path, str(error)) == ("/a", "/a: version is 3")
    with pytest.raises(FrameError):
        parse_error([99, "/a", ""])


@asynccontextmanager
async def _world(path, limits=None, *, tree=None, open_session=None):
    """A running Env, and a server in it."""
    tree = tree if tree is not None else MemoryTree()
    async with trio.open_nursery() as nursery:
        env = real_env()
        nursery.start_soon(env.turn.serve)
        await nursery.start(env.poller.run)
        await nursery.start(env.net.run)
        server = MetadataServer(
            env, path, open_session or (lambda: MemoryStore(tree)), limits or ServedLimits()
        )
        await nursery.start(server.run)
        yield env, server, tree, nursery
        nursery.cancel_scope.cancel()


async def _client(env, path, nursery, **options):
    store = RemoteStore(env, RemoteOptions(path, **options))
    await nursery.start(store.run)
    return store


async def _until(condition, seconds=30):
    with trio.fail_after(seconds):
        while not condition():
            await trio.sleep(0.01)


def _break(store):
    """The connection is gone, and nobody said goodbye."""
    store._connection._transport.abort()


async def test_a_session_outlives_a_lost_connection(tmp_path):
    path = str(tmp_path / "socket")
    async with _world(path) as (env, server, tree, nursery):
        store = await _client(env, path, nursery)
        states = []
        store.subscribe(states.append)
        await store.create("/mine", b"1", ephemeral=True)
        watch = store.watch("/mine")
        _break(store)
        assert (await store.get("/mine")).data == b"1"
        assert await store.owns("/mine")
        assert states == [SessionState.SUSPENDED, SessionState.CONNECTED]
        assert server.session_count == 1
        with trio.fail_after(1):
            await watch.changed()  # nobody knows what happened meanwhile
        other = MemoryStore(tree)
        await other.put("/mine", b"2", 0)
        with trio.fail_after(1):
            await watch.changed()
        await store.aclose()
        assert not await other.exists("/mine")


async def test_a_session_ends_when_its_client_is_silent(tmp_path):
    path = str(tmp_path / "socket")
    async with _world(path) as (env, server, tree, nursery):
        store = await _client(env, path, nursery, session_timeout_ms=1500)
        states = []
        store.subscribe(states.append)
        await store.create("/mine", ephemeral=True)
        lasting = MemoryStore(tree)
        await trio.sleep(3)
        assert await store.owns("/mine")  # its pings keep it
        store._connection.send = lambda _frame: None  # as after SIGSTOP: the socket stays open
        store._connection.heard_at = float("inf")
        await _until(lambda: SessionState.LOST in states and store.state is SessionState.CONNECTED)
        assert not await lasting.exists("/mine")
        assert server.session_count == 1
        await store.create("/mine", ephemeral=True)
        assert await store.owns("/mine")
        assert states[-2:] == [SessionState.LOST, SessionState.CONNECTED]
        await store.aclose()


async def test_who_sees_a_client_die_ends_its_session(tmp_path):
    path = str(tmp_path / "socket")
    async with _world(path) as (env, server, tree, nursery):
        dead = await _client(env, path, nursery, name="one")
        other = await _client(env, path, nursery, name="two")
        await dead.create("/dead", ephemeral=True)
        await other.create("/other", ephemeral=True)
        await server.end_client("one")
        assert await MemoryStore(tree).children("/") == ["other"]
        await server.end_client("nobody")
        await other.aclose()
        await dead.aclose()


class _Slow:
    """A session whose changes wait for `go`."""

    def __init__(self, tree, go):
        self._inner = MemoryStore(tree)
        self._go = go

    def __getattr__(self, name):
        return getattr(self._inner, name)

    async def put(self, *arguments):
        await self._go.wait()
        return await self._inner.put(*arguments)

    async def get_many(self, paths):
        await self._go.wait()
        return await self._inner.get_many(paths)


async def test_what_was_under_way_when_the_connection_broke(tmp_path):
    path, tree, go = str(tmp_path / "socket"), MemoryTree(), trio.Event()
    await MemoryStore(tree).create("/a", b"1")
    outcomes = []

    async with _world(path, open_session=lambda: _Slow(tree, go)) as (env, _, _, nursery):
        store = await _client(env, path, nursery)

        async def put():
            try:
                await store.put("/a", b"2", 0)
            except MetadataUnknownOutcomeError as error:
                outcomes.append(error.path)

        async def get():
            outcomes.append(await store.get_many(["/a"]))

        async with trio.open_nursery() as calls:
            calls.start_soon(put)
            calls.start_soon(get)
            await trio.sleep(0.1)
            _break(store)
            await _until(lambda: outcomes == ["/a"])  # the read is sent again
            go.set()
        assert outcomes[1][0].data in (b"1", b"2")
        assert (await store.get("/a")).data == b"2"  # it happened after all
        await store.aclose()


async def test_without_a_server_nothing_happened(tmp_path):
    path, tree = str(tmp_path / "socket"), MemoryTree()
    async with _world(path, tree=tree) as (env, _, _, nursery):
        with pytest.raises(MetadataUnavailableError, match="served"):
            await _client(env, str(tmp_path / "nobody"), nursery, operation_timeout_ms=100)
        server = MetadataServer(env, path + "2", lambda: MemoryStore(tree))
        async with trio.open_nursery() as inner:
            await inner.start(server.run)
            store = await _client(env, path + "2", nursery, operation_timeout_ms=200)
            inner.cancel_scope.cancel()
        with pytest.raises(MetadataUnavailableError, match="200 ms"):
            await store.create("/a")
        assert not await MemoryStore(tree).exists("/a")
        assert "socket2" not in os.listdir(tmp_path)
        server = MetadataServer(env, path + "2", lambda: MemoryStore(tree))
        async with trio.open_nursery() as inner:
            await inner.start(server.run)  # a restarted server knows no session of before
            await store.create("/a", ephemeral=True)
            await store.aclose()
            inner.cancel_scope.cancel()


async def test_bounds(tmp_path):
    path = str(tmp_path / "socket")
    limits = ServedLimits(sessions_max=1, calls_max=4, watches_max=3, call_bytes_max=1_000)
    async with _world(path, limits) as (env, _, _, nursery):
        store = await _client(env, path, nursery)
        with pytest.raises(MetadataUnavailableError):
            await _client(env, path, nursery, operation_timeout_ms=200)
        await store.create("/t")
        async with trio.open_nursery() as calls:
            for number in range(200):
                calls.start_soon(store.create, f"/t/{number}", bytes(2_000))
        assert len(await store.children("/t")) == 200
        watches = [store.watch("/t") for _ in range(3)]
        for _ in range(10):
            store.watch("/t").close()  # more than it may have: the connection is closed, and made
            await store.exists("/t")  # anew with the three that it may
        await store.put("/t", b"x", 0)
        for watch in watches:
            with trio.fail_after(1):
                await watch.changed()
        with pytest.raises(MetadataError, match="more than"):
            await store.create("/big", bytes(17 << 20))
        await store.aclose()


async def test_answers_larger_than_a_frame_come_in_parts(tmp_path):
    path = str(tmp_path / "socket")
    async with _world(path) as (env, _, _, nursery):
        store = await _client(env, path, nursery)
        data = bytes(1_000_000)
        for number in range(6):
            await store.create(f"/{number}", data)
        paths = [f"/{number % 7}" for number in range(42)]
        nodes = await store.get_many(paths)
        assert [node is None for node in nodes] == [path == "/6" for path in paths]
        await store.aclose()


async def test_only_this_user_may_connect_and_long_paths_work(tmp_path):
    folder = tmp_path / ("x" * 100) / ("y" * 100)
    folder.mkdir(parents=True)
    path = str(folder / "socket")
    (folder / "socket").touch()  # a left-over
    async with _world(path) as (env, _, _, nursery):
        status = os.stat(path)
        assert stat.S_ISSOCK(status.st_mode)
        assert stat.S_IMODE(status.st_mode) == 0o600
        store = await _client(env, path, nursery)
        await store.create("/a")
        await store.aclose()
    assert os.listdir(folder) == []


@pytest.mark.parametrize(
    "data",
    [
        b"\xff" * 8,
        b"\x00\x00\x00\x05\x00\x00\x00\x00\x00",
        encode(Kind.GET_MANY, 1, ["/a"]),
        encode(Kind.HELLO, 0, 99, 0, b"", 1000, ""),
        encode(Kind.HELLO, 0, 1, 0, b"", 1000, "") * 2,
        encode(Kind.HELLO, 0, 1, 0, b"", 1000, "") + encode(Kind.PUT, 1, "/a"),
        encode(Kind.HELLO, 0, 1, 0, b"", 1000, "") + encode(Kind.WATCH, 1, "not a path", 0),
        encode(Kind.HELLO, 0, 1, 0, b"", 1000, "") + encode(Kind.EXISTS, 1, "not a path"),
        encode(Kind.HELLO, 0, 1, 0, b"", 1000, "") + encode(Kind.EVENT, 1),
    ],
)
async def test_who_breaks_the_protocol_is_cut_off(tmp_path, data):
    path = str(tmp_path / "socket")
    async with _world(path) as (env, _, _, nursery):
        stream = await trio.open_unix_socket(path)
        async with stream:
            await stream.send_all(data)
            with trio.fail_after(2):
                while await stream.receive_some(1000):
                    pass
        store = await _client(env, path, nursery)  # and nobody else is
        await store.create("/a")
        await store.aclose()
