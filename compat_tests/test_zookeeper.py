"""Our metadata store on a real ZooKeeper: the contract, lost replies, lost sessions, ACLs, TLS.

The exception to the rule that nothing in here imports our packages: the store is a client, and
what it is tested against is the other people's program. Raw kazoo looks at what became of it.
"""

import contextlib
import dataclasses
import itertools
import logging
import os
import re
import subprocess
import sys
import time

import pytest
import trio
from harness import paths
from harness.clock import AwakeClock
from harness.servers import in_lasting_thread
from harness.zookeeper import Ensemble, ZooKeeper
from harness.zookeeper_proxy import CREATE, DELETE, MULTI, SET_DATA, Proxy
from harness.zookeeper_store import opened
from kazoo.client import KazooClient

from metadata.service_uri import parse_service_uri
from metadata.store import (
    BadVersionError,
    CreateOp,
    DeleteOp,
    MetadataError,
    MetadataUnavailableError,
    MetadataUnknownOutcomeError,
    Node,
    NodeExistsError,
    NoNodeError,
    PutOp,
    SessionState,
)
from metadata.zookeeper import ZooKeeperStore
from metadata.zookeeper_session import ZooKeeperOptions
from metadata.zookeeper_tls import ZooKeeperTls

_numbers = itertools.count()
in_trio = pytest.mark.trio


@pytest.fixture(scope="module")
def zookeeper(scratch):
    settings = {"maxSessionTimeout": "120000"}
    server = ZooKeeper(scratch / "zookeeper", settings, tls=True).start()
    yield server
    server.discard()


@pytest.fixture
def own_zookeeper(scratch):
    """One that a test may kill and freeze."""
    settings = {"maxSessionTimeout": "120000"}
    server = ZooKeeper(scratch / f"zookeeper-{next(_numbers)}", settings).start()
    yield server
    server.discard()


@pytest.fixture
def chroot():
    return f"/test-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def raw(zookeeper, chroot):
    """kazoo itself, in the same chroot, past any proxy."""
    with contextlib.closing(KazooClient(zookeeper.hosts)) as outside:
        outside.start()
        outside.create(chroot)
        with contextlib.closing(KazooClient(zookeeper.hosts + chroot)) as client:
            client.start()
            yield client
            client.stop()
        outside.stop()


@pytest.fixture
def proxy(zookeeper):
    with contextlib.closing(Proxy(zookeeper.port)) as made:
        yield made


def wait_no_longer_than(store, operation_timeout_ms):
    """From now on: to connect to a server that has just started may take longer."""
    options = dataclasses.replace(store._options, operation_timeout_ms=operation_timeout_ms)
    store._options = store._session.options = options


async def until(condition, timeout_s=60):
    with trio.fail_after(timeout_s):
        while not condition():  # noqa: ASYNC110 - the world is polled
            await trio.sleep(0.01)


async def fires(watch):
    with trio.move_on_after(60) as scope:
        await watch.changed()
    return not scope.cancelled_caught


async def stays_quiet(watch):
    with trio.move_on_after(0.3) as scope:
        await watch.changed()
    return scope.cancelled_caught


def cut(store):
    """The connection alone; the session lives on."""
    store._session._client._connection._socket.shutdown(2)


async def steal_session(zookeeper, proxy, store):
    """Ends it from outside. The store is kept away meanwhile: a session has one connection, and
    whoever comes last has it."""
    client = KazooClient(zookeeper.hosts, client_id=store._session._client.client_id)
    proxy.cut(hold=True)
    await until(lambda: store.state is SessionState.SUSPENDED)
    await trio.to_thread.run_sync(client.start, 60)
    await trio.to_thread.run_sync(client.stop)
    client.close()
    proxy.release()


# -- the contract ------------------------------------------------------------------------------


