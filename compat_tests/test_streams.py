"""Kafka Streams with exactly_once_v2: its own smoke test, with kills of instances and server.

The application computes minima, maxima, sums, counts, joins and windows of what a driver writes, in
two processes; the driver reads the results read_committed, and each has to be exact.
QUIRE_STREAMS_SECONDS=150 for a long run with many kills; the short one kills an instance once.
"""

import itertools
import os
import random
import time

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from harness import figures, kafka_java

SECONDS = int(os.environ.get("QUIRE_STREAMS_SECONDS", "12"))
#: In a long run an instance and then the server are killed this often.
SECONDS_PER_KILLS = 30
pytestmark = pytest.mark.timeout(SECONDS + 400)

KEYS = 10
#: Of each key, in a second.
RECORDS_PER_SECOND = 10
PARTITIONS = 2
#: SmokeTestDriver.topics()
TOPICS = (
    *("data", "fk", "echo", "max", "min", "min-suppressed", "min-raw", "dif", "sum"),
    *("sws-raw", "sws-suppressed", "cnt", "avg", "tagg"),
)
SETTINGS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}
APPLICATION = {
    "processing.guarantee": "exactly_once_v2",
    "num.stream.threads": "1",
    # An instance that is killed is missed soon; its open transaction ends when it comes back. On a
    # slow machine none may run into its timeout: the instance ends with that (KIP-890).
    "consumer.session.timeout.ms": "4000",
    "consumer.heartbeat.interval.ms": "1000",
    "producer.transaction.timeout.ms": "30000",
    "reconnect.backoff.max.ms": "200",
}


@pytest.fixture
def instances(scratch, start_server, name):
    """(server, two instances of the application that run)"""
    server = start_server(SETTINGS)
    admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
    made = admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in TOPICS])
    for future in made.values():
        future.result(60)
    both = [instance(scratch / name(f"instance{n}"), server.bootstrap) for n in (1, 2)]
    for one in both:
        one.start()
    yield server, both
    for one in both:
        one.kill()
        print(one.directory.name, one.said()[-6000:])  # pytest shows it if the test has failed


def instance(directory, bootstrap):
    directory.mkdir()
    # With its state it keeps its process id, so its transactional ids: they fence its former self.
    words = {"bootstrap.servers": bootstrap, "state.dir": str(directory / "state"), **APPLICATION}
    file = directory / "streams.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in words.items()))
    main = "org.apache.kafka.streams.tests.StreamsSmokeTest"
    return kafka_java.Program(directory, "instance", main, str(file), "process")


def test_smoke_test_with_kills(instances, scratch, name):
    server, both = instances
    for one in both:
        one.wait_for("SMOKE-TEST-CLIENT-STARTED", 90)
    started = time.monotonic()
    driver = kafka_java.Program(
        *(scratch / name("driver"), "driver", "SmokeDriver"),
        *(server.bootstrap, str(KEYS), str(SECONDS * RECORDS_PER_SECOND), str(SECONDS)),
    ).start()
    try:
        driver.wait_for(r"^\S+ 100 records produced", 60)
        kills = max(1, SECONDS // SECONDS_PER_KILLS)
        for number, one in zip(range(kills), itertools.cycle(both)):
            time.sleep(random.uniform(0.1, 0.4) * SECONDS / kills)
            one.kill()
            if number % 2:  # it is missed before it comes back, and the other one takes over
                time.sleep(6)
            one.start()
            time.sleep(random.uniform(0.1, 0.4) * SECONDS / kills)
            if SECONDS >= SECONDS_PER_KILLS:
                server.kill()
                server.start()
        driver.wait_for("^ALL-WRITTEN", SECONDS + 60)
        driver.wait_for("^(SUCCESS|FAILURE)$", 300)
        said = driver.said()
        assert "\nSUCCESS\n" in said, said[-8000:]
        assert "\nALL-RECORDS-DELIVERED\n" in said, said[-8000:]
        assert driver.process.wait(30) == 0
    finally:
        driver.kill()
    for one in both:
        assert "SMOKE-TEST-CLIENT-EXCEPTION" not in one.said(), one.said()[-6000:]
    seconds = time.monotonic() - started
    figures.add(
        f"Streams, exactly_once_v2: {KEYS * SECONDS * RECORDS_PER_SECOND} records with "
        f"{kills} kills, results exact after {seconds:.0f} s"
    )
