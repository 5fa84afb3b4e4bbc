"""`bookkeeper shell` of Apache BookKeeper 4.17.3 against our bookies."""

import re
import uuid

import pytest
from harness import servers
from harness.bookkeeper import Cluster, JavaBookie, QuireBookie

KIND = JavaBookie if servers.target() == "control" else QuireBookie


@pytest.fixture(scope="module")
def cluster(scratch):
    made = Cluster(scratch / "shell" / "cluster")
    try:
        made.start(*[KIND] * 3)
        made.start(KIND, forceReadOnlyBookie="true")
        yield made
    finally:
        made.discard()


@pytest.fixture(scope="module")
def tool(cluster):
    return cluster.ledger_tool("v3")


@pytest.fixture(scope="module")
def written(tool):
    """A closed ledger of forty entries, each on the same three bookies."""
    made = tool.write(40, 100, qa=3, digest="CRC32", custom="label")
    tool.close(handle=made["handle"])
    return made["ledger"]


def ledger_ids(text):
    return [int(each) for each in re.findall(r"^ledgerID: (\d+)$", text, re.M)]


def test_simpletest(cluster):
    quorums = ["-ensemble", "3", "-writeQuorum", "3", "-ackQuorum", "2"]
    said = cluster.shell("simpletest", *quorums, "-numEntries", "500")
    assert re.search(r"500 entries written to ledger \d+\. Last entry Id 499", said), said


def test_listledgers(cluster, tool, written):
    other = tool.write(5, 10)
    assert {written, other["ledger"]} <= set(ledger_ids(cluster.shell("listledgers")))
    assert re.search(
        rf"ledgerID: {written}\n.*ensembleSize=3.*state=CLOSED, length=4000, lastEntryId=39",
        cluster.shell("listledgers", "-meta"),
    )
    # Of one bookie.
    bookie = cluster.bookies[0].id
    said = cluster.shell("listledgers", "-bookieid", bookie)
    assert written in ledger_ids(said), said


def test_ledgermetadata(cluster, written):
    said = cluster.shell("ledgermetadata", "-ledgerid", str(written))
    assert "digestType=CRC32," in said, said
    for bookie in cluster.bookies[:3]:
        assert bookie.id in said, said


def test_ledgermetadata_dumps_and_restores(cluster, tool, written):
    dumped = cluster.directory / "metadata"
    arguments = ["-ledgerid", str(written)]
    cluster.shell("ledgermetadata", *arguments, "-dumptofile", str(dumped))
    before = tool.metadata(ledger=written)
    tool.delete(ledger=written)
    cluster.shell("ledgermetadata", *arguments, "-restorefromfile", str(dumped))
    assert tool.metadata(ledger=written) == before
    tool.read_back(written, 100, 40, digest="CRC32")


def test_readledger(cluster, written):
    entries = ["-ledgerid", str(written), "-fe", "0", "-le", "39"]
    said = cluster.shell("readledger", *entries)
    read = re.findall(rf"Lid={written}, Eid=(\d+), EntrySize=(\d+)", said)
    # What it calls the size is the ledger's length up to there.
    assert read == [(str(n), str(100 * (n + 1))) for n in range(40)], said
    said = cluster.shell("readledger", *entries, "-b", cluster.bookies[1].id)
    # It leaves the last one out when it asks one bookie.
    assert len(re.findall(rf"Lid={written}, Eid=\d+ ", said)) == 39, said


def test_listbookies(cluster):
    writable, read_only = cluster.bookies[:3], cluster.bookies[3:]
    for option, expected in (("-rw", writable), ("-ro", read_only), ("-a", cluster.bookies)):
        said = cluster.shell("listbookies", option)
        found = re.findall(r"^BookieID:([^,]+), IP:127\.0\.0\.1, Port:(\d+),", said, re.M)
        assert sorted(found) == sorted((each.id, str(each.port)) for each in expected), said


def test_bookieinfo(cluster):
    said = cluster.shell("bookieinfo")
    for bookie in cluster.bookies:
        match = re.search(rf"BookieID:{bookie.id},.*Free: (\d+)\(.*Total: (\d+)\(", said)
        assert match, said
        assert 0 < int(match[1]) <= int(match[2])


def test_listunderreplicated(cluster):
    assert "Under replicated ledger count: 0" in cluster.shell("listunderreplicated")


def test_the_cluster_describes_itself(cluster):
    said = cluster.shell("whatisinstanceid")
    assert uuid.UUID(re.search(r"InstanceId: (\S+)", said)[1])
    for name, count in (("total", 4), ("writable", 3), ("readonly", 1), ("unavailable", 0)):
        said = said if '"totalBookiesCount"' in said else cluster.shell("clusterinfo")
        assert f'"{name}BookiesCount" : {count}' in said, said
    bookie = cluster.bookies[0]
    said = cluster.shell("endpointinfo", "-b", bookie.id)
    assert f"Address: 127.0.0.1 : {bookie.port}" in said, said


def test_deleteledger(cluster, tool):
    made = tool.write(5, 10)
    tool.close(handle=made["handle"])
    cluster.shell("deleteledger", "-ledgerid", str(made["ledger"]), "-force")
    assert made["ledger"] not in ledger_ids(cluster.shell("listledgers"))


def test_recover(cluster, tool):
    """Copies what a lost bookie had, of a closed ledger and of one left open, to another one."""
    # A third writable one will be needed for the ledgers that are on three.
    cluster.start(KIND)
    closed = tool.write(60, 100, e=2, qw=2, qa=2)
    tool.close(handle=closed["handle"])
    # One of two that both had to acknowledge is enough to know the end.
    left_open = tool.write(60, 100, e=2, qw=2, qa=2)
    segments = tool.metadata(ledger=left_open["ledger"])["segments"]
    lost = cluster.bookie(segments[0][1][0])
    said = cluster.shell("recover", "-force", "-query", lost.id)
    assert str(left_open["ledger"]) in said, said
    lost.kill()
    cluster.wait_until_gone(lost.id)
    said = cluster.shell("recover", "-force", lost.id)
    for made in (closed, left_open):
        segments = tool.metadata(ledger=made["ledger"])["segments"]
        bookies = [bookie for _, ensemble in segments for bookie in ensemble]
        assert lost.id not in bookies, (segments, said)
        tool.read_back(made["ledger"], 100, 60)
        # Recovery of an open ledger may itself have changed the ensemble half-way.
        ends = [first for first, _ in segments[1:]] + [60]
        for (first, ensemble), end in zip(segments, ends, strict=True):
            for bookie in ensemble:
                listed = tool.entries_of(ledger=made["ledger"], bookie=bookie, last=59)
                assert not set(range(first, end)) & set(listed["missing"]), (segments, listed)
    lost.start()
