"""`quire ledger …` and the cluster's commands of `quire bookie …`: the whole command line, on real
bookies over sockets; only the metadata is in memory."""

import json

import pytest
import trio
from click.testing import CliRunner

from bookie.bookie import Bookie
from bookie.cookie import Cookie
from bookie.server.server import BookieServer, BookieServerSettings
from ledger.client import LedgerClient
from ledger.network.client import NetworkBookieClient
from ledger.placement import RandomPlacement
from ledger.underreplication import UnderReplication
from metadata.memory import MemoryStore, MemoryTree
from quire.cli import main
from tests.ledger.bookie_configs import small_bookie
from tests.ledger.real_parts import networked
from wire.bookkeeper.records import (
    BookieServiceInfo,
    Endpoint,
    UnderreplicatedLedger,
    encode_holder,
    encode_service_info,
    encode_underreplicated,
    underreplicated_path,
)

URI = "zk+null://127.0.0.1:1/ledgers"


class Node:
    """A bookie that serves, in a nursery of its own that `stop` ends."""

    def __init__(self, cluster, name):
        self.cluster = cluster
        self.name = name
        self.bookie = Bookie(small_bookie(cluster.directory, name), cluster.env)
        settings = BookieServerSettings(port=0)
        self.server = BookieServer(self.bookie, cluster.env, settings, lambda: (1000, 400))
        self.address = None
        self._scope = trio.CancelScope()
        self._stopped = trio.Event()

    async def run(self, *, task_status):
        with self._scope:
            async with trio.open_nursery() as nursery:
                await nursery.start(self.bookie.run)
                self.address = await nursery.start(self.server.run)
                await self.register("available")
                task_status.started()
        self._stopped.set()

    async def register(self, where):
        endpoint = Endpoint("bookie", *self.address)
        data = encode_service_info(BookieServiceInfo((endpoint,), {"rack": "r1"}))
        await self.cluster.store.create(f"/ledgers/{where}/{self.name}", data, ephemeral=True)

    async def stop(self):
        self._scope.cancel()
        await self._stopped.wait()
        await self.cluster.store.delete(f"/ledgers/available/{self.name}")


class Cluster:
    def __init__(self, env, nursery, directory, names):
        self.env = env
        self.nursery = nursery
        self.directory = directory
        self.tree = MemoryTree()
        self.store = MemoryStore(self.tree)
        self.nodes = {name: Node(self, name) for name in names}

    async def start(self):
        bookies = NetworkBookieClient(self.env, lambda name: self.nodes[name].address)
        await self.nursery.start(bookies.run)
        self.client = LedgerClient(
            self.store,
            bookies,
            self.env,
            placement=RandomPlacement(lambda: sorted(self.nodes), self.env.rng),
        )
        await self.nursery.start(self.client.run)
        await self.client.manager.ensure_layout()
        for name, node in self.nodes.items():
            await self.nursery.start(node.run)
            await self.store.create(f"/ledgers/cookies/{name}", self.cookie(name).encode())

    @staticmethod
    def cookie(name):
        return Cookie(name, "/j", "/l", "").encode()

    def open_store(self, _values, _env):
        return MemoryStore(self.tree), "/ledgers"

    async def _run(self, arguments, code, answer):
        """`quire …`, while the loop with the bookies goes on."""
        words = [str(each) for each in arguments]
        environment = {"QUIRE_METADATA_SERVICE_URI": URI}

        def invoke():
            runner = CliRunner()
            return runner.invoke(main, words, obj=self.open_store, env=environment, input=answer)

        result = await trio.to_thread.run_sync(invoke)
        assert result.exit_code == code, (result.output, result.exception)
        return result

    async def run(self, *arguments, code=0, answer=None):
        """stdout of `quire …`; of one that failed, stderr too."""
        result = await self._run(arguments, code, answer)
        return result.output if code else result.stdout

    async def json(self, *arguments, code=0):
        return json.loads((await self._run((*arguments, "--json"), code, None)).stdout)

    async def write(self, count, sizes=(3, 3, 2), *, close=True, **keywords):
        """(ledger id, metadata); payloads are b"entry 0" … Of an open ledger all but the last
        entry are known to be confirmed."""
        names = ("ensemble_size", "write_quorum_size", "ack_quorum_size")
        writer = await self.client.create_ledger(**dict(zip(names, sizes, strict=True)), **keywords)
        finished, told = trio.Event(), []

        def done(_, error):
            told.append(error)
            if len(told) == count:
                finished.set()

        for number in range(count):
            writer.append_nowait([b"entry %d" % number], done)
            while not close and len(told) <= number:
                await trio.lowlevel.checkpoint()
        if count:
            await finished.wait()
        assert told == [None] * count
        return writer.ledger_id, await writer.close() if close else writer.metadata

    async def metadata(self, ledger_id):
        return (await self.client.manager.read(ledger_id)).metadata


