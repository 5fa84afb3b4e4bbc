"""What clients notice when all three brokers are stopped and started, one after the other.

    python -m bench.rolling [--rounds 2] [--servers kafka,quire]

Three brokers of ours on three bookies beside three of Kafka's (bench.clusters), twelve partitions
led by all of them. A producer (librdkafka, 1,000 records a second, acks=all) and a consumer in a
group, both with their defaults but for the time between statistics, run through the whole of it.
The next broker goes a second after all are there again and all copies are in sync; leaders are not
moved back in between. At the end each acknowledged record must have been read.
"""

import time
from collections.abc import Iterator

from bench import clusters, pacer, rounds
from bench.clusters import NODES, Members
from bench.rounds import Figure

PARTITIONS = 12
RECORDS_PER_SECOND = 1000.0
SETTLE_SECONDS = 1.0


def restart(cluster: Members, node: int) -> float:
    """Seconds that the stop took."""
    stopping = time.time()
    cluster.stop(node)
    took = time.time() - stopping
    cluster.restart(node)
    cluster.wait_until_whole()
    time.sleep(SETTLE_SECONDS)
    return took


def measure(cluster: Members, number: int) -> Iterator[Figure]:
    topic = f"rolling-{time.monotonic_ns()}"
    cluster.create_topic(topic, PARTITIONS)
    started = time.time()
    client = pacer.Pacer(cluster.bootstrap, topic, PARTITIONS, RECORDS_PER_SECOND)
    client.start()
    client.wait_for_acks(started)
    follower = pacer.Follower(cluster.bootstrap, topic)
    try:
        follower.start()
        time.sleep(2 * SETTLE_SECONDS)
        began = time.time()
        stops = [restart(cluster, node) for node in NODES]
        took = time.time() - began
    finally:
        client.finish()
    latencies = sorted(ack.latency_seconds for ack in client.acks if ack.at > began)
    unread = follower.finish({ack.number for ack in client.acks})
    yield "records acknowledged", "", len(latencies)
    yield "records that failed", "", len(client.errors)
    yield "acknowledged records not read", "", len(unread)
    yield "requests sent again", "", client.requests.retried
    yield "requests that failed (librdkafka's txerrs, rxerrs)", "", client.requests.failed
    yield "requests that timed out", "", client.requests.timed_out
    yield "latency p50", "ms", latencies[len(latencies) // 2] * 1000
    yield "latency p99", "ms", latencies[len(latencies) * 99 // 100] * 1000
    yield "longest latency", "ms", latencies[-1] * 1000
    yield "consumer's longest gap", "ms", follower.longest_gap_seconds * 1000
    yield "longest stop of a broker", "s", max(stops)
    yield "all three, with the waits", "s", took
    cluster.delete_topic(topic)


def main() -> None:
    parser = clusters.options_of(__doc__, session_ms=9000, count=2)
    options = parser.parse_args()
    kinds = clusters.chosen(parser, options)
    cases = {"rolling": measure}
    rounds.side_by_side("rolling", kinds, lambda each: each.start(), (cases, options.rounds))


if __name__ == "__main__":
    main()
