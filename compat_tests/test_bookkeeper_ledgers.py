"""Ledgers written and read by Apache BookKeeper's client (both protocols) and by ours, on Java's
bookies, on ours, and on both at once: whoever writes, anybody else reads, fences and recovers.

With the control target: Java's clients on Java's bookies.
"""

import itertools
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness import servers
from harness.bookkeeper import Cluster, JavaBookie, QuireBookie, ToolError, wait_for

IS_CONTROL = servers.target() == "control"
JAVA = ["v3", "v2"]
CLIENTS = JAVA if IS_CONTROL else [*JAVA, "quire"]
#: Writers and readers. Where two Java clients would show less than it costs, one of them is ours.
ALL_PAIRS = list(itertools.product(CLIENTS, CLIENTS))
OUR_PAIRS = [pair for pair in ALL_PAIRS if "quire" in pair]
DIGESTS = ["CRC32C", "CRC32", "MAC", "DUMMY"]
#: LedgerFenced; LedgerClosed if the metadata told it first.
FENCED = (-101, -11)
UNAUTHORIZED = -102
#: NoSuchLedgerExists; the metadata server's own.
NO_LEDGER = (-7, -25)


class World:
    """A cluster, and clients that are started when they are first needed."""

    def __init__(self, cluster):
        self.cluster = cluster
        self._clients = {}

    def client(self, kind):
        if kind not in self._clients:
            self._clients[kind] = self.cluster.ledger_tool(kind)
        return self._clients[kind]


@pytest.fixture(scope="class")
def world(request, scratch):
    cluster = Cluster(scratch / request.cls.__name__ / "cluster")
    try:
        cluster.start(*request.cls.bookies)
        yield World(cluster)
    finally:
        cluster.discard()


def only(condition):
    """For pairs of a writer and a reader that meet it."""

    def mark(function):
        function.condition = condition
        return function

    return mark


def clients(*names):
    """For these of the clients."""
    return only(lambda client: client in names)


def pytest_generate_tests(metafunc):
    condition = getattr(metafunc.function, "condition", lambda *_: True)
    if "writer" in metafunc.fixturenames:
        chosen = [pair for pair in metafunc.cls.pairs if condition(*pair)]
        metafunc.parametrize(("writer", "reader"), chosen)
    elif "client" in metafunc.fixturenames:
        only_client = getattr(metafunc.cls, "only_client", None)
        known = [only_client] if only_client else CLIENTS
        metafunc.parametrize("client", [each for each in known if condition(each)])


def another(client):
    return next(each for each in CLIENTS if each != client)


def expect_code(codes, call, **arguments):
    with pytest.raises(ToolError) as raised:
        call(**arguments)
    assert raised.value.code in codes, raised.value