@pytest.fixture
async def cluster(tmp_path, quiet_logs):
    async with networked() as (env, nursery):
        made = Cluster(env, nursery, tmp_path, ["b1", "b2", "b3", "b4"])
        await made.start()
        yield made


async def test_lists_and_metadata(cluster, tmp_path):
    first, metadata = await cluster.write(10, password=b"secret", custom_metadata={"a": b"b"})
    second, _ = await cluster.write(0, (1, 1, 1), close=False)
    assert await cluster.json("ledger", "list") == [{"ledger": first}, {"ledger": second}]
    assert await cluster.run("ledger", "listledgers") == f"ledger\n{first}\n{second}\n"
    rows = await cluster.json("ledger", "list", "-meta")
    assert rows[0]["state"] == "CLOSED"
    assert rows[0]["length_bytes"] == metadata.length == 70
    assert rows[0]["custom"] == {"a": "b"}
    assert rows[0]["ensembles"] == {"0": list(metadata.last_segment[1])}
    assert rows[1]["last_entry"] is None
    absent = (set(cluster.nodes) - set(metadata.last_segment[1])).pop()
    ids = [row["ledger"] for row in await cluster.json("ledger", "list", "-bookieid", absent)]
    assert first not in ids

    shown = await cluster.run("ledger", "metadata", first)
    assert "secret" not in shown
    assert "c2VjcmV0" not in shown, "base64"
    found = await cluster.json("ledger", "ledgermetadata", "-ledgerid", first)
    assert (found["lastEntryId"], found["writeQuorumSize"]) == (9, 3)

    file = tmp_path / "dumped"
    await cluster.run("ledger", "metadata", first, "--dump-to-file", file)
    await cluster.run("ledger", "metadata", first, "-restorefromfile", file, code=1)
    await cluster.client.delete_ledger(first)
    await cluster.run("ledger", "metadata", first, "-restorefromfile", file)
    assert await cluster.metadata(first) == metadata
    await cluster.run("ledger", "metadata", second, "--restore-from-file", file, "-update")
    assert await cluster.metadata(second) == metadata
    file.write_bytes(b"junk")
    await cluster.run("ledger", "metadata", second, "--restore-from-file", file, code=1)


async def test_read(cluster):
    ledger, metadata = await cluster.write(250)
    rows = await cluster.json("ledger", "read", ledger, "--msg")
    assert rows == [
        {"entry": n, "size": len(f"entry {n}"), "payload": f"entry {n}"} for n in range(250)
    ]
    text = await cluster.run("ledger", "readledger", "-l", ledger, "-fe", 2, "-le", 3, "-m")
    assert text == "entry\tsize\tpayload\n2\t7\tentry 2\n3\t7\tentry 3\n"
    text = await cluster.run("ledger", "read", ledger, "--first", 249, "--hex")
    assert text.endswith(b"entry 249".hex() + "\n")
    holder = metadata.last_segment[1][0]
    rows = await cluster.json("ledger", "read", ledger, "-b", holder)
    assert [row["status"] for row in rows] == ["EOK"] * 250
    other = (set(cluster.nodes) - set(metadata.last_segment[1])).pop()
    assert await cluster.json("ledger", "read", ledger, "-b", other) == []

    # Of an open ledger: as far as it is confirmed, until it is recovered.
    opened, _ = await cluster.write(5, close=False)
    assert len(await cluster.json("ledger", "read", opened)) == 4
    assert len(await cluster.json("ledger", "read", opened, "-force-recovery")) == 5
    assert (await cluster.metadata(opened)).is_closed


