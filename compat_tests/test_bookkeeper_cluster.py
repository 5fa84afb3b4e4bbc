"""Our bookies as members of a BookKeeper cluster: its tree in ZooKeeper, registration, cookies."""

import re
import shutil

import pytest
from harness import servers
from harness.bookkeeper import Cluster, JavaBookie, QuireBookie, wait_for

pytestmark = pytest.mark.skipif(
    servers.target() == "control", reason="there is nothing of ours in a control cluster"
)


@pytest.fixture(scope="module")
def cluster(scratch):
    """One whose tree our bookie makes, with a Java bookie that joins."""
    made = Cluster(scratch / "cluster" / "cluster")
    try:
        made.make_tree = lambda: None
        made.start(QuireBookie)
        made.start(JavaBookie, QuireBookie)
        yield made
    finally:
        made.discard()


@pytest.fixture(scope="module")
def tool(cluster):
    return cluster.ledger_tool("v3")


def test_java_joins_a_tree_that_ours_made(cluster, tool):
    layout = b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"
    assert cluster.get("LAYOUT") == layout
    instance = cluster.get("INSTANCEID").decode()
    assert f"InstanceId: {instance}" in cluster.shell("whatisinstanceid")
    for bookie in cluster.bookies:
        cookie = cluster.get(f"cookies/{bookie.id}").decode()
        assert cookie.startswith("5\n"), cookie
        assert re.search(rf'^bookieHost: "{bookie.id}"$', cookie, re.M), cookie
        assert re.search(rf'^instanceId: "{instance}"$', cookie, re.M), cookie
    made = tool.write(100, 100)
    tool.close(handle=made["handle"])
    tool.read_back(made["ledger"], 100, 100)


def test_a_stopped_bookie_is_gone_at_once_and_comes_back_with_its_entries(cluster, tool):
    tool.wait_for_bookies(3)
    # On this bookie too, and not still on their way to it.
    made = tool.write(50, 100, qa=3)
    tool.close(handle=made["handle"])
    ours = cluster.bookies[0]
    assert ours.stop() == 0
    assert not cluster.is_registered(ours.id)
    ours.start()
    listed = tool.entries_of(ledger=made["ledger"], bookie=ours.id, last=49)
    assert (listed["count"], listed["missing"]) == (50, [])


def test_a_read_only_bookie_is_read_and_not_written_to(cluster, tool):
    tool.wait_for_bookies(3)
    # On this bookie too, and not still on their way to it.
    made = tool.write(50, 100, qa=3)
    tool.close(handle=made["handle"])
    ours = cluster.bookies[2]
    ours.restart(forceReadOnlyBookie="true")
    assert ours.id in cluster.children("available/readonly")
    assert ours.id not in cluster.children("available")
    try:
        listed = tool.entries_of(ledger=made["ledger"], bookie=ours.id, last=49)
        assert (listed["count"], listed["missing"]) == (50, [])
        for _ in range(3):
            other = tool.write(5, 10, e=2, qw=2, qa=2)
            assert ours.id not in tool.metadata(ledger=other["ledger"])["segments"][0][1]
            tool.close(handle=other["handle"])
        tool.read_back(made["ledger"], 100, 50)
    finally:
        ours.restart(forceReadOnlyBookie="false")
    assert ours.id in cluster.children("available")


def test_a_lost_session_is_replaced(cluster, tool):
    tool.wait_for_bookies(3)
    # An add that a frozen bookie does not answer in time ends the ledger: there is no fourth one.
    made = tool.write(50, 100, qa=3)
    ours = cluster.bookies[0]
    ours.freeze()
    try:
        cluster.wait_until_gone(ours.id)
    finally:
        ours.thaw()
    wait_for(lambda: cluster.is_registered(ours.id), "it does not register again")
    added = tool.append(handle=made["handle"], count=50, size=100)
    assert added["failed"] == 0, added
    tool.close(handle=made["handle"])
    tool.read_back(made["ledger"], 100, 100)


def test_an_empty_disk_is_refused(cluster, tool):
    """Else it would answer «no such entry» for what it had acknowledged."""
    ours = cluster.bookies[2]
    ours.kill()
    kept = ours.directory / "kept"
    kept.mkdir()
    for name in ("journal", "ledgers"):
        shutil.move(ours.directory / name, kept / name)
    cluster.wait_until_gone(ours.id)
    with pytest.raises(RuntimeError, match="cookies"):
        ours.start()
    assert not cluster.is_registered(ours.id)
    for name in ("journal", "ledgers"):
        shutil.rmtree(ours.directory / name, ignore_errors=True)
        shutil.move(kept / name, ours.directory / name)
    ours.start()


def test_another_clusters_disk_is_refused(cluster, tool):
    ours = cluster.bookies[2]
    assert ours.stop() == 0
    cookies = list(ours.directory.glob("*/current/VERSION"))
    assert cookies
    for path in cookies:
        text = path.read_text()
        path.write_text(re.sub(r'instanceId: "[^"]+"', f'instanceId: "{"0" * 8}"', text))
    with pytest.raises(RuntimeError, match=r"instance_?[iI]d") as refused:
        ours.start()
    assert "ended with" in str(refused.value)  # by itself