class Everywhere:
    """Whoever writes, anybody else reads."""

    @only(lambda writer, reader: writer != reader)
    def test_no_id_is_given_twice(self, world, writer, reader):
        """Both make ledgers at the same time."""
        clients, count = [world.client(kind) for kind in (writer, reader)], 60
        clients[0].wait_for_bookies(1)

        def make(client):
            made = [client.create(e=1, qw=1, qa=1) for _ in range(count)]
            for each in made:
                client.close(handle=each["handle"])
            return [each["ledger"] for each in made]

        with ThreadPoolExecutor(2) as threads:
            ids = [each for found in threads.map(make, clients) for each in found]
        assert len(set(ids)) == 2 * count
        for each in ids:
            clients[0].delete(ledger=each)
        wait_for(lambda: not world.cluster.children("idgen"), "ids' nodes stay")

    def test_every_digest_is_written_and_read(self, world, writer, reader):
        for digest in DIGESTS:
            secret = {"digest": digest, "password": f"secret-{digest}"}
            made = world.client(writer).write(100, 500, **secret, custom="label")
            closed = world.client(writer).close(handle=made["handle"])
            assert (closed["last"], closed["length"]) == (99, 50_000)
            opened = world.client(reader).read_back(made["ledger"], 500, 100, **secret)
            assert (opened["length"], opened["closed"]) == (50_000, True)
            metadata = world.client(reader).metadata(ledger=made["ledger"])
            assert metadata["state"] == "CLOSED"
            assert metadata["digest"] == (
                "HMAC" if (digest, reader) == ("MAC", "quire") else digest
            )
            assert metadata["custom"] == "label"

    @pytest.mark.parametrize("quorums", [(4, 2, 2), (3, 2, 1), (1, 1, 1)])
    def test_striped_ledgers(self, world, writer, reader, quorums):
        ensemble, write, ack = quorums
        made = world.client(writer).write(250, 300, e=ensemble, qw=write, qa=ack)
        world.client(writer).close(handle=made["handle"])
        world.client(reader).read_back(made["ledger"], 300, 250)

    @only(lambda writer, reader: writer != reader)
    def test_entries_of_every_size(self, world, writer, reader):
        for size, count in [(0, 10), (1, 10), (8, 10), (70_000, 20), (1 << 20, 8), (5_000_000, 3)]:
            made = world.client(writer).write(count, size)
            world.client(writer).close(handle=made["handle"])
            world.client(reader).read_back(made["ledger"], size, count)

    def test_a_reader_fences_the_writer_and_recovers(self, world, writer, reader):
        made = world.client(writer).write(120, 200, password="p")
        opened = world.client(reader).read_back(made["ledger"], 200, 120, password="p")
        assert opened["length"] == 120 * 200
        added = world.client(writer).append(handle=made["handle"], count=5, size=200)
        assert (added["acked"], added["failed"]) == (0, 5), added
        assert added["code"] in FENCED, added
        # A third party sees the same end.
        third = world.client(another(reader))
        third.read_back(made["ledger"], 200, 120, password="p")

    @only(lambda writer, reader: writer != reader)
    def test_an_open_ledger_is_read_without_recovery(self, world, writer, reader):
        made = world.client(writer).write(50, 100, window=1)
        opened = world.client(reader).open(ledger=made["ledger"], recover=False)
        # Without an explicit LAC a reader knows one entry less than the writer.
        assert opened["last"] == 48
        read = world.client(reader).read(handle=opened["handle"], first=0, last=48, size=100)
        assert (read["good"], read["bad"]) == (49, [])
        # The writer is not disturbed.
        added = world.client(writer).append(handle=made["handle"], count=50, size=100)
        assert (added["acked"], added["last"]) == (50, 99)

    def test_wrong_passwords_and_missing_ledgers(self, world, client):
        made = world.client(client).write(10, 10, password="right")
        tool = world.client(client)
        expect_code([UNAUTHORIZED], tool.open, ledger=made["ledger"], password="wrong")
        expect_code(NO_LEDGER, tool.open, ledger=987_654, password="")
        tool.close(handle=made["handle"])
        tool.delete(ledger=made["ledger"])
        expect_code(NO_LEDGER, tool.open, ledger=made["ledger"], password="right")

    @only(lambda writer, reader: writer != reader)
    def test_what_a_killed_writer_was_told_is_there(self, world, writer, reader):
        tool = world.cluster.ledger_tool(writer)
        made = tool.create(e=3, qw=3, qa=2)
        tool.flood(handle=made["handle"], size=400, window=64)
        wait_for(lambda: tool.last_acked() >= 400, "the flood does not flow")
        tool.kill()
        opened = world.client(reader).open(ledger=made["ledger"])
        last = opened["last"]
        assert last >= tool.last_acked()
        assert opened["length"] == (last + 1) * 400
        read = world.client(reader).read(handle=opened["handle"], first=0, last=last, size=400)
        assert (read["good"], read["bad"]) == (last + 1, [])
        third = world.client(another(reader))
        third.read_back(made["ledger"], 400, last + 1)

    @only(lambda writer, reader: writer != reader)
    def test_a_killed_bookie_is_replaced(self, world, writer, reader):
        tool = world.client(writer)
        made = tool.create(e=3, qw=3, qa=2)
        events = len(tool.events)
        tool.flood(handle=made["handle"], size=300, window=64)
        wait_for(lambda: len(tool.events) > events + 5, "the flood does not flow")
        before = world.client(reader).metadata(ledger=made["ledger"])["segments"]
        lost = world.cluster.bookie(before[-1][1][1])
        lost.kill()
        try:
            wait_for(
                lambda: len(tool.metadata(ledger=made["ledger"])["segments"]) > len(before),
                "the ensemble does not change",
            )
            events = len(tool.events)
            wait_for(lambda: len(tool.events) > events + 5, "the flood does not go on")
            flooded = tool.stop_flood()
            assert flooded["failed"] == 0, flooded
            assert flooded["misordered"] == 0
            segments = tool.metadata(ledger=made["ledger"])["segments"]
            assert lost.id not in segments[-1][1]
            # While it is away: nobody needs it to recover and to read.
            world.client(reader).read_back(made["ledger"], 300, flooded["acked"])
        finally:
            lost.start()
        for each in CLIENTS:
            world.client(each).wait_for_bookies(4)


