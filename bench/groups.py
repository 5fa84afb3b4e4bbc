"""Groups of many members, side by side: 1,000 groups of 5, 100 of 50, one of 1,000.

    python -m bench.groups [--servers kafka,quire] [--protocols classic,consumer,share]
                           [--shapes 1000x5,100x50,1x1000] [--partitions 5000] [--rounds 1]

All members are in one process (bench/group_members.py), each on a connection of its own. A hundred
topics have the partitions together, and one other topic as many alone: each of many groups reads
one of the hundred, a single group the one. A case joins all members at once, and waits until each
partition has exactly one owner in its group (of share groups: at least one), of equal parts;
then one member in ten leaves, and it waits again; then heartbeats are sent as fast as answers
come, so many at a time. Both servers wait 3 s for more members of a new classic group, their
default, and put assignments of the consumer protocol at least a second apart; members are heard of
each second. CPU is the server's. Turns are the loop's, by the buckets of quire's own histogram of
what they had of the processor, at most: other programs' time is not in it.
"""

import re
import time
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from bench import clients, rounds
from bench.group_members import MEMBERS, Channel, Group, Loop, Member
from bench.peers import free_port
from bench.rounds import Figure, Measure
from bench.servers import HOST, Kafka, Quire, Server
from wire.kafka.messages.groups import FindCoordinatorRequest
from wire.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic

SETTLED_WITHIN_SECONDS = 300.0
TOPICS = 100
WIDE = "wide"
#: Heartbeats on their way at a time.
BEATS_IN_FLIGHT = 32
#: In milliseconds: what input may cause.
TURN_MS_MAX = 5.0
#: What both are told. `group.share.max.size` is as large as Kafka allows.
SETTINGS = {
    "group.initial.rebalance.delay.ms": "3000",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.share.max.size": "1000",
}
#: Thousands connect at once; with its default of 50 many have to ask again, a second later.
KAFKA_SETTINGS = {
    **SETTINGS,
    "socket.listen.backlog.size": "1024",
}
_TURNS = r'^quire_loop_long_turn_cpu_seconds_bucket\{le="([^"]+)"\} (\S+)$'
Topics = dict[str, tuple[uuid.UUID, int]]


class GroupsKafka(Kafka):
    settings = tuple(f"{key}={value}" for key, value in KAFKA_SETTINGS.items())


class GroupsQuire(Quire):
    """With its pages."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.pages_port = free_port()
        self.options = ("--metrics", f"{HOST}:{self.pages_port}")
        for key, value in SETTINGS.items():
            self.options += ("--set", f"{key}={value}")

    def long_turns(self) -> dict[float, int]:
        """Bucket's upper bound in milliseconds -> turns of the loop that took more than TURN_MS_MAX
        by the clock, and up to that of the processor's time."""
        with urllib.request.urlopen(f"http://{HOST}:{self.pages_port}/metrics", timeout=60) as page:
            text = page.read().decode()
        found = re.findall(_TURNS, text, re.M)
        return {float(bound) * 1000: int(float(count)) for bound, count in found}


SERVERS: dict[str, type[Server]] = {"kafka": GroupsKafka, "quire": GroupsQuire}


def shape_of(words: str) -> tuple[int, int]:
    """(groups, members of each) of «100x50»."""
    groups, members = words.split("x")
    return int(groups), int(members)


def create_topics(server: Server, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap, **clients.QUIET})
    each = max(partitions // TOPICS, 1)
    wanted = [NewTopic(f"topic-{n:03}", each, 1) for n in range(TOPICS)]
    for some in (wanted[:50], wanted[50:], [NewTopic(WIDE, partitions, 1)]):
        made = admin.create_topics(some, request_timeout=clients.TIMEOUT_SECONDS)
        for future in made.values():
            future.result(clients.TIMEOUT_SECONDS)


def topics_of(loop: Loop) -> Topics:
    names = [*(f"topic-{n:03}" for n in range(TOPICS)), WIDE]
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names])
    answer = ask(loop, loop.connect(), request, 12)
    return {each.name: (each.topic_id, len(each.partitions)) for each in answer.topics}


def ask(loop: Loop, channel: Channel, message: Any, version: int) -> Any:
    answers: list[Any] = []
    channel.ask(message, version, answers.append)
    if not loop.run(lambda: bool(answers), clients.TIMEOUT_SECONDS):
        raise RuntimeError(f"{type(message).__name__} is not answered")
    return answers[0]


