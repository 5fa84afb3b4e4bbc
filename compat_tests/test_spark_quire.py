"""`format("quire")` beside Spark's own `kafka` source: the same rows of the same log.

One SparkSession and one server for all tests; topics have short segments, so that a partition has
many ledgers, closed ones and an open one.
"""

import json
import os
import threading
import time

import pytest
from confluent_kafka import Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from harness import figures, paths, raw, servers, tools
from harness.brokers import BrokerCluster, wait_for
from harness.spark_session import SparkFailed, running_spark
from harness.zookeeper_proxy import Proxy

pytestmark = [
    pytest.mark.skipif(servers.target() != "quire", reason="about our own ledgers"),
    pytest.mark.timeout(300),
]

#: A ledger that is so old is closed when the next batch comes.
SEGMENTS = {"segment.ms": "50", "retention.ms": "-1"}


class ListeningServer(servers.QuireServer):
    """Its bookie serves other processes."""

    def command(self):
        return [*super().command(), "--bookie-listen", f"{servers.HOST}:0"]

    @property
    def metadata(self):
        return f"quire+unix://{self.data_dir}/metadata.sock"


@pytest.fixture(scope="module")
def server(scratch):
    settings = {"log.retention.check.interval.ms": "20"}
    one = ListeningServer(scratch / "spark-server", settings).start()
    yield one
    one.discard()


@pytest.fixture(scope="module")
def admin(server):
    return AdminClient({"bootstrap.servers": server.bootstrap})


@pytest.fixture(scope="module")
def spark(scratch):
    started = time.monotonic()
    with running_spark(scratch / "spark-quire") as call:
        yield call
    figures.add(f"Spark on ledgers: all of it in {time.monotonic() - started:.0f} s")


def create(admin, topic, partitions=1, **config):
    new = NewTopic(topic, partitions, 1, config={**SEGMENTS, **config})
    admin.create_topics([new])[topic].result(20)


def produce(server, topic, records, partitions=1, **settings):
    """`records`: (key, value, headers), in turn to each partition."""
    producer = Producer({"bootstrap.servers": server.bootstrap, **settings})
    for number, (key, value, headers) in enumerate(records):
        producer.produce(topic, value, key, partition=number % partitions, headers=headers or None)
        if number % 100 == 99:
            producer.flush(60)  # some batches each partition
            time.sleep(0.1)  # so that some ledgers are closed; no test needs a number
    assert producer.flush(60) == 0


