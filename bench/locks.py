"""Optimistic locks: Waltz's shapes of producers, and what a hot lock costs its neighbours.

    python -m bench.locks [--only shapes,neighbours] [--rounds 3]

`shapes`: `quire locks bench` with one WRITE lock drawn from 0 (none), 64 or 128 ids, on one and two
partitions; its producers are threads of one Python process, which bounds what they reach.
`neighbours`: a topic without locks is written to while two connections write to another one, in
turn, so many requests a second: records without locks, or of the same size that all write one lock,
half of which are refused since the other connection was first. The ratio of the two is what the
lock costs a neighbour; what the requests themselves cost is in both.
"""

import itertools
import json
import multiprocessing
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from bench import clients, load, rounds
from bench.load import percentile_ms
from bench.rounds import Figure
from bench.servers import Quire, Server
from quire.tools.locks.bench_core import conflict_in
from wire.kafka.api_keys import ApiKey
from wire.kafka.headers import decode_response, encode_request
from wire.kafka.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from wire.kafka.records.batch import build_batch
from wire.kafka.records.record import Record

POOLS = (0, 64, 128)
PARTITIONS = (1, 2)
#: Neighbours: what a slice takes, and how many requests a second come beside it.
SLICE_SECONDS, PER_SECOND = 4.0, 400
BEGIN_SECONDS = 0.5
PRODUCE = 9


def topic_of(server: Server, name: str, partitions: int, locks: str) -> str:
    topic = f"{name}-{time.monotonic_ns()}"
    config = {**clients.KEPT, "quire.locks": locks}
    admin = AdminClient({"bootstrap.servers": server.bootstrap, **clients.QUIET})
    wanted = NewTopic(topic, partitions, 1, config=config)
    admin.create_topics([wanted])[topic].result(clients.TIMEOUT_SECONDS)
    return topic


def writing(server: Server, topic: str, **shape: int) -> subprocess.Popen[str]:
    program = str(Path(sys.executable).with_name("quire"))
    words = [word for name, value in shape.items() for word in (f"--{name}", str(value))]
    command = [program, "locks", "bench", topic, "--bootstrap-server", server.bootstrap, "--json"]
    command += [word.replace("_", "-") for word in words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def shape(server: Server, options: object, pool: int, partitions: int) -> Iterator[Figure]:
    topic = topic_of(server, "shape", partitions, "optional")
    child = writing(
        server, topic, producers=options.producers, records=options.records, size=512,
        interval_ms=options.interval_ms, locks=pool,
    )  # fmt: skip
    told = json.loads(child.communicate()[0])
    name = f"{pool or 'no'} locks, {partitions} partition{'s' * (partitions > 1)}"
    for what, unit in (
        ("accepted_per_second", "records/s"),
        ("attempts_per_commit", "attempts"),
        ("refused_falsely", "attempts"),
        ("p50_ms", "ms"),
        ("p99_ms", "ms"),
    ):
        yield f"{name}: {what.replace('_', ' ')}", unit, float(told[what])
    clients.delete_topic(server, topic)


def neighbour(server: Server, topic: str, name: str) -> Iterator[Figure]:
    rate = load.produce_pipelined(
        server.address, topic, range(1), load.KILOBYTE, 50, SLICE_SECONDS
    ).requests_per_second
    one = load.produce_latency(server.address, topic, range(1), load.KILOBYTE, SLICE_SECONDS)
    yield f"{name}: 50 in flight", "requests/s", rate
    yield f"{name}: one in flight, p50", "ms", percentile_ms(one.latencies, 0.5)
    yield f"{name}: one in flight, p99", "ms", percentile_ms(one.latencies, 0.99)


def contend(address: tuple[str, int], topic: str, prefix: str, told: object) -> None:
    """Until it is killed. `prefix`: of the headers' names; «quire.» makes them a lock's."""
    sockets = [load.connect(address) for _ in range(2)]
    positions, counts = [0, 0], [0, 0]
    due = time.monotonic()
    for turn in itertools.cycle((0, 1)):
        headers = [(f"{prefix}position", b"%d" % positions[turn]), (f"{prefix}lock.write", b"hot")]
        batch = build_batch([Record(0, 0, None, bytes(512), headers)])
        part = PartitionProduceData(index=0, records=batch)
        data = TopicProduceData(name=topic, partition_data=[part])
        body = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[data])
        sockets[turn].sendall(encode_request(body, PRODUCE, 0, "bench"))
        (size,) = struct.unpack(">i", sockets[turn].recv(4, socket.MSG_WAITALL))
        frame = memoryview(sockets[turn].recv(size, socket.MSG_WAITALL))
        _, answer = decode_response(int(ApiKey.PRODUCE), PRODUCE, frame)
        [result] = answer.responses[0].partition_responses
        conflict = conflict_in(result.error_message)
        positions[turn] = (result.base_offset if conflict is None else conflict) + 1
        counts[conflict is not None] += 1
        told[:] = counts
        due += 1 / PER_SECOND
        time.sleep(max(due - time.monotonic(), 0))


def beside(server: Server, quiet: str, name: str, prefix: str) -> Iterator[Figure]:
    topic = topic_of(server, "hot", 1, "optional")
    counts = multiprocessing.Array("i", 2)
    child = multiprocessing.Process(target=contend, args=(server.address, topic, prefix, counts))
    child.start()
    try:
        time.sleep(BEGIN_SECONDS)
        before, began = sum(counts), time.monotonic()
        yield from neighbour(server, quiet, name)
        rate = (sum(counts) - before) / (time.monotonic() - began)
        yield f"{name}: its requests", "requests/s", rate
        yield f"{name}: refused of them", "share", counts[1] / sum(counts)
    finally:
        child.kill()
        child.join()
    clients.delete_topic(server, topic)


def shapes(server: Server, options: object) -> Iterator[Figure]:
    for partitions in PARTITIONS:
        for pool in POOLS:
            yield from shape(server, options, pool, partitions)


def neighbours(server: Server, number: int) -> Iterator[Figure]:
    quiet = topic_of(server, "quiet", 1, "off")
    yield from neighbour(server, quiet, "alone")
    both = [("beside records without locks", "other."), ("beside records of one lock", "quire.")]
    if number % 2:
        both.reverse()
    figures = {name: list(beside(server, quiet, name, prefix)) for name, prefix in both}
    plain, hot = figures[both[0][0]], figures[both[1][0]]
    if number % 2:
        plain, hot = hot, plain
    yield from (*plain, *hot)
    for (what, _, one), (_, _, other) in zip(plain[:3], hot[:3], strict=True):
        yield f"one lock / without: {what.rpartition(': ')[2]}", "times", other / one
    clients.delete_topic(server, quiet)


def main() -> None:
    parser = rounds.options_of(__doc__, {"quire": Quire}, seconds=None)
    parser.add_argument("--only", default="shapes,neighbours")
    parser.add_argument("--producers", type=int, default=20)
    parser.add_argument("--records", type=int, default=250, help="of each producer")
    parser.add_argument("--interval-ms", type=int, default=20)
    options = parser.parse_args()
    cases = {
        "shapes": lambda server, _: shapes(server, options),
        "neighbours": neighbours,
    }
    chosen = {name: cases[name] for name in options.only.split(",")}
    rounds.side_by_side("locks", [Quire], lambda s: s.start(), (chosen, options.rounds))


if __name__ == "__main__":
    main()
