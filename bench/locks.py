"""Optimistic locks: Waltz's shapes of producers, and what a hot lock costs its neighbours.

    python -m bench.locks [--only shapes,neighbours] [--rounds 3]

`shapes`: `quire locks bench` with one WRITE lock drawn from 0 (none), 64 or 128 ids, on one and two
partitions; its producers are threads of one Python process, which bounds what they reach.
`neighbours`: a topic without locks is written to while another topic of the same server is: not at
all, by producers without locks, and by the same producers that all write one lock. The last two in
turn; their ratio is what the lock costs, and no processor's share of theirs.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from bench import clients, load, rounds
from bench.compaction_pass import percentile_ms
from bench.rounds import Figure
from bench.servers import Quire, Server

POOLS = (0, 64, 128)
PARTITIONS = (1, 2)
#: Neighbours: so many producers pause for so long; a slice is measured while they run.
PRODUCERS, INTERVAL_MS, SLICE_SECONDS = 4, 4, 4.0
RUN_RECORDS = 10_000
#: They log in and read the topic's settings before they write.
BEGIN_SECONDS = 2.5


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


def beside(server: Server, quiet: str, name: str, locks: int) -> Iterator[Figure]:
    topic = topic_of(server, "hot", 1, "optional")
    child = writing(
        server, topic, producers=PRODUCERS, records=RUN_RECORDS, size=512,
        interval_ms=INTERVAL_MS, locks=locks,
    )  # fmt: skip
    try:
        time.sleep(BEGIN_SECONDS)
        yield from neighbour(server, quiet, name)
        if child.poll() is not None:
            raise RuntimeError(f"the producers were done before the slice: {child.stdout.read()}")
    finally:
        child.kill()
        child.wait()
    clients.delete_topic(server, topic)


def shapes(server: Server, options: object) -> Iterator[Figure]:
    for partitions in PARTITIONS:
        for pool in POOLS:
            yield from shape(server, options, pool, partitions)


def neighbours(server: Server, number: int) -> Iterator[Figure]:
    quiet = topic_of(server, "quiet", 1, "off")
    yield from neighbour(server, quiet, "alone")
    plain = list(beside(server, quiet, "beside producers without locks", 0))
    hot = list(beside(server, quiet, "beside producers of one lock", 1))
    yield from (*plain, *hot)
    for (what, _, one), (_, _, other) in zip(plain, hot, strict=True):
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
