"""What a pass of compaction costs those who produce meanwhile, beside Apache Kafka.

    python -m bench.compaction_pass [--servers kafka,kafka-flush,quire] [--megabytes 400]

A topic with many old values of few keys waits for its compaction (min.compaction.lag.ms). 1 kB is
produced to another topic, one request in flight: while nothing else happens, and then while the
pass runs, which is over when the topic has become small. Both servers have a topic's log in
segments of 32 MB and look for work every second; quire has its throttle of 32 MB/s, which Kafka
does not have (log.cleaner.io.max.bytes.per.second).
"""

import socket
import struct
import time
from collections.abc import Iterator

from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)

from bench import clients, load, rounds
from bench.load import percentile_ms
from bench.rounds import Figure
from bench.servers import Kafka, KafkaFlushing, Quire, Server
from wire.kafka.api_keys import ApiKey
from wire.kafka.headers import decode_response, encode_request
from wire.kafka.messages.cluster import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)

LOG_DIRS_VERSION = 1

SEGMENT_BYTES = 32 << 20
KEYS = 20_000
RECORD_BYTES = 1000
SLICE_SECONDS = 1.0
PASS_SECONDS_MAX = 180
WAIT_MS = 10**9


class CleaningKafka(Kafka):
    settings = ("log.cleaner.backoff.ms=1000",)


class CleaningKafkaFlushing(KafkaFlushing):
    settings = (*KafkaFlushing.settings, "log.cleaner.backoff.ms=1000")


class CleaningQuire(Quire):
    options = ("--set", "log.cleaner.backoff.ms=1000")


SERVERS: dict[str, type[Server]] = {
    "kafka": CleaningKafka,
    "kafka-flush": CleaningKafkaFlushing,
    "quire": CleaningQuire,
}


def admin_of(server: Server) -> AdminClient:
    return AdminClient({"bootstrap.servers": server.bootstrap, **clients.QUIET})


def fill(server: Server, topic: str, megabytes: int) -> None:
    """RuntimeError if a record is refused."""
    config = {
        "cleanup.policy": "compact",
        "min.compaction.lag.ms": str(WAIT_MS),
        "min.cleanable.dirty.ratio": "0.01",
        "segment.bytes": str(SEGMENT_BYTES),
        "file.delete.delay.ms": "1000",
    }
    wanted = NewTopic(topic, 1, 1, config=config)
    admin = admin_of(server)
    admin.create_topics([wanted])[topic].result(clients.TIMEOUT_SECONDS)
    producer = Producer(
        {
            "bootstrap.servers": server.bootstrap,
            "linger.ms": 20,
            "batch.size": 500_000,
            "queue.buffering.max.messages": 500_000,
            **clients.QUIET,
        }
    )
    value = bytes(number * 167 % 251 for number in range(RECORD_BYTES - 16))
    failed: list[object] = []

    def report(error: object, message: object) -> None:
        if error is not None:
            failed.append(error)

    for number in range(megabytes * 1_000_000 // RECORD_BYTES):
        while True:
            try:
                producer.produce(topic, value, b"key-%012d" % (number % KEYS), on_delivery=report)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 1000 == 0:
            producer.poll(0)
    if producer.flush(clients.TIMEOUT_SECONDS) or failed:
        raise RuntimeError(f"not filled: {failed[:1]}")


def set_lag(server: Server, topic: str, lag_ms: int) -> None:
    entry = ConfigEntry(
        "min.compaction.lag.ms", str(lag_ms), incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource("TOPIC", topic, incremental_configs=[entry])
    admin = admin_of(server)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(clients.TIMEOUT_SECONDS)


def latencies(server: Server, topic: str) -> list[float]:
    found = load.produce_latency(server.address, topic, range(1), load.KILOBYTE, SLICE_SECONDS)
    return found.latencies


def measure(server: Server, number: int, megabytes: int) -> Iterator[Figure]:
    dirty, quiet = f"dirty-{number}-{time.monotonic_ns()}", f"quiet-{number}"
    clients.create_topic(server, quiet, 1)
    fill(server, dirty, megabytes)
    alone = [each for _ in range(8) for each in latencies(server, quiet)]
    yield "p50 without a pass", "ms", percentile_ms(alone, 0.5)
    yield "p99 without a pass", "ms", percentile_ms(alone, 0.99)
    cpu = server.cpu_seconds()
    set_lag(server, dirty, 0)
    start = time.monotonic()
    beside: list[float] = []
    wanted = 3 * SEGMENT_BYTES
    while True:
        beside += latencies(server, quiet)
        if size_of(server, dirty) <= wanted:
            break
        if time.monotonic() > start + PASS_SECONDS_MAX:
            raise RuntimeError(f"no pass in {PASS_SECONDS_MAX} s")
    seconds = time.monotonic() - start
    yield "p50 during the pass", "ms", percentile_ms(beside, 0.5)
    yield "p99 during the pass", "ms", percentile_ms(beside, 0.99)
    share = percentile_ms(beside, 0.99) / percentile_ms(alone, 0.99)
    yield "p99 during / without", "times", share
    yield "from its start until the disk has room", "s", seconds
    yield "compacted", "MB/s", megabytes / seconds
    yield "CPU with the produce load", "s", server.cpu_seconds() - cpu
    for topic in (dirty, quiet):
        clients.delete_topic(server, topic)


def size_of(server: Server, topic: str) -> int:
    """Bytes of its log, as DescribeLogDirs tells them."""
    wanted = DescribableLogDirTopic(topic=topic, partitions=[0])
    frame = encode_request(DescribeLogDirsRequest(topics=[wanted]), LOG_DIRS_VERSION, 1, "bench")
    with load.connect(server.address) as sock:
        sock.sendall(frame)
        (length,) = struct.unpack(">i", sock.recv(4, socket.MSG_WAITALL))
        answer = sock.recv(length, socket.MSG_WAITALL)
    _, body = decode_response(int(ApiKey.DESCRIBE_LOG_DIRS), LOG_DIRS_VERSION, memoryview(answer))
    assert isinstance(body, DescribeLogDirsResponse)
    return sum(
        partition.partition_size
        for directory in body.results
        for topic in directory.topics
        for partition in topic.partitions
    )


def main() -> None:
    parser = rounds.options_of(__doc__, SERVERS, seconds=None)
    parser.add_argument("--megabytes", type=int, default=400)
    options = parser.parse_args()
    chosen = rounds.choose(parser, options, SERVERS)
    cases = {"pass": lambda server, number: measure(server, number, options.megabytes)}

    def start(server: Server) -> None:
        server.start()
        clients.create_topic(server, "warm-up", 1)
        load.produce_latency(server.address, "warm-up", range(1), load.KILOBYTE, 4.0)

    rounds.side_by_side("compaction-pass", chosen, start, (cases, options.rounds))


if __name__ == "__main__":
    main()
