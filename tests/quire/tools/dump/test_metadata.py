"""`dump metadata` of a running and of a stopped server; SQLite files as they are at any time."""

import json
import random
import shutil
import sqlite3
from contextlib import closing

import pytest
import trio

from broker.log.life.chain import Chain, archive_bytes
from broker.log.life.ledger_info import LedgerInfo
from metadata.sqlite import SqliteStore
from quire.tools.dump.sqlite_view import open_view
from wire.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState, serialize

LEDGER = LedgerMetadata(
    3,
    2,
    2,
    ((0, ("a:1", "b:1", "c:1")), (5, ("a:1", "b:1", "d:1"))),
    LedgerState.CLOSED,
    9,
    1234,
    password=b"secret",
    custom_metadata={"application": b"quire", "bin": b"\xff"},
    ctime_ms=77,
)
CHAIN = Chain(3, 5, (LedgerInfo(7, 0, 2, 1000, 99, 12), LedgerInfo(8, 100, 3, 2000)), (4,))
NODES = {
    "/ledgers/00/0000/L0007": serialize(LEDGER),
    "/quire/partitions/5d6c/0": CHAIN.to_bytes(),
    "/quire/partitions/5d6c/1": CHAIN.with_archive(3, 1).to_bytes(),
    "/quire/partitions/5d6c/1-ledgers-3": archive_bytes(CHAIN.ledgers[:1]),
    "/quire/topics/t": b'{"format":1,"id":"x","partitions":1,"configs":{"a":"b"}}',
    "/quire/configs/broker/0": b'{"k":"v"}',
    "/quire/cluster-id": "clüster".encode(),
    "/quire/secret": b"the cluster's",
    "/quire/users/616e6e": b'{"SCRAM-SHA-256":{"iterations":4096,"salt":"c2FsdA==",'
    b'"server_key":"S2V5","stored_key":"T3RoZXI="}}',
    "/quire/tokens/6964": b'{"credentials":{"SCRAM-SHA-512":{"salt":"c2FsdA=="}},"owner":"ann"}',
    "/other/bytes": b"\xff\xfe",
    "/other/empty": b"",
}


async def run_blocking(function, *arguments):
    return await trio.to_thread.run_sync(function, *arguments)


async def test_a_running_a_killed_and_a_stopped_store(tmp_path, dump, state_of):
    file = tmp_path / "metadata.db"
    async with trio.open_nursery() as nursery:
        store = SqliteStore(str(file), run_blocking)
        await nursery.start(store.run)
        for path, data in NODES.items():
            await store.create(path, data, make_parents=True)
        await store.put("/other/empty", b"now", 0)
        await store.create("/other/mine", b"", ephemeral=True)
        before = state_of(tmp_path)
        running = dump("metadata", file)
        assert state_of(tmp_path) == before
        killed = tmp_path / "killed"
        killed.mkdir()
        for path in tmp_path.glob("metadata.db*"):
            shutil.copy(path, killed)
        await store.aclose()
    before = state_of(tmp_path)
    stopped = dump("metadata", file)
    after_kill = dump("metadata", killed)
    assert state_of(tmp_path) == before
    for got in (running, stopped, after_kill):
        assert (got.exit_code, got.stderr) == (0, "")
        nodes = {row["path"]: row for row in got.rows("node")}
        assert set(nodes) - {"/other/mine"} >= set(NODES)
        assert (nodes["/other/empty"]["value"], nodes["/other/empty"]["version"]) == ("now", 1)
        assert nodes["/quire/cluster-id"]["value"] == "clüster"
        assert nodes["/other/bytes"]["value"] == "fffe"
        chain = nodes["/quire/partitions/5d6c/0"]["value"]
        assert chain == json.loads(NODES["/quire/partitions/5d6c/0"])
        assert nodes["/quire/partitions/5d6c/1"]["value"]["archives"] == [[3, 1]]
        archive = nodes["/quire/partitions/5d6c/1-ledgers-3"]["value"]
        assert [item[0] for item in archive["ledgers"]] == [7]
        assert nodes["/quire/topics/t"]["value"]["configs"] == {"a": "b"}
        ledger = nodes["/ledgers/00/0000/L0007"]["value"]
        assert (ledger["format"], ledger["state"], ledger["last_entry"]) == (3, "CLOSED", 9)
        assert ledger["segments"][1] == {"first_entry": 5, "bookies": ["a:1", "b:1", "d:1"]}
        assert ledger["custom"] == {"application": b"quire".hex(), "bin": "ff"}
        assert ledger["password"] == "hidden (6 bytes)"
        assert list(nodes) == sorted(nodes, key=lambda path: path.split("/"))
    assert {row["path"]: row for row in running.rows("node")}["/other/mine"]["ephemeral"]
    assert "/other/mine" not in {row["path"] for row in stopped.rows("node")}
    part = dump("metadata", file, "--path", "/quire/topics", "--show-secrets")
    assert [row["path"] for row in part.rows("node")] == ["/quire/topics", "/quire/topics/t"]
    secret = dump("metadata", file, "--path", "/ledgers/00/0000/L0007", "--show-secrets")
    assert secret.row("node")["value"]["password"] == b"secret".hex()
    missing = dump("metadata", file, "--path", "/nowhere")
    assert (missing.exit_code, "no node /nowhere" in missing.stderr) == (1, True)