def test_the_contract_suite(zookeeper):
    """tests/metadata, with ZooKeeper as one more store."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "zookeeper"]
    command += [
        "tests/metadata/test_store_contract.py",
        "tests/metadata/test_store_against_model.py",
    ]
    done = subprocess.run(
        command,
        cwd=paths.ROOT,
        env={**os.environ, "QUIRE_TEST_ZOOKEEPER": zookeeper.hosts},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (passed_count,) = re.findall(r"^(\d+) passed", done.stdout, re.M)
    assert int(passed_count) >= 38
    assert "failed" not in done.stdout
    assert "skipped" not in done.stdout


# -- lost replies ------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before", "after"])
@in_trio
async def test_a_lost_create_happens_once(proxy, raw, chroot, when):
    async with opened(proxy.hosts, chroot) as store:
        proxy.lose(CREATE, when)
        assert await store.create("/lasting", b"token-1") == "/lasting"
        assert proxy.done.is_set()
        proxy.lose(CREATE, when)
        assert await store.create("/mine", b"", ephemeral=True) == "/mine"
        assert proxy.done.is_set()
        assert await store.owns("/mine")
        proxy.lose(CREATE, when)
        assert await store.create("/a/b", b"deep", make_parents=True) == "/a/b"
        await store.create("/ids")
        proxy.lose(CREATE, when)
        made = await store.create("/ids/ID-", b"", sequence=True, ephemeral=True)
        assert proxy.done.is_set()
        assert raw.get_children("/ids") == [made.removeprefix("/ids/")]
        assert made == "/ids/ID-0000000000"
        proxy.lose(CREATE, when)
        assert await store.create("/ids/", ephemeral=True, sequence=True) == "/ids/0000000001"
        assert proxy.done.is_set()
    data, stat = raw.get("/lasting")
    assert (data, stat.version) == (b"token-1", 0)
    assert sorted(raw.get_children("/")) == ["a", "ids", "lasting"]


@in_trio
async def test_numbers_beside_another_clients_nodes(proxy, raw, chroot):
    """What BookKeeper's clients do for an id is what `raw` does here."""
    async with opened(proxy.hosts, chroot) as store:
        assert await store.take_numbers("/deep/ids/ID-", 3) == [0, 1, 2]
        taken = []

        async def take(count):
            taken.extend(await store.take_numbers("/deep/ids/ID-", count))

        async def make():
            for _ in range(40):
                made = await trio.to_thread.run_sync(
                    lambda: raw.create("/deep/ids/ID-", ephemeral=True, sequence=True)
                )
                await trio.to_thread.run_sync(raw.delete, made)
                taken.append(int(made.removeprefix("/deep/ids/ID-")))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(make)
            for count in (1, 500, 7, 100, 2):
                nursery.start_soon(take, count)
        assert sorted(taken) == list(range(3, 3 + 650))
        await store.sync("/")
        assert raw.get_children("/deep/ids") == []


@pytest.mark.parametrize("when", ["before", "after"])
@in_trio
async def test_numbers_whose_reply_is_lost(proxy, raw, chroot, when):
    async with opened(proxy.hosts, chroot) as store:
        assert await store.take_numbers("/ids/ID-", 2) == [0, 1]
        await store.sync("/")  # they are deleted by now
        proxy.lose(MULTI, when)
        with pytest.raises(MetadataUnknownOutcomeError, match="/ids/ID-"):
            await store.take_numbers("/ids/ID-", 3)
        assert proxy.done.is_set()
        # Those of the lost reply are never given, and their nodes do not stay.
        first = 2 if when == "before" else 5
        assert await store.take_numbers("/ids/ID-", 2) == [first, first + 1]
        await store.sync("/")
        assert raw.get_children("/ids") == []


@in_trio
async def test_whose_a_lasting_sequence_node_is_cannot_be_known(proxy, raw, chroot):
    async with opened(proxy.hosts, chroot) as store:
        await store.create("/log")
        proxy.lose(CREATE, "after")
        with pytest.raises(MetadataUnknownOutcomeError, match="/log/n-"):
            await store.create("/log/n-", b"x", sequence=True)
        proxy.lose(CREATE, "before")
        assert await store.create("/log/n-", b"x", sequence=True) == "/log/n-0000000001"


@in_trio
async def test_a_rivals_node_is_not_ours(proxy, raw, chroot):
    """The create was lost on its way, and somebody else made the node meanwhile."""
    async with opened(proxy.hosts, chroot) as store:
        for options in ({}, {"ephemeral": True}):
            async with trio.open_nursery() as nursery:
                proxy.lose(CREATE, "before", hold=True)

                async def create(options=options):
                    with pytest.raises(NodeExistsError):
                        await store.create("/taken", b"ours", **options)

                nursery.start_soon(create)
                await until(proxy.done.is_set)
                raw.create("/taken", b"theirs")
                proxy.release()
            assert raw.get("/taken")[0] == b"theirs"
            raw.delete("/taken")


