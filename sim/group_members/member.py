"""A member of a group, of any protocol: it joins, takes its turns, and joins anew when that is
over."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import trio

from sim.client import KafkaClient, Unanswered
from sim.fetching import RETRY_SECONDS
from sim.history import Violation
from sim.workload import RETRIABLE, THINK_SECONDS, Consumer
from wire.kafka.errors import ErrorCode
from wire.kafka.messages import FindCoordinatorRequest, FindCoordinatorResponse

if TYPE_CHECKING:
    from typing import TypeVar

    from sim.history import Partition
    from sim.world import World
    from wire.kafka.message import Message

    M = TypeVar("M", bound=Message)

SESSION_MS, REBALANCE_MS = 2_000, 3_000
#: Of a member's turn: the chance that it falls silent, and that it leaves.
CRASH_SHARE, LEAVE_SHARE = 0.01, 0.01


class OverError(Exception):
    """This membership, or its generation, is over."""


class Member(ABC):
    #: The group's name, and what its protocol says of a membership that is over.
    group: str
    over_codes: frozenset[ErrorCode]

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self.name = name
        #: Who makes progress by this one's.
        self.reports_as = name
        self._rng = world.rng_for(name)
        self._reader = Consumer(world, name)
        self._client: KafkaClient = self._reader.client
        #: Where the group's coordinator was last.
        self._coordinator: tuple[str, int] | None = None
        self._id = ""
        #: Of a static member its `group.instance.id` (KIP-345).
        self.instance: str | None = None
        #: The generation, or the member's epoch.
        self._epoch = -1
        self._assigned: list[Partition] = []

    async def run(self) -> None:
        while not self._is_done():
            try:
                await self._join()
                while not self._is_done():
                    await self._turn()
            except OverError:
                await trio.sleep(RETRY_SECONDS)
            except Unanswered:
                self._coordinator = None
                await trio.sleep(RETRY_SECONDS)
        await self._end()

    async def _end(self) -> None:
        """It is done."""
        await self._leave()

    @abstractmethod
    async def _join(self) -> None:
        """Returns when the member may read; OverError, Unanswered."""

    @abstractmethod
    async def _beat(self) -> None:
        """One heartbeat; OverError, Unanswered."""

    @abstractmethod
    async def _leave(self) -> None:
        """If it can be told; else the session ends by itself."""

    @abstractmethod
    def _forget(self) -> None:
        """Nobody hears of this membership any more."""

    @abstractmethod
    async def _work(self) -> None:
        """What it does with what is its own; OverError, Unanswered."""

    @abstractmethod
    def _is_done(self) -> bool:
        """Whether nothing is left to do, once nobody writes any more."""

    async def _ask(self, body: Message, answer: type[M], version: int | None = None) -> M:
        """Of the coordinator; Unanswered also if there is none."""
        if self._coordinator is None:
            found = await self._client.ask_any(
                FindCoordinatorRequest(key=self.group, key_type=0), FindCoordinatorResponse
            )
            if found.error_code:
                self._check(ErrorCode(found.error_code))
                raise Unanswered("no coordinator")
            self._coordinator = (found.host, found.port)
        return await self._client.ask_at(self._coordinator, body, answer, version)

    def _check(self, code: ErrorCode) -> None:
        """OverError if the membership is over, Unanswered if another broker is to be asked."""
        if code is ErrorCode.NONE:
            return
        self._world.trace.count(f"group {code.name}")
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            self._lose_id()
        if code in self.over_codes:
            raise OverError
        if code not in RETRIABLE:
            raise Violation("refused", f"{self.name}: {code.name}")
        raise Unanswered(code.name)

    def _lose_id(self) -> None:
        """The group does not know it any more."""
        self._id = ""

    async def _turn(self) -> None:
        world = self._world
        await self._work()
        fate = self._rng.random()
        if fate < CRASH_SHARE and not world.is_draining:
            world.trace.event(self.name, "falls silent")
            world.trace.count("members crashed")
            self._forget()
            await trio.sleep(4 * self._rng.random())
            raise OverError
        if fate > 1 - LEAVE_SHARE and not world.is_draining:
            await self._leave()
            raise OverError
        await self._beat()
        world.made_progress(self.reports_as)
        await trio.sleep(THINK_SECONDS * self._rng.random())
