"""Members of groups for bench.groups: thousands in one process, each with a connection of its own,
as real clients have, since a server answers a connection's requests in order and JoinGroup waits.

What members have is counted as they are told it: a partition that two members of a group have at
the same time (of share groups they may) is a RuntimeError, at any moment.
"""

import heapq
import selectors
import socket
import struct
import time
import uuid
from collections import deque
from collections.abc import Callable
from typing import Any

from wire.kafka.errors import ErrorCode
from wire.kafka.headers import decode_response, encode_request
from wire.kafka.message import Message
from wire.kafka.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
)
from wire.kafka.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from wire.kafka.messages.share_groups import ShareGroupHeartbeatRequest

#: A member is heard of this often; Java's clients say 3 s (classic) or what the server tells (5 s).
BEAT_SECONDS = 1.0
RETRY_SECONDS = 0.1
SESSION_MS, REBALANCE_MS = 45_000, 120_000
RECEIVE_BYTES = 1 << 18
#: What is waited for is looked at again after that time at the latest.
LOOK_SECONDS = 0.02
#: Not yet, or elsewhere for a moment.
NOT_YET = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
#: What a partition is called here: (topic, number).
Partition = tuple[Any, int]


class Loop:
    """One thread's connections and timers."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def connect(self) -> "Channel":
        channel = Channel(socket.create_connection(self.address, timeout=60))
        self._selector.register(channel.sock, selectors.EVENT_READ, channel)
        return channel

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            key.data.sock.close()
        self._selector.close()

    def after(self, seconds: float, function: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._timers, (time.monotonic() + seconds, self._count, function))

    def run(self, until: Callable[[], bool], seconds: float) -> bool:
        """Whether `until()` came true in time."""
        deadline = time.monotonic() + seconds
        while not until():
            now = time.monotonic()
            if now > deadline:
                return False
            while self._timers and self._timers[0][0] <= now:
                heapq.heappop(self._timers)[2]()
            next_at = min(self._timers[0][0] if self._timers else deadline, now + LOOK_SECONDS)
            for key, _ in self._selector.select(max(next_at - now, 0)):
                key.data.receive()
        return True


class Channel:
    """A connection; answers come in the order of requests."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self._buffer = bytearray()
        self._waiting: deque[Callable[[bytes], None]] = deque()

    def send(self, frame: bytes, then: Callable[[bytes], None]) -> None:
        self._waiting.append(then)
        self.sock.sendall(frame)

    def ask(self, message: Message, version: int, then: Callable[[Any], None]) -> None:
        def decoded(answer: bytes) -> None:
            then(decode_response(message.INFO.key, version, answer)[1])

        self.send(encode_request(message, version, 0, "bench"), decoded)

    def receive(self) -> None:
        got = self.sock.recv(RECEIVE_BYTES)
        if not got:
            raise RuntimeError("the server closed a member's connection")
        buffer = self._buffer
        buffer += got
        while len(buffer) >= 4:
            end = 4 + int.from_bytes(buffer[:4], "big")
            if len(buffer) < end:
                break
            answer = bytes(buffer[4:end])
            del buffer[:end]
            self._waiting.popleft()(answer)


class Group:
    """Members of one group, and who has what. `topics`: name -> (id, number of partitions)."""

    #: Of a share group a partition may have several members.
    is_shared = False

    def __init__(self, name: str, topics: dict[str, tuple[uuid.UUID, int]]) -> None:
        self.name = name
        self.topics = topics
        self.partition_count = sum(count for _, count in topics.values())
        self.members: list[Member] = []
        self._owners: dict[Partition, int] = {}
        self._size = 1

    def expect(self, members: "list[Member]") -> None:
        """These are to have everything, in equal parts."""
        self.members = members
        self._size = len(members)

    def moved(self, before: set[Partition], after: set[Partition]) -> None:
        owners = self._owners
        for each in before - after:
            owners[each] -= 1
            if not owners[each]:
                del owners[each]
        for each in after - before:
            owners[each] = owners.get(each, 0) + 1
            if owners[each] > 1 and not self.is_shared:
                raise RuntimeError(f"{self.name}: two members have {each}")

    @property
    def is_settled(self) -> bool:
        """Every partition has its member, every member its part, of one generation or epoch."""
        if len(self._owners) != self.partition_count:
            return False
        least = self.partition_count // self._size
        most = self.partition_count if self.is_shared else least + 1
        epoch = self.members[0].epoch
        return all(
            each.is_stable and each.epoch == epoch and least <= len(each.has) <= most
            for each in self.members
        )