@in_trio
async def test_an_old_node_with_the_same_data_is_not_ours(proxy, zookeeper, raw, chroot):
    """Even if the lost request is the first of a process, or of a session."""
    raw.create("/old", b"same")
    for when in ("before", "after"):
        async with opened(proxy.hosts, "") as store:
            proxy.lose(CREATE, when)
            with pytest.raises(NodeExistsError):
                await store.create(f"{chroot}/old", b"same")
            assert proxy.done.is_set()
            first = store._session.session_id
            await steal_session(zookeeper, proxy, store)
            await until(lambda first=first: store._session.session_id != first)
            proxy.lose(CREATE, when)
            with pytest.raises(NodeExistsError):
                await store.create(f"{chroot}/old", b"same")
            assert proxy.done.is_set()


@in_trio
async def test_of_two_lost_creates_of_one_store_one_wins(proxy, raw, chroot):
    async with opened(proxy.hosts, chroot) as store:
        outcomes = []

        async def create():
            try:
                outcomes.append(await store.create("/lock", b"same", ephemeral=True))
            except NodeExistsError:
                outcomes.append("exists")

        proxy.lose(CREATE, "after", hold=True)
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(create)
            await until(proxy.done.is_set)
            proxy.release()
        assert sorted(outcomes) == ["/lock"] + ["exists"] * 4


@pytest.mark.parametrize("when", ["before", "after"])
@in_trio
async def test_a_lost_put_happens_once(proxy, raw, chroot, when):
    async with opened(proxy.hosts, chroot) as store:
        await store.create("/a", b"0")
        proxy.lose(SET_DATA, when)
        assert await store.put("/a", b"1", 0) == 1
        assert proxy.done.is_set()
        proxy.lose(SET_DATA, when)
        assert await store.put("/a", b"2", -1) == 2
        assert proxy.done.is_set()
        assert await store.get("/a") == Node(b"2", 2)


@pytest.mark.parametrize(
    ("rival_data", "error"),
    [([b"rival"], BadVersionError), ([b"rival", b"more"], MetadataUnknownOutcomeError)],
)
@in_trio
async def test_a_put_that_lost_against_a_rival(proxy, raw, chroot, rival_data, error):
    """One rival's put took the version; of two, the first may have been ours."""
    async with opened(proxy.hosts, chroot) as store:
        await store.create("/a", b"0")
        async with trio.open_nursery() as nursery:
            proxy.lose(SET_DATA, "before", hold=True)

            async def put():
                with pytest.raises(error):
                    await store.put("/a", b"ours", 0)

            nursery.start_soon(put)
            await until(proxy.done.is_set)
            for data in rival_data:
                raw.set("/a", data)
            proxy.release()
        assert (await store.get("/a")).data == rival_data[-1]


@pytest.mark.parametrize("when", ["before", "after"])
@in_trio
async def test_a_lost_delete_happens_once(proxy, raw, chroot, when):
    async with opened(proxy.hosts, chroot) as store:
        await store.create("/a", b"0")
        proxy.lose(DELETE, when)
        await store.delete("/a", 0)
        assert proxy.done.is_set()
        assert not raw.exists("/a")
        with pytest.raises(NoNodeError):
            await store.delete("/a")


@in_trio
async def test_a_delete_whose_node_was_made_again_is_unknown(proxy, raw, chroot):
    async with opened(proxy.hosts, chroot) as store:
        await store.create("/a", b"0")
        async with trio.open_nursery() as nursery:
            proxy.lose(DELETE, "after", hold=True)

            async def delete():
                with pytest.raises(MetadataUnknownOutcomeError):
                    await store.delete("/a")

            nursery.start_soon(delete)
            await until(proxy.done.is_set)
            raw.create("/a", b"another")
            proxy.release()
        assert (await store.get("/a")).data == b"another"


@pytest.mark.parametrize("when", ["before", "after"])
@in_trio
async def test_a_lost_multi_happens_once(proxy, raw, chroot, when):
    async with opened(proxy.hosts, chroot) as store:
        await store.create("/a", b"0")
        await store.create("/old")
        proxy.lose(MULTI, when)
        await store.multi(
            [PutOp("/a", b"1", 0), DeleteOp("/old"), CreateOp("/p/q", b"2", make_parents=True)]
        )
        assert proxy.done.is_set()
        assert await store.get("/a") == Node(b"1", 1)
        assert await store.get("/p/q") == Node(b"2", 0)
        assert not await store.exists("/old")
        proxy.lose(MULTI, when)
        await store.multi([DeleteOp("/p/q"), DeleteOp("/p")])
        assert proxy.done.is_set()
        assert not await store.exists("/p")
        proxy.lose(MULTI, when)
        with pytest.raises(BadVersionError) as raised:
            await store.multi([CreateOp("/never"), PutOp("/a", b"9", 7)])
        assert raised.value.path == "/a"
        assert not await store.exists("/never")


