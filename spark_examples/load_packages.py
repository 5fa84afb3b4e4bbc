"""Writes the package index to a topic: package -> JSON, with section and architecture as headers.

    python load_packages.py --bootstrap 127.0.0.1:9092 --topic packages

Records are a second apart, the last one at the time of loading, so that reading by time has
something to find. (Times of long ago would not do: retention goes by the records' timestamps.)
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import package_index
from confluent_kafka import KafkaError, Message, Producer

STEP_MS = 1000


def load(
    bootstrap: str, topic: str, records: list[dict[str, Any]], start_ms: int
) -> dict[str, tuple[int, int]]:
    """Writes all records, record n with timestamp start_ms + n seconds.

    Returns package -> (partition, offset). Raises RuntimeError if a record was refused.
    """
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "compression.type": "zstd",
            "linger.ms": 50,
        }
    )
    placed: dict[str, tuple[int, int]] = {}
    refused: list[str] = []

    def report(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            refused.append(error.str())
        else:
            placed[message.key().decode()] = (message.partition(), message.offset())

    for number, record in enumerate(records):
        while True:
            try:
                producer.produce(
                    topic,
                    key=record["package"],
                    value=json.dumps(record, ensure_ascii=False),
                    headers={"section": record["section"], "architecture": record["architecture"]},
                    timestamp=start_ms + number * STEP_MS,
                    on_delivery=report,
                )
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    left = producer.flush(60)
    if refused or left:
        raise RuntimeError(f"{len(refused)} refused {refused[:3]}, {left} without an answer")
    return placed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bootstrap", default="127.0.0.1:9092")
    parser.add_argument("--topic", default="packages")
    parser.add_argument("--limit", type=int, help="only so many packages")
    arguments = parser.parse_args()
    records = package_index.packages(arguments.limit)
    started = time.perf_counter()
    start_ms = int(time.time() * 1000) - len(records) * STEP_MS
    load(arguments.bootstrap, arguments.topic, records, start_ms)
    print(f"{len(records)} packages in {time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    main()
