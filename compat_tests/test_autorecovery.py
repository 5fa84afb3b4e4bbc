"""`quire autorecovery`: on Java's bookies and on ours, beside Java's own auditor and worker."""

import contextlib
import json
import re
import signal
import subprocess
import time

import pytest
from harness import paths, tools
from harness.bookkeeper import (
    AutoRecovery,
    Cluster,
    JavaBookie,
    QuireAutoRecovery,
    QuireBookie,
    wait_for,
)

SETTINGS = {
    "openLedgerRereplicationGracePeriod": "1000",
    "rwRereplicateBackoffMs": "500",
    "lostBookieRecoveryDelay": "0",
}
#: For those whose session a busy machine must not end: Java's process ends with its own, and a
#: candidate that comes back is the last in the row.
LASTING = {"zkTimeout": "15000"}
JAVA_SETTINGS = {**SETTINGS, **LASTING}
#: `make test` has quire's bookies alone lose copies; with Java's it is `make test-long`.
KINDS = [pytest.param(JavaBookie, marks=pytest.mark.long), QuireBookie]


def quire(cluster, *arguments, code=0):
    """What a command answers; remarks on standard error come along with it."""
    script = str(paths.python_script("quire"))
    command = [script, *arguments, "--metadata-service-uri", cluster.uri, "--json"]
    said = tools.run(command, timeout_s=120, code=code)
    start = re.search(r"^[\[{]", said, re.M)
    assert start, said
    return json.JSONDecoder().raw_decode(said, start.start())[0]


def ensembles(tool, ledger):
    return [ensemble for _, ensemble in tool.metadata(ledger=ledger)["segments"]]


def bookies_of(tool, ledger):
    return {bookie for ensemble in ensembles(tool, ledger) for bookie in ensemble}


def closed_ledger(tool, count=80, size=200, **made):
    """All copies are there: with fewer acknowledgments the last one may still be on its way."""
    written = tool.write(count, size, **{"qa": made.get("qw", 3), **made})
    tool.close(handle=written["handle"])
    return written["ledger"]


def wait_gone_from(tool, lost, ledgers, timeout_s=90):
    wait_for(
        lambda: not any(lost & bookies_of(tool, ledger) for ledger in ledgers),
        f"{lost} still in ensembles",
        timeout_s=timeout_s,
    )


def check_copies(tool, ledger, count=80):
    """Every bookie that should have all entries has them, by its own list. A bookie that was slow
    while they were written may have been replaced: then those have them that came after it."""
    segments = tool.metadata(ledger=ledger)["segments"]
    ends = [first for first, _ in segments[1:]] + [count]
    for (first, ensemble), end in zip(segments, ends, strict=True):
        for bookie in ensemble:
            listed = tool.entries_of(ledger=ledger, bookie=bookie, last=count - 1)
            assert not set(range(first, end)) & set(listed["missing"]), (ledger, bookie, listed)
            assert listed["count"] == count or len(segments) > 1, (ledger, bookie, listed)


@pytest.fixture
def cluster(scratch, request):
    made = Cluster(scratch / f"recovery-{request.node.name.replace('[', '-').strip(']')}"[:80])
    yield made
    made.discard()


