"""Three brokers of ours on three bookies beside three of Apache Kafka: load, and idle partitions.

    python -m bench.cluster [--rounds 3] [--seconds 1.5] [--only TEXT] [--servers kafka,quire]
    python -m bench.cluster --only memory --servers kafka,quire

Twelve partitions, four led by each broker, RF 3, acks=all, min.insync.replicas=2; raw sockets.
«Kafka» acknowledges from the page cache, «Kafka flush=1» after a flush of each message; quire when
two of three bookies have synced. Consumers read what was just produced, one for each broker. CPU
and memory are of all processes, ZooKeeper and KRaft's controller included. `memory` is a run of its
own, once for each server and without load: what 1,000 and 3,000 partitions without a record take
(Kafka: three copies of each), and then a record in each of the 3,000.

See bench.take_over for a broker's end, bench.rolling for a rolling restart, bench.fan_out for many
consumers.
"""

import time
from collections.abc import Iterator

from bench import clusters, frames, load, probe, rounds, spread
from bench.clients import TIMEOUT_SECONDS
from bench.clusters import NODES, Members
from bench.rounds import Figure, Measure

PARTITIONS = 12
WIDE = frames.batch_of(65_536)
#: Case -> (batch, connections to each broker, in flight on each).
CASES = {
    "1 kB, 16 connections to each broker": (load.KILOBYTE, 16, 1),
    "1 kB, 1 connection, 50 in flight": (load.KILOBYTE, 1, 50),
    "64 kB, 1 connection, 5 in flight": (WIDE, 1, 5),
}
#: Idle partitions are counted when nothing has happened for so long.
SETTLE_SECONDS = 3.0
IDLE_PARTITIONS = (1000, 3000)


def measure_load(name: str, seconds: float) -> Measure:
    batch, connections, in_flight = CASES[name]

    def measure(cluster: Members, number: int) -> Iterator[Figure]:
        topic = f"load-{time.monotonic_ns()}"
        cluster.create_topic(topic, PARTITIONS)
        led = cluster.led(topic)
        cpu = cluster.cpu_seconds()
        made = spread.produce(led, topic, batch, connections, in_flight, seconds)
        cpu = cluster.cpu_seconds() - cpu
        if batch is load.KILOBYTE:
            yield f"produce {name}", "records/s", made.requests_per_second
        yield f"produce {name}", "MB/s", made.megabytes_per_second
        # The driver's warm-up is in the CPU time too, at the same rate.
        share = seconds / (seconds + load.WARM_UP_SECONDS)
        yield f"produce {name}: CPU", "s/GB", cpu * share / (made.bytes / 1e9)
        cpu = cluster.cpu_seconds()
        read = spread.consume(list(led.items()), topic, seconds)
        cpu = cluster.cpu_seconds() - cpu
        yield f"consume {name}", "MB/s", read.megabytes_per_second
        yield f"consume {name}: CPU", "s/GB", cpu / (read.bytes / 1e9)
        cluster.delete_topic(topic)

    return measure


def measure_peak(cluster: Members, number: int) -> Iterator[Figure]:
    yield "memory after load: brokers", "MB", cluster.broker_memory_mb()
    yield "memory after load: all processes", "MB", cluster.memory_mb()


def measure_idle(cluster: Members, number: int) -> Iterator[Figure]:
    time.sleep(SETTLE_SECONDS)
    yield "memory at start: brokers", "MB", (at_start := cluster.broker_memory_mb())
    yield "memory at start: all processes", "MB", (all_at_start := cluster.memory_mb())
    made = 0
    topics: dict[str, int] = {}
    for wanted in IDLE_PARTITIONS:
        started = time.perf_counter()
        topics[f"idle-{wanted}"] = wanted - made
        cluster.create_topic(f"idle-{wanted}", wanted - made)
        yield f"{wanted - made:,} partitions created", "s", time.perf_counter() - started
        made = wanted
        time.sleep(SETTLE_SECONDS)
        yield f"{wanted:,} partitions: brokers, more", "MB", cluster.broker_memory_mb() - at_start
        more = cluster.memory_mb() - all_at_start
        yield f"{wanted:,} partitions: all processes, more", "MB", more
    for topic, count in topics.items():
        asked = probe.Probe([cluster.address(node) for node in NODES], topic, count)
        asked.start()
        asked.finish(TIMEOUT_SECONDS)
    time.sleep(SETTLE_SECONDS)
    what = f"{made:,} partitions with a record each"
    yield f"{what}: brokers, more", "MB", cluster.broker_memory_mb() - at_start
    yield f"{what}: all processes, more", "MB", cluster.memory_mb() - all_at_start


def warm_up(cluster: Members, seconds: float) -> None:
    """A JVM is to be measured when it is what it is after thousands of requests."""
    for name in CASES:
        for _ in measure_load(name, seconds)(cluster, 0):
            pass


def main() -> None:
    servers = "kafka,kafka-flush,quire"
    parser = clusters.options_of(__doc__, session_ms=9000, servers=servers, seconds=1.5)
    parser.add_argument("--warm-up", type=float, default=1.0, help="seconds for each case")
    parser.add_argument("--only", default="", help="part of a case's name; peak; memory")
    options = parser.parse_args()
    kinds = clusters.chosen(parser, options)
    is_idle = options.only == "memory"
    cases = {name: measure_load(name, options.seconds) for name in CASES}
    cases["peak"] = measure_peak
    cases = {name: measure for name, measure in cases.items() if options.only in name}

    def start(cluster: Members) -> None:
        cluster.start()
        if not is_idle:
            warm_up(cluster, options.warm_up)

    stage = ({"memory": measure_idle}, 1) if is_idle else (cases, options.rounds)
    rounds.side_by_side("cluster", kinds, start, stage)


if __name__ == "__main__":
    main()