def varied(count, size=50):
    """Null keys and values, headers, empty ones of all."""
    for n in range(count):
        key = None if n % 5 == 0 else b"" if n % 7 == 0 else b"key-%d" % n
        value = None if n % 11 == 0 else b"" if n % 13 == 0 else (b"%d " % n) * (size // 4)
        headers = [("h", b"%d" % n), ("h", None), ("é", b"")] if n % 3 == 0 else []
        yield key, value, headers


@pytest.fixture(scope="module")
def many(server, admin):
    """Three topics of four partitions, all codecs, several ledgers each."""
    base = f"many-{os.getpid()}"
    for number in range(3):
        create(admin, f"{base}-{number}", 4)
    for number, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        topic = f"{base}-{number % 3}"
        produce(server, topic, varied(400), 4, **{"compression.type": codec})
    large = ((b"large", os.urandom(600_000), []) for _ in range(12))
    produce(server, f"{base}-0", large, 1, **{"message.max.bytes": 1_000_000})
    return base


def same(spark, server, options, **more):
    found = spark(
        "compare",
        bootstrap=server.bootstrap,
        metadata=server.metadata,
        options={"includeHeaders": "true", **options},
        **more,
    )
    assert found.get("equal"), found
    return found


def test_1_all_codecs_null_keys_and_headers(spark, server, many):
    found = same(spark, server, {"subscribePattern": f"{many}-.*"})
    assert found["rows"] == 5 * 400 + 12


@pytest.mark.long
def test_3_any_number_of_tasks_gives_the_same_rows(spark, server, many):
    for options in ({"minPartitions": "7"}, {"minPartitions": "64"}):
        same(spark, server, {"subscribe": f"{many}-0", **options})
    options = {"subscribe": f"{many}-0", "columns": "offset,value"}
    one = spark("read_quire", metadata=server.metadata, options=options)
    assert one["tasks"] == 4
    assert one["columns"] == ["offset", "value"]
    options["maxRecordsPerPartition"] = "10"
    found = spark("read_quire", metadata=server.metadata, options=options)
    assert found["tasks"] >= len(found["rows"]) // 10
    assert sorted(map(str, found["rows"])) == sorted(map(str, one["rows"]))


def test_4_offsets_as_json(spark, server, many):
    topic = f"{many}-1"
    begin = {"0": 5, "1": -2, "2": 20, "3": 0}
    end = {"0": 40, "1": -1, "2": 20, "3": 7}
    options = {
        "subscribe": topic,
        "startingOffsets": json.dumps({topic: begin}),
        "endingOffsets": json.dumps({topic: end}),
    }
    found = same(spark, server, options)
    assert [0, 5] in found["offsets"]
    assert [0, 40] not in found["offsets"]
    assigned = {"assign": json.dumps({topic: [1, 3]})}
    assert {place[0] for place in same(spark, server, assigned)["offsets"]} == {1, 3}


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": {"0": 1}},
        {"endingOffsets": {"0": 10**6, "1": -1, "2": -1, "3": -1}},
        {"startingOffsets": "latest"},
        {"startingTimestamp": str(10**14)},
    ],
    ids=str,
)
def test_4_what_the_stock_source_refuses_is_refused(spark, server, many, options):
    topic = f"{many}-1"
    given = {
        key: json.dumps({topic: value}) if isinstance(value, dict) else value
        for key, value in options.items()
    }
    found = spark(
        "compare",
        bootstrap=server.bootstrap,
        metadata=server.metadata,
        options={"subscribe": topic, **given, "kafkaConsumer.pollTimeoutMs": "2000",
                 "fetchOffset.numRetries": "1"},
    )  # fmt: skip
    assert found["stock_error"], found
    assert found["error"], found


def test_5_times(spark, server, admin, name):
    topics = [name("create"), name("append")]
    start = 1_700_000_000_000
    for topic, kind in zip(topics, ("CreateTime", "LogAppendTime"), strict=True):
        create(admin, topic, 1, **{"message.timestamp.type": kind})
        producer = Producer({"bootstrap.servers": server.bootstrap})
        for n in range(300):
            producer.produce(topic, b"%d" % n * 200, timestamp=start + 10 * (n ^ 3))
            if n % 20 == 0:
                producer.flush(20)
        assert producer.flush(20) == 0
    same(spark, server, {"subscribe": ",".join(topics)})
    options = {"subscribe": topics[0], "startingTimestamp": str(start + 700)}
    assert 225 < same(spark, server, options)["rows"] < 235
    options["endingTimestamp"] = str(start + 2_001)
    assert 100 < same(spark, server, options)["rows"] < 140
    # Behind the last record: the end, if the strategy says so.
    options = {"subscribe": topics[0], "startingTimestamp": str(start + 10**6)}
    options["startingOffsetsByTimestampStrategy"] = "latest"
    assert same(spark, server, options)["rows"] == 0
    exact = {"minTimestamp": str(start + 1000), "maxTimestamp": str(start + 1490),
             "columns": "timestamp"}  # fmt: skip
    found = spark("read_quire", metadata=server.metadata,
                  options={"subscribe": topics[0], **exact})  # fmt: skip
    assert sorted(row[0] for row in found["rows"]) == [start + 1000 + 10 * n for n in range(50)]
    # Times in no order, several ledgers: those that are newer as a whole are not read.
    produce_at(server, topics[0], [start + 10 * (n * 7 % 50) for n in range(50)])
    old = {"maxTimestamp": str(start + 490), "columns": "timestamp"}
    found = spark("read_quire", metadata=server.metadata, bootstrap=server.bootstrap,
                  options={"subscribe": topics[0], **old})  # fmt: skip
    wanted = sorted(2 * [start + 10 * n for n in range(50)])
    assert sorted(row[0] for row in found["rows"]) == wanted


