"""`quire-spark report`, `audit` and `archive` on three bookies that are processes of their own.

The commands run in the environment that has pyspark, as an operator's would. Damage is seeded in
the bookies' files and in a ledger's metadata; runs of the archive are ended by SIGKILL between what
they make durable.
"""

import json
import os
import signal
import subprocess

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from harness import paths, servers
from test_standalone_bookies import ClusterServer, wait_for

from wire.bookkeeper.ledger_metadata import parse, serialize

pytestmark = [
    pytest.mark.skipif(servers.target() != "quire", reason="about our own ledgers"),
    pytest.mark.timeout(300),
]

NEEDLE = b"needle in one copy of a ledger"
KILLED = """
import os, signal, sys
from spark_jobs import archive, archive_task, command

def die(*_args):
    os.kill(os.getpid(), signal.SIGKILL)

point = sys.argv.pop(1)
if point == "before a file has its name":
    archive_task.publish = die
elif point == "before the manifest":
    archive.write_manifest = die
else:
    real, calls = archive._tell, []

    def tell(*args):
        calls.append(args)
        return real(*args) if len(calls) == 1 else die()

    archive._tell = tell
command.main()
"""


@pytest.fixture(scope="module")
def cluster(scratch):
    settings = {
        "log.roll.ms": "1000",
        "log.retention.check.interval.ms": "300",
        "offsets.topic.num.partitions": "2",
        "quire.ledger.ensemble.size": "3",
        "quire.ledger.write.quorum": "2",
        "quire.ledger.ack.quorum": "2",
    }
    one = ClusterServer(scratch / "jobs", settings)
    one.start()
    yield one
    one.discard()


def uri(cluster):
    return f"quire+unix://{cluster.data_dir}/metadata.sock"


def spark_python():
    return str(paths.needed(paths.cache_dir() / "venv-spark" / "bin" / "python", "spark"))


