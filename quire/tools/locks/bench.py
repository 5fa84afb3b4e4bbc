"""Producers of `quire locks bench`: Waltz's benchmark of producers, over optimistic locks.

Each is a thread with connections of its own. For each partition it keeps its position: what it has
read back. It submits a record after a pause, reads on, and sends the record with its position and
one WRITE lock. Refused, it reads on up to the conflict and tries again. The record is done when it
was acknowledged and read back.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from math import log
from typing import TYPE_CHECKING, NamedTuple

import click

from quire.tools.groups.client import KafkaClient, check
from quire.tools.locks.audit_core import POSITION, WRITE
from quire.tools.locks.bench_core import Tally, conflict_in, is_written
from quire.tools.locks.reading import fetch, records_in
from quire.tools.output import progress
from runtime.env import RealClock, seeded_rng
from runtime.together import side_by_side
from wire.kafka.errors import ErrorCode, WireError
from wire.kafka.messages import DescribeConfigsRequest, ProduceRequest
from wire.kafka.messages.configs import DescribeConfigsResource
from wire.kafka.messages.produce import PartitionProduceData, TopicProduceData
from wire.kafka.records.batch import build_batch, scan_batches
from wire.kafka.records.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from quire.tools.groups.client import Address
    from quire.tools.locks.reading import Bounds
    from runtime.together import Stop

PRODUCE, DESCRIBE_CONFIGS = 9, 1
TOPIC_RESOURCE = 2
ACKS_ALL = -1
TIMEOUT_MS = 20_000
#: How long one Fetch waits for what is known to come.
WAIT_MS = 500


class Shape(NamedTuple):
    """`records`: of each producer, `size` bytes each; `interval_s`: the mean of the pauses, which
    are exponential; `locks`: how many ids there are, 0: records have no lock."""

    producers: int
    records: int
    size: int
    interval_s: float
    locks: int
    seed: int


def locks_of(client: KafkaClient, topic: str) -> str:
    """The topic's `quire.locks`; off of a server that does not know it. ClickException."""
    asked = DescribeConfigsResource(TOPIC_RESOURCE, topic, ["quire.locks"])
    answer = client.ask(
        client.bootstrap, DescribeConfigsRequest(resources=[asked]), DESCRIBE_CONFIGS
    )
    (result,) = answer.results
    check(result.error_code, topic, result.error_message)
    for each in result.configs:
        if each.name == "quire.locks":
            return str(each.value)
    return "off"


def run(bootstrap: Address, topic: str, of: Sequence[Bounds], shape: Shape) -> dict[str, object]:
    """Writes it all; what the command tells. ClickException with the first thing that no other try
    mends: then the other producers end, too."""
    clock, whole = RealClock(), Tally()
    start = clock.monotonic()
    producers = [
        partial(_produce, bootstrap, topic, of, shape, number) for number in range(shape.producers)
    ]
    total = shape.producers * shape.records
    with progress(f"writing to {topic}", total, is_bytes=False) as step:
        for tally in side_by_side(producers):
            whole.add(tally)
            step(shape.records)
    return whole.told(clock.monotonic() - start)


def _produce(
    bootstrap: Address,
    topic: str,
    of: Sequence[Bounds],
    shape: Shape,
    number: int,
    stop: Stop,
) -> Tally:
    rng, clock = seeded_rng(f"{shape.seed}/{number}"), RealClock()
    value = rng.randbytes(shape.size)
    tally = Tally()
    with KafkaClient(bootstrap) as client:
        partitions = [PartitionWriter(client, topic, each, tally, stop) for each in of]
        for _ in range(shape.records):
            pause = -log(1 - rng.random()) * shape.interval_s
            partition = partitions[rng.randrange(len(partitions))]
            lock = b"bench/%d" % rng.randrange(shape.locks) if shape.locks else None
            if stop.wait(pause):
                break
            submitted_at = clock.monotonic()
            partition.read_on()
            if not partition.commit(value, lock, clock.time_ms()):
                break
            tally.seconds.append(clock.monotonic() - submitted_at)
    return tally


class PartitionWriter:
    """One producer's view of one partition. ClickException from all."""

    def __init__(
        self, client: KafkaClient, topic: str, of: Bounds, tally: Tally, stop: Stop
    ) -> None:
        self._client = client
        self._topic = topic
        self._of = of
        self._tally = tally
        self._stop = stop
        self._position = of.end

    def commit(self, value: bytes, lock: bytes | None, time_ms: int) -> bool:
        """Until the record is in the log and was read back; False: the run ends before."""
        while not self._stop.is_set:
            offset, conflict = self._send(value, lock, time_ms)
            if conflict is None:
                self._read_to(offset)
                return True
            assert lock is not None
            self._tally.refused += 1
            self._tally.refused_falsely += not self._read_conflict(conflict, lock)
        return False

    def _send(self, value: bytes, lock: bytes | None, time_ms: int) -> tuple[int, int | None]:
        """(its offset, None), or (-1, the offset of the conflict)."""
        headers: list[tuple[str, bytes | None]] = []
        if lock is not None:
            headers = [(POSITION, b"%d" % self._position), (WRITE, lock)]
        batch = build_batch([Record(0, 0, None, value, headers)], base_timestamp=time_ms)
        data = PartitionProduceData(index=self._of.partition, records=batch)
        body = ProduceRequest(
            acks=ACKS_ALL,
            timeout_ms=TIMEOUT_MS,
            topic_data=[TopicProduceData(name=self._topic, partition_data=[data])],
        )
        answer = self._client.ask(self._of.leader, body, PRODUCE)
        (result,) = answer.responses[0].partition_responses
        conflict = None
        if lock is not None and result.error_code == ErrorCode.INVALID_RECORD:
            conflict = conflict_in(result.error_message)
        if conflict is None:
            check(result.error_code, f"{self._topic}-{self._of.partition}", result.error_message)
        return result.base_offset, conflict

    def read_on(self, wait_ms: int = 0) -> memoryview:
        """What is there from the position on, up to PART_BYTES or what comes first in the time; the
        position is behind it."""
        data = fetch(self._client, self._topic, self._of, self._position, wait_ms=wait_ms)
        with self._naming_itself():
            headers = scan_batches(data)
        if headers:
            self._position = headers[-1].last_offset + 1
        return data

    def _read_to(self, offset: int) -> None:
        """Reads on until `offset` was read."""
        while self._position <= offset and not self._stop.is_set:
            self.read_on(WAIT_MS)

    def _read_conflict(self, conflict: int, lock: bytes) -> bool:
        """Reads to the conflict; whether what was not known up to it writes the lock."""
        found = False
        while self._position <= conflict and not self._stop.is_set:
            at, data = self._position, self.read_on(WAIT_MS)
            with self._naming_itself():
                records = [record for _, record in records_in(data, at, conflict + 1)]
            found |= is_written(lock, records)
        return found

    @contextmanager
    def _naming_itself(self) -> Iterator[None]:
        try:
            yield
        except WireError as error:
            name = f"{self._topic}-{self._of.partition}"
            raise click.ClickException(f"{name} at {self._position}: {error}") from error
