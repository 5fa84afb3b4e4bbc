"""Which files one request passes through, in the order in which a running server enters them.

    python -m checks.walks [--markdown]

A server runs in this process, with a bookie, a journal and a disk. A thread sends it a request that
it has seen many of, and the interpreter tells of each call that the server's thread makes until the
answer is there. What is left out: calls within the file where the walk is already, other people's
libraries, and the server's own timers. The walk of a bookie's add is the part of a produce that is
in `bookie/`. docs/architecture.md tells the same ways in words; tests/test_walks.py holds the two
together.
"""

from __future__ import annotations

import argparse
import socket
import struct
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

from quire.testing.trio_server import Server
from wire.kafka.api_keys import ApiKey
from wire.kafka.errors import ErrorCode
from wire.kafka.headers import decode_response, encode_request
from wire.kafka.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from wire.kafka.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from wire.kafka.records.batch import build_batch
from wire.kafka.records.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

    from wire.kafka.message import Message

ROOT = Path(__file__).parent.parent
TOPIC = "walked"
PRODUCE_VERSION = 9
FETCH_VERSION = 12
#: As many of a kind are sent before one is followed: what is set up once is no part of the way.
EARLIER = 30
#: Files that every turn of the loop enters, whatever it is about.
_LOOP = frozenset({"runtime/loop_watch.py", "runtime/poller.py", "runtime/timers.py"})
_LAYERS = frozenset(
    {"wire", "runtime", "metadata", "bookie", "ledger", "joined", "broker", "quire"}
)
#: Where a request comes in: what is seen before it is the end of the one before.
_ENTRANCE = "runtime/real_net.py"
_SIZE = struct.Struct(">i")


@dataclass(slots=True)
class Walk:
    """`hops`: each file that was entered from another one, so that a file may be there often."""

    name: str
    hops: list[str] = field(default_factory=list)

    @property
    def files(self) -> list[str]:
        """Each once, in the order of the first visit."""
        return list(dict.fromkeys(self.hops))

    @property
    def rooms(self) -> list[str]:
        """The folders of these, each once."""
        return list(dict.fromkeys(name.rpartition("/")[0] for name in self.hops))

    def within(self, name: str, folder: str) -> Walk:
        """What of it is in `folder`, as a walk of its own."""
        hops: list[str] = []
        for hop in self.hops:
            if hop.startswith(f"{folder}/") and hops[-1:] != [hop]:
                hops.append(hop)
        return Walk(name, hops)


class _Follower:
    """Is told of each call by the interpreter while `walk` is set."""

    def __init__(self) -> None:
        self.walk: Walk | None = None
        self._names: dict[str, str | None] = {}

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        walk = self.walk
        if walk is None or event != "call":
            return
        path = frame.f_code.co_filename
        if path not in self._names:
            self._names[path] = _name_of(path)
        name = self._names[path]
        has_begun = walk.hops or name == _ENTRANCE
        if name is not None and has_begun and walk.hops[-1:] != [name]:
            walk.hops.append(name)


def _name_of(path: str) -> str | None:
    """Relative to the tree, or None for what is no part of a server."""
    try:
        name = Path(path).relative_to(ROOT).as_posix()
    except ValueError:
        return None
    return name if name.partition("/")[0] in _LAYERS and name not in _LOOP else None


class _Client:
    """Blocking: it lives in a thread of its own, of which the interpreter tells nothing."""

    def __init__(self, port: int, follower: _Follower) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._follower = follower

    def close(self) -> None:
        self._socket.close()

    def walk(self, name: str, request: Message, key: int, version: int) -> Walk:
        """The way of the last of many."""
        walk = Walk(name)
        for count in range(EARLIER + 1):
            self._follower.walk = walk if count == EARLIER else None
            answer = self._ask(encode_request(request, version, count, "walks"))
        self._follower.walk = None
        _check(decode_response(key, version, answer)[1])
        return walk

    def _ask(self, frame: bytes) -> bytes:
        self._socket.sendall(frame)
        (size,) = _SIZE.unpack(self._receive(_SIZE.size))
        return self._receive(size)

    def _receive(self, size: int) -> bytes:
        received = b""
        while len(received) < size:
            some = self._socket.recv(size - len(received))
            if not some:
                raise ConnectionResetError("the server closed the connection")
            received += some
        return received


def _check(response: Message) -> None:
    """ValueError unless the request was served: a refusal walks another way."""
    assert isinstance(response, ProduceResponse | FetchResponse)
    answers: Sequence[Any] = response.responses
    for topic in answers:
        parts = (
            topic.partition_responses if hasattr(topic, "partition_responses") else topic.partitions
        )
        for part in parts:
            if part.error_code:
                raise ValueError(f"{TOPIC}: {ErrorCode(part.error_code).name}")


def _produce() -> ProduceRequest:
    batch = build_batch([Record(0, 0, b"key", b"value")])
    data = PartitionProduceData(index=0, records=batch)
    topic = TopicProduceData(name=TOPIC, partition_data=[data])
    return ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic])


def _fetch() -> FetchRequest:
    part = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topic = FetchTopic(topic=TOPIC, partitions=[part])
    return FetchRequest(max_wait_ms=500, min_bytes=1, max_bytes=1 << 20, topics=[topic])


async def walks() -> list[Walk]:
    """A produce, the bookie's part of it, and a fetch of what the broker wrote before."""
    follower = _Follower()
    async with Server(topics={TOPIC: 1}) as server:
        sys.setprofile(follower)
        try:
            produced, fetched = await trio.to_thread.run_sync(_both, server.port, follower)
        finally:
            sys.setprofile(None)
    return [produced, produced.within("a bookie's add", "bookie"), fetched]


def _both(port: int, follower: _Follower) -> tuple[Walk, Walk]:
    client = _Client(port, follower)
    try:
        return (
            client.walk("a produce", _produce(), ApiKey.PRODUCE, PRODUCE_VERSION),
            client.walk("a fetch", _fetch(), ApiKey.FETCH, FETCH_VERSION),
        )
    finally:
        client.close()


def _told(walk: Walk) -> str:
    lines = [
        f"{walk.name}: {len(walk.hops)} hops, {len(walk.files)} files, {len(walk.rooms)} rooms"
    ]
    lines += [f"  {number:3} {name}" for number, name in enumerate(walk.hops, 1)]
    return "\n".join(lines)


def _row(walk: Walk) -> str:
    return f"| {walk.name} | {len(walk.hops)} | {len(walk.files)} | {len(walk.rooms)} |"


def main(show: Callable[[str], object] = print) -> None:
    parser = argparse.ArgumentParser(prog="python -m checks.walks", description=__doc__)
    parser.add_argument("--markdown", action="store_true", help="a table of the figures")
    options = parser.parse_args()
    found = trio.run(walks)
    if options.markdown:
        show("| walk of | hops | files | rooms |\n|---|---|---|---|")
    for walk in found:
        show(_row(walk) if options.markdown else _told(walk))


if __name__ == "__main__":
    main()
