"""What the coordinator of a group knows of it that Kafka's APIs do not tell: why the last rebalance
began, who is waited for and since when, when each member was heard of last.

    GET /api/v1/quire/groups/<group>    404: it is not coordinated here, or there is none, or it is
                                        a share group, in which nobody waits for another member

    {"group", "type", "state", "epoch", "assignment_epoch",
     "rebalance": {"reason", "ago_ms"} or null, "waits_for": [{"member", "what", "for_ms",
     "left_ms"}, ...], "members": [{"member", "state", "epoch", "silent_ms", "session_timeout_ms"}]}

All times are those of this server's clock, since the server has the group: a coordinator that took
the group over knows of no rebalance before, and counts everybody's silence from then on. A member
of the classic protocol that waits for an answer is not silent: `silent_ms` is null.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import trio

from broker.groups.classic.group import COMPLETING, NEVER_MS, PREPARING
from broker.groups.classic.types import GroupState
from broker.groups.consumer.group import NOTHING_ASSIGNED
from broker.groups.consumer.live import LiveGroup
from broker.groups.consumer.types import MemberState
from broker.groups.share.live import LiveShareGroup
from broker.groups.streams.live import LiveStreamsGroup
from runtime.http import JSON, HttpError, HttpResponse

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from broker.groups.classic.group import ClassicGroup
    from broker.groups.coordinator import GroupCoordinator
    from runtime.http import HttpRequest

Facts = dict[str, Any]

#: Members that are told between two chances for others to run: well below 1 ms.
RUN_COUNT = 50

_MEMBER_STATES = {
    MemberState.STABLE: "stable",
    MemberState.UNREVOKED_PARTITIONS: "is to give partitions back",
    MemberState.UNRELEASED_PARTITIONS: "waits for partitions of others",
    MemberState.UNKNOWN: "unknown",
}


class GroupPages:
    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    async def respond(self, request: HttpRequest, name: str) -> HttpResponse:
        """`name`: of a group. HttpError."""
        if request.method not in ("GET", "HEAD"):
            raise HttpError(405, "GET or HEAD")
        _, entry = self._coordinator.describe(name)
        if entry is None:
            raise HttpError(404, f"group {name[:200]} is not coordinated here")
        group, now_ms = entry.group, self._coordinator.timers.now_ms()
        if isinstance(group, LiveShareGroup | LiveStreamsGroup):
            raise HttpError(404, f"group {name[:200]} is a {group.kind} group")
        if isinstance(group, LiveGroup):
            facts = _of_consumers(group)
            waits = _consumers_waited_for(group, now_ms)
            session_ms = self._coordinator.consumers.times_of(name).session_timeout_ms
            members = _consumer_members(group, session_ms, now_ms)
        else:
            facts = _of_classic(group)
            waits = _classic_waited_for(group, now_ms)
            members = _classic_members(group, now_ms)
        rebalance = None
        if group.rebalance is not None:
            reason, at_ms = group.rebalance
            rebalance = {"reason": reason, "ago_ms": max(0, now_ms - at_ms)}
        facts = {"group": name, "type": group.kind, **facts, "rebalance": rebalance}
        return HttpResponse(200, _streamed(facts, waits_for=waits, members=members), JSON)


async def _streamed(facts: Facts, **lists: Iterator[Facts]) -> AsyncGenerator[bytes, None]:
    """One JSON object. A group may have thousands of members."""
    yield json.dumps(facts)[:-1].encode()
    count = 0
    for name, rows in lists.items():
        yield f', "{name}": ['.encode()
        comma = ""
        for row in rows:
            yield (comma + json.dumps(row)).encode()
            comma = ",\n"
            count += 1
            if count % RUN_COUNT == 0:
                await trio.lowlevel.checkpoint()
        yield b"]"
    yield b"}\n"


def _waited(member_id: str, what: str, since_ms: int, until_ms: int, now_ms: int) -> Facts:
    return {
        "member": member_id,
        "what": what,
        "for_ms": max(0, now_ms - since_ms),
        "left_ms": None if until_ms == NEVER_MS else max(0, until_ms - now_ms),
    }


# -- classic groups --------------------------------------------------------------------------------


def _of_classic(group: ClassicGroup) -> Facts:
    return {
        "state": group.state.value,
        "epoch": group.generation_id,
        "assignment_epoch": group.generation_id if group.state is GroupState.STABLE else None,
    }


def _classic_waited_for(group: ClassicGroup, now_ms: int) -> Iterator[Facts]:
    since_ms = group.state_timestamp_ms
    for member in list(group.members.by_id.values()):
        member_id = member.member_id
        if group.state is PREPARING and member.join_token is None:
            yield _waited(member_id, "JoinGroup", since_ms, group.join_deadline_ms, now_ms)
        elif group.state is COMPLETING and member_id == group.members.leader_id:
            until_ms = group.sync_deadline_ms
            yield _waited(member_id, "the leader's SyncGroup", since_ms, until_ms, now_ms)
        elif group.state is GroupState.STABLE and member_id in group.pending_sync:
            yield _waited(member_id, "SyncGroup", since_ms, group.sync_deadline_ms, now_ms)


def _classic_members(group: ClassicGroup, now_ms: int) -> Iterator[Facts]:
    for member in list(group.members.by_id.values()):
        heard_ms = member.session_deadline_ms - member.session_timeout_ms
        yield {
            "member": member.member_id,
            "state": "waits for the group" if member.is_excused else "stable",
            "epoch": group.generation_id,
            "silent_ms": None if member.is_excused else max(0, now_ms - heard_ms),
            "session_timeout_ms": member.session_timeout_ms,
        }


# -- consumer groups -------------------------------------------------------------------------------


def _of_consumers(group: LiveGroup) -> Facts:
    return {
        "state": group.state.value,
        "epoch": group.stored.epoch,
        "assignment_epoch": group.stored.assignment_epoch,
    }


def _consumers_waited_for(group: LiveGroup, now_ms: int) -> Iterator[Facts]:
    for deadlines, what in (
        (group.revocation_deadlines, "partitions that it is to give back"),
        (group.join_deadlines, "JoinGroup"),
        (group.sync_deadlines, "SyncGroup"),
    ):
        for member_id, until_ms in list(deadlines.items()):
            member = group.applied.members.get(member_id)
            if member is not None:
                since_ms = until_ms - max(member.rebalance_timeout_ms, 0)
                yield _waited(member_id, what, since_ms, until_ms, now_ms)


def _consumer_members(group: LiveGroup, session_ms: int, now_ms: int) -> Iterator[Facts]:
    """`session_ms`: the timeout in force, by which the last heartbeat's time is reckoned."""
    for member_id, member in list(group.stored.members.items()):
        current = group.stored.current.get(member_id, NOTHING_ASSIGNED)
        timeout_ms = session_ms
        if member.classic is not None:
            timeout_ms = member.classic.session_timeout_ms
        deadline_ms = group.session_deadlines.get(member_id)
        yield {
            "member": member_id,
            "state": _MEMBER_STATES[current.state],
            "epoch": current.epoch,
            "silent_ms": None
            if deadline_ms is None
            else max(0, now_ms - (deadline_ms - timeout_ms)),
            "session_timeout_ms": timeout_ms,
        }
