"""`quire locks bench` as a process, and a Java service of two instances that counts with locks by
headers alone (java/kafka/LockedCounters.java); `quire locks validate` judges both."""

import json
import re
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import NewTopic
from harness import kafka_java, paths, tools

pytestmark = pytest.mark.timeout(120)

PRODUCERS, RECORDS = 4, 25
INSTANCES, COUNTERS, INCREMENTS = 2, 2, 60


@pytest.fixture
def topic(admin, name):
    made = name("locks")
    settings = {"quire.locks": "optional"}
    admin.create_topics([NewTopic(made, 1, config=settings)])[made].result(30)
    return made


def ask(server, command, topic, *options):
    words = ["locks", command, topic, "--bootstrap-server", server.bootstrap, "--json", *options]
    return json.loads(tools.run([str(paths.python_script("quire")), *words]))


def read(server, topic, count):
    """The values of a topic that has `count` records, and no more."""
    settings = {"bootstrap.servers": server.bootstrap, "group.id": "reads"}
    consumer = Consumer(settings | {"enable.auto.commit": False})
    try:
        at = TopicPartition(topic, 0, 0)
        assert consumer.get_watermark_offsets(at, 30) == (0, count)
        consumer.assign([at])
        found = consumer.consume(count, 60)
        assert [one.error() for one in found] == [None] * count
        return [one.value() for one in found]
    finally:
        consumer.close()


@pytest.mark.parametrize("locks", [0, 4])
def test_the_bench_counts_what_is_in_the_topic(server, topic, locks):
    shape = ("--producers", PRODUCERS, "--records", RECORDS, "--size", 200, "--interval-ms", 2)
    told = ask(server, "bench", topic, *map(str, shape), "--locks", str(locks))
    total = PRODUCERS * RECORDS
    assert told["accepted"] == total
    assert told["attempts"] == total + told["refused"]
    assert told["attempts_per_commit"] == round(told["attempts"] / total, 3)
    assert locks or not told["refused"]
    assert told["refused_falsely"] == 0, "nobody took over, and 4 locks share no slots"
    audit = ask(server, "validate", topic)
    assert (audit["records"], audit["violation_count"]) == (total, 0)
    assert audit["records_with_locks"] == (total if locks else 0)
    assert {len(value) for value in read(server, topic, total)} == {200}


def test_two_java_instances_count_exactly(server, topic, scratch):
    """Each increments each counter so often: one that overlooked the other's record would write a
    number a second time."""
    programs = [
        kafka_java.Program(
            scratch / topic, f"instance-{number}", "LockedCounters",
            server.bootstrap, topic, str(INSTANCES), str(COUNTERS), str(INCREMENTS),
        )
        for number in range(INSTANCES)
    ]  # fmt: skip
    try:
        for program in programs:
            program.start()
        for program in programs:
            program.wait_for("^done ", 60)
    finally:
        for program in programs:
            program.kill()
    refused = [int(re.search(r"^done refused=(\d+)$", one.said(), re.M)[1]) for one in programs]
    assert sum(refused) > 0, f"they were in each other's way: {refused}"

    audit = ask(server, "validate", topic)
    increments = INSTANCES * COUNTERS * INCREMENTS
    assert (audit["records_with_locks"], audit["violation_count"]) == (increments, 0)
    values = [value.decode().split() for value in read(server, topic, INSTANCES + increments)]
    for counter in range(COUNTERS):
        counted = [int(words[1]) for words in values if words[0] == f"counter-{counter}"]
        assert counted == list(range(1, INSTANCES * INCREMENTS + 1))


def test_the_page_shows_the_java_that_runs_here():
    """Each line of docs/locks.md's Java, in this order."""
    page = (paths.ROOT / "docs" / "locks.md").read_text()
    (shown,) = re.findall(r"^```java\n(.*?)^```$", page, re.M | re.S)
    source = (Path(__file__).parent / "java" / "kafka" / "LockedCounters.java").read_text()
    lines = iter(line.strip() for line in source.splitlines())
    missing = [line for line in map(str.strip, shown.splitlines()) if line and line not in lines]
    assert not missing