def test_what_logins_are_checked_by_is_shown_to_who_asks_for_it(tmp_path, dump):
    file = tmp_path / "metadata.db"
    trio.run(make_store, file)

    def shown(*options):
        got = dump("metadata", file, "--path", "/quire", *options)
        return {row["path"]: row.get("value") for row in got.rows("node")}, got.stdout, got

    secrets = ("c2FsdA==", "S2V5", "T3RoZXI=", b"the cluster's".hex())
    values, text, got = shown()
    assert got.exit_code == 0
    assert not [secret for secret in secrets if secret in text]
    hidden = dict.fromkeys(("salt", "server_key", "stored_key"), "hidden")
    assert values["/quire/users/616e6e"] == {"SCRAM-SHA-256": {"iterations": 4096, **hidden}}
    assert values["/quire/tokens/6964"]["owner"] == "ann"
    assert values["/quire/secret"] == "hidden (13 bytes)"
    _, text, _ = shown("--show-secrets")
    assert not [secret for secret in secrets if secret not in text]
    with closing(sqlite3.connect(file)) as connection:
        cut = NODES["/quire/users/616e6e"][:-9]
        connection.execute("UPDATE node SET data = ? WHERE name = '616e6e'", (cut,))
        connection.commit()
    values, text, got = shown()
    assert got.exit_code == 1
    assert values["/quire/users/616e6e"] == "hidden"
    assert "c2FsdA==" not in text + got.stderr


V1 = b"BookieMetadataFormatVersion\t1\n2\n3\n8\n0\ta:1\tb:1\tc:1\n-102\tCLOSED"
V2 = b"BookieMetadataFormatVersion\t2\nquorumSize: 2\nensembleSize: 3\nlength: 0\n" + (
    b'lastEntryId: -1\nstate: IN_RECOVERY\nsegment {\n  ensembleMember: "a:1"\n'
    b'  ensembleMember: "b:1"\n  ensembleMember: "c:1"\n  firstEntryId: 0\n}\n'
    b'digestType: CRC32\npassword: ""\nackQuorumSize: 1\n'
)


@pytest.mark.parametrize(
    ("data", "version", "state"),
    [(V1, 1, "IN_RECOVERY"), (V2, 2, "IN_RECOVERY"), (serialize(LEDGER), 3, "CLOSED")],
)
def test_ledger_metadata_of_all_versions(tmp_path, dump, data, version, state):
    path = tmp_path / "znode"
    path.write_bytes(data)
    got = dump("metadata", path)
    assert (got.exit_code, got.stderr) == (0, "")
    value = got.row("node")["value"]
    assert (value["format"], value["state"], value["ensemble_size"]) == (version, state, 3)
    path.write_bytes(data[:-40])
    assert dump("metadata", path).exit_code == 1


def test_nodes_that_are_not_what_they_should_be(tmp_path, dump):
    file = tmp_path / "metadata.db"
    trio.run(make_store, file)
    with closing(sqlite3.connect(file)) as connection:
        for path in ("/ledgers/00/0000/L0007", "/quire/partitions/5d6c/0", "/quire/topics/t"):
            parent, _, name = path.rpartition("/")
            connection.execute(
                "UPDATE node SET data = x'7b' WHERE parent = ? AND name = ?", (parent, name)
            )
        connection.execute("INSERT INTO node VALUES ('/lost', 'child', x'', 0, 0, 0)")
        connection.execute("UPDATE node SET data = 'text' WHERE name = 'cluster-id'")
        connection.commit()
    got = dump("metadata", file)
    assert got.exit_code == 1
    for words in ("L0007", "5d6c/0", "topics/t", "cluster-id", "1 nodes cannot be reached"):
        assert words in got.stderr
    assert len(got.rows("node")) > 10


async def make_store(file):
    async with trio.open_nursery() as nursery:
        store = SqliteStore(str(file), run_blocking)
        await nursery.start(store.run)
        for path, data in NODES.items():
            await store.create(path, data, make_parents=True)
        await store.aclose()


def test_other_sqlite_files_and_no_sqlite_files(tmp_path, dump):
    other = tmp_path / "other.db"
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE t (x)")
        connection.commit()
    assert "none of quire's metadata" in dump("metadata", other).stderr
    file = tmp_path / "metadata.db"
    for data in (b"", b"SQLite format 3\0" + b"x" * 5000, b"nothing"):
        file.write_bytes(data)
        got = dump("metadata", file)
        assert got.exit_code == 1
        assert str(file) in got.stderr


def test_a_view_is_what_sqlite_itself_says_at_any_time(tmp_path):
    """Transactions of all kinds, checkpoints in between, whole and in part, and logs begun anew."""
    rng = random.Random(8)
    file = tmp_path / "any.db"
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, data BLOB)")
        for _ in range(150):
            action = rng.random()
            if action < 0.15:
                kind = rng.choice(["PASSIVE", "FULL", "RESTART", "TRUNCATE"])
                connection.execute(f"PRAGMA wal_checkpoint({kind})")
            elif action < 0.25:
                connection.execute("DELETE FROM t WHERE id % 3 = ?", (rng.randrange(3),))
            elif action < 0.3:
                connection.execute("VACUUM")
            else:
                connection.execute("BEGIN")
                for _ in range(rng.randrange(1, 30)):
                    row = (rng.randrange(200), rng.randbytes(rng.randrange(3000)))
                    connection.execute("INSERT OR REPLACE INTO t VALUES (?, ?)", row)
                connection.execute(rng.choice(["COMMIT", "COMMIT", "ROLLBACK"]))
            truth = connection.execute("SELECT * FROM t ORDER BY id").fetchall()
            with closing(open_view(str(file))) as view:
                assert view.execute("PRAGMA integrity_check").fetchone() == ("ok",)
                assert view.execute("SELECT * FROM t ORDER BY id").fetchall() == truth
        # What is not committed does not show.
        connection.execute("BEGIN")
        connection.execute("DELETE FROM t")
        with closing(open_view(str(file))) as view:
            assert view.execute("SELECT * FROM t ORDER BY id").fetchall() == truth
        connection.execute("ROLLBACK")
