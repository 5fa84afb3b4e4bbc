"""Kafka Streams with its own group protocol (KIP-1071): the smoke test of test_streams.py, with
`group.protocol=streams`.

Two instances compute exactly once. One is killed while records come, and the other one takes its
tasks over; the results have to be exact. The server makes the internal topics. Then Kafka's own
tool lists, describes and deletes the group.
"""

import time

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from harness import figures, kafka_java
from test_streams import KEYS, PARTITIONS, RECORDS_PER_SECOND, TOPICS

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

SECONDS = 12
#: The application's id, and so its group.
GROUP = "SmokeTest"
SETTINGS = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    # An instance that is killed is missed soon.
    "group.streams.min.session.timeout.ms": "1000",
    "group.streams.session.timeout.ms": "6000",
    "group.streams.min.heartbeat.interval.ms": "100",
    "group.streams.heartbeat.interval.ms": "1000",
    "group.streams.initial.rebalance.delay.ms": "1000",
}
APPLICATION = {
    "group.protocol": "streams",
    "processing.guarantee": "exactly_once_v2",
    "num.stream.threads": "1",
    "producer.transaction.timeout.ms": "30000",
    "reconnect.backoff.max.ms": "200",
}


@pytest.fixture
def server(start_server):
    server = start_server(SETTINGS)
    admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
    made = admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in TOPICS])
    for future in made.values():
        future.result(60)
    return server


@pytest.fixture
def instances(server, scratch, name):
    both = [instance(scratch / name(f"instance{n}"), server.bootstrap) for n in (1, 2)]
    for one in both:
        one.start()
    yield both
    for one in both:
        one.kill()
        print(one.directory.name, one.said()[-6000:])  # pytest shows it if the test has failed


def instance(directory, bootstrap):
    directory.mkdir()
    words = {"bootstrap.servers": bootstrap, "state.dir": str(directory / "state"), **APPLICATION}
    file = directory / "streams.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in words.items()))
    main = "org.apache.kafka.streams.tests.StreamsSmokeTest"
    return kafka_java.Program(directory, "instance", main, str(file), "process")


@pytest.fixture
def groups_tool(server, scratch, name):
    """groups_tool("--list") -> what kafka-streams-groups.sh says."""

    def run(*arguments):
        program = kafka_java.Program(
            *(scratch / name("tool"), "tool", "org.apache.kafka.tools.streams.StreamsGroupCommand"),
            *("--bootstrap-server", server.bootstrap, *arguments),
        ).start()
        program.process.wait(120)
        return program.said()

    return run


def test_an_instance_is_killed(server, instances, groups_tool, scratch, name):
    first, second = instances
    for one in instances:
        one.wait_for("SMOKE-TEST-CLIENT-STARTED", 240)
    listed = groups_tool("--list", "--state")
    assert GROUP in listed, listed
    described = groups_tool("--describe", "--group", GROUP, "--members", "--verbose")
    assert "ACTIVE" in described.upper(), described
    started = time.monotonic()
    driver = kafka_java.Program(
        *(scratch / name("driver"), "driver", "SmokeDriver"),
        *(server.bootstrap, str(KEYS), str(SECONDS * RECORDS_PER_SECOND), str(SECONDS)),
    ).start()
    try:
        driver.wait_for(r"^\S+ 100 records produced", 120)
        time.sleep(SECONDS / 4)
        first.kill()
        driver.wait_for("^ALL-WRITTEN", SECONDS + 60)
        driver.wait_for("^(SUCCESS|FAILURE)$", 300)
        said = driver.said()
        assert "\nSUCCESS\n" in said, said[-8000:]
        assert "\nALL-RECORDS-DELIVERED\n" in said, said[-8000:]
        assert driver.process.wait(30) == 0
    finally:
        driver.kill()
    assert "SMOKE-TEST-CLIENT-EXCEPTION" not in second.said(), second.said()[-6000:]
    figures.add(
        f"Streams, group.protocol=streams: {KEYS * SECONDS * RECORDS_PER_SECOND} records with an"
        f" instance killed, results exact after {time.monotonic() - started:.0f} s"
    )
    refused = groups_tool("--delete", "--group", GROUP)
    assert "GroupNotEmptyException" in refused or "not empty" in refused.lower(), refused
    second.kill()
    deadline = time.monotonic() + 60
    while "Empty" not in (said := groups_tool("--describe", "--group", GROUP, "--state")):
        assert time.monotonic() < deadline, said
    deleted = groups_tool("--delete", "--group", GROUP)
    assert "was successful" in deleted, deleted
    assert GROUP not in groups_tool("--list")