@in_trio
async def test_parents_that_vanish_are_made_again(proxy, raw, chroot):
    """What was there when the multi was planned is gone when it comes."""
    async with opened(proxy.hosts, chroot) as store:
        for kind, call in (
            (MULTI, lambda: store.multi([CreateOp("/p/q/r", b"1", make_parents=True)])),
            (CREATE, lambda: store.create("/p/q/r", b"1", make_parents=True)),
        ):
            raw.ensure_path("/p/q")
            async with trio.open_nursery() as nursery:
                proxy.lose(kind, "before", hold=True)
                nursery.start_soon(call)
                await until(proxy.done.is_set)
                raw.delete("/p", recursive=True)
                proxy.release()
            assert raw.get("/p/q/r")[0] == b"1"
            raw.delete("/p", recursive=True)


@in_trio
async def test_an_outcome_that_cannot_be_looked_at_is_unknown(proxy, raw, chroot):
    async with opened(proxy.hosts, chroot) as store:
        await store.create("/a", b"0")
        wait_no_longer_than(store, 3_000)
        for call in (
            lambda: store.put("/a", b"1", 0),
            lambda: store.create("/b"),
            lambda: store.delete("/a"),
            lambda: store.multi([CreateOp("/c")]),
        ):
            proxy.cut(hold=True)
            await until(lambda: store.state is SessionState.SUSPENDED)
            # Never sent: that is known.
            started = trio.current_time()
            with (
                AwakeClock() as clock,
                pytest.raises(MetadataUnavailableError, match=r"within 3\.0 s"),
            ):
                await call()
            assert trio.current_time() - started > 2.9
            assert clock.seconds < 3.5
            proxy.release()
            await until(lambda: store.state is SessionState.CONNECTED)
        proxy.lose(CREATE, "after", hold=True)
        with pytest.raises(MetadataUnknownOutcomeError, match="reply was lost"):
            await store.create("/b")
        assert proxy.done.is_set()
        proxy.release()
        assert await store.exists("/b")


# -- lost connections and sessions -------------------------------------------------------------


@in_trio
async def test_a_cut_connection_keeps_the_session_and_every_change(zookeeper, raw, chroot):
    async with opened(zookeeper.hosts, chroot) as store:
        states = []
        store.subscribe(states.append)
        await store.create("/mine", b"here", ephemeral=True)
        for name in ("a", "quiet", "parent", "parent/gone", "quiet-parent"):
            await store.create(f"/{name}")
        node, quiet = store.watch("/a"), store.watch("/quiet")
        children, quiet_children = (
            store.watch_children("/parent"),
            store.watch_children("/quiet-parent"),
        )
        unborn = store.watch("/unborn")
        await store.exists("/a")
        for n in range(3):
            cut(store)
            raw.set("/a", b"changed while away")
            raw.ensure_path("/unborn")
            raw.delete("/parent/gone")
            await until(lambda n=n: states.count(SessionState.CONNECTED) == n + 1)
            assert (await store.get("/a")).data == b"changed while away"
            assert await fires(node)
            assert await fires(unborn)
            assert await fires(children)
            assert await stays_quiet(quiet)
            assert await stays_quiet(quiet_children)
            raw.delete("/unborn")
            raw.create("/parent/gone")
            assert await fires(unborn)
            assert await fires(children)
        assert await store.owns("/mine")
        assert states == [SessionState.SUSPENDED, SessionState.CONNECTED] * 3
        assert (raw.get("/mine"))[0] == b"here"


@in_trio
async def test_no_request_is_made_while_kazoo_fails_them(zookeeper, chroot):
    """kazoo empties its queue before it tells that the connection is lost; here it takes a while,
    as on a busy machine."""
    async with opened(zookeeper.hosts, chroot) as store:
        await store.create("/a", b"0")
        client = store._session._client
        fail_all = client._notify_pending

        def slow(state):
            end = time.monotonic() + 0.5
            while time.monotonic() < end:
                fail_all(state)
                time.sleep(0.001)

        client._notify_pending = slow
        for n in range(3):
            cut(store)
            assert await store.put("/a", b"%d" % n, n) == n + 1
            cut(store)
            assert (await store.get("/a")).version == n + 1


