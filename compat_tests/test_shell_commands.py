"""`quire ledger …` and `quire bookie …` next to `bookkeeper shell` on one ZooKeeper: each reads
what the other has written, and both say the same of a cluster."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from harness import servers, tools
from harness.bookkeeper import AutoRecovery, Cluster, QuireBookie, java, wait_for

pytestmark = pytest.mark.skipif(
    servers.target() == "control", reason="there is nothing of ours in it"
)
QUIRE = Path(sys.executable).parent / "quire"


class Both:
    """`java(…)` is what Java's shell says, `ours(…)` what ours answers (JSON, if it is any)."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.java = cluster.shell

    def ours(self, *words, code=0, uri=None):
        command = [str(QUIRE), *map(str, words), "-u", uri or self.cluster.uri, "--json"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert result.returncode == code, (result.stdout, result.stderr)
        assert "Traceback" not in result.stderr
        return json.loads(result.stdout) if result.stdout else None


@pytest.fixture(scope="module")
def cluster(scratch):
    made = Cluster(scratch / "commands" / "cluster")
    try:
        made.start(*[QuireBookie] * 4)
        yield made
    finally:
        made.discard()


@pytest.fixture(scope="module")
def both(cluster):
    return Both(cluster)


@pytest.fixture(scope="module")
def tool(cluster):
    return cluster.ledger_tool("v3")


def ids_java_lists(said):
    return [int(each) for each in re.findall(r"^ledgerID: (\d+)$", said, re.M)]


def test_ledgers_and_their_metadata(both, tool, tmp_path):
    # With fewer acknowledgments the last copies may still be on their way when they are counted.
    java_made = tool.write(40, 100, qa=3, digest="CRC32", password="p", custom="label")
    tool.close(handle=java_made["handle"])
    sizes = ("-e", 4, "-w", 2, "-a", 2, "-n", 70)
    ours_made = both.ours("ledger", "simpletest", *sizes)
    assert ours_made["deleted"]
    ours_made = both.ours("ledger", "write", *sizes, "--size", 300, "--digest", "HMAC")
    ledgers = [java_made["ledger"], ours_made["ledger"]]
    said = both.java("listledgers", "-meta")
    rows = {row["ledger"]: row for row in both.ours("ledger", "list", "-meta")}
    assert sorted(ids_java_lists(said)) == sorted(rows) == sorted(ledgers)
    for ledger in ledgers:
        found = re.search(rf"ledgerID: {ledger}\n.*?length=(\d+), lastEntryId=(\d+)", said)
        row = rows[ledger]
        assert found.groups() == (str(row["length_bytes"]), str(row["last_entry"])), said
    # What Java has written is read by ours, and the reverse.
    read = both.ours("ledger", "readledger", "-l", java_made["ledger"])
    assert [row["size"] for row in read] == [100] * 40
    said = both.java("readledger", "-ledgerid", str(ours_made["ledger"]), "-fe", "0", "-le", "69")
    assert len(re.findall(rf"Lid={ours_made['ledger']}, Eid=\d+", said)) == 70, said
    (checked,) = both.ours("ledger", "check", java_made["ledger"])
    assert (checked["copies"], checked["missing_copies"]) == (120, 0)

    # It is on all bookies: without one of them there is no place for its copies.
    both.ours("ledger", "delete", ours_made["ledger"], "--force")

    # Metadata goes through files both ways.
    file = tmp_path / "metadata"
    both.ours("ledger", "metadata", java_made["ledger"], "--dump-to-file", file)
    before = tool.metadata(ledger=java_made["ledger"])
    tool.delete(ledger=java_made["ledger"])
    arguments = ("-ledgerid", str(java_made["ledger"]))
    both.java("ledgermetadata", *arguments, "-restorefromfile", str(file))
    assert tool.metadata(ledger=java_made["ledger"]) == before
    file.unlink()
    both.java("ledgermetadata", *arguments, "-dumptofile", str(file))
    both.ours("ledger", "deleteledger", *arguments, "-force")
    both.ours("ledger", "ledgermetadata", *arguments, "-restorefromfile", file)
    assert tool.metadata(ledger=java_made["ledger"]) == before
    tool.read_back(java_made["ledger"], 100, 40, digest="CRC32", password="p")


def test_the_cluster_and_its_cookies(both, cluster, tmp_path):
    said = both.java("clusterinfo")
    described = re.search(r'\{\s*"auditorElected".*?\}', said, re.S)
    assert described, said
    assert json.loads(described[0]) == both.ours("bookie", "clusterinfo")
    instance_id = both.ours("bookie", "whatisinstanceid")["instance_id"]
    assert cluster.get("INSTANCEID").decode() == instance_id
    rows = both.ours("bookie", "listbookies", "-a")
    expected = sorted((each.id, each.port, "writable") for each in cluster.bookies)
    assert [(row["bookie"], row["port"], row["mode"]) for row in rows] == expected
    rows = both.ours("bookie", "bookieinfo")
    assert {row["status"] for row in rows} == {"EOK"}
    file = tmp_path / "cookie"
    both.ours("bookie", "cookie_generate", "-j", "/j", "-l", "/a,/b", "-o", file, "1.2.3.4:3181")
    both.java("cookie_create", "-cf", str(file), "1.2.3.4:3181")
    said = both.java("cookie_get", "1.2.3.4:3181")
    assert 'ledgerDirs: "2\\t/a\\t/b"' in said, said
    assert instance_id in said, said
    assert both.ours("bookie", "cookie", "get", "1.2.3.4:3181")["cookie"] == file.read_text()
    both.ours("bookie", "cookie_delete", "1.2.3.4:3181")
    assert "1.2.3.4:3181" not in cluster.children("cookies")


def test_auto_recovery_is_switched(both, cluster):
    both.ours("bookie", "autorecovery", "-disable")
    assert "Autorecovery is disabled" in both.java("autorecovery")
    both.java("autorecovery", "-enable")
    assert both.ours("bookie", "auto-recovery", "status")["enabled"]
    both.java("lostbookierecoverydelay", "-set", "77")
    found = both.ours("bookie", "lostbookierecoverydelay")
    assert found == {"lost_bookie_recovery_delay_s": 77}
    both.ours("bookie", "lostbookierecoverydelay", "-set", 0)
    assert "0" in both.java("lostbookierecoverydelay", "-get").split("value:")[-1]


def test_a_tree_of_ours_is_a_cluster_to_java(both, cluster, tmp_path):
    uri = f"zk+hierarchical://{cluster.zookeeper.hosts}/folder/second"
    made = both.ours("bookie", "initnewcluster", uri=uri)
    both.ours("bookie", "initnewcluster", uri=uri, code=1)
    config = tmp_path / "bk_server.conf"
    lines = {"metadataServiceUri": uri, "allowLoopback": "true", "advertisedAddress": "127.0.0.1"}
    config.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    main = "org.apache.bookkeeper.bookie.BookieShell"
    words = ["nukeexistingcluster", "-zkledgersrootpath", "/folder/second", "-instanceid"]
    shell = [*java(tmp_path / "log4j", "INFO", "%msg"), main, "-conf", str(config)]
    tools.run([*shell, *words, made["instance_id"]])
    both.ours("ledger", "list", uri=uri, code=1)
    # Bookies run in the other one.
    both.ours("bookie", "nuke-existing-cluster", "-p", "/ledgers", "-f", code=1)


def test_recover_a_lost_bookie(both, cluster, tool):
    closed = tool.write(90, 400, e=3, qw=3, qa=3)
    tool.close(handle=closed["handle"])
    left_open = tool.write(60, 400, e=3, qw=2, qa=2)
    segments = tool.metadata(ledger=closed["ledger"])["segments"]
    lost = cluster.bookie(segments[0][1][0])
    lost.kill()
    cluster.wait_until_gone(lost.id)
    (row,) = both.ours("ledger", "check", closed["ledger"], code=1)
    assert row["missing_copies"] == 90
    planned = both.ours("bookie", "recover", "-query", lost.id)
    rows = both.ours("bookie", "recover", "-force", "-sku", lost.id)
    assert [row["ledger"] for row in rows] == [row["ledger"] for row in planned]
    by_ledger = {row["ledger"]: row for row in rows}
    assert by_ledger[closed["ledger"]]["entries"] == 90
    assert by_ledger[closed["ledger"]]["error"] is None
    for made in (closed, left_open):
        segments = tool.metadata(ledger=made["ledger"])["segments"]
        if made is closed or made["ledger"] in by_ledger:
            assert lost.id not in {bookie for _, each in segments for bookie in each}
    (row,) = both.ours("ledger", "check", closed["ledger"])
    assert row["missing_copies"] == 0
    tool.read_back(closed["ledger"], 400, 90)
    tool.read_back(left_open["ledger"], 400, 60)
    lost.start()


def test_javas_auditor_does_as_it_is_told(both, cluster, tool):
    """It waits for lost bookies as long as ours have set, audits when ours say so, and what it
    marks ours list."""
    both.ours("bookie", "lost-bookie-recovery-delay", "--set", 600)
    settings = {"auditorPeriodicBookieCheckInterval": "86400", "lostBookieRecoveryDelay": "600"}
    # What it cannot repair now it tries again soon.
    settings |= {"rwRereplicateBackoffMs": "500", "lockReleaseOfFailedLedgerGracePeriod": "1000"}
    # It ends with its session, which a busy machine must not cost it.
    (recovery,) = cluster.start(AutoRecovery, **settings, zkTimeout="15000")
    assert both.ours("bookie", "whoisauditor") == {"auditor": recovery.id}
    # The one that the test before has lost is back.
    tool.wait_for_bookies(4)
    wide = tool.write(10, 10, e=4, qw=2, qa=2)
    tool.close(handle=wide["handle"])
    lost = cluster.bookies[0]
    lost.kill()
    cluster.wait_until_gone(lost.id)
    assert both.ours("ledger", "list-under-replicated") == []

    def marked():
        rows = both.ours("ledger", "listunderreplicated", "-mr", lost.id)
        return wide["ledger"] in [row["ledger"] for row in rows]

    # Not before all that: it audits when it comes to it, and would find what is lost by then.
    both.ours("bookie", "trigger-audit")
    wait_for(marked, "the auditor has marked nothing when told to look")
    assert both.ours("bookie", "cluster-info")["clusterUnderReplicated"]
    lost.start()
    wait_for(lambda: both.ours("ledger", "list-under-replicated") == [], "it stays marked")

    lost.kill()
    cluster.wait_until_gone(lost.id)
    assert both.ours("ledger", "list-under-replicated") == []
    both.ours("bookie", "lost-bookie-recovery-delay", "--set", 0)
    wait_for(marked, "the auditor has marked nothing when told not to wait")
