"""How long a partition of `__consumer_offsets` takes to load after millions of commits.

    python -m bench.coordinator_load [--commits 10000000] [--keys 10000]

A `quire standalone` with one partition of `__consumer_offsets`, all else as it is. So many offsets
are committed by OffsetCommit, a group's partitions in a request, over a bounded set of keys (group,
topic, partition), while the cleaner does what it does. Then the server is killed and started: this
load is of what was there, with the ledger that was open. Then `quire topics compact`, killed and
started again: this one is of a log that is compacted. Each time is told by the server,
kafka_server_groupcoordinatormetrics_partition_load_time_max, and is from the moment on when the
broker has the partition; beside it, from the start of the process to the answer of an OffsetFetch.
In the end every offset is compared with the last one that was committed.
"""

import argparse
import json
import re
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from bench import clients, load
from bench.peers import free_port
from bench.servers import HOST, Quire

OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR = 8, 9, 10
#: The last ones without tags.
COMMIT_VERSION, FETCH_VERSION, FIND_VERSION = 7, 5, 2
TOPIC, OFFSETS_TOPIC = "commits", "__consumer_offsets"
PARTITIONS = 250
#: Requests on their way, on one connection.
IN_FLIGHT = 8
LOADED_WITHIN_SECONDS = 1200.0
#: The answer to a request of COMMIT_VERSION: size, correlation id, throttle, topics, name.
ANSWER_HEAD = 4 + 4 + 4 + 4 + 2 + len(TOPIC) + 4
#: Codes of OffsetFetch while a partition is not loaded: COORDINATOR_LOAD_IN_PROGRESS,
#: COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR.
NOT_YET = (14, 15, 16)
LOAD_TIME = "kafka_server_groupcoordinatormetrics_partition_load_time_max"


class OffsetsServer(Quire):
    """With its pages, and all groups in one partition."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.pages_port = free_port()

    def command(self) -> list[str]:
        settings = ("--set", "offsets.topic.num.partitions=1")
        pages = ("--metrics", f"{HOST}:{self.pages_port}")
        # Of the interpreter that runs this.
        binary = Path(sys.executable).parent / "quire"
        return [str(binary), *super().command()[1:], *settings, *pages]

    def figure(self, name: str) -> float:
        """Of its page of metrics; NaN while there is none of that name."""
        with urllib.request.urlopen(f"http://{HOST}:{self.pages_port}/metrics", timeout=60) as page:
            text = page.read().decode()
        found = re.search(rf"^{name} (\S+)$", text, re.M)
        return float(found[1]) if found else float("nan")

    def compact(self) -> None:
        """RuntimeError with the command's words if a pass fails."""
        command = [str(Path(sys.executable).parent / "quire"), "topics", "compact", OFFSETS_TOPIC]
        url = f"http://{HOST}:{self.pages_port}"
        token = ("--token-file", str(self.directory / "data" / "admin.token"))
        done = subprocess.run([*command, "--url", url, *token], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stdout + done.stderr)

    def log_facts(self) -> dict[str, float]:
        url = f"http://{HOST}:{self.pages_port}/api/v1/quire/compaction/{OFFSETS_TOPIC}"
        with urllib.request.urlopen(url, timeout=60) as page:
            (facts,) = json.loads(page.read())
        return facts


def text(words: str) -> bytes:
    return struct.pack(">h", len(words)) + words.encode()


def framed(api_key: int, version: int, body: bytes) -> bytes:
    payload = struct.pack(">hhi", api_key, version, 0) + text("bench") + body
    return struct.pack(">i", len(payload)) + payload


def group_name(number: int) -> str:
    return f"group-{number:06}"


def commit_frame(group: int, offset: int) -> bytes:
    """Of one group: that offset of all partitions. A consumer without members commits so."""
    body = text(group_name(group)) + struct.pack(">i", -1) + text("")
    body += struct.pack(">h", -1)  # no instance
    one = struct.Struct(">iqih").pack
    partitions = b"".join(one(n, offset, -1, 0) for n in range(PARTITIONS))
    body += struct.pack(">i", 1) + text(TOPIC) + struct.pack(">i", PARTITIONS) + partitions
    return framed(OFFSET_COMMIT, COMMIT_VERSION, body)


def receive(sock: socket.socket, buffer: bytearray) -> bytes:
    """The next answer, behind its size. load.ConnectionLostError."""
    while len(buffer) < 4 or len(buffer) < 4 + struct.unpack_from(">i", buffer)[0]:
        got = sock.recv(load.RECEIVE_SIZE_BYTES)
        if not got:
            raise load.ConnectionLostError
        buffer += got
    end = 4 + struct.unpack_from(">i", buffer)[0]
    answer = bytes(buffer[4:end])
    del buffer[:end]
    return answer


def ask(server: OffsetsServer, frame: bytes) -> bytes:
    sock = load.connect(server.address)
    try:
        sock.sendall(frame)
        return receive(sock, bytearray())
    finally:
        sock.close()


def make_offsets_topic(server: OffsetsServer) -> None:
    """As a client does that looks for its coordinator; until that answers."""
    ask(server, framed(FIND_COORDINATOR, FIND_VERSION, text(group_name(0)) + b"\0"))
    while fetch_offsets(server, 0) is None:
        time.sleep(0.02)