async def test_write_recover_delete(cluster):
    sizes = ("-ensemble", 3, "-writeQuorum", 2, "-ackQuorum", 2, "-numEntries", 300)
    made = await cluster.json("ledger", "write", *sizes, "--digest", "HMAC", "--password", "p")
    assert (made["last_entry"], made["length_bytes"], made["entries_read"]) == (299, 1800, 300)
    assert (await cluster.metadata(made["ledger"])).digest_type.name == "HMAC"
    tested = await cluster.json("ledger", "simpletest", *sizes, "--size", 2000)
    assert tested["length_bytes"] == 600_000
    ids = [row["ledger"] for row in await cluster.json("ledger", "list")]
    assert ids == [made["ledger"]]
    assert "7" in await cluster.run("ledger", "write", "-e", 7, "-w", 7, "-a", 7, code=1)
    await cluster.run("ledger", "write", "-e", 1, "-w", 2, code=2)

    opened, _ = await cluster.write(5, close=False, password=b"x")
    found = await cluster.json("ledger", "recover", opened)
    assert (found["was"], found["state"], found["last_entry"]) == ("OPEN", "CLOSED", 4)
    assert (await cluster.json("ledger", "recover", opened))["was"] == "CLOSED"
    await cluster.run("ledger", "recover", opened, "--password", "wrong", code=1)

    await cluster.run("ledger", "delete", opened, code=1, answer="n\n")
    await cluster.run("ledger", "delete", opened, answer="y\n")
    await cluster.run("ledger", "deleteledger", "-ledgerid", made["ledger"], "-force")
    assert await cluster.json("ledger", "list") == []
    assert "not in the metadata" in await cluster.run("ledger", "delete", 77, "-f", code=1)
    custom = {"application": b"quire", "topic": b"t", "partition": b"3"}
    ours, _ = await cluster.write(1, custom_metadata=custom)
    assert "partition t-3" in await cluster.run("ledger", "delete", ours, code=1, answer="y\n")
    await cluster.run("ledger", "delete", ours, "--force")


async def test_check_and_recover_a_bookie(cluster):
    closed, metadata = await cluster.write(120)
    opened, _ = await cluster.write(40, close=False)
    striped, _ = await cluster.write(60, (3, 2, 2))
    before = await cluster.json("ledger", "check")
    assert [row["missing_copies"] for row in before] == [0, 0, 0]
    assert [row["copies"] for row in before] == [360, 117, 120]
    lost = metadata.last_segment[1][0]
    concerned = [closed]
    for ledger in (opened, striped):
        if lost in (await cluster.metadata(ledger)).last_segment[1]:
            concerned.append(ledger)
    await cluster.run("bookie", "recover", lost, "-f", "--delete-cookie", code=1)
    await cluster.run("bookie", "recover", lost, "-f", "-d", "-l", closed, code=2)
    await cluster.nodes[lost].stop()

    (row,) = await cluster.json("ledger", "check", closed, code=1)
    assert (row["missing_copies"], row["lost_entries"]) == (120, 0)
    assert row["missing"] == [f"{lost} 0-119 EIO"]
    rows = await cluster.json("bookie", "recover", "-query", lost)
    assert [row["ledger"] for row in rows] == concerned
    plan = await cluster.json("bookie", "recover", lost, "--dryrun")
    assert [row["replaced"] for row in plan] == [[lost]] * len(concerned)
    spare = (set(cluster.nodes) - set(metadata.last_segment[1])).pop()
    assert plan[0]["by"] == [spare]
    assert await cluster.metadata(closed) == metadata, "nothing was done yet"

    await cluster.run("bookie", "recover", lost, code=1, answer="n\n")
    rows = await cluster.json("bookie", "recover", lost, "-force", "-d")
    done = {row["ledger"]: row for row in rows}
    assert sorted(done) == concerned
    assert done[closed]["entries"] == 120
    if opened in concerned:
        assert done[opened]["was_open"]
    for ledger in concerned:
        assert lost not in (await cluster.metadata(ledger)).last_segment[1]
    after = await cluster.json("ledger", "check")
    assert [row["missing_copies"] for row in after] == [0, 0, 0]
    assert not await cluster.store.exists(f"/ledgers/cookies/{lost}")
    assert await cluster.json("bookie", "recover", "-query", lost) == []


