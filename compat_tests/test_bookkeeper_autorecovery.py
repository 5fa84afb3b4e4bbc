"""Apache BookKeeper's auto-recovery (auditor and replication worker) looks after our bookies."""

import re

import pytest
from harness import servers
from harness.bookkeeper import AutoRecovery, Cluster, JavaBookie, QuireBookie, wait_for

KIND = JavaBookie if servers.target() == "control" else QuireBookie
CLIENT = "v3" if servers.target() == "control" else "quire"
SETTINGS = {
    # How long a ledger may stay open when one of its bookies is lost; then it is fenced.
    "openLedgerRereplicationGracePeriod": "1000",
    "rwRereplicateBackoffMs": "500",
    "lostBookieRecoveryDelay": "0",
    # It gives a ledger that it could not repair back to itself and others after ever longer times.
    "lockReleaseOfFailedLedgerGracePeriod": "1000",
    # It ends with its session, which a busy machine must not cost it.
    "zkTimeout": "15000",
}


@pytest.fixture(scope="module")
def cluster(scratch):
    made = Cluster(scratch / "autorecovery" / "cluster")
    try:
        made.start(*[KIND] * 4)
        yield made
    finally:
        made.discard()


def listed_ids(said):
    return [int(each) for each in re.findall(r"^(\d+)$", said, re.M)]


def all_bookies(tool, ledger):
    segments = tool.metadata(ledger=ledger)["segments"]
    return {bookie for _, ensemble in segments for bookie in ensemble}


@pytest.mark.long
def test_lost_copies_are_made_again(cluster):
    recovery = cluster.start(AutoRecovery, **SETTINGS)[0]
    tool, writer = cluster.ledger_tool("v3"), cluster.ledger_tool(CLIENT)
    closed = []
    for digest in ("CRC32C", "CRC32", "MAC", "DUMMY"):
        # With fewer acknowledgments the last copy may still be on its way when they are counted.
        made = writer.write(80, 200, qa=3, digest=digest, password="p")
        writer.close(handle=made["handle"])
        closed.append((made["ledger"], digest))
    striped = tool.write(80, 200, e=4, qw=2, qa=2)
    tool.close(handle=striped["handle"])
    left_open = writer.write(80, 200)
    lost = cluster.bookie(sorted(all_bookies(writer, left_open["ledger"]))[0])
    writer.kill()

    lost.kill()
    ledgers = [ledger for ledger, _ in closed] + [left_open["ledger"]]
    wait_for(
        lambda: not any(lost.id in all_bookies(tool, ledger) for ledger in ledgers),
        "the lost bookie is still in ensembles",
        timeout_s=90,
    )
    for ledger, digest in closed:
        for bookie in all_bookies(tool, ledger):
            listed = tool.entries_of(ledger=ledger, bookie=bookie, last=79)
            assert (listed["count"], listed["missing"]) == (80, []), (ledger, bookie)
        tool.read_back(ledger, 200, 80, digest=digest, password="p")
    # Its writer was gone, so it was fenced, closed and copied.
    assert tool.metadata(ledger=left_open["ledger"])["state"] == "CLOSED"
    tool.read_back(left_open["ledger"], 200, 80)
    # Four different bookies are needed, and three are there: this one has to wait.
    wait_for(
        lambda: striped["ledger"] in listed_ids(cluster.shell("listunderreplicated")),
        "the striped ledger is not reported",
    )
    said = cluster.shell("listunderreplicated", "-missingreplica", lost.id)
    assert striped["ledger"] in listed_ids(said), said
    tool.read_back(striped["ledger"], 200, 80)
    assert recovery.id in cluster.shell("whoisauditor"), "somebody else audits"

    # It comes back with all it had: nothing is missing any more.
    lost.start()
    wait_for(
        lambda: "Under replicated ledger count: 0" in cluster.shell("listunderreplicated"),
        "still under-replicated",
        timeout_s=90,
    )
    tool.delete(ledger=striped["ledger"])


@pytest.mark.long
def test_a_bookie_is_decommissioned(cluster):
    """Java's shell waits for its ledgers to be copied, then takes its cookie away."""
    tool = cluster.ledger_tool("v3")
    tool.wait_for_bookies(4)
    made = tool.write(80, 200)
    tool.close(handle=made["handle"])
    lost = cluster.bookie(sorted(all_bookies(tool, made["ledger"]))[0])
    lost.kill()
    cluster.wait_until_gone(lost.id)
    cluster.shell("decommissionbookie", "-bookieid", lost.id, timeout_s=120)
    assert lost.id not in all_bookies(tool, made["ledger"])
    tool.read_back(made["ledger"], 200, 80)
    assert cluster.get(f"cookies/{lost.id}") is None
    # It still has its data, and the cluster does not know it any more.
    with pytest.raises(RuntimeError, match="cookie"):
        lost.start()