def commit_all(server: OffsetsServer, requests: int, groups: int, seconds: float) -> int:
    """So many requests, or what is done within so many seconds; the number of requests.
    RuntimeError if a commit is refused."""
    sock, buffer = load.connect(server.address), bytearray()
    good = b"".join(struct.pack(">ih", n, 0) for n in range(PARTITIONS))
    started = time.monotonic()
    told_at = started
    sent = answered = 0
    while answered < requests:
        if time.monotonic() > started + seconds:
            requests = sent
        while sent < requests and sent - answered < IN_FLIGHT:
            sock.sendall(commit_frame(sent % groups, sent // groups))
            sent += 1
        answer = receive(sock, buffer)
        if answer[ANSWER_HEAD - 4 :] != good:
            raise RuntimeError(f"refused: {answer[:80]!r}")
        answered += 1
        if time.monotonic() > told_at + 30:
            told_at = time.monotonic()
            rate = answered * PARTITIONS / (told_at - started)
            print(f"  {answered * PARTITIONS:,} committed, {rate:,.0f}/s", flush=True)
    sock.close()
    took, count = time.monotonic() - started, answered * PARTITIONS
    print(
        f"{count:,} commits of {groups * PARTITIONS:,} keys in {took:.0f} s, {count / took:,.0f}/s",
        flush=True,
    )
    return answered


def fetch_offsets(server: OffsetsServer, group: int) -> list[int] | None:
    """A group's offsets by partition; None while they are not loaded. OSError, RuntimeError."""
    body = text(group_name(group)) + struct.pack(">i", 1) + text(TOPIC)
    body += struct.pack(f">i{PARTITIONS}i", PARTITIONS, *range(PARTITIONS))
    answer = ask(server, framed(OFFSET_FETCH, FETCH_VERSION, body))
    code = struct.unpack(">h", answer[-2:])[0]
    if code in NOT_YET:
        return None
    if code:
        raise RuntimeError(f"OffsetFetch: error {code}")
    at = ANSWER_HEAD - 4
    offsets = []
    for number in range(PARTITIONS):
        partition, offset, _, metadata = struct.unpack_from(">iqih", answer, at)
        at += 18 + max(metadata, 0) + 2
        if partition != number:
            raise RuntimeError(f"partition {partition} where {number} was asked for")
        offsets.append(offset)
    return offsets


@dataclass
class Load:
    """`ms` as the server tells it; `ready_seconds` and `cpu_seconds` from the start of its process
    to the first answer."""

    ms: float
    ready_seconds: float
    cpu_seconds: float
    facts: dict[str, float]
    memory_mb: float


def crash_and_load(server: OffsetsServer) -> Load:
    server.kill()
    started = time.monotonic()
    server.start()
    while fetch_offsets(server, 0) is None:
        if time.monotonic() > started + LOADED_WITHIN_SECONDS:
            raise RuntimeError("not loaded")
        time.sleep(0.02)
    ready, cpu = time.monotonic() - started, server.cpu_seconds()
    return Load(server.figure(LOAD_TIME), ready, cpu, server.log_facts(), server.memory_mb())


def tell(name: str, found: Load) -> None:
    facts = found.facts
    print(
        f"{name}: loaded in {found.ms:,.0f} ms, answered {found.ready_seconds:.2f} s after start"
        f" with {found.cpu_seconds:.2f} s of CPU; {facts['size_bytes'] / 1e6:,.1f} MB in"
        f" {facts['ledgers']} ledgers, offsets {facts['log_start_offset']:,} to"
        f" {facts['high_watermark']:,}, compacted to {facts['cleaned_to']:,};"
        f" memory {found.memory_mb:.0f} MB",
        flush=True,
    )


def check(server: OffsetsServer, requests: int, groups: int) -> None:
    """RuntimeError if an offset is not the last one committed."""
    for group in range(groups):
        last = (requests - 1 - group) // groups
        found = fetch_offsets(server, group)
        if found != [last] * PARTITIONS:
            raise RuntimeError(f"{group_name(group)}: {found} and not {last}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, default=10_000_000)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=3600, help="fewer commits if it is slow")
    options = parser.parse_args()
    groups = max(options.keys // PARTITIONS, 1)
    requests = max(options.commits // PARTITIONS, groups)
    with tempfile.TemporaryDirectory(prefix="quire-bench-") as directory:
        server = OffsetsServer(Path(directory) / "server")
        try:
            server.start()
            admin = AdminClient({"bootstrap.servers": server.bootstrap, **clients.QUIET})
            made = admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])
            made[TOPIC].result(clients.TIMEOUT_SECONDS)
            make_offsets_topic(server)
            tell("empty", crash_and_load(server))
            requests = commit_all(server, requests, groups, options.seconds)
            tell("as it was left", crash_and_load(server))
            check(server, requests, groups)
            started = time.monotonic()
            server.compact()
            print(f"compacted in {time.monotonic() - started:.1f} s")
            tell("compacted", crash_and_load(server))
            check(server, requests, groups)
        finally:
            server.discard()


if __name__ == "__main__":
    main()
