"""A driver for one group's state machine: carries out effects as the shell does, and checks what
must always hold (a request is answered once; invariants of the member table)."""

from __future__ import annotations

import itertools

import pytest

from broker.groups.group_core import ClassicGroup
from broker.groups.group_types import (
    Answer,
    ArmTimer,
    GroupLimits,
    JoinInput,
    LeavingMember,
    Persist,
    SyncInput,
)
from wire.kafka.errors import ErrorCode


class GroupDriver:
    def __init__(self, limits: GroupLimits | None = None, *, auto_store: bool = True) -> None:
        self.limits = limits or GroupLimits()
        self.group = ClassicGroup("g", self.limits)
        self.now_ms = 1_000_000
        self.auto_store = auto_store
        self.answers: dict[int, object] = {}
        self.asked: set[int] = set()
        self.stored = []  # snapshots, in order
        self.unstored = []  # (persist) not acknowledged yet
        self.timer_ms: int | None = None
        self._tokens = itertools.count(1)

    # inputs; the token of what was asked is returned, its answer is in `answers`

    def join(self, member_id="", **kwargs) -> int:
        token = next(self._tokens)
        kwargs.setdefault("new_member_id", f"new-{token}")
        kwargs.setdefault("instance_id", None)
        kwargs.setdefault("session_timeout_ms", 10_000)
        kwargs.setdefault("rebalance_timeout_ms", 60_000)
        kwargs.setdefault("protocol_type", "consumer")
        kwargs.setdefault("protocols", (("range", b"m"),))
        kwargs.setdefault("client_id", "client")
        kwargs.setdefault("client_host", "host")
        self.asked.add(token)
        self.apply(self.group.join(token, JoinInput(member_id, **kwargs), self.now_ms))
        return token

    def sync(self, member_id, generation_id=None, assignments=None, **kwargs) -> int:
        token = next(self._tokens)
        generation_id = self.group.generation_id if generation_id is None else generation_id
        request = SyncInput(
            member_id,
            kwargs.get("instance_id"),
            generation_id,
            kwargs.get("protocol_type"),
            kwargs.get("protocol_name"),
            assignments or {},
        )
        self.asked.add(token)
        self.apply(self.group.sync(token, request, self.now_ms))
        return token

    def heartbeat(self, member_id, generation_id=None, instance_id=None) -> ErrorCode:
        generation_id = self.group.generation_id if generation_id is None else generation_id
        return self.group.heartbeat(member_id, instance_id, generation_id, self.now_ms)

    def leave(self, *leaving) -> list[ErrorCode]:
        given = [x if isinstance(x, LeavingMember) else LeavingMember(x) for x in leaving]
        errors, effects = self.group.leave(given, self.now_ms)
        self.apply(effects)
        return errors

    def pass_time(self, ms: int) -> None:
        """Moves the clock, firing the timer whenever it was armed for."""
        end_ms = self.now_ms + ms
        while self.timer_ms is not None and self.timer_ms <= end_ms:
            self.now_ms = max(self.now_ms, self.timer_ms)
            self.timer_ms = None
            self.apply(self.group.tick(self.now_ms))
        self.now_ms = end_ms

    def store(self, error=ErrorCode.NONE) -> None:
        """Acknowledges or fails what waits to be stored."""
        waiting, self.unstored = self.unstored, []
        for persist in waiting:
            if not error:
                self.stored.append(persist.snapshot)
            self.apply(self.group.stored(persist.then, error, self.now_ms))

    def apply(self, effects) -> None:
        for effect in effects:
            match effect:
                case Answer():
                    assert effect.token in self.asked
                    assert effect.token not in self.answers, "answered twice"
                    self.answers[effect.token] = effect.result
                case ArmTimer():
                    if self.timer_ms is None or effect.at_ms < self.timer_ms:
                        self.timer_ms = effect.at_ms
                case Persist():
                    self.unstored.append(effect)
        self.group.members.check()
        if self.auto_store and self.unstored:
            self.store()

    # short ways to a state

    def join_all(self, count: int, **kwargs) -> list[str]:
        """`count` dynamic members in the next generation, CompletingRebalance; the first leads."""
        tokens = [self.join(requires_known_member_id=False, **kwargs) for _ in range(count)]
        while not all(token in self.answers for token in tokens):
            self.pass_time(self.limits.initial_rebalance_delay_ms)
        return [self.answers[token].member_id for token in tokens]

    def stabilize(self, member_ids: list[str]) -> None:
        """All of them sync; the leader gives each its own name as its assignment."""
        for member_id in member_ids:
            given = {each: each.encode() for each in member_ids}
            self.sync(member_id, assignments=given)

    def stable(self, count: int, **kwargs) -> list[str]:
        members = self.join_all(count, **kwargs)
        self.stabilize(members)
        return members

    def unanswered(self) -> set[int]:
        return self.asked - self.answers.keys()


@pytest.fixture
def driver() -> GroupDriver:
    return GroupDriver()


@pytest.fixture
def make_driver():
    return GroupDriver
