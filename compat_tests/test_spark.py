"""Spark's `kafka` source and sink: the jobs of spark_examples/ against plain Python's results.

One SparkSession for all tests, in a process of its own: pyspark lives in another environment.
QUIRE_SPARK_RECORDS limits the data set, which by default is the whole package index of apt.
"""

import collections
import importlib.util
import json
import os
import sys
import time

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import NewTopic
from harness import figures, paths
from harness.history import read_all
from harness.spark_session import SparkFailed, running_spark

pytestmark = pytest.mark.timeout(300)


def example(name):
    """A module of spark_examples/ that needs no pyspark."""
    spec = importlib.util.spec_from_file_location(
        name, paths.ROOT / "spark_examples" / f"{name}.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def spark(scratch):
    """spark(job, **options) -> its result."""
    with running_spark(scratch / "spark") as call:
        yield call


@pytest.fixture(scope="module")
def packages():
    limit = os.environ.get("QUIRE_SPARK_RECORDS")
    return example("package_index").packages(int(limit) if limit else None)


@pytest.fixture(scope="module")
def loaded(server, admin, packages):
    """(topic with every package, package -> place, timestamp of the first)."""
    sys.modules["package_index"] = example("package_index")
    topic = f"packages-{os.getpid()}"
    admin.create_topics([NewTopic(topic, 4, 1)])[topic].result(20)
    started = time.monotonic()
    start_ms = int(time.time() * 1000) - 1000 * len(packages)
    placed = example("load_packages").load(server.bootstrap, topic, packages, start_ms)
    figures.add(f"Spark: {len(placed)} packages loaded in {time.monotonic() - started:.1f} s")
    return topic, placed, start_ms


def by_section(packages):
    """What batch_job computes, in plain Python."""
    groups = collections.defaultdict(list)
    for package in packages:
        groups[package["section"]].append(package)
    return {
        section: {
            "section": section,
            "packages": len(rows),
            "maintainers": len({row["maintainer"] for row in rows}),
            "installed_size": sum(row["installed_size"] for row in rows),
            "largest": max(rows, key=lambda row: (row["installed_size"], row["package"]))[
                "package"
            ],
        }
        for section, rows in groups.items()
    }


def test_data_set_is_real(packages):
    assert len({package["package"] for package in packages}) == len(packages) >= 1000
    assert any(package["depends"] for package in packages)


def test_batch_job(spark, server, loaded, packages, scratch, name):
    topic, _, _ = loaded
    summary = name("sections")
    output = str(scratch / "sections")
    started = time.monotonic()
    done = spark(
        "batch_job", bootstrap=server.bootstrap, topic=topic, output=output, summary_topic=summary
    )
    figures.add(f"Spark: batch job over {done['records']} in {time.monotonic() - started:.1f} s")
    expected = by_section(packages)
    assert done == {"records": len(packages), "sections": len(expected)}
    rows = spark("read_parquet", path=output)
    assert {row["section"]: row for row in rows} == expected
    written = spark(
        "read_topic",
        bootstrap=server.bootstrap,
        options={"subscribe": summary, "includeHeaders": "true"},
    )
    assert {row[0]: json.loads(row[1]) for row in written} == expected
    assert all(row[5] == [["made-by", "batch_job"]] for row in written)


def test_every_record_with_its_headers(spark, server, loaded, packages):
    topic, placed, start = loaded
    rows = spark(
        "read_topic",
        bootstrap=server.bootstrap,
        options={"subscribe": topic, "includeHeaders": "true"},
    )
    found = {row[0]: row for row in rows}
    assert len(found) == len(rows) == len(packages)
    for number, package in enumerate(packages):
        _, value, partition, offset, timestamp, headers = found[package["package"]]
        assert json.loads(value) == package
        assert (partition, offset) == placed[package["package"]]
        assert timestamp == start + 1000 * number
        assert sorted(headers) == [
            ["architecture", package["architecture"]],
            ["section", package["section"]],
        ]


def test_starting_and_ending_by_time(spark, server, loaded, packages):
    topic, _, start = loaded
    first, last = len(packages) // 3, 2 * len(packages) // 3
    times = {
        "startingOffsetsByTimestamp": first,
        "endingOffsetsByTimestamp": last,
    }
    options = {
        key: json.dumps({topic: {str(p): start + 1000 * n for p in range(4)}})
        for key, n in times.items()
    }
    rows = spark("read_topic", bootstrap=server.bootstrap, options={"subscribe": topic, **options})
    wanted = {package["package"] for package in packages[first:last]}
    assert {row[0] for row in rows} == wanted
    # A time after the last record: an error, or the end, as the strategy says.
    late = {"startingTimestamp": str(start + 1000 * len(packages) + 1), "subscribe": topic}
    with pytest.raises(SparkFailed):
        spark("read_topic", bootstrap=server.bootstrap, options=late)
    late["startingOffsetsByTimestampStrategy"] = "latest"
    assert spark("read_topic", bootstrap=server.bootstrap, options=late) == []


def test_offsets_as_json_and_more_tasks_than_partitions(spark, server, loaded, packages):
    topic, placed, _ = loaded
    ends = collections.Counter(partition for partition, _ in placed.values())
    begin = {str(p): (-2 if p == 0 else ends[p] - 5) for p in range(4)}
    finish = {str(p): (3 if p == 0 else -1) for p in range(4)}
    options = {
        "subscribe": topic,
        "startingOffsets": json.dumps({topic: begin}),
        "endingOffsets": json.dumps({topic: finish}),
    }
    rows = spark("read_topic", bootstrap=server.bootstrap, options=options)
    places = sorted((row[2], row[3]) for row in rows)
    expected = [(0, offset) for offset in range(3)]
    expected += [(p, offset) for p in (1, 2, 3) for offset in range(ends[p] - 5, ends[p])]
    assert places == expected
    options = {"subscribe": topic, "minPartitions": "8"}
    assert spark("partition_count", bootstrap=server.bootstrap, options=options) >= 8


def test_streaming_job_goes_on_after_a_stop(spark, server, loaded, packages, scratch, name):
    topic, _, _ = loaded
    totals = name("maintainers")
    options = {
        "bootstrap": server.bootstrap,
        "topic": topic,
        "totals_topic": totals,
        "checkpoint": str(scratch / "checkpoint"),
        # So many that it is stopped in the middle also if the word to stop comes late.
        "records_per_batch": max(1, len(packages) // 12),
    }
    started = time.monotonic()
    first = spark("streaming_job", stop_after_batches=2, **options)
    assert 2 <= first["batches"] < 12
    assert 0 < first["records"] < len(packages)
    second = spark("streaming_job", **options)
    figures.add(
        f"Spark: stream of {len(packages)} in {first['batches']} + {second['batches']} batches, "
        f"stopped in between, {time.monotonic() - started:.1f} s"
    )
    # At least once: the batch that the stop broke off is done again.
    assert first["records"] + second["records"] >= len(packages)
    assert second["records"] < len(packages)
    third = spark("streaming_job", **options)
    assert third["records"] == 0
    last = {}
    for rows in read_all(server.bootstrap, totals, 4).values():
        for _, value in rows:
            row = json.loads(value)
            last[row["maintainer"]] = (row["packages"], row["installed_size"])
    expected = collections.defaultdict(lambda: (0, 0))
    for package in packages:
        count, size = expected[package["maintainer"]]
        expected[package["maintainer"]] = (count + 1, size + package["installed_size"])
    assert last == dict(expected)


def test_aborted_transactions_are_invisible(spark, server, topic, admin, name):
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(20)
    producer = Producer({"bootstrap.servers": server.bootstrap, "transactional.id": name("tx")})
    producer.init_transactions(20)
    for number in range(6):
        producer.begin_transaction()
        for step in range(10):
            producer.produce(topic, f"{number}.{step}")
        producer.flush(10)
        if number in (1, 5):  # the last too: the end of the log is then nothing but gaps
            producer.abort_transaction(20)
        else:
            producer.commit_transaction(20)
    options = {"subscribe": topic, "kafka.isolation.level": "read_committed"}
    rows = spark("read_topic", bootstrap=server.bootstrap, options=options)
    expected = [f"{number}.{step}" for number in (0, 2, 3, 4) for step in range(10)]
    assert [row[1] for row in sorted(rows, key=lambda row: row[3])] == expected
    everything = spark("read_topic", bootstrap=server.bootstrap, options={"subscribe": topic})
    assert len(everything) == 60


def test_open_transaction_holds_the_end_of_a_batch(spark, server, topic, admin, name):
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(20)

    def begun(suffix):
        settings = {"bootstrap.servers": server.bootstrap, "transactional.id": name(suffix)}
        # On a busy machine a job may take a minute, which is the default.
        producer = Producer({**settings, "transaction.timeout.ms": 600_000})
        producer.init_transactions(20)
        producer.begin_transaction()
        return producer

    def sent(producer, value):
        producer.produce(topic, value)
        assert producer.flush(20) == 0
        return producer

    def seen(wanted):
        """A marker comes a moment after the commit's answer."""
        options = {"subscribe": topic, "kafka.isolation.level": "read_committed"}
        deadline = time.monotonic() + 20
        while True:
            rows = spark("read_topic", bootstrap=server.bootstrap, options=options)
            values = [row[1] for row in sorted(rows, key=lambda row: row[3])]
            if values == wanted or time.monotonic() > deadline:
                return values

    sent(begun("before"), "before").commit_transaction(20)
    held = sent(begun("held"), "held")
    sent(begun("behind"), "behind").commit_transaction(20)
    assert seen(["before"]) == ["before"]
    everything = spark("read_topic", bootstrap=server.bootstrap, options={"subscribe": topic})
    assert len(everything) == 3
    held.commit_transaction(20)
    assert seen(["before", "held", "behind"]) == ["before", "held", "behind"]


def test_deleted_records(spark, server, topic, admin):
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(20)
    producer = Producer({"bootstrap.servers": server.bootstrap})
    for n in range(100):
        producer.produce(topic, str(n))
    assert producer.flush(60) == 0
    asked = TopicPartition(topic, 0, 40)
    admin.delete_records([asked])[asked].result(20)
    earliest = spark("read_topic", bootstrap=server.bootstrap, options={"subscribe": topic})
    assert [int(row[1]) for row in earliest] == list(range(40, 100))
    gone = {"subscribe": topic, "startingOffsets": json.dumps({topic: {"0": 10}})}
    with pytest.raises(SparkFailed):
        spark("read_topic", bootstrap=server.bootstrap, options=gone)
    gone["failOnDataLoss"] = "false"
    rows = spark("read_topic", bootstrap=server.bootstrap, options=gone)
    assert [int(row[1]) for row in rows] == list(range(40, 100))


def test_topics_by_pattern(spark, server, name):
    base = name("pattern")
    producer = Producer({"bootstrap.servers": server.bootstrap})
    for number in range(3):
        producer.produce(f"{base}-{number}", str(number), partition=0)
    assert producer.flush(60) == 0
    options = {"subscribePattern": f"{base}-[02]"}
    rows = spark("read_topic", bootstrap=server.bootstrap, options=options)
    assert sorted(row[1] for row in rows) == ["0", "2"]