@pytest.mark.parametrize("kind", KINDS)
def test_lost_copies_are_made_again(cluster, kind):
    cluster.start(*[kind] * 4)
    (recovery,) = cluster.start(QuireAutoRecovery, **SETTINGS)
    tool = cluster.ledger_tool("v3")
    tool.wait_for_bookies(4)
    digests = ("CRC32C", "CRC32", "MAC", "DUMMY")
    closed = [(closed_ledger(tool, digest=digest, password="p"), digest) for digest in digests]
    striped = closed_ledger(tool, e=4, qw=2, qa=2)
    writer = cluster.ledger_tool("v3")
    left_open = writer.write(80, 200)["ledger"]
    lost = cluster.bookie(sorted(bookies_of(tool, left_open))[0])
    writer.kill()

    lost.kill()
    ledgers = [ledger for ledger, _ in closed] + [left_open]
    wait_gone_from(tool, {lost.id}, ledgers)
    for ledger, digest in closed:
        check_copies(tool, ledger)
        tool.read_back(ledger, 200, 80, digest=digest, password="p")
    # Its writer was gone, so it was fenced, closed and copied.
    assert tool.metadata(ledger=left_open)["state"] == "CLOSED"
    tool.read_back(left_open, 200, 80)
    wait_for(lambda: recovery.id in cluster.shell("whoisauditor"), "somebody else audits")

    # Four different bookies are needed, and three are there: it waits, and says for what.
    wait_for(lambda: cluster.under_replicated() == [striped], "not only the striped one is marked")
    said = cluster.shell("listunderreplicated", "-missingreplica", lost.id)
    assert str(striped) in re.findall(r"^(\d+)$", said, re.M), said
    (row,) = quire(cluster, "bookie", "repair-report", code=1)
    assert (row["ledger"], row["reason"]) == (striped, "TOO_FEW_BOOKIES"), row
    assert lost.id in row["detail"]
    tool.read_back(striped, 200, 80)

    # It comes back with all it had: nothing is missing any more.
    lost.start()
    wait_for(lambda: not cluster.under_replicated(), "still marked")
    assert quire(cluster, "bookie", "repair-report") == []
    assert lost.id in bookies_of(tool, striped)


@pytest.mark.long
def test_java_works_off_what_we_marked_and_we_what_java_did(cluster):
    """Each in turn is killed in the middle of a copy; the other finishes it."""
    cluster.start(*[JavaBookie] * 2, *[QuireBookie] * 3)
    tool = cluster.ledger_tool("v3")
    tool.wait_for_bookies(5)
    # So slow that nothing is ever finished: it is killed with the ledger's lock in its hands.
    (ours,) = cluster.start(QuireAutoRecovery, **SETTINGS, replicationRateByBytes="100")
    ledger = closed_ledger(tool, count=300, size=5000)
    lost = cluster.bookie(sorted(bookies_of(tool, ledger))[0])
    lost.kill()
    wait_for(lambda: cluster.children("underreplication/locks"), "no lock of ours")
    assert cluster.under_replicated() == [ledger]
    time.sleep(0.5)
    assert lost.id in bookies_of(tool, ledger)
    ours.kill()
    (java,) = cluster.start(AutoRecovery, **JAVA_SETTINGS)
    wait_gone_from(tool, {lost.id}, [ledger])
    wait_for(lambda: not cluster.under_replicated(), "Java has not taken our mark away")
    check_copies(tool, ledger, 300)
    tool.read_back(ledger, 5000, 300)

    # The other way: Java audits, and is slow.
    lost.start()
    assert java.stop(timeout_s=60) in (0, 143)
    cluster.wait_until_gone(java.id)
    (slow,) = cluster.start(
        AutoRecovery, **JAVA_SETTINGS, replicationRateByBytes="100", rereplicationEntryBatchSize="1"
    )
    second = closed_ledger(tool, count=300, size=5000)
    also_lost = cluster.bookie(sorted(bookies_of(tool, second))[0])
    also_lost.kill()
    wait_for(lambda: second in cluster.under_replicated(), "no mark of Java's", timeout_s=60)
    wait_for(lambda: cluster.children("underreplication/locks"), "no lock of Java's")
    slow.kill()
    (again,) = cluster.start(QuireAutoRecovery, **SETTINGS)
    wait_gone_from(tool, {also_lost.id}, [ledger, second], timeout_s=90)
    wait_for(lambda: not cluster.under_replicated(), "we have not taken Java's mark away")
    check_copies(tool, second, 300)
    tool.read_back(second, 5000, 300)
    assert again.stop() == 0


def test_one_election_for_ours_and_javas(cluster):
    cluster.start(*[QuireBookie] * 2)
    (first,) = cluster.start(QuireAutoRecovery, **SETTINGS, **LASTING)
    (java,) = cluster.start(AutoRecovery, **JAVA_SETTINGS)
    (third,) = cluster.start(QuireAutoRecovery, **SETTINGS, **LASTING)
    wait_for(
        lambda: cluster.auditor_votes() == [first.id, java.id, third.id], "not all three stand"
    )
    for auditor, is_clean in ((first, True), (java, False), (third, True)):
        wait_for(lambda one=auditor: cluster.auditor_votes()[:1] == [one.id], "not the next one")
        assert auditor.id in cluster.shell("whoisauditor")
        assert quire(cluster, "bookie", "who-is-auditor") == {"auditor": auditor.id}
        if is_clean:
            assert auditor.stop() == 0
            assert auditor.id not in cluster.auditor_votes()  # not only with its session
        else:
            auditor.kill()