class Case:
    """Groups of one shape and protocol, on one server."""

    def __init__(self, server: Server, protocol: str, shape: tuple[int, int]) -> None:
        self.server = server
        self.loop = Loop(server.address)
        kind, (count, size) = MEMBERS[protocol], shape
        topics = topics_of(self.loop)
        self.groups: list[Group] = []
        for number in range(count):
            topic = WIDE if count == 1 else f"topic-{number % TOPICS:03}"
            name = f"{protocol}-{count}-{number}-{time.monotonic_ns()}"
            group = kind.group_class(name, {topic: topics[topic]})
            group.expect([kind(self.loop, self.loop.connect(), group) for _ in range(size)])
            self.groups.append(group)
        wanted = FindCoordinatorRequest(coordinator_keys=[self.groups[0].name])
        ask(self.loop, self.loop.connect(), wanted, 4)
        self._unsettled: list[Group] = []

    @property
    def members(self) -> list[Member]:
        return [member for group in self.groups for member in group.members]

    def settle(self) -> float:
        """Seconds until all are settled. RuntimeError if that takes too long."""
        self._unsettled = list(self.groups)
        started = time.monotonic()
        looked_at = [0.0]

        def is_settled() -> bool:
            # Of very many not all the time.
            now = time.monotonic()
            if now < looked_at[0] + 0.02:
                return False
            looked_at[0] = now
            self._unsettled = [each for each in self._unsettled if not each.is_settled]
            return not self._unsettled

        if not self.loop.run(is_settled, SETTLED_WITHIN_SECONDS):
            left = len(self._unsettled)
            raise RuntimeError(f"{left} groups not settled in {SETTLED_WITHIN_SECONDS} s")
        # A group that was settled before the others must be so at the end, too.
        if not all(each.is_settled for each in self.groups):
            return time.monotonic() - started + self.settle()
        return time.monotonic() - started

    def join(self) -> float:
        for member in self.members:
            member.join()
        return self.settle()

    def leave_some(self) -> float:
        """One in ten, of all groups together."""
        for at, member in enumerate(self.members):
            if not at % 10:
                member.leave()
        for group in self.groups:
            group.expect([each for each in group.members if not each.has_left])
        return self.settle()

    def beat(self, seconds: float) -> tuple[float, float]:
        """Heartbeats a second and the 99th percentile of their answers' times in ms."""
        frames = [(member.channel, member.beat_frame()) for member in self.members]
        took: list[float] = []
        started = time.monotonic()
        sent = 0

        def send() -> None:
            nonlocal sent
            channel, frame = frames[sent % len(frames)]
            sent += 1
            began = time.monotonic()

            def answered(answer: bytes) -> None:
                now = time.monotonic()
                took.append(now - began)
                if now < started + seconds:
                    send()

            channel.send(frame, answered)

        for _ in range(min(BEATS_IN_FLIGHT, len(frames))):
            send()
        self.loop.run(lambda: len(took) == sent, seconds + clients.TIMEOUT_SECONDS)
        rate = len(took) / (time.monotonic() - started)
        return rate, sorted(took)[len(took) * 99 // 100] * 1000

    def end(self) -> None:
        """Nobody is left whose session the server would have to end."""
        for member in self.members:
            member.leave()
        ask(self.loop, self.members[-1].channel, MetadataRequest(topics=[]), 12)
        self.loop.close()


def longest_turn(before: dict[float, int], after: dict[float, int]) -> tuple[float, int]:
    """Meanwhile: (upper bound of the longest turn's bucket in ms, turns above TURN_MS_MAX)."""
    passed = {bound: after[bound] - before.get(bound, 0) for bound in sorted(after)}
    total = max(passed.values())
    longest = next(bound for bound, count in passed.items() if count == total)
    short = max(count for bound, count in passed.items() if bound <= TURN_MS_MAX)
    return longest, total - short


def measure(protocol: str, shape: tuple[int, int], seconds: float) -> Measure:
    name = f"{protocol}, {shape[0]:,} x {shape[1]:,}"

    def measured(server: Server, number: int) -> Iterator[Figure]:
        case = Case(server, protocol, shape)
        turns = server.long_turns() if isinstance(server, GroupsQuire) else {}
        cpu = server.cpu_seconds()
        yield f"{name}: all join", "s", case.join()
        yield f"{name}: one in ten leaves", "s", case.leave_some()
        yield f"{name}: CPU of both", "s", server.cpu_seconds() - cpu
        rate, p99 = case.beat(seconds)
        yield f"{name}: heartbeats", "1/s", rate
        yield f"{name}: heartbeats, p99", "ms", p99
        yield f"{name}: memory", "MB", server.memory_mb()
        if isinstance(server, GroupsQuire):
            longest, count = longest_turn(turns, server.long_turns())
            yield f"{name}: longest turn's own time, at most", "ms", longest
            yield f"{name}: turns of more than 5 ms of their own", "", count
        case.end()

    return measured


def main() -> None:
    parser = rounds.options_of(__doc__, SERVERS, count=1)
    parser.add_argument("--protocols", default="classic,consumer")
    parser.add_argument("--shapes", default="1000x5,100x50,1x1000")
    parser.add_argument("--partitions", type=int, default=5_000)
    options = parser.parse_args()
    cases = {
        f"{protocol} {shape}": measure(protocol, shape_of(shape), options.seconds)
        for protocol in options.protocols.split(",")
        for shape in options.shapes.split(",")
    }

    def start(server: Server) -> None:
        server.start()
        create_topics(server, options.partitions)
        # A JVM that is cold is not measured, and the topics of the coordinators are made here.
        for protocol in options.protocols.split(","):
            case = Case(server, protocol, (20, 5))
            case.join()
            case.beat(options.seconds)
            case.end()

    chosen = rounds.choose(parser, options, SERVERS)
    rounds.side_by_side("groups", chosen, start, (cases, options.rounds))


if __name__ == "__main__":
    main()
