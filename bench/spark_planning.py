"""How long `format("quire")` plans a batch query over very many ledgers, and what memory it takes.

    python -m bench.spark_planning --ledgers 10000 --partitions 100

A standalone server whose segments are closed after 50 ms, written to in rounds until there are so
many ledgers; then the driver's work alone, as often as `--rounds` says, in a process of its own
each time: from the options to the splits, without a Spark. Offsets and metadata are the server's,
so its answers are part of the time.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.spark_server import ListeningServer

TOPIC = "planned"
SEGMENTS = {"segment.ms": "50", "retention.ms": "-1"}
ROUND_SECONDS = 0.06
PLAN = """
import json, resource, sys, time
from pyspark_quire.options_core import parse_options
from pyspark_quire.planning import batch_splits
options = parse_options(json.loads(sys.argv[1]))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
started, cpu = time.monotonic(), time.process_time()
splits = batch_splits(options)
print(json.dumps({
    "seconds": time.monotonic() - started,
    "cpu_seconds": time.process_time() - cpu,
    "more_mb": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024,
    "splits": len(splits),
    "ledgers": sum(len(split.ledgers) for split in splits),
}))
"""


def fill(server: ListeningServer, ledgers: int, partitions: int) -> None:
    """One record for each partition in each round, which closes the ledger of the round before."""
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    topic = NewTopic(TOPIC, partitions, 1, config=SEGMENTS)
    admin.create_topics([topic])[TOPIC].result(60)
    producer = Producer({"bootstrap.servers": server.bootstrap, "linger.ms": 1})
    for _ in range(-(-ledgers // partitions)):
        for partition in range(partitions):
            producer.produce(TOPIC, b"x" * 100, partition=partition)
        assert producer.flush(120) == 0
        time.sleep(ROUND_SECONDS)


def plan(given: dict[str, str]) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-c", PLAN, json.dumps(given)], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def told(found: dict[str, float]) -> str:
    what = f"{found['ledgers']} ledgers in {found['splits']} splits"
    times = f"{found['seconds']:.2f} s, {found['cpu_seconds']:.2f} of its own processor time"
    return f"{what}: {times}; {found['more_mb']:.0f} MB more"


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ledgers", type=int, default=10_000)
    parser.add_argument("--partitions", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as directory:
        settings = {"log.retention.check.interval.ms": "20"}
        server = ListeningServer(Path(directory) / "server", settings).start()
        try:
            started = time.monotonic()
            fill(server, options.ledgers, options.partitions)
            print(f"filled in {time.monotonic() - started:.0f} s", flush=True)
            given = {"metadata": server.metadata, "subscribe": TOPIC}
            forms = {
                "by metadata": given,
                "a broker tells the ends": {**given, "kafka.bootstrap.servers": server.bootstrap},
            }
            for name, form in forms.items():
                for _ in range(options.rounds):
                    print(name, told(plan(form)), flush=True)
        finally:
            server.discard()


if __name__ == "__main__":
    main(sys.argv[1:])