@pytest.mark.long
def test_an_auditor_whose_session_ends_is_none(cluster):
    """Stopped for longer than its session lasts, and then thawed."""
    cluster.start(*[QuireBookie] * 4)
    (first,) = cluster.start(QuireAutoRecovery, **SETTINGS)
    (second,) = cluster.start(QuireAutoRecovery, **SETTINGS, **LASTING)
    tool = cluster.ledger_tool("v3")
    tool.wait_for_bookies(4)
    ledger = closed_ledger(tool)
    first.freeze()
    wait_for(lambda: cluster.auditor_votes() == [second.id], "the frozen one is still auditor")
    lost = cluster.bookie(sorted(bookies_of(tool, ledger))[0])
    lost.kill()
    wait_gone_from(tool, {lost.id}, [ledger])
    first.thaw()
    wait_for(lambda: cluster.auditor_votes() == [second.id, first.id], "it does not stand again")
    assert second.id in cluster.shell("whoisauditor")
    check_copies(tool, ledger)


@pytest.mark.parametrize("kind", KINDS)
def test_two_lost_bookies(cluster, kind):
    """Write quorum 3: readable all the time, and whole again."""
    cluster.start(*[kind] * 5)
    cluster.start(QuireAutoRecovery, **SETTINGS)
    tool = cluster.ledger_tool("v3")
    tool.wait_for_bookies(5)
    ledgers = [closed_ledger(tool) for _ in range(10)]
    lost = [cluster.bookie(each) for each in sorted(bookies_of(tool, ledgers[0]))[:2]]
    for bookie in lost:
        bookie.kill()
    tool.read_back(ledgers[0], 200, 80)
    wait_gone_from(tool, {bookie.id for bookie in lost}, ledgers, timeout_s=90)
    for ledger in ledgers:
        check_copies(tool, ledger)
        tool.read_back(ledger, 200, 80)
    wait_for(lambda: not cluster.under_replicated(), "still marked")


def test_a_wiped_disk(cluster):
    """The cookie refuses the bookie; decommissioned, its ledgers are back at all copies, and it may
    come back empty."""
    cluster.start(*[QuireBookie] * 4)
    cluster.start(QuireAutoRecovery, **{**SETTINGS, "lostBookieRecoveryDelay": "600"})
    tool = cluster.ledger_tool("v3")
    tool.wait_for_bookies(4)
    ledgers = [closed_ledger(tool) for _ in range(10)]
    wiped = cluster.bookie(sorted(bookies_of(tool, ledgers[0]))[0])
    wiped.kill()
    for name in ("journal", "ledgers"):
        tools.run(["rm", "-r", str(wiped.directory / name)])
    with pytest.raises(RuntimeError, match="cookie"):
        wiped.start()
    cluster.wait_until_gone(wiped.id)
    rows = quire(cluster, "bookie", "decommission", wiped.id)
    assert {row["error"] for row in rows} == {None}
    assert not any(wiped.id in bookies_of(tool, ledger) for ledger in ledgers)
    for ledger in ledgers:
        check_copies(tool, ledger)
    assert cluster.get(f"cookies/{wiped.id}") is None
    wiped.start()
    assert wiped.is_serving()


@pytest.mark.long
def test_bookies_that_share_a_lost_session_with_zookeeper(cluster):
    """ZooKeeper away, and back: nothing is marked for that alone, and repairs go on."""
    # Several sessions that do end at once are several lost bookies: those are not waited for.
    cluster.start(*[QuireBookie] * 4, **LASTING)
    (recovery,) = cluster.start(
        QuireAutoRecovery, **{**SETTINGS, **LASTING, "lostBookieRecoveryDelay": "5"}
    )
    tool = cluster.ledger_tool("v3")
    tool.wait_for_bookies(4)
    ledger = closed_ledger(tool)
    before = ensembles(tool, ledger)
    cluster.zookeeper.freeze()
    time.sleep(2)
    cluster.zookeeper.thaw()
    wait_for(lambda: recovery.id in cluster.auditor_votes(), "it does not stand again")
    wait_for(lambda: len(cluster.children("available")) == 5, "a bookie is missing")
    assert ensembles(tool, ledger) == before
    lost = cluster.bookie(sorted(bookies_of(tool, ledger))[0])
    lost.kill()
    wait_gone_from(tool, {lost.id}, [ledger])
    check_copies(tool, ledger)