def test_5_records_without_a_time(spark, server, topic, admin):
    """-1 is what producers before KIP-32 have, and whoever says so. It is older than any time."""
    create(admin, topic)
    start = 1_700_000_000_000
    with raw.Connection(server.port) as connection:
        for times in (-1, start, -1, start + 1000):
            answer = connection.produce(topic, raw.batch([b"one", b"two"], timestamp_ms=times))
            assert answer.error == "NONE", answer
    assert same(spark, server, {"subscribe": topic})["rows"] == 8
    for asked, rows in ((0, 6), (start, 6), (start + 1, 2)):
        options = {"subscribe": topic, "startingTimestamp": str(asked)}
        assert same(spark, server, options)["rows"] == rows
    exact = {"minTimestamp": str(start), "maxTimestamp": str(start + 1000), "columns": "timestamp"}
    found = spark("read_quire", metadata=server.metadata, options={"subscribe": topic, **exact})
    assert sorted(row[0] for row in found["rows"]) == 2 * [start] + 2 * [start + 1000]


def produce_at(server, topic, times):
    producer = Producer({"bootstrap.servers": server.bootstrap})
    for number, time_ms in enumerate(times):
        producer.produce(topic, b"again", timestamp=time_ms)
        if number % 10 == 9:
            producer.flush(20)
            time.sleep(0.1)
    assert producer.flush(20) == 0


def test_6_an_open_ledger_is_read_while_it_is_written(spark, server, admin, topic):
    """Each time a prefix, with all that was acknowledged before; and the writer goes on in the
    same ledger."""
    create(admin, topic, **{"segment.ms": "600000"})
    written = Written(server, topic)
    writer = threading.Thread(target=written.run)
    writer.start()
    try:
        for number in range(3):
            wait_for(lambda wanted=number: written.acked > 50 * wanted, 60, "records")
            before = written.acked
            options = {"subscribe": topic, "columns": "offset,value", "minPartitions": "3"}
            rows = spark("read_quire", metadata=server.metadata, bootstrap=server.bootstrap,
                         options=options)["rows"]  # fmt: skip
            found = {offset: bytes.fromhex(value) for offset, value in rows}
            assert len(rows) == len(found) >= before
            assert found == {offset: b"%d" % offset for offset in range(len(found))}
    finally:
        written.is_over.set()
        writer.join()
    assert written.failed == []
    quire = [str(paths.python_script("quire")), "ledger", "list", "--meta", "--json"]
    listed = json.loads(tools.run([*quire, "-u", server.metadata]))
    of_topic = [row["state"] for row in listed if topic in json.dumps(row)]
    assert of_topic == ["OPEN"], "it was neither fenced nor followed by another"


class Written:
    """Writes numbers, one after the other, until `is_over`."""

    def __init__(self, server, topic):
        self.topic = topic
        self.producer = Producer({"bootstrap.servers": server.bootstrap, "linger.ms": 1})
        self.acked, self.failed = 0, []
        self.is_over = threading.Event()

    def run(self):
        number = 0
        while not self.is_over.wait(0.01):
            for _ in range(5):
                self.producer.produce(self.topic, b"%d" % number, on_delivery=self.done)
                number += 1
            self.producer.flush(30)

    def done(self, error, _):
        if error is None:
            self.acked += 1
        else:
            self.failed.append(error)