@in_trio
async def test_a_watch_made_while_away_misses_nothing(proxy, raw, chroot):
    async with opened(proxy.hosts, chroot) as store:
        proxy.cut(hold=True)
        await until(lambda: store.state is SessionState.SUSPENDED)
        watch = store.watch("/a")
        raw.create("/a")
        proxy.release()
        assert await fires(watch)


@in_trio
async def test_a_stolen_session_is_replaced_and_owners_are_told(proxy, zookeeper, raw, chroot):
    async with opened(proxy.hosts, chroot) as store:
        states, made = [], trio.Event()
        await store.create("/a")
        await store.create("/mine", ephemeral=True)
        watch, children = store.watch("/a"), store.watch_children("/a")
        await store.exists("/a")

        async def register():
            await store.create("/mine", b"again", ephemeral=True)
            made.set()

        async with trio.open_nursery() as nursery:

            def listener(state):
                states.append(state)
                if state is SessionState.CONNECTED and SessionState.LOST in states:
                    nursery.start_soon(register)

            end = store.subscribe(listener)
            first = store._session.session_id
            await steal_session(zookeeper, proxy, store)
            with trio.fail_after(60):
                await made.wait()
            end()
        assert states == [SessionState.SUSPENDED, SessionState.LOST, SessionState.CONNECTED]
        assert store._session.session_id != first
        assert raw.get("/mine")[1].ephemeralOwner == store._session.session_id
        assert await store.owns("/mine")
        assert await fires(watch)
        assert await fires(children)
        assert await stays_quiet(watch)
        raw.set("/a", b"")
        assert await fires(watch)


@in_trio
async def test_an_ephemeral_is_not_made_behind_its_owners_back(proxy, zookeeper, raw, chroot):
    """The reply is lost, and before we are back the session is lost too."""
    async with opened(proxy.hosts, chroot) as store:
        credentials = store._session._client.client_id
        async with trio.open_nursery() as nursery:
            proxy.lose(CREATE, "after", hold=True)

            async def create():
                with pytest.raises(MetadataUnavailableError, match="session has ended"):
                    await store.create("/mine", ephemeral=True)

            nursery.start_soon(create)
            await until(proxy.done.is_set)
            thief = KazooClient(zookeeper.hosts, client_id=credentials)
            await trio.to_thread.run_sync(thief.start, 60)
            await trio.to_thread.run_sync(thief.stop)
            thief.close()
            proxy.release()
        assert not raw.exists("/mine")


#: What becomes of every request is found out, and the session is kept, however long a server takes
#: to come back.
LASTING = {"session_timeout_ms": 30_000, "operation_timeout_ms": 60_000}


class Counters:
    """Compare-and-set counters: data and version must agree, and no put that was acknowledged may
    be lost or doubled."""

    def __init__(self, store, caplog):
        self.store = store
        caplog.set_level(logging.INFO, "metadata.zookeeper")
        self.log = caplog
        self.acked = [0] * 8
        self.unknown = [0] * 8
        self.is_over = False

    async def count(self, n):
        path, version = f"/counter-{n}", 0
        await self.store.create(path, b"0")
        while not self.is_over:
            try:
                version = await self.store.put(path, b"%d" % (version + 1), version)
                self.acked[n] += 1
            except MetadataUnknownOutcomeError:
                self.unknown[n] += 1
                version = await self.version(path)
            except MetadataUnavailableError:
                await trio.sleep(0.05)

    async def version(self, path):
        while True:
            with contextlib.suppress(MetadataUnavailableError):
                return (await self.store.get(path)).version

    async def go_on(self, count):
        """Until so many more puts were acknowledged."""
        wanted = sum(self.acked) + count
        await until(lambda: sum(self.acked) >= wanted)

    async def hang(self, server):
        """Freezes the server, and waits until every counter waits for a reply of it."""
        server.freeze()
        client, acked = self.store._session._client, -1
        while len(client._pending) < len(self.acked) or acked != sum(self.acked):
            acked = sum(self.acked)
            await trio.sleep(0.2)

    async def check(self):
        for n in range(8):
            node = await self.store.get(f"/counter-{n}")
            assert node.data == b"%d" % node.version
            assert self.acked[n] <= node.version <= self.acked[n] + self.unknown[n]
        lost = self.log.text.count("zookeeper reply lost")
        # Else the kills came between the requests, and nothing was proven.
        assert lost > 0
        happened = self.log.text.count("outcome=HAPPENED")
        return (
            f"puts acked={sum(self.acked)} replies lost={lost} had happened={happened} "
            f"unknown={sum(self.unknown)} puts lost=0 doubled=0"
        )


