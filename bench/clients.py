"""The same servers seen through the clients that people use: librdkafka and Java's own tools."""

import re
import subprocess
import time

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.servers import Server, kafka_jars

QUIET = {"log_level": 0, "log.connection.close": False}
RECORD = bytes(index % 251 for index in range(1000))
TIMEOUT_SECONDS = 120
#: The frames' records are from 2023, and Kafka deletes what is too old half a minute after a start.
KEPT = {"retention.ms": "-1"}


def create_topic(server: Server, topic: str, partitions: int) -> None:
    """With as many copies as the server keeps, all but one of which an ack waits for. All
    partitions are led by the broker at the server's address."""
    admin = AdminClient({"bootstrap.servers": server.bootstrap, **QUIET})
    config = {**KEPT, "min.insync.replicas": str(max(1, server.copies - 1))}
    brokers = admin.list_topics(timeout=TIMEOUT_SECONDS).brokers
    if len(brokers) < server.copies:  # one broker, whose bookies have the copies
        wanted = NewTopic(topic, partitions, server.copies, config=config)
    else:
        leader = next(each.id for each in brokers.values() if each.port == server.port)
        others = sorted(set(brokers) - {leader})[: server.copies - 1]
        assignment = [[leader, *others] for _ in range(partitions)]
        wanted = NewTopic(topic, partitions, replica_assignment=assignment, config=config)
    admin.create_topics([wanted])[topic].result(TIMEOUT_SECONDS)


def wait_for_brokers(server: Server, count: int) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap, **QUIET})
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while len(admin.list_topics(timeout=TIMEOUT_SECONDS).brokers) < count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{server.name} has no {count} brokers after {TIMEOUT_SECONDS} s")
        time.sleep(0.1)


def delete_topic(server: Server, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap, **QUIET})
    admin.delete_topics([topic])[topic].result(TIMEOUT_SECONDS)


def librdkafka_produce(server: Server, topic: str, count: int) -> float:
    """MB/s of 1 kB records, acks=all, from the first `produce` to the last report."""
    producer = Producer(
        {
            "bootstrap.servers": server.bootstrap,
            "acks": "all",
            "linger.ms": 5,
            "queue.buffering.max.messages": 1_000_000,
            **QUIET,
        }
    )
    failed: list[object] = []
    reported = 0

    def report(error: object, message: object) -> None:
        nonlocal reported
        reported += 1
        if error is not None:
            failed.append(error)

    start = time.perf_counter()
    for index in range(count):
        producer.produce(topic, RECORD, on_delivery=report)
        if index % 1000 == 0:
            producer.poll(0)
    left = producer.flush(TIMEOUT_SECONDS)
    seconds = time.perf_counter() - start
    if left or failed or reported != count:
        raise RuntimeError(f"{left} unsent, {len(failed)} failed, {reported} of {count} reported")
    return count * len(RECORD) / seconds / 1e6


def librdkafka_consume(server: Server, topic: str, count: int) -> float:
    """MB/s of reading the same records from the start."""
    consumer = Consumer(
        {
            "bootstrap.servers": server.bootstrap,
            "group.id": f"bench-{time.monotonic_ns()}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            # By default it rests for a second whenever a server is faster than its application,
            # and then measures that.
            "fetch.queue.backoff.ms": 1,
            **QUIET,
        }
    )
    consumer.subscribe([topic])
    received = 0
    start = 0.0
    deadline = time.monotonic() + TIMEOUT_SECONDS
    try:
        while received < count:
            for message in consumer.consume(10_000, 0.2):
                if message.error() is not None:
                    raise RuntimeError(message.error())
                # Joining the group is not what is measured.
                start = start or time.perf_counter()
                received += 1
            if time.monotonic() > deadline:
                raise RuntimeError(f"{received} of {count} records in {TIMEOUT_SECONDS} s")
        return received * len(RECORD) / (time.perf_counter() - start) / 1e6
    finally:
        consumer.close()


def _java_tool(class_name: str, *arguments: str) -> str:
    command = [
        "java",
        "-Xmx512m",
        "-cp",
        f"{kafka_jars()}/*",
        f"org.apache.kafka.tools.{class_name}",
    ]
    result = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=TIMEOUT_SECONDS
    )
    if result.returncode:
        raise RuntimeError(f"{class_name}: {result.stdout[-1000:]}{result.stderr[-1000:]}")
    return result.stdout


def java_produce(server: Server, topic: str, count: int) -> float:
    """MB/s as `kafka-producer-perf-test` reports it: 1 kB records, acks=all."""
    output = _java_tool(
        "ProducerPerformance",
        *("--bootstrap-server", server.bootstrap, "--topic", topic, "--throughput", "-1"),
        *("--num-records", str(count), "--record-size", str(len(RECORD))),
        *("--command-property", "acks=all"),
    )
    total = re.findall(r"^(\d+) records sent, ([\d.]+) records/sec", output, re.M)[-1]
    if int(total[0]) != count:
        raise RuntimeError(output[-1000:])
    return float(total[1]) * len(RECORD) / 1e6


def java_consume(server: Server, topic: str, count: int) -> float:
    """MB/s as `kafka-consumer-perf-test` reports it, without the group's rebalance."""
    output = _java_tool(
        "ConsumerPerformance",
        *("--bootstrap-server", server.bootstrap, "--topic", topic),
        *("--num-records", str(count), "--timeout", "60000"),
    )
    names, values = (
        [field.strip() for field in line.split(",")] for line in output.strip().splitlines()[-2:]
    )
    row = dict(zip(names, values, strict=True))
    if int(row["data.consumed.in.nMsg"]) < count:
        raise RuntimeError(output[-1000:])
    return float(row["fetch.nMsg.sec"]) * len(RECORD) / 1e6
