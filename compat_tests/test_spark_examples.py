"""The streaming examples on both sources, whose results are the same and what plain Python says:
event-time windows with late and repeated records into files, and an upsert by `foreachBatch`.
"""

import json

import pytest
from confluent_kafka import Producer
from harness import paths, servers
from test_spark_jobs import job, make_topic, uri, wait_closed
from test_standalone_bookies import ClusterServer

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(servers.target() != "quire", reason="about our own ledgers"),
    pytest.mark.timeout(300),
]


@pytest.fixture
def cluster(scratch):
    settings = {"log.roll.ms": "1000", "log.retention.check.interval.ms": "300"}
    one = ClusterServer(scratch / "examples-cluster", settings)
    one.start()
    yield one
    one.discard()


EXAMPLES = """
import json, sqlite3, sys
from pathlib import Path
examples, bootstrap, metadata, home = sys.argv[1:]
sys.path.insert(0, examples)
import pyspark_quire, session, upsert_job, windows_job
spark = session.build("examples", home)
pyspark_quire.register(spark)
told = {}
for source, place in (("kafka", bootstrap), ("quire", metadata)):
    folder = Path(home) / source
    folder.mkdir()
    words = (spark, source, place, "packages")
    done = windows_job.run(*words, str(folder / "out"), str(folder / "c1"), 40)
    rows = [[row.window_start.isoformat(), row.section, row.packages, row.bytes]
            for row in spark.read.parquet(str(folder / "out")).collect()]
    database = str(folder / "db")
    upserted = upsert_job.run(*words, database, str(folder / "c2"), 100)
    batch = spark.createDataFrame([("p0", "wrong", "s", 0, 10**6)],
                                  "package string, version string, section string,"
                                  " partition int, offset long")
    repeated = upsert_job.apply(database, batch, 0)
    newest = sqlite3.connect(database).execute("SELECT name, version FROM package").fetchall()
    told[source] = {"done": done, "rows": sorted(rows), "upserted": upserted,
                    "repeated": repeated, "newest": sorted(newest)}
print("\\n" + json.dumps(told))
"""
MINUTE_MS = 60_000
BASE_MS = 1_800_000_000_000  # at a window's begin


def packages():
    """(package, section, minute): three windows, in the last of which one comes twice; then one of
    a window that was written two batches before, and what closes them."""
    rows = [(f"p{n}", f"s{n % 2}", n // 4) for n in range(120)] + [("p81", "s1", 21)]
    return [*rows, ("late", "s0", 1), ("closing", "s0", 60)]


def test_the_examples_say_the_same_of_both_sources(cluster, scratch):
    # Of times that are not today's, which retention and the broker's clock have nothing to say of.
    make_topic(cluster, "packages", 1, retention_ms="-1", message_timestamp_after_max_ms=str(2**62))
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for number, (name, section, minute) in enumerate(packages()):
        value = {"package": name, "section": section, "size": 10, "version": str(number)}
        time_ms = BASE_MS + minute * MINUTE_MS
        producer.produce("packages", json.dumps(value), name, 0, timestamp=time_ms)
    assert producer.flush(30) == 0
    # Without a broker's word the end of an open ledger is known when the next entry comes.
    wait_closed(cluster, "packages", 1)
    home = scratch / "examples"
    home.mkdir()
    words = (str(paths.ROOT / "spark_examples"), cluster.bootstrap, uri(cluster), str(home))
    told = json.loads(job(cluster, *words, script=EXAMPLES).splitlines()[-1])
    assert told["quire"] == told["kafka"]
    one = told["quire"]
    counts = {}
    for number in range(120):
        key = number // 40, f"s{number % 2}"
        counts[key] = counts.get(key, 0) + 1
    assert [row[2:] for row in one["rows"]] == [[n, 10 * n] for _, n in sorted(counts.items())]
    assert one["done"]["records"] == len(packages())
    assert one["done"]["batches"] >= 3
    assert one["done"]["late"] == 1
    assert one["repeated"] is False
    names = {name: str(number) for number, (name, _, _) in enumerate(packages())}
    assert dict(one["newest"]) == names
