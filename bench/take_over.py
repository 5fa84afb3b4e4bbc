"""How long partitions stand still when their broker is killed, and when it is stopped.

    python -m bench.take_over [--partitions 1,100,1000] [--rounds 1] [--servers kafka,quire]
        [--only kill] [--no-client] [--timeout 120]

Three brokers of ours on three bookies beside three of Kafka's (bench.clusters); one broker leads
all partitions of a topic, and a producer writes 500 records a second to them (200 for one
partition). From its session's end, as the cluster's own logs have it (Kafka: the controller fences
the broker; quire: another broker sees its node gone), or from SIGTERM, to each partition's first
acknowledgement by another broker, as bench.probe sees it. The session time-out is the same for
both. «client» is what the producer sees (librdkafka, acks=all, retrying every 20 to 50 ms): it
looks for a leader whose broker is gone once a second or less.

With --no-client each partition has one record, of raw requests, and nobody writes when the broker
goes: for very many partitions a client library has more to do than the servers. «CPU» is that of
the brokers that are left, from the session's end to the last partition's acknowledgement; what the
probe asks of them meanwhile is in it.

Metadata writes are ZooKeeper's transactions or records of KRaft's log (two a second of which mean
nothing), requests what ZooKeeper received; both up to the last partition's acknowledgement.
"""

import contextlib
import statistics
import time
from collections.abc import Iterator

from bench import clusters, pacer, probe, rounds
from bench.clients import TIMEOUT_SECONDS
from bench.clusters import NODES, Members, Operations
from bench.rounds import Figure, Measure
from bench.servers import cpu_seconds_of

#: All partitions of the topic are led by it. It is quire's controller too if it was never away.
VICTIM = 1
RECORDS_PER_SECOND = 500.0
PARTITION_RECORDS_PER_SECOND = 200.0
#: After a topic is there, and before a broker goes.
SETTLE_SECONDS = 2.0


@contextlib.contextmanager
def producing(cluster: Members, topic: str, count: int) -> Iterator[pacer.Pacer]:
    """A producer that has been acknowledged by each partition of a new topic, and goes on until the
    end; then the victim is started again if it is gone, and leads nothing."""
    cluster.create_topic(topic, count, first=(VICTIM,))
    rate = min(RECORDS_PER_SECOND, count * PARTITION_RECORDS_PER_SECOND)
    started = time.time()
    client = pacer.Pacer(cluster.bootstrap, topic, count, rate, **pacer.QUICK)
    client.start()
    try:
        client.wait_for_acks(started)
        time.sleep(SETTLE_SECONDS)
        yield client
    except Exception:
        # Whatever failed, the next case needs three brokers. Not so after an interruption.
        give_back(cluster, topic, client)
        raise
    give_back(cluster, topic, client)
    if client.errors:
        raise RuntimeError(f"{len(client.errors)} records failed: {client.errors[0]}")


def give_back(cluster: Members, topic: str, client: pacer.Pacer | None) -> None:
    if client is not None:
        client.finish()
    if cluster.broker_pid(VICTIM) is None:
        cluster.restart(VICTIM)
    cluster.wait_until_whole()
    cluster.delete_topic(topic)


@contextlib.contextmanager
def written(cluster: Members, topic: str, count: int, timeout: float) -> Iterator[None]:
    """Each partition of a new topic has a record; then as `producing`."""
    cluster.create_topic(topic, count, first=(VICTIM,))
    writer = probe.Probe([cluster.address(VICTIM)], topic, count)
    writer.start()
    try:
        writer.finish(timeout)
        time.sleep(SETTLE_SECONDS)
        yield
    finally:
        give_back(cluster, topic, None)


def brokers_cpu(cluster: Members) -> float:
    """Of those that may be left."""
    pids = [cluster.broker_pid(node) for node in NODES if node != VICTIM]
    return sum(cpu_seconds_of(pid) for pid in pids if pid is not None)