def _is_marked_or_moved(cluster, tool, ledger, lost):
    # In this order: what is no longer marked has been moved by then.
    return ledger in cluster.under_replicated() or lost not in bookies_of(tool, ledger)


@pytest.mark.long
def test_killed_in_the_middle_of_a_copy(cluster):
    """Again and again; what is marked stays marked until all is copied."""
    cluster.start(*[QuireBookie] * 4)
    tool = cluster.ledger_tool("v3")
    tool.wait_for_bookies(4)
    # 12 MB of copies at 4 MB/s.
    ledgers = [closed_ledger(tool, count=400, size=5000) for _ in range(6)]
    lost = cluster.bookie(sorted(bookies_of(tool, ledgers[0]))[0])
    with_it = [ledger for ledger in ledgers if lost.id in bookies_of(tool, ledger)]
    # Gone before the auditor looks: a check that runs as it dies would mark some of them only.
    lost.kill()
    cluster.wait_until_gone(lost.id)
    (recovery,) = cluster.start(QuireAutoRecovery, **SETTINGS, replicationRateByBytes="4000000")
    wait_for(
        lambda: all(_is_marked_or_moved(cluster, tool, ledger, lost.id) for ledger in with_it),
        "not all are marked",
    )
    for _ in range(3):
        wait_for(
            lambda: cluster.children("underreplication/locks") or not cluster.under_replicated(),
            "nobody repairs",
        )
        time.sleep(0.3)
        recovery.process.send_signal(signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            recovery.process.wait(5)
        for ledger in with_it:
            assert _is_marked_or_moved(cluster, tool, ledger, lost.id), ledger
        recovery.kill()
        recovery.start()
        if not cluster.under_replicated():
            break
    wait_gone_from(tool, {lost.id}, ledgers, timeout_s=90)
    for ledger in with_it:
        check_copies(tool, ledger, 400)
        tool.read_back(ledger, 5000, 400)
    wait_for(lambda: not cluster.under_replicated(), "still marked")


def test_decommission_by_workers(cluster):
    """Ours and Java's do it together; what nobody can repair is told, and the cookie stays."""
    bookies = cluster.start(*[QuireBookie] * 4)
    tool = cluster.ledger_tool("v3")
    tool.wait_for_bookies(4)
    ledgers = [closed_ledger(tool) for _ in range(10)]
    single = closed_ledger(tool, e=1, qw=1, qa=1)
    (only,) = bookies_of(tool, single)
    lost = next(bookie for bookie in bookies if bookie.id != only)
    lost.kill()
    cluster.wait_until_gone(lost.id)
    said = tools.run(
        [
            str(paths.python_script("quire")),
            *("bookie", "decommission", lost.id, "--by-workers"),
            *("--metadata-service-uri", cluster.uri),
        ],
        timeout_s=60,
        code=1,
    )
    assert "no auditor" in said
    cluster.start(QuireAutoRecovery, **{**SETTINGS, "lostBookieRecoveryDelay": "600"})
    cluster.start(AutoRecovery, **{**JAVA_SETTINGS, "lostBookieRecoveryDelay": "600"})
    rows = quire(cluster, "bookie", "decommission", lost.id, "--by-workers")
    assert {row["error"] for row in rows} == {None}
    assert cluster.get(f"cookies/{lost.id}") is None
    for ledger in ledgers:
        assert lost.id not in bookies_of(tool, ledger)
        check_copies(tool, ledger)

    # The only copy goes.
    cluster.bookie(only).kill()
    cluster.wait_until_gone(only)
    rows = quire(cluster, "bookie", "decommission", only, "--by-workers", code=1)
    errors = {row["ledger"]: row["error"] for row in rows}
    assert "no copy left" in errors[single]
    assert cluster.get(f"cookies/{only}") is not None