def job(cluster, *words, code=0, script="from spark_jobs.command import main; main()"):
    """Its standard output; it must end with `code`."""
    done = subprocess.run(
        [spark_python(), "-c", script, *words],
        env={
            **os.environ,
            "PYTHONPATH": str(paths.ROOT),
            "PYSPARK_PYTHON": spark_python(),
            "QUIRE_METADATA_SERVICE_URI": uri(cluster),
        },
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def make_topic(cluster, name, partitions, **config):
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    config = {key.replace("_", "."): value for key, value in config.items()}
    admin.create_topics([NewTopic(name, partitions, 2, config=config)])[name].result(30)


def fill(cluster, topic, values, partition=0):
    """They are acknowledged; their ledger is closed by its age soon."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 5})
    for number, value in enumerate(values):
        producer.produce(topic, key=b"%d" % number, value=value, partition=partition)
    assert producer.flush(60) == 0


def client(cluster, group="reader"):
    return Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": group, "enable.auto.commit": False}
    )


def bounds(cluster, topic, partition=0):
    consumer = client(cluster)
    try:
        return consumer.get_watermark_offsets(TopicPartition(topic, partition), 20, cached=False)
    finally:
        consumer.close()


def ledgers(cluster, topic):
    """Of its chains, as the report's neighbours see them: closed ones, by `quire ledger list`."""
    done = subprocess.run(
        [
            str(paths.python_script("quire")),
            "ledger",
            "list",
            "--meta",
            "--json",
            "-u",
            uri(cluster),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    rows = json.loads(done.stdout)
    return [row for row in rows if row["state"] == "CLOSED" and topic in json.dumps(row)]


def wait_closed(cluster, topic, count):
    wait_for(lambda: len(ledgers(cluster, topic)) >= count, 60, f"{count} closed ledgers")


def test_the_report_counts_what_is_there(cluster, scratch):
    make_topic(cluster, "counted", 2)
    for partition in (0, 1):
        fill(cluster, "counted", [b"x" * 100] * 300, partition)
    consumer = client(cluster, "behind")
    consumer.commit(offsets=[TopicPartition("counted", 0, 100)], asynchronous=False)
    consumer.close()
    wait_closed(cluster, "counted", 2)
    page = scratch / "report.html"
    made = json.loads(job(cluster, "report", "--json", "--topic", "counted", "--html", str(page)))
    [topic] = made["topics"]
    assert {name: topic[name] for name in ("partitions", "offsets", "ledgers", "open")} == {
        "partitions": 2, "offsets": 600, "ledgers": 2, "open": 0,
    }  # fmt: skip
    assert topic["size_bytes"] > 60_000
    assert topic["stored_bytes"] == 2 * topic["size_bytes"]
    copies = sum(row["size_bytes"] for row in made["bookies"] if row["registered"])
    assert copies == pytest.approx(topic["stored_bytes"], abs=10)
    assert [row["small_ledgers"] for row in made["small_ledgers"]] == [1, 1]
    [lag] = made["lag"]
    assert (lag["group"], lag["partition"], lag["behind"]) == ("behind", "counted-0", 200)
    assert 0 < lag["behind_ms"] < 300_000
    [times] = made["times"]
    assert 0 < times["min_ts_ms"] <= times["max_ts_ms"]
    assert times["unknown"] == 0
    text = page.read_text()
    assert text.count("<svg") == 5
    assert "counted-0" in text
    for outside in ("<script", "<link", "<img", "src="):
        assert outside not in text


def read_archive(archive, topic):
    """(partition, offset, value) of what the manifests name."""
    rows = []
    for path in sorted(archive.glob(f"{topic}/*/*/manifest.json")):
        for file in json.loads(path.read_bytes())["files"]:
            table = pq.ParquetFile(path.parent / file["name"]).read()
            rows += zip(*(table.column(n).to_pylist() for n in ("partition", "offset", "value")),
                        strict=True)  # fmt: skip
    return rows


BOTH = """
import json, sys
from pyspark.sql import SparkSession
import pyspark_quire
from spark_jobs.history import history
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
pyspark_quire.register(spark)
rows = {}
for read_from in ("archive", "live", "both"):
    frame = history(spark, "kept", archive=sys.argv[1], metadata=sys.argv[2], read_from=read_from)
    rows[read_from] = [[r.partition, r.offset, r.value.decode()] for r in frame.collect()]
print("\\n" + json.dumps(rows))
"""


@pytest.mark.long
def test_an_archive_is_whole_whenever_it_is_killed(cluster, scratch):
    archive, words = scratch / "archive", ("--topic", "kept", "--to")
    policy = {"retention_ms": "1000"}
    make_topic(cluster, "kept", 1, quire_archive_required="true", **policy)
    make_topic(cluster, "dropped", 1, **policy)
    values = [b"value %d" % number for number in range(600)]
    fill(cluster, "kept", values[:200])
    wait_closed(cluster, "kept", 1)
    points = ("before a file has its name", "before the manifest", "before the metadata are told")
    for point in points:
        job(cluster, point, "archive", *words, str(archive), code=-signal.SIGKILL, script=KILLED)
    # Whoever has no archive to wait for is dropped meanwhile; nobody was told of this one.
    fill(cluster, "dropped", values[:200])
    fill(cluster, "kept", values[200:400])
    wait_for(lambda: bounds(cluster, "dropped")[0] == 200, 60, "retention")
    assert bounds(cluster, "kept") == (0, 400)
    wait_closed(cluster, "kept", 2)
    made = json.loads(job(cluster, "archive", "--json", *words, str(archive)))
    assert [made["partitions"][0][n] for n in ("first", "next_base", "rows")] == [0, 400, 400]
    assert made["ledgers"] == 1, "the first was archived before the last kill"
    assert json.loads(job(cluster, "archive", "--json", "--verify", "--to", str(archive)))[
        "faults"
    ] == []  # fmt: skip
    wait_for(lambda: bounds(cluster, "kept")[0] == 400, 60, "retention behind the archive")
    fill(cluster, "kept", values[400:])
    everything = [(0, offset, value) for offset, value in enumerate(values)]
    assert read_archive(archive, "kept") == everything[:400]
    rows = json.loads(job(cluster, str(archive), uri(cluster), script=BOTH).splitlines()[-1])
    texts = [[partition, offset, value.decode()] for partition, offset, value in everything]
    assert sorted(rows["archive"]) == texts[:400]
    assert sorted(rows["live"]) == texts[400:]
    assert sorted(rows["both"]) == texts


@pytest.mark.long
def test_an_archived_file_that_changed_is_found(cluster, scratch):
    """Of the archive above."""
    [file] = list((scratch / "archive").glob("kept/*/0/*00200-*00400-*.parquet"))
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    out = job(cluster, "archive", "--verify", "--to", str(scratch / "archive"), code=1)
    assert file.name in out


def seed_damage(cluster):
    """One bit in one copy of the ledger with the needle, whose bookie is given."""
    found = []
    for path in sorted(cluster.data_dir.glob("bookie-*/ledgers/current/*.log")):
        data = bytearray(path.read_bytes())
        if (at := data.find(NEEDLE)) >= 0 and not found:
            data[at] ^= 1
            path.write_bytes(data)
            found.append(path.relative_to(cluster.data_dir).parts[0])
    return found


def test_the_audit_finds_what_is_bad_and_nothing_else(cluster, scratch):
    for topic in ("damaged", "moved"):
        make_topic(cluster, topic, 1, quire_ledger_ensemble_size="2")
        fill(cluster, topic, [NEEDLE if topic == "damaged" else b"hay"])
        wait_closed(cluster, topic, 1)
    [damaged], [moved] = (
        [row["ledger"] for row in ledgers(cluster, topic)] for topic in ("damaged", "moved")
    )
    assert cluster.stop() == 0
    [bookie] = seed_damage(cluster)
    cluster.start()
    told = move(cluster, moved, scratch)
    words = ("audit", "--json", "--topic", "damaged", "--topic", "moved")
    found = json.loads(job(cluster, *words, "--master", "local[2]", code=1))
    rows = {(row["ledger"], row["bookie"], row["verdict"]) for row in found["findings"]}
    assert (damaged, bookie, "damaged") in rows
    assert {row for row in rows if row[0] == moved} == {(moved, told, "missing")}
    assert len(rows) == 2
    [row] = [row for row in found["findings"] if row["ledger"] == damaged]
    assert (row["first_entry"], row["last_entry"], row["owner"]) == (0, 0, "damaged-0")
    assert found["unreadable"] == {}
    assert json.loads(job(cluster, "audit", "--json", "--topic", "counted"))["findings"] == []


def test_the_audit_takes_silence_for_no_loss(cluster):
    """Of a bookie that is stopped: all of its copies, and none of the others'; nothing is said to
    be missing. Of the ledgers of `counted`, which are whole."""
    silent, pid = sorted(cluster.bookie_pids().items())[0]
    theirs = {
        row["ledger"]
        for row in ledgers(cluster, "counted")
        if silent in json.dumps(row["ensembles"])
    }
    assert theirs, "the bookie has none of them"
    words = ("audit", "--json", "--topic", "counted", "--bookkeeper", "readEntryTimeoutSec=1")
    os.kill(pid, signal.SIGSTOP)
    try:
        found = json.loads(job(cluster, *words, code=3))["findings"]
    finally:
        os.kill(pid, signal.SIGCONT)
    assert {(row["ledger"], row["bookie"], row["verdict"]) for row in found} == {
        (ledger, silent, "silent") for ledger in theirs
    }
    assert json.loads(job(cluster, *words))["findings"] == []


def move(cluster, ledger, scratch):
    """The ledger's metadata name another bookie than the second that has it: which."""
    quire = [
        str(paths.python_script("quire")),
        "ledger",
        "metadata",
        str(ledger),
        "-u",
        uri(cluster),
    ]
    path = scratch / "metadata"
    subprocess.run([*quire, "--dump-to-file", str(path)], check=True, timeout=60)
    metadata = parse(path.read_bytes())
    [(first, ensemble)] = metadata.segments
    [other] = {"bookie-1", "bookie-2", "bookie-3"} - set(ensemble)
    path.write_bytes(serialize(metadata.with_segment(first, (ensemble[0], other))))
    subprocess.run([*quire, "--restore-from-file", str(path), "--update"], check=True, timeout=60)
    return other
