"""What an append costs when many partitions, or transactions, are written at once.

    python -m bench.appends [--steps 60] [--rounds 8] [--only NAME] [--profile FILE]

Server and clients are one process and one thread, in steps: all clients send, and the next step
begins when all were answered. So each step is the same burst of requests, whatever else the machine
does, and a step's cost is the thread's own time without what the clients took of it: microseconds
for a request, or for a transaction (a Produce for all partitions, and its EndTxn). The least and
the median of the rounds. A single producer's transaction shares its entries with no other one. The
journal is a real one. The poller does not look twice before it
sleeps: what it waits for is no cost of an append.
"""

import argparse
import cProfile
import gc
import select
import socket
import statistics
import time

import trio

from bench import frames
from quire.role import GC_THRESHOLDS
from quire.testing.trio_server import Server
from runtime import poller
from wire.kafka.codec import decode, encode
from wire.kafka.message import Message
from wire.kafka.messages.groups import FindCoordinatorRequest
from wire.kafka.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from wire.kafka.messages.transactions import (
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from wire.kafka.records.batch import build_batch
from wire.kafka.records.record import Record

#: Records of a transaction, as in bench.transactions, but of 100 B: bytes are not what is measured.
RECORDS, RECORD_BYTES = 100, 100
RETRIES_MAX = 200
KILOBYTE = frames.batch_of(1024 - 100, 1024)
#: Name -> (what is counted, clients, partitions).
CASES = {
    "32 connections, 1 partition": ("request", 32, 1),
    "32 connections, 16 partitions": ("request", 32, 16),
    "1 producer, 8 partitions": ("transaction", 1, 8),
    "20 producers, 1 partition": ("transaction", 20, 1),
    "20 producers, 8 partitions": ("transaction", 20, 8),
}


class Clients:
    """Connections that send at once and are answered before they go on. `own_seconds`: what they
    took of the thread."""

    def __init__(self, port: int, count: int) -> None:
        self.sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
        self._poll = select.epoll()
        self._numbers = {sock.fileno(): number for number, sock in enumerate(self.sockets)}
        for sock in self.sockets:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            self._poll.register(sock, select.EPOLLIN)
        self.own_seconds = 0.0

    async def ask(self, requests: list[bytes]) -> list[bytes]:
        """One request of each; each one's answer without its size."""
        start = time.thread_time()
        for sock, frame in zip(self.sockets, requests, strict=True):
            sock.sendall(frame)
        answers = [b""] * len(self.sockets)
        left = len(answers)
        while left:
            self.own_seconds += time.thread_time() - start
            await trio.lowlevel.wait_readable(self._poll.fileno())
            start = time.thread_time()
            for descriptor, _ in self._poll.poll(0):
                number = self._numbers[descriptor]
                answers[number] += self.sockets[number].recv(1 << 16)
                answer = answers[number]
                left -= len(answer) == 4 + int.from_bytes(answer[:4])
        self.own_seconds += time.thread_time() - start
        return [answer[4:] for answer in answers]

    def close(self) -> None:
        self._poll.close()
        for sock in self.sockets:
            sock.close()


def frame_of(message: Message, version: int) -> bytes:
    return frames.request(message.INFO.key, version, encode(message, version))


def answer_of(kind: type[Message], version: int, answer: bytes) -> Message:
    return decode(kind, version, answer[5:])[0]


class Requests:
    """A step is a request of each connection, the partitions in turn."""

    def __init__(self, port: int, count: int, topic: str, partitions: int) -> None:
        self.clients = Clients(port, count)
        numbers = [number % partitions for number in range(count)]
        self._frames = [frames.produce_frame(topic, number, KILOBYTE) for number in numbers]
        self.count = count

    async def begin(self) -> None:
        for _ in range(RETRIES_MAX):
            if await self.step():
                return
            await trio.sleep(0.02)
        raise RuntimeError("the partitions do not accept")

    async def step(self) -> bool:
        answers = await self.clients.ask(self._frames)
        start = time.thread_time()
        errors = [error for each in answers for _, error in frames.parse_produce(memoryview(each))]
        self.clients.own_seconds += time.thread_time() - start
        return not any(errors)


class Transactions:
    """A step is a transaction of each producer."""

    def __init__(self, port: int, count: int, topic: str, partitions: int) -> None:
        self.clients = Clients(port, count)
        self._topic, self._partitions = topic, partitions
        self._producers: list[tuple[int, int]] = []
        records = RECORDS // partitions
        self._records = [Record(at, 0, None, bytes(RECORD_BYTES), []) for at in range(records)]
        self.count = count

    async def begin(self) -> None:
        for _ in range(RETRIES_MAX):
            # Whoever asks where the coordinator is has its topic made.
            where = [FindCoordinatorRequest(key_type=1, coordinator_keys=["x"])] * self.count
            await self.clients.ask([frame_of(each, 4) for each in where])
            names = [f"{self._topic}-{number}" for number in range(self.count)]
            asked = [InitProducerIdRequest(name, 60_000) for name in names]
            answers = await self.clients.ask([frame_of(each, 5) for each in asked])
            found = [answer_of(InitProducerIdResponse, 5, each) for each in answers]
            self._producers = [(each.producer_id, each.producer_epoch) for each in found]
            if not any(each.error_code for each in found) and await self.step():
                return
            await trio.sleep(0.02)
        raise RuntimeError("the coordinator does not accept")

    async def step(self) -> bool:
        start = time.thread_time()
        produced = [self._produce(n, *who) for n, who in enumerate(self._producers)]
        ended = [
            frame_of(EndTxnRequest(f"{self._topic}-{n}", *who, True), 5)
            for n, who in enumerate(self._producers)
        ]
        self.clients.own_seconds += time.thread_time() - start
        answers = await self.clients.ask(produced)
        ends = await self.clients.ask(ended)
        start = time.thread_time()
        found = [answer_of(EndTxnResponse, 5, each) for each in ends]
        self._producers = [(each.producer_id, each.producer_epoch) for each in found]
        is_fine = not any(each.error_code for each in found)
        for each in answers:
            for topic in answer_of(ProduceResponse, 12, each).responses:
                is_fine &= not any(one.error_code for one in topic.partition_responses)
        self.clients.own_seconds += time.thread_time() - start
        return is_fine

    def _produce(self, number: int, producer_id: int, epoch: int) -> bytes:
        batch = build_batch(
            self._records, base_timestamp=1_700_000_000_000, producer_id=producer_id,
            producer_epoch=epoch, base_sequence=0, is_transactional=True,
        )  # fmt: skip
        parts = [PartitionProduceData(at, memoryview(batch)) for at in range(self._partitions)]
        data = [TopicProduceData(self._topic, partition_data=parts)]
        return frame_of(ProduceRequest(f"{self._topic}-{number}", -1, 30_000, data), 12)


async def least_and_median(
    load: Requests | Transactions, steps: int, rounds: int, profile: cProfile.Profile | None
) -> tuple[float, float]:
    """Microseconds of the server's for one of what the load counts."""
    found = []
    for _ in range(rounds):
        load.clients.own_seconds = 0.0
        if profile is not None:
            profile.enable()
        start = time.thread_time()
        for _ in range(steps):
            if not await load.step():
                raise RuntimeError("refused")
        spent = time.thread_time() - start - load.clients.own_seconds
        if profile is not None:
            profile.disable()
        found.append(spent / steps / load.count * 1e6)
    return min(found), statistics.median(found)


async def measure(options: argparse.Namespace) -> None:
    poller.LOOKS_MAX = 0
    # A slow disk is no reason to have a client ask again.
    config = {"add.partitions.to.txn.retry.backoff.max.ms": 10_000}
    async with Server(config=config, data_dir=options.data_dir) as server:
        for name, (unit, count, partitions) in CASES.items():
            if options.only not in name:
                continue
            topic = f"t-{unit}-{count}-{partitions}"
            await server.create_topic(topic, partitions)
            kind = Requests if unit == "request" else Transactions
            load = kind(server.port, count, topic, partitions)
            await load.begin()
            # As a server of ours, once it has started.
            gc.collect()
            gc.freeze()
            gc.set_threshold(*GC_THRESHOLDS)
            await least_and_median(load, options.steps, 1, None)
            profile = cProfile.Profile() if options.profile else None
            least, median = await least_and_median(load, options.steps, options.rounds, profile)
            print(f"{name}: {least:.1f} us a {unit}, median {median:.1f}", flush=True)
            if profile is not None:
                profile.dump_stats(options.profile)
            load.clients.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--only", default="")
    parser.add_argument("--data-dir", default=None)
    parser.add_argument("--profile", default="")
    trio.run(measure, parser.parse_args())


if __name__ == "__main__":
    main()
