"""`quire broker` places its ledgers by racks (a script's, a table's, or what bookies say of
themselves), by regions, and by free space.

Real ZooKeeper and bookies; where a ledger went is read from BookKeeper's own metadata.
"""

import collections
import os
import re
import stat
import subprocess

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from harness import paths, servers
from harness.bookkeeper import Cluster, JavaBookie, QuireBookie, wait_for
from harness.servers import HOST, QuireServer

pytestmark = [
    pytest.mark.skipif(servers.target() != "quire", reason="about our own processes"),
    pytest.mark.timeout(400),
]

TOPICS = 12
#: For so long a producer tries, where nothing is to be taken.
REFUSED_S = 8


class Broker(QuireServer):
    """`quire broker`, on a cluster's bookies."""

    def __init__(self, directory, cluster, **settings):
        super().__init__(directory)
        self.config = directory / "server.properties"
        self.lines = {
            "node.id": "1",
            "listeners": f"PLAINTEXT://{self.bootstrap}",
            "metadataServiceUri": cluster.uri,
            "default.replication.factor": "2",
            "offsets.topic.replication.factor": "2",
            **settings,
        }

    def prepare(self):
        self.directory.mkdir(parents=True, exist_ok=True)
        self.config.write_text("".join(f"{key}={value}\n" for key, value in self.lines.items()))

    def command(self):
        return [str(paths.python_script("quire")), "broker", "--config", str(self.config)]


class NamedBookie(QuireBookie):
    """Registered by its name, not by its address."""

    id = "far"


@pytest.fixture
def cluster(scratch, name):
    made = Cluster(scratch / name("cluster"))
    yield made
    made.discard()


@pytest.fixture
def broker(cluster, scratch, name):
    brokers = []

    def start(**settings):
        brokers.append(Broker(scratch / name("broker"), cluster, **settings))
        return brokers[-1].start()

    yield start
    for one in brokers:
        one.discard()


def ensembles(cluster):
    """Of all ledgers, as BookKeeper's shell prints them."""
    told = cluster.shell("listledgers", "-m")
    return re.findall(r"ensembles=\{0=\[([^\]]+)\]", told)


def produce(broker, topics, timeout_s=60):
    """The number of records that were acknowledged; each topic gets one."""
    outcomes = []
    timeout = {"message.timeout.ms": 1000 * timeout_s}
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0, **timeout})
    for topic in topics:
        producer.produce(topic, b"x", callback=lambda error, _: outcomes.append(error))
    producer.flush(timeout_s + 30)
    return sum(error is None for error in outcomes)


def make_topics(broker, names):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    for future in admin.create_topics([NewTopic(each, 1, 2) for each in names]).values():
        future.result(60)


def test_racks_from_registrations(cluster, broker):
    racks = {}
    for rack in ("/east/1", "/east/1", "/east/1", "/east/2"):
        (bookie,) = cluster.start(QuireBookie, **{"quire.network.location": rack})
        racks[bookie.id] = rack
    topics = [f"t{number}" for number in range(TOPICS)]
    one = broker(minNumRacksPerWriteQuorum="2")
    make_topics(one, topics)
    assert produce(one, topics) == TOPICS
    found = ensembles(cluster)
    assert len(found) >= TOPICS
    for ensemble in found:
        assert len({racks[each.strip()] for each in ensemble.split(",")}) == 2, found
    # Java reads our registrations, properties and all.
    assert racks.keys() <= set(re.findall(rf"{HOST}:\d+", cluster.shell("listbookies", "-rw")))


