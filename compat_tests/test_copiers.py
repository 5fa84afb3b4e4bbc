"""Kafka's TransactionalMessageCopier as its system tests have it (transactions_test.py): copiers,
one for each partition, that are killed and started again under their ids while the server is
killed, too. Every message is copied once, and in its order.

QUIRE_COPIER_KILLS: so many kills of each. Without it nothing is run: what copies without a kill is
test_java_tools.py."""

import os
import random
import subprocess
import time

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from harness import history, servers, tools

KILLS = int(os.environ.get("QUIRE_COPIER_KILLS", "0"))
pytestmark = [
    pytest.mark.skipif(not KILLS, reason="a part of make test-long"),
    pytest.mark.timeout(300),
]
PARTITIONS = 2
#: Of a partition; a kill comes after each so many, on the average.
MESSAGES, TRANSACTION = 2000 * (KILLS + 1), 20
DONE_WITHIN_S = 200


class Copier:
    """Of one partition. `starts` counts its processes."""

    def __init__(self, server, partition, source, target, directory):
        self.starts = 0
        self.process = None
        self.log = directory / f"copier-{partition}.log"
        self.command = tools.java_command(
            *("TransactionalMessageCopier", "--broker-list", server.bootstrap),
            *("--input-topic", source, "--input-partition", str(partition)),
            *("--output-topic", target, "--max-messages", str(MESSAGES)),
            *("--consumer-group", f"{source}-{partition}", "--enable-random-aborts"),
            *("--transaction-size", str(TRANSACTION), "--transaction-timeout", "20000"),
            *("--transactional-id", f"{source}-{partition}"),
        )

    def start(self):
        self.starts += 1
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                env={**os.environ, **tools.java_environment()},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def kill(self):
        self.process.kill()
        self.process.wait()

    def is_done(self):
        """Starts it again if it gave up."""
        code = self.process.poll()
        if code:
            self.start()
        return code == 0


def committed(server, target):
    """The numbers of each partition, as a reader of committed messages has them."""
    rows = history.read_all(server.bootstrap, target, PARTITIONS, "read_committed")
    return [[int(value) for _, value in rows[number]] for number in range(PARTITIONS)]


def test_copiers_and_kills(scratch, name, closing_line):
    directory = scratch / name("copiers")
    server = servers.make_server(directory).start()
    source, target = name("in"), name("out")
    copiers = []
    try:
        admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
        for topic in (source, target):
            admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
        producer = Producer({**history.CLIENT_SETTINGS, "bootstrap.servers": server.bootstrap})
        for number in range(MESSAGES):
            for partition in range(PARTITIONS):
                producer.produce(source, str(number), partition=partition)
            producer.poll(0)
        assert producer.flush(60) == 0
        copiers = [Copier(server, n, source, target, directory) for n in range(PARTITIONS)]
        for each in copiers:
            each.start()
        kill_some(server, copiers, target)
        deadline = time.monotonic() + DONE_WITHIN_S
        while {each.is_done() for each in copiers} != {True}:
            assert time.monotonic() < deadline, [each.log.read_text()[-2000:] for each in copiers]
            time.sleep(0.2)
        assert committed(server, target) == [list(range(MESSAGES))] * PARTITIONS
        starts = sum(each.starts for each in copiers)
        closing_line(
            f"copiers: {PARTITIONS * MESSAGES} messages copied once by {starts} processes,"
            f" the server killed {KILLS} times"
        )
    finally:
        for each in copiers:
            if each.process is not None:
                each.kill()
        server.discard()


def kill_some(server, copiers, target):
    """Each of them, whenever a part has been copied, and then the server."""
    rng = random.Random(1)
    for kill in range(KILLS):
        wanted = MESSAGES * PARTITIONS * (kill + 1) // (KILLS + 1)
        deadline = time.monotonic() + DONE_WITHIN_S
        while sum(map(len, committed(server, target))) < wanted * rng.uniform(0.5, 0.9):
            for each in copiers:
                each.is_done()
            assert time.monotonic() < deadline, [each.log.read_text()[-2000:] for each in copiers]
            time.sleep(0.3)
        for each in copiers:
            each.kill()
            each.start()
        time.sleep(rng.uniform(1, 4))
        server.kill()
        server.start()
