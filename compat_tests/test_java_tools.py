"""Kafka's own command line tools, 4.3: the newest versions of every request.

A JVM takes most of a second to start, so each test does as much as it can with one call, and
several in a row share a topic.
"""

import json
import os
import re
import subprocess
import time

import pytest
from harness import servers, tools

# For a dozen JVMs, one after another, on a machine that has other things to do.
pytestmark = pytest.mark.timeout(600)
#: Of LogCompactionTester.
COMPACTION_MESSAGES = os.environ.get("QUIRE_COMPACTION_MESSAGES", "120000")


@pytest.fixture
def java(server):
    def run(name, *arguments, **options):
        return tools.java(name, "--bootstrap-server", server.bootstrap, *arguments, **options)

    return run


def rows(text, start):
    """The words of each line that starts with `start`."""
    return [line.split() for line in text.splitlines() if line.strip().startswith(start)]


def test_topics(java, topic):
    config = ("--config", "retention.ms=3600000")
    said = java("kafka-topics", "--create", "--topic", topic, "--partitions", "3", *config)
    assert f"Created topic {topic}." in said
    said = java("kafka-topics", "--create", "--topic", topic, code=1)
    assert "TopicExistsException" in said
    java("kafka-topics", "--create", "--topic", topic, "--if-not-exists")

    said = java("kafka-topics", "--describe", "--topic", topic)
    head = re.search(
        r"TopicId: (\S+)\s+PartitionCount: 3\s+ReplicationFactor: 1\s+Configs: (\S*)", said
    )
    assert head, said
    assert len(head.group(1)) == 22
    assert "retention.ms=3600000" in head.group(2).split(",")
    partitions = re.findall(
        r"Partition: (\d+)\s+Leader: (\d+)\s+Replicas: (\d+)\s+Isr: (\d+)", said
    )
    assert [row[0] for row in partitions] == ["0", "1", "2"]
    assert all(leader == replicas == isr for _, leader, replicas, isr in partitions)

    java("kafka-topics", "--alter", "--topic", topic, "--partitions", "5")
    said = java("kafka-topics", "--alter", "--topic", topic, "--partitions", "2", code=1)
    assert "InvalidPartitionsException" in said
    assert topic in java("kafka-topics", "--list").split()
    said = java("kafka-topics", "--describe", "--unavailable-partitions")
    assert "Partition:" not in said, said
    java("kafka-topics", "--delete", "--topic", topic)
    assert topic not in java("kafka-topics", "--list").split()
    said = java("kafka-topics", "--delete", "--topic", topic, code=1)
    assert "does not exist" in said


def test_configs(java, topic):
    java("kafka-topics", "--create", "--topic", topic, "--partitions", "1")
    of_topic = ("--entity-type", "topics", "--entity-name", topic)
    added = "cleanup.policy=[compact,delete],max.message.bytes=2000"
    said = java("kafka-configs", *of_topic, "--alter", "--add-config", added)
    assert "Completed updating config for topic" in said
    said = java("kafka-configs", *of_topic, "--describe")
    found = dict(re.findall(r"^\s+([a-z.]+)=(\S+) sensitive=false", said, re.M))
    assert found == {"cleanup.policy": "compact,delete", "max.message.bytes": "2000"}
    assert "DYNAMIC_TOPIC_CONFIG:max.message.bytes=2000" in said
    java(
        "kafka-configs", *of_topic, "--alter", "--delete-config", "cleanup.policy,max.message.bytes"
    )
    said = java("kafka-configs", *of_topic, "--describe", "--all")
    found = dict(re.findall(r"^\s+([a-z.]+)=(\S*) sensitive=false", said, re.M))
    assert found["cleanup.policy"] == "delete"
    assert found["max.message.bytes"] == "1048588"
    assert found["message.timestamp.type"] == "CreateTime"
    assert found["segment.bytes"] == "1073741824"
    assert found["retention.ms"] == "604800000"
    assert len(found) >= 25
    said = java("kafka-configs", *of_topic, "--alter", "--add-config", "no.such=1", code=1)
    assert "InvalidConfigurationException" in said


def test_broker_configs(java):
    said = java("kafka-configs", "--entity-type", "brokers", "--describe", "--all")
    found = dict(re.findall(r"^\s+([a-z.]+)=(\S*) sensitive=", said, re.M))
    assert found["num.partitions"] == "4"
    assert found["auto.create.topics.enable"] == "true"