def test_6_transactions(spark, server, admin, topic, name):
    create(admin, topic)
    producer = Producer({"bootstrap.servers": server.bootstrap, "transactional.id": name("tx")})
    producer.init_transactions(20)
    for number in range(12):
        producer.begin_transaction()
        for step in range(20):
            producer.produce(topic, b"%d.%d " % (number, step) * 40)
        producer.flush(20)
        time.sleep(0.05)
        if number % 3 == 1 or number == 11:
            producer.abort_transaction(20)
        else:
            producer.commit_transaction(20)
    committed = {"subscribe": topic, "kafka.isolation.level": "read_committed"}
    assert same(spark, server, committed)["rows"] == 7 * 20
    assert same(spark, server, {**committed, "minPartitions": "5"})["rows"] == 7 * 20
    assert same(spark, server, {"subscribe": topic})["rows"] == 12 * 20
    # One that is open holds the end; without a broker's word, too.
    producer.begin_transaction()
    producer.produce(topic, b"open")
    producer.flush(20)
    produce(server, topic, [(None, b"behind", [])])
    assert same(spark, server, committed)["rows"] == 7 * 20
    assert same(spark, server, committed, by_broker=False)["rows"] == 7 * 20
    producer.abort_transaction(20)


def test_9_12_deleted_records_and_empty_partitions(spark, server, admin, topic):
    create(admin, topic, 2)
    assert same(spark, server, {"subscribe": topic})["rows"] == 0
    produce(server, topic, ((None, b"%d" % n * 3000, []) for n in range(150)))
    asked = TopicPartition(topic, 0, 100)
    admin.delete_records([asked])[asked].result(20)
    assert same(spark, server, {"subscribe": topic})["rows"] == 50
    gone = {"subscribe": topic, "startingOffsets": json.dumps({topic: {"0": 10, "1": 0}})}
    with pytest.raises(SparkFailed, match="offsets 10 to 150 are asked for"):
        spark("read_quire", metadata=server.metadata, options=gone, bootstrap=server.bootstrap)
    gone["failOnDataLoss"] = "false"
    assert same(spark, server, gone)["rows"] == 50


@pytest.mark.long
def test_12_control_batches_alone(spark, server, admin, topic, name, scratch):
    """No rows, and offsets go on behind them: also of a stream, whose checkpoint has them."""
    create(admin, topic)
    producer = Producer({"bootstrap.servers": server.bootstrap, "transactional.id": name("tx")})
    producer.init_transactions(20)
    for ends in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        producer.produce(topic, b"deleted")
        producer.flush(20)
        ends(20)
        asked = TopicPartition(topic, 0, 2 * (1 + (ends == producer.abort_transaction)) - 1)
        admin.delete_records([asked])[asked].result(20)
        assert same(spark, server, {"subscribe": topic})["rows"] == 0
    stream = {
        "metadata": server.metadata,
        "bootstrap": server.bootstrap,
        "checkpoint": str(scratch / name("checkpoint")),
        "output": str(scratch / name("out")),
        "options": {"subscribe": topic, "startingOffsets": "earliest"},
    }
    assert spark("stream_to_parquet", **stream) == []
    # What the checkpoint has is behind them, so that nobody misses what is deleted now.
    producer.begin_transaction()
    producer.produce(topic, b"kept")
    producer.commit_transaction(20)
    asked = TopicPartition(topic, 0, 4)
    admin.delete_records([asked])[asked].result(20)
    assert spark("stream_to_parquet", **stream) == [1]
    rows = spark("read_parquet", path=stream["output"])
    assert [(row["partition"], row["offset"]) for row in rows] == [(0, 4)]