def work(what: str, done: Operations) -> Iterator[Figure]:
    yield f"{what}: metadata writes", "", done.writes
    if done.requests is not None:
        yield f"{what}: metadata requests, pings included", "", done.requests


def start_probe(cluster: Members, topic: str, count: int) -> probe.Probe:
    others = [cluster.address(node) for node in NODES if node != VICTIM]
    made = probe.Probe(others, topic, count)
    made.start()
    return made


def spread(what: str, times: list[float]) -> Iterator[Figure]:
    """`times` ascending, one for each partition."""
    if len(times) == 1:
        yield what, "s", times[0]
    else:
        yield f"{what}, first partition", "s", times[0]
        yield f"{what}, median partition", "s", statistics.median(times)
        yield f"{what}, last partition", "s", times[-1]


def measure_kill(count: int, timeout: float, *, has_client: bool) -> Measure:
    what = f"SIGKILL, {count:,} partition{'s' * (count > 1)}"

    def measure(cluster: Members, number: int) -> Iterator[Figure]:
        topic = f"kill-{time.monotonic_ns()}"
        has_records = (
            producing(cluster, topic, count)
            if has_client
            else written(cluster, topic, count, timeout)
        )
        with has_records as client:
            before = cluster.operations()
            killed = time.time()
            cluster.kill(VICTIM)
            asked = start_probe(cluster, topic, count)

            def ends() -> list[float]:
                return [end for end in cluster.session_ends() if end > killed]

            clusters.wait_until(lambda: bool(ends()), f"{cluster.name}: the session's end")
            ended, cpu = ends()[0], brokers_cpu(cluster)
            asked.finish(timeout)
            done = cluster.operations().since(before)
            cpu = brokers_cpu(cluster) - cpu
            if client is not None:
                client.wait_for_acks(ended)
        yield f"{what}: kill to session's end", "s", ended - killed
        yield from spread(f"{what}: session's end to first ack", asked.since(ended))
        if client is not None:
            latest = client.first_acks(ended)[-1] + ended - killed
            yield f"{what}: kill to the client's last partition", "s", latest
        yield f"{what}: CPU of the brokers that are left", "s", cpu
        yield from work(what, done)

    return measure


def measure_stop(count: int) -> Measure:
    what = f"clean stop, {count:,} partition{'s' * (count > 1)}"

    def measure(cluster: Members, number: int) -> Iterator[Figure]:
        topic = f"stop-{time.monotonic_ns()}"
        with producing(cluster, topic, count) as client:
            before = cluster.operations()
            asked = start_probe(cluster, topic, count)
            began = time.time()
            cluster.stop(VICTIM)
            stopped = time.time()
            asked.finish(TIMEOUT_SECONDS)
            done = cluster.operations().since(before)
            client.wait_for_acks(stopped)
        yield f"{what}: the stop took", "s", stopped - began
        yield from spread(f"{what}: SIGTERM to another broker's ack", asked.since(began))
        yield from spread(f"{what}: client's longest latency", client.longest(began))
        yield from work(what, done)

    return measure


def main() -> None:
    parser = clusters.options_of(__doc__, session_ms=6000, count=1)
    parser.add_argument("--partitions", default="1,100,1000")
    parser.add_argument("--only", default="", help="kill or stop")
    parser.add_argument("--no-client", action="store_true", help="raw requests alone")
    parser.add_argument("--timeout", type=float, default=TIMEOUT_SECONDS, help="s, of a kill")
    options = parser.parse_args()
    kinds = clusters.chosen(parser, options)
    cases: dict[str, Measure] = {}
    for count in map(int, options.partitions.split(",")):
        kill = measure_kill(count, options.timeout, has_client=not options.no_client)
        cases |= {f"kill {count}": kill, f"stop {count}": measure_stop(count)}
    cases = {name: measure for name, measure in cases.items() if options.only in name}
    rounds.side_by_side("take-over", kinds, lambda each: each.start(), (cases, options.rounds))


if __name__ == "__main__":
    main()
