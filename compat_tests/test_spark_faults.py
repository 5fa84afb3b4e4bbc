"""`format("quire")` when something breaks: copies, bookies, ledgers, drivers, tasks.

One SparkSession for all but the drivers, which are killed: these are processes of their own.
"""

import json
import os
import signal
import subprocess
import time

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from harness import figures, paths, servers
from harness.history import read_all
from harness.spark_session import SparkFailed, running_spark
from test_spark_jobs import fill, ledgers, make_topic, spark_python, wait_closed
from test_spark_quire import SEGMENTS, ListeningServer
from test_standalone_bookies import ClusterServer, wait_for

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(servers.target() != "quire", reason="about our own ledgers"),
    pytest.mark.timeout(300),
]

ONE, ALL = b"needle in one copy of it", b"needle in all copies of it"
#: The scenario is of 1,000; a hundred leave behind what each of them would.
TASKS = int(os.environ.get("QUIRE_SPARK_TASKS", "100"))
#: Where a driver is killed, each time once, one after the other. A driver's start takes as long as
#: all else here, so that the first two are what is done by default.
POINTS = (
    "in the middle of a task",
    "when the source is told of the batch before",
    "before an offset is logged",
    "before its batch is planned",
    "when a task has given all",
)[: int(os.environ.get("QUIRE_SPARK_KILLS", "2"))]


@pytest.fixture(scope="module")
def spark(scratch):
    started = time.monotonic()
    with running_spark(scratch / "spark-faults") as call:
        yield call
    figures.add(f"Spark on ledgers, faults: all of it in {time.monotonic() - started:.0f} s")


@pytest.fixture(scope="module")
def server(scratch):
    settings = {"log.retention.check.interval.ms": "20", "log.cleaner.backoff.ms": "50"}
    one = ListeningServer(scratch / "faults-server", settings).start()
    yield one
    one.discard()


@pytest.fixture(scope="module")
def cluster(scratch):
    settings = {
        "log.roll.ms": "1000",
        "log.retention.check.interval.ms": "300",
        "quire.ledger.ensemble.size": "3",
        "quire.ledger.write.quorum": "3",
        "quire.ledger.ack.quorum": "3",
    }
    one = ClusterServer(scratch / "faults-cluster", settings).start()
    yield one
    one.discard()


def read(spark, server, topic, **options):
    """{(partition, offset): value} of a batch query that asks no broker."""
    given = {"subscribe": topic, "columns": "partition,offset,value", **options}
    found = spark("read_quire", metadata=metadata_of(server), options=given)["rows"]
    rows = {(partition, offset): bytes.fromhex(value) for partition, offset, value in found}
    assert len(rows) == len(found), "an offset twice"
    return rows


def metadata_of(server):
    return f"quire+unix://{server.data_dir}/metadata.sock"


def flip(cluster, needle, *, copies):
    """One bit each, in the copies of so many bookies, by the order of their names."""
    left = copies
    for path in sorted(cluster.data_dir.glob("bookie-*/ledgers/current/*.log")):
        data = bytearray(path.read_bytes())
        if left and (at := data.find(needle)) >= 0:
            data[at] ^= 1
            path.write_bytes(data)
            left -= 1
    assert not left, "fewer copies than that"


def test_7_8_a_flipped_bit_and_silent_bookies(spark, cluster):
    values = [b"value %d" % number for number in range(50)]
    for topic, needle in (("bit-in-one", ONE), ("bit-in-all", ALL)):
        make_topic(cluster, topic, 1)
        fill(cluster, topic, [*values, needle])
        wait_closed(cluster, topic, 1)
    [damaged] = [row["ledger"] for row in ledgers(cluster, "bit-in-all")]
    assert cluster.stop() == 0
    flip(cluster, ONE, copies=1)
    flip(cluster, ALL, copies=3)
    cluster.start()
    whole = {(0, offset): value for offset, value in enumerate([*values, ONE])}
    for _ in range(3):  # whichever copy is asked first
        assert read(spark, cluster, "bit-in-one") == whole
    with pytest.raises(SparkFailed, match=rf"ledger {damaged}\b.*entry \d+"):
        read(spark, cluster, "bit-in-all")
    # 7: two of three say nothing, one of them that with the damaged copy; then all.
    pids = [pid for _, pid in sorted(cluster.bookie_pids().items())]
    try:
        for pid in pids[:2]:
            os.kill(pid, signal.SIGSTOP)
        assert read(spark, cluster, "bit-in-one") == whole
        os.kill(pids[2], signal.SIGSTOP)
        quick = {"bookkeeper.readEntryTimeoutSec": "1"}
        with pytest.raises(SparkFailed, match=r"ledger \d+"):
            read(spark, cluster, "bit-in-one", **quick)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def create(server, topic, partitions=1, **config):
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    new = NewTopic(topic, partitions, 1, config={**SEGMENTS, **config})
    admin.create_topics([new])[topic].result(30)
    return admin


def produce(server, topic, records, pause_every=0):
    """`records`: (key, value), to partition 0; with pauses its ledgers become several."""
    producer = Producer({"bootstrap.servers": server.bootstrap})
    for number, (key, value) in enumerate(records):
        producer.produce(topic, value, key, partition=0)
        if pause_every and number % pause_every == pause_every - 1:
            producer.flush(60)
            time.sleep(0.1)
    assert producer.flush(60) == 0