def test_console_producer_and_consumer(java, topic):
    lines = [f"h{n}:{n}\tkey{n}\tvalue {n} é" for n in range(50)]
    options = ("--reader-property", "parse.key=true", "--reader-property", "parse.headers=true")
    java(
        *("kafka-console-producer", "--topic", topic, "--compression-codec", "zstd", *options),
        input_text="\n".join(lines) + "\n",
    )
    shown = []
    for part in ("key", "headers", "offset", "partition", "timestamp"):
        shown += ["--formatter-property", f"print.{part}=true"]
    said = java(
        *("kafka-console-consumer", "--topic", topic, "--from-beginning", "--max-messages", "50"),
        *("--timeout-ms", "60000", *shown),
    )
    read = [line.split("\t") for line in said.splitlines() if line.startswith("CreateTime:")]
    assert len(read) == 50
    per_partition = {}
    for _, partition, offset, *_ in read:
        per_partition.setdefault(partition, []).append(int(offset.removeprefix("Offset:")))
    for offsets in per_partition.values():
        assert offsets == list(range(len(offsets)))
    assert sorted("\t".join(row[3:]) for row in read) == sorted(lines)


def test_consumer_groups(java, server, topic, name):
    group = name("group")
    java("kafka-topics", "--create", "--topic", topic, "--partitions", "2")
    lines = "".join(f"{n}\n" for n in range(40))
    for partition in (0, 1):
        tools.run(
            ["kcat", "-b", server.bootstrap, "-t", topic, "-P", "-p", str(partition)],
            input_text=lines,
        )
    said = java(
        *("kafka-console-consumer", "--topic", topic, "--group", group, "--max-messages", "80"),
        *("--timeout-ms", "60000", "--from-beginning"),
    )
    read = [int(line) for line in said.splitlines() if line.isdigit()]
    assert sorted(read) == sorted([*range(40)] * 2)

    of_group = ("--group", group)
    said = java("kafka-consumer-groups", "--list", "--state")
    assert [row[-1] for row in rows(said, group)] == ["Empty"]
    said = java("kafka-consumer-groups", "--describe", *of_group)
    table = {row[2]: row[3:6] for row in rows(said, group)}
    assert table == {"0": ["40", "40", "0"], "1": ["40", "40", "0"]}

    reset = ("kafka-consumer-groups", *of_group, "--reset-offsets", "--topic")
    said = java(*reset, f"{topic}:0", "--to-offset", "7", "--execute")
    assert [row[1:4] for row in rows(said, group)] == [[topic, "0", "7"]]
    said = java(*reset, topic, "--shift-by", "-5", "--dry-run")
    assert {row[2]: row[3] for row in rows(said, group)} == {"0": "2", "1": "35"}
    said = java(*reset, topic, "--to-datetime", "2020-01-01T00:00:00.000", "--execute")
    assert {row[2]: row[3] for row in rows(said, group)} == {"0": "0", "1": "0"}
    said = java("kafka-consumer-groups", "--describe", *of_group)
    assert {row[2]: row[3:6] for row in rows(said, group)} == {
        "0": ["0", "40", "40"],
        "1": ["0", "40", "40"],
    }
    said = java("kafka-consumer-groups", "--delete-offsets", *of_group, "--topic", f"{topic}:1")
    assert "Successful" in said
    said = java("kafka-consumer-groups", "--describe", *of_group)
    assert [row[2] for row in rows(said, group)] == ["0"]
    said = java("kafka-consumer-groups", "--delete", *of_group)
    assert "was successful" in said
    said = java("kafka-consumer-groups", "--describe", *of_group)
    assert "GroupIdNotFoundException" in said


def test_describe_live_group(java, server, topic, name):
    group = name("group")
    kcat = ["kcat", "-b", server.bootstrap, "-q"]
    tools.run([*kcat, "-t", topic, "-P", "-p", "1"], input_text="a\nb\n")
    member = subprocess.Popen(
        [*kcat, "-u", "-G", group, "-X", "auto.offset.reset=earliest", "-X", "client.id=me", topic],
        stdout=subprocess.PIPE,
    )
    try:
        assert member.stdout.readline() == b"a\n"
        said = java(
            "kafka-consumer-groups", "--describe", "--group", group, "--members", "--verbose"
        )
        (row,) = rows(said, group)
        assert row[3] == "me"
        assert row[4] == "4"
        said = java("kafka-consumer-groups", "--describe", "--group", group, "--state")
        (row,) = rows(said, group)
        assert "range" in row
        assert "Stable" in row
        refused = java("kafka-consumer-groups", "--delete", "--group", group)
        assert "GroupNotEmptyException" in refused
    finally:
        member.kill()
        member.wait()
        member.stdout.close()