class FrozenBookies:
    """Bookies that keep their connections and answer nothing."""

    @only(lambda writer, reader: (writer, reader) in (("v2", "quire"), ("quire", "v2")))
    def test_a_frozen_bookie_holds_nobody_up(self, world, writer, reader):
        # Whoever waited for it would wait for a minute.
        limit = {"add_timeout_ms": 60_000} if writer == "quire" else {"addEntryTimeoutSec": 60}
        tool = world.cluster.ledger_tool(writer, **limit)
        made = tool.create(e=3, qw=3, qa=2)
        tool.append(handle=made["handle"], count=10, size=100)
        frozen = world.cluster.bookie(tool.metadata(ledger=made["ledger"])["segments"][0][1][0])
        frozen.freeze()
        try:
            # Two of three are enough for the time being.
            started = time.monotonic()
            added = tool.append(handle=made["handle"], count=200, size=100)
            assert (added["acked"], added["failed"]) == (200, 0), added
            assert time.monotonic() - started < 20
            # Nobody waits for it for each entry anew.
            world.client(reader).read_back(made["ledger"], 100, 210)
            assert time.monotonic() - started < 30
            # What is registered from now on is registered anew.
            world.cluster.wait_until_gone(frozen.id)
        finally:
            frozen.thaw()
        tool.kill()
        wait_for(lambda: world.cluster.is_registered(frozen.id), "it does not come back")
        for each in CLIENTS:
            world.client(each).wait_for_bookies(4)


class BothClients:
    """What Java's client and ours ask of bookies beyond adds and reads."""

    @clients("v3", "quire")
    def test_a_long_poll_ends_with_the_next_entry(self, world, client):
        tool = world.client(client)
        made = tool.write(10, 100, window=1)
        opened = tool.open(ledger=made["ledger"], recover=False)
        assert opened["last"] == 8
        tool.poll(handle=opened["handle"], entry=9, timeout_ms=60_000, size=100)
        time.sleep(0.3)
        # Entry 10 tells the bookies that 9 is confirmed.
        tool.append(handle=made["handle"], count=1, size=100)
        polled = tool.poll_result(handle=opened["handle"])
        assert polled["code"] == 0
        assert polled["lac"] >= 9, polled
        assert (polled["entry"], polled["good"]) == (9, True), polled
        assert 250 < polled["ms"] < 15_000, polled

    @clients("v3", "quire")
    def test_a_long_poll_ends_after_its_time(self, world, client):
        tool = world.client(client)
        made = tool.write(10, 100, window=1)
        opened = tool.open(ledger=made["ledger"], recover=False)
        tool.poll(handle=opened["handle"], entry=9, timeout_ms=2000)
        polled = tool.poll_result(handle=opened["handle"])
        assert (polled["code"], polled["lac"], polled["entry"]) == (0, 8, -1), polled
        assert 1950 < polled["ms"] < 11_000, polled

    @clients("v3", "quire")
    def test_a_long_poll_ends_when_the_ledger_is_fenced(self, world, client):
        tool = world.client(client)
        made = tool.write(10, 100, window=1)
        opened = tool.open(ledger=made["ledger"], recover=False)
        tool.poll(handle=opened["handle"], entry=9, timeout_ms=20_000, size=100)
        time.sleep(0.2)
        world.client("v2").read_back(made["ledger"], 100, 10)
        assert tool.poll_result(handle=opened["handle"])["ms"] < 10_000

    @only(lambda writer, reader: reader != "v2" and writer != reader)
    def test_a_reader_follows_the_writer(self, world, writer, reader):
        tool = world.client(writer)
        made = tool.create(e=3, qw=3, qa=2)
        tool.append(handle=made["handle"], count=1, size=150)
        opened = world.client(reader).open(ledger=made["ledger"], recover=False)
        world.client(reader).tell("tail", handle=opened["handle"], first=0, last=299, size=150)
        for _ in range(30):
            tool.append(handle=made["handle"], count=10, size=150)
            time.sleep(0.01)
        # One that tells the bookies that all before it are confirmed.
        tool.append(handle=made["handle"], count=1, size=150)
        followed = world.client(reader).answer()
        assert (followed["good"], followed["bad"]) == (300, []), followed

    @clients("v3", "quire")
    def test_deferred_sync_and_force(self, world, client):
        tool = world.client(client)
        made = tool.create(e=3, qw=3, qa=2, deferred=True)
        added = tool.append(handle=made["handle"], count=100, size=200)
        # Acknowledged, and not confirmed: that is what `force` is for.
        assert (added["acked"], added["lac"]) == (100, -1), added
        forced = tool.force(handle=made["handle"])
        assert forced["lac"] == 99, forced
        closed = tool.close(handle=made["handle"])
        assert closed["last"] == 99
        world.client(another(client)).read_back(made["ledger"], 200, 100)

    @clients("v3", "quire")
    def test_the_explicit_lac(self, world, client):
        interval = "explicit_lac_interval_ms" if client == "quire" else "explicitLacInterval"
        tool = world.cluster.ledger_tool(client, **{interval: "100"})
        made = tool.write(20, 100, window=1)
        reader = tool.open(ledger=made["ledger"], recover=False)["handle"]
        assert tool.lac(handle=reader, mode="read")["lac"] >= 18
        wait_for(
            lambda: tool.lac(handle=reader, mode="explicit")["lac"] == 19,
            "the explicit LAC does not come",
        )
        read = tool.read(handle=reader, first=0, last=19, size=100)
        assert (read["good"], read["bad"]) == (20, [])
        tool.kill()

    def test_entries_out_of_order(self, world, client):
        tool = world.client(client)
        made = tool.create(e=3, qw=3, qa=2, adv=True)
        added = tool.append_scattered(handle=made["handle"], count=100, size=100)
        assert (added["acked"], added["last"], added["failed"]) == (100, 99, 0), added
        assert added["misordered"] == 0
        world.client(another(client)).read_back(made["ledger"], 100, 100)