def test_racks_from_a_script_with_java_bookies(cluster, broker, scratch, name):
    script = scratch / name("racks")
    script.write_text(
        "#!/bin/sh\nfor host; do case $host in localhost) echo /r/b;; *) echo /r/a;; esac; done\n"
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    near = cluster.start(JavaBookie, QuireBookie, QuireBookie)
    cluster.start(NamedBookie, advertisedAddress="localhost", bookieId="far")
    one = broker(networkTopologyScriptFileName=str(script))
    topics = [f"t{number}" for number in range(TOPICS)]
    make_topics(one, topics)
    assert produce(one, topics) == TOPICS
    found = ensembles(cluster)
    assert len(found) >= TOPICS
    for ensemble in found:
        names = [each.strip() for each in ensemble.split(",")]
        assert names.count("far") == 1, found
    used = {each.strip() for ensemble in found for each in ensemble.split(",")}
    assert {"far"} < used <= {"far", *(bookie.id for bookie in near)}


def test_racks_from_a_table(cluster, broker, scratch, name):
    """Two racks are enforced, and only the table knows of them."""
    table = scratch / name("table")
    table.write_text(f"# all in one rack\n{HOST}=/r/a\nlocalhost /r/a\n")
    near = cluster.start(JavaBookie, QuireBookie)
    cluster.start(NamedBookie, advertisedAddress="localhost", bookieId="far")
    settings = {
        "networkTopologyTableFileName": str(table),
        "enforceMinNumRacksPerWriteQuorum": "true",
    }
    topics = [f"t{number}" for number in range(TOPICS)]
    one = broker(**settings)
    make_topics(one, topics)
    assert produce(one, topics[:1], REFUSED_S) == 0
    one.kill()
    # A broker asks once for each bookie.
    table.write_text(f"{HOST}=/r/a   # a comment\nlocalhost /r/b\n")
    two = broker(**settings)
    assert produce(two, topics) == TOPICS
    found = ensembles(cluster)
    assert len(found) >= TOPICS
    for ensemble in found:
        assert [each.strip() for each in ensemble.split(",")].count("far") == 1, found
    used = {each.strip() for ensemble in found for each in ensemble.split(",")}
    assert {"far"} < used <= {"far", *(bookie.id for bookie in near)}


def test_regions(cluster, broker):
    """One copy in each region that is to be written to, and none elsewhere."""
    regions = {}
    for location in ("/east/1", "/east/2", "/west/1", "/north/1"):
        (bookie,) = cluster.start(QuireBookie, **{"quire.network.location": location})
        regions[bookie.id] = location.split("/")[1]
    one = broker(
        ensemblePlacementPolicy="org.apache.bookkeeper.client.RegionAwareEnsemblePlacementPolicy",
        reppRegionsToWrite="east;west",
        reppMinimumRegionsForDurability="2",
    )
    topics = [f"t{number}" for number in range(TOPICS)]
    make_topics(one, topics)
    assert produce(one, topics) == TOPICS
    found = ensembles(cluster)
    assert len(found) >= TOPICS
    for ensemble in found:
        assert {regions[each.strip()] for each in ensemble.split(",")} == {"east", "west"}, found


@pytest.fixture
def small_disk(scratch, name):
    """A file system with little space."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    folder = scratch / name("small")
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256m", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"no mounting here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_free_space(cluster, small_disk, broker):
    """Ours and Java's are asked; the small one gets next to nothing."""
    (small,) = cluster.start(QuireBookie, ledgerDirectories=str(small_disk))
    large = cluster.start(QuireBookie, JavaBookie)
    one = broker(
        diskWeightBasedPlacementEnabled="true",
        getBookieInfoIntervalSeconds="1",
        getBookieInfoRetryIntervalSeconds="1",
        **{"default.replication.factor": "1", "offsets.topic.replication.factor": "1"},
    )
    # Until all have answered it goes by chance alone.
    told = "event=bookies_told_free_space count=3\n"
    wait_for(lambda: told in one.log_since_start(), "the bookies are not asked", 60)
    topics = [f"t{number}" for number in range(40)]
    admin = AdminClient({"bootstrap.servers": one.bootstrap, "log_level": 0})
    for future in admin.create_topics([NewTopic(each, 1, 1) for each in topics]).values():
        future.result(60)
    assert produce(one, topics) == len(topics)
    used = collections.Counter(ensembles(cluster))
    assert sum(used.values()) >= len(topics)
    # By chance alone it would be 13 of 40; by weight it is one in 200 ledgers, or less.
    assert used[small.id] <= 3, used
    assert all(used[bookie.id] >= 6 for bookie in large), used


def test_enforced_racks_wait_for_a_second_rack(cluster, broker):
    cluster.start(QuireBookie, QuireBookie, **{"quire.network.location": "/east/1"})
    one = broker(enforceMinNumRacksPerWriteQuorum="true")
    make_topics(one, ["t"])
    assert produce(one, ["t"], REFUSED_S) == 0
    cluster.start(QuireBookie, **{"quire.network.location": "/east/2"})
    assert produce(one, ["t"]) == 1


def test_a_policy_that_is_unknown_is_refused(scratch, name):
    path = scratch / name("conf")
    path.write_text(
        "metadataServiceUri=zk+null://127.0.0.1:1/ledgers\nlisteners=PLAINTEXT://127.0.0.1:0\n"
        "ensemblePlacementPolicy=org.example.Mine\n"
    )
    done = subprocess.run(
        [str(paths.python_script("quire")), "broker", "--config", str(path)],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode != 0
    assert "Mine is not known here" in done.stderr