def test_9_10_ledgers_that_are_gone_or_compacted_since_the_plan(spark, server, name):
    """Three plans; then records are deleted, ledgers compacted, and the bookie is another one, so
    that each task has to ask again. It goes on at its offset, or says what is lost."""
    kept, deleted, compacted = (name(each) for each in ("kept", "deleted", "compacted"))
    plan = {"metadata": server.metadata, "bootstrap": server.bootstrap}
    records = [(b"k%d" % (n % 4), b"v%d" % n) for n in range(60)]
    for topic in (kept, deleted, compacted):
        admin = create(server, topic)
        produce(server, topic, records, pause_every=20)
        columns = {"subscribe": topic, "columns": "partition,offset,value"}
        assert spark("plan", name=topic, options=columns, **plan) == 1
        lenient = {**columns, "failOnDataLoss": "false"}
        assert spark("plan", name=f"{topic}?", options=lenient, **plan) == 1
    asked = TopicPartition(deleted, 0, 25)
    admin.delete_records([asked])[asked].result(20)
    compact(server, compacted, below=60)
    assert server.stop() == 0
    server.start()  # its bookie listens at another port
    values = {offset: value for offset, (_, value) in enumerate(records)}
    assert planned(spark, kept) == values
    with pytest.raises(SparkFailed, match=f"{deleted}-0: offsets 0 to 25 .*were deleted"):
        planned(spark, deleted)
    assert planned(spark, f"{deleted}?") == {n: values[n] for n in range(25, 60)}
    rest = planned(spark, compacted)
    assert rest == {offset: values[offset] for offset in rest}
    assert len(rest) < 60
    assert set(rest) >= {57, 58, 59}, "the newest of the keys that did not come again"


def planned(spark, name):
    """{offset: value} of what a plan's tasks read now."""
    rows = spark("read_planned", name=name)
    found = {offset: bytes.fromhex(value) for _, offset, value in rows}
    assert len(found) == len(rows), "an offset twice"
    return found


def compact(server, topic, below):
    """Until fewer records than `below` are left of those before it."""
    produce(server, topic, [(b"k0", b"behind")])
    resource = ConfigResource(
        ResourceType.TOPIC,
        topic,
        incremental_configs=[
            ConfigEntry(key, text, incremental_operation=AlterConfigOpType.SET)
            for key, text in (("cleanup.policy", "compact"), ("min.cleanable.dirty.ratio", "0.01"))
        ],
    )
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(30)
    time.sleep(0.1)  # so that its ledger is closed for its age when the next batch comes
    produce(server, topic, [(b"k0", b"behind that")])
    wait_for(lambda: record_count(server, topic) < below, 60, "compaction")


def record_count(server, topic):
    return sum(offset < 60 for offset, _ in read_all(server.bootstrap, topic, 1)[0])


def test_17_many_tasks_and_a_cancelled_job_leave_nothing(spark, server, name):
    many, large = name("many"), name("large")
    call = {"metadata": server.metadata, "bootstrap": server.bootstrap}
    create(server, many)
    produce(server, many, ((None, b"%d" % n) for n in range(2 * TASKS)))
    options = {"subscribe": many, "columns": "offset"}
    spark("read_quire", options={**options, "minPartitions": "4"}, **call)
    before = spark("python_workers")
    found = spark("read_quire", options={**options, "maxRecordsPerPartition": "2"}, **call)
    assert found["tasks"] == TASKS
    assert sorted(row[0] for row in found["rows"]) == list(range(2 * TASKS))
    idle = max(before.values(), key=sum)
    wait_for(lambda: not busy(spark, idle), 30, "more threads or descriptors than before")
    # A task that is in the middle of its part, with bookies' connections and its thread.
    create(server, large)
    produce(server, large, ((None, os.urandom(500_000)) for _ in range(80)))
    spark("start_slow", name=large, options={"subscribe": large}, **call)
    wait_for(lambda: spark("slow_tasks", name=large) == 1, 60, "no task runs")
    wait_for(lambda: busy(spark, idle), 60, "no task is reading")
    error = spark("cancel_slow", name=large)
    assert "cancel" in error.lower()
    wait_for(lambda: not busy(spark, idle), 30, "a cancelled task's thread or connection is left")
    assert spark("limit_one", options={"subscribe": large}, **call) == 1
    wait_for(lambda: not busy(spark, idle), 30, "the same, of limit(1)")


def busy(spark, idle):
    """Whether a Python worker has more threads or descriptors than an idle one."""
    return any(
        threads > idle[0] or descriptors > idle[1]
        for threads, descriptors in spark("python_workers").values()
    )


@pytest.mark.timeout(900)
def test_13_a_driver_that_is_killed_loses_and_repeats_nothing(server, scratch, name):
    """At points of later batches than the first, each time restarted from the checkpoint."""
    topic, home = name("topic"), scratch / name("killed")
    create(server, topic)
    produce(server, topic, ((None, b"%d" % n) for n in range(120)), pause_every=40)
    words = [server.bootstrap, server.metadata, topic, str(home)]
    for point in POINTS:
        assert drive(point, *words) == -signal.SIGKILL, point
        produce(server, topic, [(None, b"more")])
    assert drive("", *words) == 0
    places = json.loads((home / "rows").read_text())
    assert places == list(range(120 + len(POINTS)))


def drive(point, *words):
    """The exit code of a driver that is to die at that point."""
    script = paths.COMPAT / "harness" / "quire_killed.py"
    done = subprocess.run(
        [spark_python(), str(script), point, *words],
        env={
            **os.environ,
            "PYTHONPATH": f"{paths.ROOT}:{paths.ROOT / 'spark_examples'}",
            "PYSPARK_PYTHON": spark_python(),
            "SPARK_KAFKA_JARS": str(paths.jars("spark")),
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr[-4000:]
    return done.returncode