@in_trio
async def test_every_increment_is_counted_once_through_kills(own_zookeeper, caplog, closing_line):
    server = own_zookeeper
    async with opened(server.hosts, "/c", **LASTING) as store:
        await store.create("/session", ephemeral=True)
        counters = Counters(store, caplog)
        async with trio.open_nursery() as nursery:
            for n in range(8):
                nursery.start_soon(counters.count, n)
            for n in range(3):
                await counters.go_on(100)
                if n == 0:
                    # Wherever the others hit, here replies are lost.
                    await counters.hang(server)
                server.kill()
                await trio.sleep(0.2)
                await trio.to_thread.run_sync(in_lasting_thread, server.start)
                await until(lambda: store.state is SessionState.CONNECTED)
            await counters.go_on(100)
            counters.is_over = True
        assert sum(counters.acked) > 300
        line = await counters.check()
        # ZooKeeper keeps sessions through its own restarts.
        assert await store.owns("/session")
        closing_line(f"zookeeper: 3 kills, {line}")


@in_trio
async def test_every_increment_is_counted_once_through_leaders_deaths(
    scratch, caplog, closing_line
):
    """Three servers: the leader is killed under load, with requests that followers have sent on."""
    ensemble = Ensemble(scratch / "ensemble")
    try:
        await trio.to_thread.run_sync(in_lasting_thread, ensemble.start)
        async with opened(ensemble.hosts, "/c", **LASTING) as store:
            await store.create("/session", ephemeral=True)
            counters = Counters(store, caplog)
            async with trio.open_nursery() as nursery:
                for n in range(8):
                    nursery.start_soon(counters.count, n)
                for n in range(3):
                    await counters.go_on(50)
                    leader = await trio.to_thread.run_sync(ensemble.wait_for_leader)
                    if n == 0:
                        await counters.hang(leader)
                    leader.kill()
                    await trio.to_thread.run_sync(ensemble.wait_for_leader)
                    await until(lambda: store.state is SessionState.CONNECTED)
                    await trio.to_thread.run_sync(in_lasting_thread, leader.start)
                await counters.go_on(50)
                counters.is_over = True
            assert sum(counters.acked) > 100
            line = await counters.check()
            assert await store.owns("/session")
            closing_line(f"zookeeper: 3 leaders killed, {line}")
    finally:
        ensemble.discard()


@in_trio
async def test_a_frozen_server_is_left_in_bounded_time(own_zookeeper):
    options = {"session_timeout_ms": 2_000, "request_count_max": 10}
    async with opened(own_zookeeper.hosts, "/f", **options) as store:
        await store.create("/a", b"0")
        wait_no_longer_than(store, 3_000)
        own_zookeeper.freeze()
        errors = []

        async def call(function, *arguments):
            try:
                await function(*arguments)
            except MetadataError as error:
                errors.append((type(error), clock.seconds))

        with AwakeClock() as clock:
            async with trio.open_nursery() as nursery:
                for _ in range(10):
                    nursery.start_soon(call, store.get, "/a")
                    nursery.start_soon(call, store.put, "/a", b"1", 0)
        assert len(errors) == 20
        assert all(elapsed < 6 for _, elapsed in errors), errors
        kinds = {kind for kind, _ in errors}
        assert MetadataUnavailableError in kinds
        # Callers that go do not make more requests outstanding than there are slots.
        for _ in range(50):
            with trio.move_on_after(0.005):
                await store.get("/a")
        assert len(store._session._requests) <= 10
        own_zookeeper.thaw()
        await until(lambda: store.state is SessionState.CONNECTED)
        assert (await store.get("/a")).version in (0, 1)
        own_zookeeper.freeze()
        with AwakeClock() as clock:
            await store.aclose()
        assert clock.seconds < 4
        own_zookeeper.thaw()