class JavaClient:
    """What only Java's client is asked to do."""

    # Java's client has them in v2 only.
    @clients("v2")
    def test_batch_reads(self, world, client):
        tool = world.client(client)
        # A bookie that has not got all of them yet gives what it has: so each has acknowledged.
        made = tool.write(500, 1000, qa=3)
        tool.close(handle=made["handle"])
        handle = tool.open(ledger=made["ledger"])["handle"]
        whole = {"handle": handle, "first": 0, "last": 499, "size": 1000, "mode": "batch"}
        read = tool.read(**whole)
        assert (read["good"], read["bad"]) == (500, [])
        assert read["requests"] < 10, read
        read = tool.read(**whole, count_max=50)
        assert (read["good"], read["requests"]) == (500, 10)
        # Each entry counts with its size in front, 36 bytes of head for the answer.
        read = tool.read(**whole, size_max=36 + 8 * (4 + 32 + 4 + 1000))
        assert (read["good"], read["bad"]) == (500, [])
        assert read["requests"] == 63, read
        striped = tool.write(100, 1000, e=3, qw=2, qa=2)
        read = tool.read(**{**whole, "handle": striped["handle"], "last": 99})
        assert (read["good"], read["bad"]) == (100, [])

    @clients("v2", "v3")
    def test_unconfirmed_entries(self, world, client):
        tool = world.client(client)
        # Whoever answers first knows of all but the last one.
        made = tool.write(30, 100, qa=3, window=1)
        reader = tool.open(ledger=made["ledger"], recover=False)["handle"]
        read = tool.read(handle=reader, first=0, last=29, size=100, mode="unconfirmed")
        assert (read["good"], read["bad"]) == (30, [])
        assert tool.lac(handle=reader, mode="read")["lac"] == 28
        assert tool.lac(handle=reader, mode="try")["lac"] == 28

    @clients("v3")
    def test_the_list_of_entries(self, world, client):
        tool = world.client(client)
        made = tool.write(300, 100, e=3, qw=2, qa=2)
        first, bookies = tool.metadata(ledger=made["ledger"])["segments"][0]
        assert first == 0
        for index, bookie in enumerate(bookies):
            listed = tool.entries_of(ledger=made["ledger"], bookie=bookie, last=299)
            # Entry n is on bookies n and n+1 of the three.
            missing = [n for n in range(300) if index not in (n % 3, (n + 1) % 3)]
            assert (listed["count"], listed["missing"]) == (200, missing)


class TestOnQuire(Everywhere, FrozenBookies, BothClients, JavaClient):
    bookies = [QuireBookie] * 4
    pairs = ALL_PAIRS


class TestMixed(Everywhere, BothClients, JavaClient):
    bookies = [JavaBookie, QuireBookie] * 2
    pairs = OUR_PAIRS


class TestOnJava(Everywhere, BothClients):
    bookies = [JavaBookie] * 4
    pairs = OUR_PAIRS
    only_client = "quire"


class TestControl(Everywhere, BothClients, JavaClient):
    bookies = [JavaBookie] * 4
    pairs = ALL_PAIRS


# Of what is not of the chosen target there is nothing to see.
if IS_CONTROL:
    del TestOnQuire, TestMixed, TestOnJava
else:
    del TestControl