async def test_what_cannot_be_recovered(cluster):
    single, metadata = await cluster.write(20, (1, 1, 1))
    (lost,) = metadata.last_segment[1]
    wide, _ = await cluster.write(20, (4, 4, 3))
    fine, fine_metadata = await cluster.write(20, (2, 2, 2))
    while lost not in fine_metadata.last_segment[1]:
        fine, fine_metadata = await cluster.write(20, (2, 2, 2))
    await cluster.nodes[lost].stop()
    rows = await cluster.json("bookie", "recover", lost, "-f", "-sku", "-d", code=1)
    errors = {row["ledger"]: row["error"] for row in rows}
    assert "no bookie gives it" in errors[single]
    assert "no bookies in place of" in errors[wide]
    assert errors[fine] is None
    assert await cluster.store.exists(f"/ledgers/cookies/{lost}"), "still named by ledgers"
    plan = await cluster.json("bookie", "recover", lost, "-dryrun", "-ledger", wide)
    assert "can be chosen" in plan[0]["by"]
    await cluster.run("bookie", "decommissionbookie", "-bookieid", lost, code=1)


async def test_under_replicated_and_auto_recovery(cluster):
    records = UnderReplication(cluster.store)
    for ledger_id, replicas in ((3, ("b1",)), (70_000, ("b1", "b2")), (12, ("b2",))):
        data = encode_underreplicated(UnderreplicatedLedger(replicas, 1234))
        path = f"/ledgers/underreplication/ledgers/{underreplicated_path(ledger_id)}"
        await cluster.store.create(path, data, make_parents=True)
    await records.ensure_layout()

    async def listed(*options):
        found = await cluster.json("ledger", "listunderreplicated", *options)
        return [row["ledger"] for row in found]

    assert await listed() == [3, 12, 70_000]
    assert await listed("-missingreplica", "b1") == [3, 70_000]
    assert await listed("-mr", "b1", "-emr", "b2") == [3]
    found = await cluster.json("ledger", "list-under-replicated", "-c")
    assert found == {"under_replicated": 3}

    assert await cluster.json("bookie", "cluster-info") == {
        "auditorElected": False,
        "auditorId": "",
        "clusterUnderReplicated": True,
        "ledgerReplicationEnabled": True,
        "totalBookiesCount": 4,
        "writableBookiesCount": 4,
        "readonlyBookiesCount": 0,
        "unavailableBookiesCount": 0,
    }
    await cluster.run("bookie", "who-is-auditor", code=1)
    await cluster.run("bookie", "trigger-audit", code=1)
    election = "/ledgers/underreplication/auditorelection"
    for number, name in ((12, "b3"), (9, "b4")):
        await cluster.store.create(
            f"{election}/V_{number:010d}", encode_holder(name), make_parents=True
        )
    assert await cluster.json("bookie", "whoisauditor") == {"auditor": "b4"}

    assert (await cluster.json("bookie", "lostbookierecoverydelay", "-get")) == {
        "lost_bookie_recovery_delay_s": None
    }
    await cluster.run("bookie", "lost-bookie-recovery-delay", "--set", 30)
    delay = "/ledgers/underreplication/lostBookieRecoveryDelay"
    before = await cluster.store.get(delay)
    assert before.data == b"30"
    assert await cluster.json("bookie", "trigger-audit") == {"auditor": "b4"}
    after = await cluster.store.get(delay)
    assert (after.data, after.version) == (b"30", before.version + 1)

    assert await cluster.json("bookie", "auto-recovery", "disable") == {
        "enabled": False,
        "changed": True,
    }
    assert await cluster.store.exists("/ledgers/underreplication/disable")
    assert not (await cluster.json("bookie", "auto-recovery", "disable"))["changed"]
    assert await cluster.json("bookie", "autorecovery") == {"enabled": False}
    await cluster.run("bookie", "trigger-audit", code=1)
    assert (await cluster.json("bookie", "autorecovery", "-enable"))["changed"]
    closed, _ = await cluster.write(3)
    await cluster.store.create(
        f"/ledgers/underreplication/locks/urL{closed:010d}", encode_holder("b2")
    )
    found = await cluster.json("bookie", "auto-recovery", "status")
    assert found["repairing"] == [{"ledger": closed, "worker": "b2", "length_bytes": 21}]
    rows = await cluster.json("bookie", "queryautorecoverystatus")
    assert rows == found["repairing"]
    await cluster.run("bookie", "force-audit-checks", code=2)
    await cluster.run("bookie", "forceauditchecks", "-calc", "-rc")
    assert await cluster.store.exists("/ledgers/underreplication/checkallledgersctime")
    assert not await cluster.store.exists("/ledgers/underreplication/placementpolicycheckctime")