@in_trio
async def test_no_server_at_the_start(own_zookeeper):
    own_zookeeper.kill()
    store = ZooKeeperStore(ZooKeeperOptions(own_zookeeper.hosts, operation_timeout_ms=500))
    with pytest.raises(MetadataUnavailableError, match=own_zookeeper.hosts):
        await store.run()
    with pytest.raises(MetadataUnavailableError, match="closed"):
        await store.get("/")


@in_trio
async def test_a_spoiled_reply_ends_kazoos_thread_and_a_new_session_begins(proxy, raw, chroot):
    async with opened(proxy.hosts, chroot) as store:
        await store.create("/a", b"0")
        watch = store.watch("/a")
        states = []
        store.subscribe(states.append)
        proxy.garble.set()
        assert await store.get("/a") == Node(b"0", 0)
        assert SessionState.LOST in states
        assert await fires(watch)
        assert await store.put("/a", b"1", 0) == 1
        assert await fires(watch)


# -- limits, batches ---------------------------------------------------------------------------


@in_trio
async def test_what_zookeeper_would_not_take_is_refused_here(zookeeper, chroot):
    async with opened(zookeeper.hosts, chroot) as store:
        states = []
        store.subscribe(states.append)
        await store.create("/a")
        for call in (
            lambda: store.create("/b", bytes(1_050_000)),
            lambda: store.put("/a", bytes(1_050_000), 0),
            lambda: store.multi([PutOp("/a", bytes(600_000), n) for n in range(2)]),
        ):
            with pytest.raises(MetadataError, match="more than metadata take at once"):
                await call()
        await store.put("/a", bytes(1_046_000), 0)
        with pytest.raises(MetadataError, match="no such path"):
            await store.create("/\x80")
        assert states == []


@in_trio
async def test_a_burst_of_answers_is_one_wakeup_of_the_loop(zookeeper, chroot):
    async with opened(zookeeper.hosts, chroot) as store:
        inbox = store._session._inbox
        answers = []

        async def ask(n):
            answers.append(await store.exists(f"/missing-{n}"))

        async with trio.open_nursery() as nursery:
            # No answer comes before all is asked.
            zookeeper.freeze()
            try:
                for n in range(900):
                    nursery.start_soon(ask, n)
                # All of them have run to where they wait, in whatever order with this task.
                for _ in range(2):
                    await trio.lowlevel.checkpoint()
                before, outstanding = inbox.wakeup_count, len(store._session._requests)
            finally:
                zookeeper.thaw()
            assert outstanding == 900
            # The loop is busy with something else until all the answers are there.
            deadline = time.monotonic() + 20
            while len(inbox._calls) < outstanding:
                assert time.monotonic() < deadline
                time.sleep(0.01)  # noqa: ASYNC251
        assert answers == [False] * 900
        assert inbox.wakeup_count - before <= 2


@in_trio
async def test_more_requests_than_a_socket_buffer_holds_do_not_block_the_loop(own_zookeeper):
    """kazoo writes a byte for each into a socket pair, and blocks at 278 of them."""
    options = {"session_timeout_ms": 4_000, "request_count_max": 5_000}
    async with opened(own_zookeeper.hosts, "/f", **options) as store:
        await store.create("/a", b"0")
        own_zookeeper.freeze()
        async with trio.open_nursery() as nursery:
            for _ in range(3_000):
                nursery.start_soon(store.exists, "/a")
            await trio.lowlevel.checkpoint()
            with AwakeClock() as clock:
                await trio.sleep(0.3)
            assert clock.seconds < 2
            own_zookeeper.thaw()


# -- where it is, and who may --------------------------------------------------------------------


@in_trio
async def test_chroots_and_service_uris(zookeeper, raw, chroot):
    uri = parse_service_uri(f"zk+null://{zookeeper.hosts}{chroot}/deep/ledgers")
    assert uri.ledgers_root == f"{chroot}/deep/ledgers"
    async with opened(uri.hosts, "") as store:
        made = await store.create(uri.ledgers_root + "/idgen/ID-", sequence=True, make_parents=True)
        assert made == f"{chroot}/deep/ledgers/idgen/ID-0000000000"
        assert "zookeeper" not in await store.children("/")
    assert raw.get_children("/deep/ledgers/idgen") == ["ID-0000000000"]
    async with opened(f"127.0.0.1:1,{zookeeper.hosts}", f"{chroot}/deep") as store:
        assert await store.children("/ledgers/idgen") == ["ID-0000000000"]