def test_offsets_and_delete_records(java, server, topic, scratch):
    java("kafka-topics", "--create", "--topic", topic, "--partitions", "2")
    kcat = ["kcat", "-b", server.bootstrap, "-t", topic, "-P", "-p", "0"]
    tools.run(kcat, input_text="".join(f"{n}\n" for n in range(10)))
    time.sleep(0.02)
    between = int(time.time() * 1000)
    time.sleep(0.02)
    tools.run(kcat, input_text="".join(f"{n}\n" for n in range(5)))

    def offsets(when):
        said = java("kafka-get-offsets", "--topic", topic, "--time", str(when))
        return sorted(line for line in said.splitlines() if line.startswith(topic))

    assert offsets(-1) == [f"{topic}:0:15", f"{topic}:1:0"]
    assert offsets(-2) == [f"{topic}:0:0", f"{topic}:1:0"]
    # the largest timestamp's offset: kcat's last records may share a millisecond
    (largest,) = (row for row in offsets(-3) if row.startswith(f"{topic}:0"))
    assert 10 <= int(largest.rpartition(":")[2]) <= 14
    assert offsets(between)[0] == f"{topic}:0:10"

    plan = scratch / "delete-records.json"
    partition = {"topic": topic, "partition": 0, "offset": 12}
    plan.write_text(json.dumps({"partitions": [partition], "version": 1}))
    said = java("kafka-delete-records", "--offset-json-file", str(plan))
    assert re.search(rf"partition: {topic}-0\s+low_watermark: 12", said)
    assert offsets(-2) == [f"{topic}:0:12", f"{topic}:1:0"]
    partition["offset"] = 99
    plan.write_text(json.dumps({"partitions": [partition], "version": 1}))
    said = java("kafka-delete-records", "--offset-json-file", str(plan), code=None)
    assert "OffsetOutOfRangeException" in said


def test_log_dirs(java, server, topic):
    tools.run(
        ["kcat", "-b", server.bootstrap, "-t", topic, "-P", "-p", "0"], input_text="x" * 5000 + "\n"
    )
    said = java("kafka-log-dirs", "--describe", "--topic-list", topic)
    (line,) = [line for line in said.splitlines() if line.startswith("{")]
    (broker,) = json.loads(line)["brokers"]
    partitions = {
        row["partition"]: row["size"]
        for folder in broker["logDirs"]
        for row in folder["partitions"]
    }
    assert set(partitions) == {f"{topic}-{n}" for n in range(4)}
    assert partitions[f"{topic}-0"] >= 5000
    assert all(folder["error"] is None for folder in broker["logDirs"])


def test_perf_tools(java, topic):
    said = java(
        *("kafka-producer-perf-test", "--topic", topic, "--num-records", "50000"),
        *("--record-size", "100", "--throughput", "-1", "--command-property", "acks=all"),
    )
    assert re.search(r"^50000 records sent, .* 99th", said, re.M), said
    said = java(
        *("kafka-consumer-perf-test", "--topic", topic, "--num-records", "50000"),
        *("--timeout", "60000", "--hide-header"),
    )
    last = [line for line in said.splitlines() if re.match(r"\d{4}-\d\d-\d\d ", line)][-1]
    assert int(last.split(", ")[4]) >= 50000


def test_transactional_perf(java, topic, name):
    said = java(
        *("kafka-producer-perf-test", "--topic", topic, "--num-records", "5000"),
        *("--record-size", "100", "--throughput", "-1", "--transactional-id", name("tx")),
        *("--transaction-duration-ms", "100"),
    )
    assert "5000 records sent" in said
    said = java("kafka-transactions", "list")
    assert re.search(rf"{re.escape(topic[:20])}.*CompleteCommit", said), said


def test_verifiable_clients(java, topic, name):
    said = java(
        *("kafka-verifiable-producer", "--topic", topic, "--max-messages", "2000"),
        *("--value-prefix", "7"),
    )
    events = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    sent = [event for event in events if event["name"] == "producer_send_success"]
    assert len(sent) == 2000
    assert {event["value"] for event in sent} == {f"7.{n}" for n in range(2000)}
    said = java(
        *("kafka-verifiable-consumer", "--topic", topic, "--group-id", name("group")),
        *("--max-messages", "2000", "--reset-policy", "earliest", "--verbose"),
    )
    events = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    read = [event for event in events if event["name"] == "record_data"]
    placed = {(event["partition"], event["offset"], event["value"]) for event in sent}
    assert {(event["partition"], event["offset"], event["value"]) for event in read} == placed
    commits = [event for event in events if event["name"] == "offsets_committed"]
    assert all(event["success"] for event in commits)
    last = {row["partition"]: row["offset"] for event in commits for row in event["offsets"]}
    assert sum(last.values()) == 2000


def test_cluster_tools(java, server):
    said = java("kafka-broker-api-versions")
    assert f"{server.bootstrap} (id: " in said
    usable = dict(re.findall(r"(\w+)\((?:\d+)\): ([^\n]+?),?\n", said))
    # As every 4.x broker, versions that nobody serves any more: old clients look at the minimum.
    assert usable["Produce"].startswith("0 to ")
    assert usable["ApiVersions"].startswith("0 to 4")
    said = tools.java("kafka-cluster", "cluster-id", "--bootstrap-server", server.bootstrap)
    assert re.search(r"Cluster ID: \S+", said)