class SharedGroup(Group):
    is_shared = True


class Member:
    """`join` it; it goes on by itself until `leave`."""

    group_class = Group

    def __init__(self, loop: Loop, channel: Channel, group: Group) -> None:
        self.loop, self.channel, self.group = loop, channel, group
        self.has: set[Partition] = set()
        self.epoch = 0
        self.is_stable = False
        self.has_left = False

    def join(self) -> None:
        raise NotImplementedError

    def leave(self) -> None:
        raise NotImplementedError

    def beat_frame(self) -> bytes:
        """The heartbeat of a member that has what it is to have."""
        raise NotImplementedError

    def set_has(self, partitions: set[Partition]) -> None:
        before, self.has = self.has, partitions
        self.group.moved(before, partitions)

    def refused(self, error: int) -> None:
        raise RuntimeError(f"{self.group.name}: {ErrorCode(error).name}")


class ClassicMember(Member):
    """The eager protocol: who joins again has nothing. The leader assigns in turn."""

    JOIN, SYNC, BEAT, LEAVE = 9, 5, 4, 5
    PROTOCOL = ("consumer", "roundrobin")

    def __init__(self, loop: Loop, channel: Channel, group: Group) -> None:
        super().__init__(loop, channel, group)
        self.member_id = ""
        names = b"".join(struct.pack(">h", len(name)) + name.encode() for name in group.topics)
        self._metadata = struct.pack(">hi", 0, len(group.topics)) + names + struct.pack(">i", -1)
        #: A heartbeat that was put off before this member joined again is not sent.
        self._joins = 0

    def join(self) -> None:
        self.is_stable = False
        self._joins += 1
        self.set_has(set())
        kind, protocol = self.PROTOCOL
        request = JoinGroupRequest(
            self.group.name, SESSION_MS, REBALANCE_MS, self.member_id, None, kind,
            [JoinGroupRequestProtocol(protocol, self._metadata)],
        )  # fmt: skip
        self.channel.ask(request, self.JOIN, self._joined)

    def _joined(self, answer: Any) -> None:
        if self.has_left:
            return
        match answer.error_code:
            case ErrorCode.NONE:
                self.epoch = answer.generation_id
                leads = answer.leader == answer.member_id
                self._sync(self._assigned([m.member_id for m in answer.members]) if leads else [])
            case ErrorCode.MEMBER_ID_REQUIRED:
                self.member_id = answer.member_id
                self.join()
            case _:
                self._again(answer.error_code)

    def _again(self, error: int) -> None:
        if error == ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        if error in NOT_YET:
            self.loop.after(RETRY_SECONDS, self.join)
        elif error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS,
                       ErrorCode.ILLEGAL_GENERATION):  # fmt: skip
            self.join()
        else:
            self.refused(error)

    def _assigned(self, ids: list[str]) -> list[SyncGroupRequestAssignment]:
        parts: dict[str, dict[str, list[int]]] = {each: {} for each in ids}
        at = 0
        for topic, (_, count) in self.group.topics.items():
            for number in range(count):
                parts[ids[at % len(ids)]].setdefault(topic, []).append(number)
                at += 1
        return [SyncGroupRequestAssignment(each, _packed(mine)) for each, mine in parts.items()]

    def _sync(self, assignments: list[SyncGroupRequestAssignment]) -> None:
        request = SyncGroupRequest(
            self.group.name, self.epoch, self.member_id, None, *self.PROTOCOL, assignments
        )
        self.channel.ask(request, self.SYNC, self._synced)

    def _synced(self, answer: Any) -> None:
        if self.has_left:
            return
        if answer.error_code:
            self._again(answer.error_code)
            return
        self.set_has(_unpacked(answer.assignment))
        self.is_stable = True
        self._beat_later(self._joins)

    def _beat_later(self, joins: int) -> None:
        self.loop.after(BEAT_SECONDS, lambda: self._beat(joins))

    def _beat(self, joins: int) -> None:
        if joins != self._joins or self.has_left:
            return

        def done(answer: bytes) -> None:
            error = int.from_bytes(answer[9:11], "big", signed=True)
            if joins != self._joins or self.has_left:
                return
            if error:
                self._again(error)
            else:
                self._beat_later(joins)

        self.channel.send(self.beat_frame(), done)

    def beat_frame(self) -> bytes:
        request = HeartbeatRequest(self.group.name, self.epoch, self.member_id)
        return encode_request(request, self.BEAT, 0, "bench")

    def leave(self) -> None:
        self.has_left = True
        self.set_has(set())
        request = LeaveGroupRequest(self.group.name, "", [MemberIdentity(self.member_id)])
        self.channel.ask(request, self.LEAVE, lambda answer: None)