@pytest.mark.long
def test_14_a_stream_ends_although_writes_go_on(spark, server, admin, topic, scratch, name):
    """AvailableNow takes what there was when it began, in bounded batches, and no more."""
    create(admin, topic)
    written = Written(server, topic)
    writer = threading.Thread(target=written.run)
    writer.start()
    output = str(scratch / name("out"))
    try:
        wait_for(lambda: written.acked > 300, 60, "records")
        before = written.acked
        sizes = spark(
            "stream_to_parquet",
            metadata=server.metadata,
            bootstrap=server.bootstrap,
            checkpoint=str(scratch / name("checkpoint")),
            output=output,
            options={
                "subscribe": topic,
                "startingOffsets": "earliest",
                "maxOffsetsPerTrigger": "100",
            },
        )
        wait_for(lambda: written.acked > before + sum(sizes), 60, "the writer does not go on")
    finally:
        written.is_over.set()
        writer.join()
    assert written.failed == []
    rows = spark("read_parquet", path=output)
    assert sorted(row["offset"] for row in rows) == list(range(sum(sizes)))
    assert sum(sizes) >= before
    # Spark 4.0 and 4.1 take all that there is in one batch.
    assert len(sizes) == 1 or (max(sizes) == 100 and len(sizes) == -(-sum(sizes) // 100)), sizes


def test_14_a_stream_in_bounded_batches_goes_on_where_it_was(
    spark, server, admin, topic, scratch, name
):
    create(admin, topic, 2)
    output, checkpoint = str(scratch / name("out")), str(scratch / name("checkpoint"))
    call = {
        "metadata": server.metadata,
        "bootstrap": server.bootstrap,
        "checkpoint": checkpoint,
        "output": output,
        "options": {
            "subscribe": topic,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": "100",
        },
    }
    produce(server, topic, ((None, b"%d" % n, []) for n in range(250)), 2)
    sizes = spark("stream_to_parquet", **call)
    # 15: Spark 4.0 and 4.1 take all that there is with AvailableNow.
    assert sizes in ([100, 100, 50], [250])
    produce(server, topic, ((None, b"%d" % n, []) for n in range(60)), 2)
    assert spark("stream_to_parquet", **call) == [60]
    assert spark("stream_to_parquet", **call) == []
    rows = spark("read_parquet", path=output)
    places = sorted((row["partition"], row["offset"]) for row in rows)
    assert places == [(p, n) for p in (0, 1) for n in range(155)]
    # 11: a topic of the same name is another one.
    admin.delete_topics([topic])[topic].result(20)
    create(admin, topic, 2)
    produce(server, topic, [(None, b"new", [])])
    with pytest.raises(SparkFailed, match="not there any more"):
        spark("stream_to_parquet", **call)


@pytest.mark.parametrize("pushdown", [False, True])
def test_18_a_filter_is_of_one_query_alone(spark, server, admin, topic, pushdown):
    create(admin, topic)
    produce(server, topic, ((None, b"%d" % n, []) for n in range(10)))
    found = spark(
        "filtered_then_not",
        metadata=server.metadata,
        bootstrap=server.bootstrap,
        options={"subscribe": topic},
        pushdown=pushdown,
    )
    assert found == [3, 10]


def test_the_pages_walk_through(spark, server, admin, scratch, name):
    create(admin, "orders", 2)
    amounts = [{"customer": f"c{n % 3}", "amount": n} for n in range(120)]
    produce(server, "orders", ((b"k", json.dumps(each), []) for each in amounts), 2)
    produce(server, "orders", ((b"", "{}", []) for _ in range(2)), 2)  # so the end is confirmed
    found = spark(
        "walk_through",
        page=str(paths.ROOT / "docs" / "spark.md"),
        replaced={
            "quire+unix:///srv/data/metadata.sock": server.metadata,
            "127.0.0.1:9092": server.bootstrap,
        },
        scratch=str(scratch / name("page")),
    )
    assert found["blocks"] == 4
    assert sum(found["records"].values()) >= 120
    spent = {
        f"c{n}": sum(e["amount"] for e in amounts if e["customer"] == f"c{n}") for n in range(3)
    }
    assert {key: value for key, value in found["spent"].items() if key != "null"} == spent


@pytest.fixture(scope="module")
def cluster(scratch):
    """Two brokers, and four bookies behind ZooKeeper."""
    one = BrokerCluster(scratch / "spark-cluster")
    try:
        one.start(2, 4, default_replication_factor="3")
        one.wait_until_all_run()
        yield one
    finally:
        one.discard()


@pytest.mark.long
def test_16_a_stream_outlives_metadata_that_say_nothing(spark, cluster, scratch, topic, name):
    """ZooKeeper takes connections and answers none: each look ends by its deadline, and is tried
    again. Tasks, and the batches that were planned, do not need it."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(topic, 1, 3)])[topic].result(60)
    produce(cluster, topic, varied(20))
    proxy, query = Proxy(cluster.zookeeper.port), name("query").replace("-", "_")
    log = scratch / "spark-quire" / "spark.log"
    options = {"subscribe": topic, "startingOffsets": "earliest", "metadataTimeoutMs": "2000"}
    metadata = f"zk+hierarchical://{proxy.hosts}/ledgers"
    call = {"metadata": metadata, "bootstrap": cluster.bootstrap, "options": options}
    rows = [[0, offset] for offset in range(40)]

    def found():
        told = spark("stream_rows", name=query)
        assert told["active"], told["error"]
        return told["rows"]

    try:
        spark("start_stream", name=query, **call)
        wait_for(lambda: found() == rows[:20], 60, "the first rows")
        proxy.cut(hold=True)
        produce(cluster, topic, varied(20))
        told = log.read_text(errors="replace").count("no_new_offsets")
        wait_for(
            lambda: log.read_text(errors="replace").count("no_new_offsets") >= told + 2,
            60,
            "it does not say that nobody answers",
        )
        assert found() == rows[:20]
        proxy.release()
        wait_for(lambda: found() == rows, 60, "the rest")
        spark("stop_stream", name=query)
    finally:
        proxy.close()


def test_2_7_a_cluster_with_take_overs_and_a_lost_bookie(spark, cluster, topic):
    """Three copies of each entry; the leader is killed, comes back, and the next one is; then a
    bookie, in the middle of a ledger; and the log starts in the middle of another. Every offset
    once, as a consumer has it."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(topic, 2, 3)])[topic].result(60)
    produce(cluster, topic, varied(200), 2)
    patient = {"message.timeout.ms": 60_000}
    for _ in range(2):
        described = admin.describe_topics(TopicCollection([topic]))[topic].result(60)
        leader = cluster.broker(described.partitions[0].leader.id)
        leader.kill()
        produce(cluster, topic, varied(100), 2, **patient)
        leader.start()
        cluster.wait_until_all_run()
    produce(cluster, topic, varied(50), 2, **patient)
    [lost] = {row["ensembles"]["0"][0] for row in described_ledgers(cluster, topic, "OPEN")}
    cluster.storage.bookie(lost).kill()
    produce(cluster, topic, varied(50), 2, **patient)
    asked = TopicPartition(topic, 0, 17)
    # Another client: librdkafka takes the leader that it knew before.
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.delete_records([asked])[asked].result(60)
    changed = [row for row in described_ledgers(cluster, topic) if len(row["ensembles"]) > 1]
    assert changed, "no ledger has had another bookie in its middle"
    call = {"bootstrap": cluster.bootstrap, "metadata": cluster.storage.uri}
    options = {"subscribe": topic, "includeHeaders": "true"}
    for more in ({}, {"minPartitions": "8"}):
        found = spark("compare", options={**options, **more}, **call)
        assert found.get("equal"), found
        assert found["rows"] == 500 - 17
        assert next(place for place in found["offsets"] if place[0] == 0) == [0, 17]


def described_ledgers(cluster, topic, state=None):
    """Of partition 0, as their metadata have them."""
    quire = [str(paths.python_script("quire")), "ledger", "list", "--meta", "--json"]
    rows = json.loads(tools.run([*quire, "-u", cluster.storage.uri]))
    mine = [row for row in rows if (row["custom"] or {}).get("topic") == topic]
    mine = [row for row in mine if row["custom"]["partition"] == "0"]
    return [row for row in mine if state in (None, row["state"])]


def test_a_server_without_the_listener_is_named(spark, scratch):
    missing = f"quire+unix://{scratch}/nothing/metadata.sock"
    with pytest.raises(SparkFailed, match="--bookie-listen"):
        spark("read_quire", metadata=missing, options={"subscribe": "t"})