async def test_bookies_and_cookies(cluster, tmp_path):
    await cluster.nodes["b4"].register("available/readonly")
    await cluster.nodes["b3"].stop()
    rows = await cluster.json("bookie", "list")
    assert [(row["bookie"], row["mode"]) for row in rows] == [
        ("b1", "writable"),
        ("b2", "writable"),
        ("b3", "unavailable"),
        ("b4", "read-only"),
    ]
    assert rows[0]["port"] == cluster.nodes["b1"].address[1]
    assert len(await cluster.json("bookie", "listbookies", "-rw")) == 2
    (row,) = await cluster.json("bookie", "listbookies", "-ro", "-h")
    assert (row["bookie"], row["hostname"]) == ("b4", "localhost")
    rows = await cluster.json("bookie", "bookieinfo")
    assert [row["bookie"] for row in rows] == ["b1", "b2", "b4", "all"]
    assert (rows[-1]["total_bytes"], rows[-1]["free_bytes"]) == (3000, 1200)
    (endpoint,) = await cluster.json("bookie", "endpointinfo", "-b", "b1")
    assert endpoint["properties"] == {"rack": "r1"}
    await cluster.run("bookie", "endpoint-info", "b3", code=1)
    found = await cluster.json("bookie", "what-is-instance-id")
    assert found["instance_id"].encode() == (await cluster.store.get("/ledgers/INSTANCEID")).data

    text = await cluster.run("bookie", "cookie_get", "b1")
    assert text == cluster.cookie("b1")
    file = tmp_path / "cookie"
    words = ("-j", "/j1,/j2", "-l", "/l1,/l2", "-o", file, "b9")
    await cluster.run("bookie", "cookie", "generate", *words)
    assert 'ledgerDirs: "2\\t/l1\\t/l2"' in file.read_text()
    assert found["instance_id"] in file.read_text()
    await cluster.run("bookie", "cookie", "update", "-cf", file, "b9", code=1)
    await cluster.run("bookie", "cookie_create", "-cf", file, "b9")
    await cluster.run("bookie", "cookie", "create", "-cf", file, "b9", code=1)
    assert (await cluster.store.get("/ledgers/cookies/b9")).data == file.read_bytes()
    await cluster.run("bookie", "cookie", "update", "-cf", file, "b1")
    await cluster.run("bookie", "cookie_delete", "b9")
    await cluster.run("bookie", "cookie", "delete", "b9", code=1)
    file.write_text("junk")
    await cluster.run("bookie", "cookie", "update", "-cf", file, "b1", code=1)


async def test_a_bookie_gets_another_name(cluster):
    one, metadata = await cluster.write(5, (2, 2, 2))
    old, stays = metadata.last_segment[1]
    words = ("bookie", "updateBookieInLedger", "-srcBookie", old, "-destBookie")
    await cluster.run(*words, "new:1", code=1)  # it is running
    await cluster.nodes[old].stop()
    rows = await cluster.json(*words, stays, "-s", 1000, code=1)
    assert "next to" in rows[0]["error"]
    await cluster.run(*words, old, code=2)
    assert await cluster.json(*words, "new:1", "-s", 1000) == [{"ledger": one, "error": None}]
    assert (await cluster.metadata(one)).last_segment[1] == ("new:1", stays)