class ConsumerMember(Member):
    """KIP-848. What it is told it has at once, and says so at once."""

    VERSION = 1

    def __init__(self, loop: Loop, channel: Channel, group: Group) -> None:
        super().__init__(loop, channel, group)
        self.member_id = str(uuid.uuid4())
        self._beats = 0

    def request(self, *, is_full: bool) -> Message:
        owned = None
        if is_full:
            by_topic: dict[uuid.UUID, list[int]] = {}
            for topic_id, number in self.has:
                by_topic.setdefault(topic_id, []).append(number)
            owned = [
                ConsumerGroupHeartbeatRequestTopicPartitions(*each) for each in by_topic.items()
            ]
        request = ConsumerGroupHeartbeatRequest(self.group.name, self.member_id, self.epoch)
        request.topic_partitions = owned
        if not self.epoch:
            request.rebalance_timeout_ms = REBALANCE_MS
            request.subscribed_topic_names = list(self.group.topics)
        return request

    def join(self) -> None:
        self.epoch, self.is_stable = 0, False
        self.set_has(set())
        self._ask(is_full=True)

    def _ask(self, *, is_full: bool = False) -> None:
        self._beats += 1
        self.channel.ask(self.request(is_full=is_full), self.VERSION, self._answered)

    def _answered(self, answer: Any) -> None:
        if self.has_left:
            return
        if answer.error_code in NOT_YET:
            self.loop.after(RETRY_SECONDS, self.join if not self.epoch else self._beat_now)
            return
        if answer.error_code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH):
            self.join()
            return
        if answer.error_code:
            self.refused(answer.error_code)
        self.epoch, self.is_stable = answer.member_epoch, True
        if answer.assignment is not None:
            told = {
                (each.topic_id, number)
                for each in answer.assignment.topic_partitions
                for number in each.partitions
            }
            if told != self.has:
                self.set_has(told)
                self.acknowledge()
                return
        self._beat_later()

    def acknowledge(self) -> None:
        self._ask(is_full=True)

    def _beat_later(self) -> None:
        beats = self._beats
        self.loop.after(BEAT_SECONDS, lambda: self._beat_now(beats))

    def _beat_now(self, beats: int | None = None) -> None:
        if not self.has_left and beats in (None, self._beats):
            self._ask()

    def beat_frame(self) -> bytes:
        return encode_request(self.request(is_full=False), self.VERSION, 0, "bench")

    def leave(self) -> None:
        self.has_left = True
        self.set_has(set())
        self.epoch = -1
        self.channel.ask(self.request(is_full=False), self.VERSION, lambda answer: None)


class ShareMember(ConsumerMember):
    """KIP-932: nothing is given back."""

    group_class = SharedGroup

    def request(self, *, is_full: bool) -> Message:
        request = ShareGroupHeartbeatRequest(self.group.name, self.member_id, self.epoch)
        if not self.epoch:
            request.subscribed_topic_names = list(self.group.topics)
        return request

    def acknowledge(self) -> None:
        self._beat_later()


def _packed(assigned: dict[str, list[int]]) -> bytes:
    """`ConsumerProtocolAssignment` 0."""
    topics = [
        struct.pack(">h", len(topic)) + topic.encode()
        + struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)
        for topic, numbers in assigned.items()
    ]  # fmt: skip
    return struct.pack(">hi", 0, len(topics)) + b"".join(topics) + struct.pack(">i", -1)


def _unpacked(assignment: bytes) -> set[Partition]:
    found: set[Partition] = set()
    (topics,) = struct.unpack_from(">i", assignment, 2)
    at = 6
    for _ in range(topics):
        (size,) = struct.unpack_from(">h", assignment, at)
        topic = assignment[at + 2 : at + 2 + size].decode()
        at += 2 + size
        (count,) = struct.unpack_from(">i", assignment, at)
        numbers = struct.unpack_from(f">{count}i", assignment, at + 4)
        at += 4 + 4 * count
        found.update((topic, number) for number in numbers)
    return found


MEMBERS: dict[str, type[Member]] = {
    "classic": ClassicMember,
    "consumer": ConsumerMember,
    "share": ShareMember,
}