@in_trio
async def test_only_the_creator_may(zookeeper, raw, chroot):
    secure = {"creator_all_acl": True, "digest": "log:secret"}
    async with opened(zookeeper.hosts, chroot, **secure) as store:
        await store.create("/mine/deep", b"x", make_parents=True)
        await store.multi([CreateOp("/mine/multi/deep", b"y", make_parents=True)])
        cut(store)
        assert await store.put("/mine/deep", b"z", 0) == 1
    raw.add_auth("digest", "log:secret")
    for path in ("/mine", "/mine/deep", "/mine/multi", "/mine/multi/deep"):
        (acl,) = raw.get_acls(path)[0]
        assert (acl.perms, acl.id.scheme, acl.id.id.partition(":")[0]) == (31, "digest", "log")
    for options in ({}, {"digest": "log:wrong"}):
        async with opened(zookeeper.hosts, chroot, **options) as store:
            for call in (
                lambda: store.get("/mine/deep"),
                lambda: store.put("/mine/deep", b"", 1),
                lambda: store.create("/mine/other"),
                lambda: store.delete("/mine/deep"),
                lambda: store.multi([PutOp("/mine/deep", b"", 1)]),
            ):
                with pytest.raises(MetadataError, match="permission"):
                    await call()
    async with opened(zookeeper.hosts, chroot, digest="log:secret") as store:
        assert await store.get("/mine/deep") == Node(b"z", 1)
        await store.create("/open")
    assert raw.get_acls("/open")[0][0].id.scheme == "world"
    with pytest.raises(ValueError, match="digest"):
        ZooKeeperOptions(zookeeper.hosts, creator_all_acl=True)


@in_trio
async def test_tls(zookeeper, scratch, chroot):
    tls = ZooKeeperTls(str(zookeeper.ca_file))
    # Nothing but replies comes for 40 s: no ping's answer makes up for one that was overlooked.
    rare_pings = {"session_timeout_ms": 120_000}
    async with opened(zookeeper.secure_hosts, chroot, tls=tls, **rare_pings) as store:
        await store.create("/big", bytes(1_000_000))
        await store.create("/a", b"0")
        # Many replies in one TLS record: all are seen at once.
        with trio.fail_after(30):
            found = await store.get_many([f"/missing-{n}" for n in range(3_000)])
        assert found == [None] * 3_000
        assert len((await store.get("/big")).data) == 1_000_000
        cut(store)
        assert await store.put("/a", b"1", 0) == 1
    async with opened(zookeeper.hosts, chroot) as store:
        assert await store.get("/a") == Node(b"1", 1)
    name = zookeeper.secure_hosts.replace("127.0.0.1", "localhost")
    async with opened(name, chroot, tls=tls) as store:
        assert await store.exists("/a")
    for hosts, wrong in (
        (zookeeper.secure_hosts, ZooKeeperTls()),
        (zookeeper.hosts, tls),
        (zookeeper.secure_hosts, None),
    ):
        options = ZooKeeperOptions(hosts, chroot, tls=wrong, operation_timeout_ms=1_000)
        with pytest.raises(MetadataUnavailableError, match="no answer"):
            await ZooKeeperStore(options).run()
    missing = ZooKeeperOptions(hosts, tls=ZooKeeperTls(str(scratch / "missing.pem")))
    with pytest.raises(FileNotFoundError):
        await ZooKeeperStore(missing).run()
    unverified = ZooKeeperTls(verify_server=False)
    async with opened(zookeeper.secure_hosts, chroot, tls=unverified) as store:
        assert await store.exists("/a")


@in_trio
async def test_tls_with_a_clients_certificate(scratch):
    server = ZooKeeper(scratch / "mutual", {"ssl.clientAuth": "need"}, tls=True).start()
    try:
        ca_file = str(server.ca_file)
        mutual = ZooKeeperTls(ca_file, str(server.client_file), str(server.client_key_file))
        async with opened(server.secure_hosts, "/m", tls=mutual) as store:
            await store.create("/a")
        anonymous = ZooKeeperOptions(
            server.secure_hosts, tls=ZooKeeperTls(ca_file), operation_timeout_ms=1_000
        )
        with pytest.raises(MetadataUnavailableError, match="no answer"):
            await ZooKeeperStore(anonymous).run()
    finally:
        server.discard()
