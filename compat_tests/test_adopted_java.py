"""What was a journal, read by Java's entry logger after a clean stop."""

import re
import shutil

import pytest
from harness.bookkeeper import Cluster, QuireBookie

SIZE = 700_000


@pytest.fixture(scope="module")
def cluster(scratch):
    made = Cluster(scratch / "adopted" / "cluster")
    try:
        made.start(QuireBookie)
        yield made
    finally:
        made.discard()


def test_java_reads_what_was_a_journal(cluster):
    tool = cluster.ledger_tool("v3")
    made = tool.write(20, SIZE, e=1, qw=1, qa=1, digest="CRC32")
    tool.close(handle=made["handle"])
    (bookie,) = cluster.bookies
    assert bookie.stop() == 0
    current = bookie.directory / "ledgers" / "current"
    cluster.shell("help")
    here = cluster.directory / "shell" / "ledgers" / "current"
    here.mkdir(parents=True, exist_ok=True)
    (cluster.directory / "shell" / "journal" / "current").mkdir(parents=True, exist_ok=True)
    found, sizes = [], []
    for path in sorted(current.glob("*.log")):
        shutil.copy(path, here)
    for path in sorted(current.glob("*.log")):
        said = cluster.shell("readlog", str(int(path.stem, 16)))
        found += re.findall(r"Eid=(\d+), ByteOffset=\d+, EntrySize=700040 ", said)
        said = cluster.shell("readlogmetadata", str(int(path.stem, 16)))
        sizes += map(int, re.findall(r"Lid=0, TotalSizeOfEntriesOfLedger=(\d+)", said))
    assert sorted(map(int, found)) == list(range(20))
    assert sum(sizes) == 20 * 700_044