async def test_clusters_are_made_and_deleted(cluster):
    for _ in range(3):
        await cluster.write(1, (1, 1, 1))
    await cluster.run("bookie", "init-new-cluster", code=1)
    root = ("-p", "/ledgers")
    nuke = ("bookie", "nukeexistingcluster")
    await cluster.run(*nuke, *root, code=2)
    assert "running" in await cluster.run(*nuke, *root, "-f", code=1)
    assert "running" in await cluster.run("bookie", "metaformat", "-n", "-f", code=1)
    for node in cluster.nodes.values():
        await node.stop()
    await cluster.run(*nuke, "-p", "/other", "-f", code=1)
    await cluster.run(*nuke, *root, "-i", "not-it", code=1)
    await cluster.store.create("/ledgers/mine", b"")
    assert "mine" in await cluster.run(*nuke, *root, "-f", code=1)
    await cluster.store.delete("/ledgers/mine")
    assert len(await cluster.json("ledger", "list")) == 3

    before = (await cluster.json("bookie", "whatisinstanceid"))["instance_id"]
    await cluster.run("bookie", "metaformat", "-n", code=1)
    await cluster.run("bookie", "meta-format", code=1, answer="n\n")
    assert len(await cluster.json("ledger", "list")) == 3
    made = await cluster.json("bookie", "meta-format", "-n", "-f")
    assert made["instance_id"] != before
    assert await cluster.json("ledger", "list") == []
    assert await cluster.store.children("/ledgers/cookies") == []

    await cluster.run(*nuke, *root, "-i", made["instance_id"])
    assert not await cluster.store.exists("/ledgers")
    assert "no BookKeeper cluster" in await cluster.run("ledger", "list", code=1)
    await cluster.run("bookie", "initnewcluster")
    assert (await cluster.store.get("/ledgers/LAYOUT")).data.startswith(b"2\norg.apache")


async def test_the_disks_of_a_bookie(cluster, tmp_path):
    ledger, metadata = await cluster.write(50)
    name = metadata.last_segment[1][0]
    node = cluster.nodes[name]
    gone, _ = await cluster.write(50, (4, 4, 4))
    directory = tmp_path / name
    conf = tmp_path / "bk_server.conf"
    conf.write_text(
        f"metadataServiceUri={URI}\njournalDirectory={directory / 'journal'}\n"
        f"ledgerDirectories={directory / 'ledgers'}\n"
    )
    await cluster.run("bookie", "format", "-conf", conf, "-n", "-f", code=1)  # it is running
    await node.stop()
    await cluster.client.delete_ledger(gone)
    (log,) = [path.name for path in (directory / "ledgers" / "current").glob("*.log")]
    rows = await cluster.json("bookie", "activeledgers", "-l", log, "-conf", conf)
    assert [(row["ledger"], row["active"]) for row in rows] == [(ledger, True), (gone, False)]
    assert await cluster.json("bookie", "active-ledgers", log[:-4], "--conf", conf) == rows
    await cluster.run("bookie", "active-ledgers", "7777", "--conf", conf, code=1)

    await cluster.run("bookie", "bookieformat", "-conf", conf, "-nonInteractive", code=1)
    await cluster.run("bookie", "format", "-conf", conf, code=1, answer="n\n")
    assert list((directory / "journal" / "current").iterdir())
    await cluster.run("bookie", "format", "-conf", conf, "-n", "-f", "-d")
    assert list((directory / "journal").iterdir()) == []
    assert list((directory / "ledgers").iterdir()) == []
    assert not await cluster.store.exists(f"/ledgers/cookies/{name}")


def test_settings(tmp_path, quiet_logs):
    runner = CliRunner()

    def run(*words, **environment):
        return runner.invoke(main, words, env={"QUIRE_METADATA_SERVICE_URI": None, **environment})

    result = run("ledger", "list")
    assert (result.exit_code, "which cluster?" in result.output) == (2, True)
    result = run("ledger", "list", "-u", "etcd://x/ledgers")
    assert (result.exit_code, "etcd" in result.output) == (2, True)
    conf = tmp_path / "conf"
    conf.write_text("bookiePort=none\n")
    assert run("ledger", "list", "--conf", str(conf)).exit_code == 2
    for words in (("ledger", "read"), ("ledger", "read", "1", "-l", "2"), ("ledger", "metadata")):
        assert run(*words, "-u", URI).exit_code == 2
    assert run("ledger", "list", "--help").exit_code == 0
    assert "listledgers" in run("ledger", "list", "--help").output
    assert "listledgers" not in run("ledger", "--help").output