def test_client_compatibility(java, name):
    arguments = ["--topic", name("c"), "--num-cluster-nodes", "1"]
    arguments += ["--expect-record-too-large-exception", "false"]
    for ability in (
        *("offsets-for-times", "cluster-id", "create-topics"),
        *("describe-configs", "idempotent-producer"),
    ):
        arguments += [f"--{ability}-supported", "true"]
    # Without an authorizer it is content with SecurityDisabledException.
    arguments += ["--describe-acls-supported", "true"]
    assert "SUCCESS." in java("ClientCompatibilityTest", *arguments)


def test_end_to_end_latency(java, topic, closing_line):
    said = java(
        *("kafka-e2e-latency", "--topic", topic, "--num-records", "500"),
        *("--producer-acks", "all", "--record-size", "100"),
    )
    average = float(re.search(r"Avg latency: ([\d.]+) ms", said).group(1))
    percentiles = re.search(r"Percentiles: (.*)", said).group(1)
    closing_line(f"end to end, one record in flight: {average:.2f} ms on average, {percentiles}")
    assert average < 1000


def test_copier_with_aborts(java, server, name):
    source, target = name("in"), name("out")
    for topic in (source, target):
        java("kafka-topics", "--create", "--topic", topic, "--partitions", "1")
    tools.run(
        ["kcat", "-b", server.bootstrap, "-t", source, "-P", "-p", "0"],
        input_text="".join(f"{n}\n" for n in range(1000)),
    )
    tools.java(
        *("TransactionalMessageCopier", "--broker-list", server.bootstrap),
        *("--input-topic", source, "--input-partition", "0", "--output-topic", target),
        *("--max-messages", "1000", "--consumer-group", name("group"), "--transaction-size", "100"),
        *("--transactional-id", name("tx"), "--enable-random-aborts", "--group-mode"),
    )
    read = tools.run(
        [
            *("kcat", "-b", server.bootstrap, "-t", target, "-C", "-e", "-q"),
            *("-X", "isolation.level=read_committed"),
        ]
    )
    assert [int(line) for line in read.split()] == list(range(1000))


def test_trogdor_round_trip(server, scratch, name):
    """Every value written is read back, by two topics of two partitions."""
    folder = scratch / "trogdor"
    folder.mkdir(exist_ok=True)
    node = {"hostname": "localhost", "trogdor.agent.port": servers.free_port()}
    platform = "org.apache.kafka.trogdor.basic.BasicPlatform"
    (folder / "agent.conf").write_text(json.dumps({"platform": platform, "nodes": {"n": node}}))
    spec = {
        "class": "org.apache.kafka.trogdor.workload.RoundTripWorkloadSpec",
        "startMs": 0,
        "durationMs": 60000,
        "clientNode": "n",
        "bootstrapServers": server.bootstrap,
        "targetMessagesPerSec": 2000,
        "maxMessages": 5000,
        "valueGenerator": {"type": "sequential", "size": 100},
        "activeTopics": {f"{name('rt')}[1-2]": {"numPartitions": 2, "replicationFactor": 1}},
    }
    (folder / "spec.json").write_text(json.dumps(spec))
    # Then the agent ends its web server, and of a hundred that do one waits for Jetty for ever
    # (JsonRestServer.beginShutdown); its Kafka clients are closed by then.
    said = tools.java_until(
        r"Task \w+ with status \{[^}]*\}",
        *("kafka-run-class", "org.apache.kafka.trogdor.agent.Agent", "-n", "n"),
        *("-c", str(folder / "agent.conf"), "--exec", str(folder / "spec.json")),
    )
    assert "Task succeeded" in said, said
    assert re.search(r"totalUniqueSent.{1,5}5000", said), said
    assert re.search(r"totalReceived.{1,5}5000", said), said


def test_log_compaction_tester(start_server, closing_line):
    """Kafka's torture test of compaction: of each key the last value, and no other key."""
    own = start_server({"log.segment.bytes": "1048576", "log.cleaner.min.cleanable.ratio": "0.01"})
    said = tools.java(
        *("LogCompactionTester", "--bootstrap-server", own.bootstrap),
        *("--messages", COMPACTION_MESSAGES),
        *("--duplicates", "20", "--percent-deletes", "10", "--sleep", "5"),
        timeout_s=400,
    )
    assert "Data verification is completed" in said, said
    told = re.search(r"(\d+) rows of data produced, (\d+) rows of data consumed", said)
    produced, consumed = map(int, told.groups())
    closing_line(f"LogCompactionTester: {produced} rows written, {consumed} left")
    assert produced == int(COMPACTION_MESSAGES)
    # A pass has come to some of it; how much it leaves is told above.
    assert consumed < produced
