"""Internal topics of streams groups, made when a member's heartbeat finds them missing.

Who asks is not kept waiting: its answer says that they are missing, and the heartbeat after they
were made finds them. A topic is made once at a time, however many members ask. Why one could not be
made is told to all who ask for it, for two of the group's heartbeat intervals; after that it is
tried again.

Owner: the coordinator's task, which runs `make` for each request.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from metadata.store import MetadataError
from runtime.logs import kv
from wire.kafka.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from broker.groups.streams.types import InternalTopic

logger = logging.getLogger(__name__)

#: Failures that are remembered.
FAILURES_MAX = 1_000


class InternalTopics:
    """`create(topic)`: KafkaError or MetadataError. `now_ms()`: of any clock that does not go
    back."""

    def __init__(
        self, create: Callable[[InternalTopic], Awaitable[None]], now_ms: Callable[[], int]
    ) -> None:
        self._create = create
        self._now_ms = now_ms
        self._on_the_way: set[str] = set()
        #: By topic: until when it is told, and what.
        self._failures: dict[str, tuple[int, str]] = {}

    def claim(self, topics: Mapping[str, InternalTopic]) -> list[InternalTopic]:
        """Those that nobody makes yet, and that did not fail just now; they are to be given to
        `make`."""
        self._forget_old()
        mine = [
            topic
            for name, topic in topics.items()
            if name not in self._on_the_way and name not in self._failures
        ]
        self._on_the_way.update(topic.name for topic in mine)
        return mine

    async def make(self, topics: Iterable[InternalTopic], failures_told_ms: int) -> None:
        for topic in topics:
            try:
                await self._create(topic)
            except KafkaError as error:
                if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                    self._fail(topic.name, str(error), failures_told_ms)
            except MetadataError as error:
                self._fail(topic.name, str(error), failures_told_ms)
            else:
                logger.info("internal topic made", kv(topic=topic.name, count=topic.partitions))
            finally:
                self._on_the_way.discard(topic.name)

    def failures(self, names: Iterable[str]) -> list[tuple[str, str]]:
        """(topic, why) of those that could not be made."""
        self._forget_old()
        return [(name, self._failures[name][1]) for name in names if name in self._failures]

    def _fail(self, name: str, why: str, told_ms: int) -> None:
        logger.warning("internal topic not made", kv(topic=name, error=why))
        if len(self._failures) >= FAILURES_MAX:
            del self._failures[next(iter(self._failures))]
        self._failures[name] = (self._now_ms() + told_ms, why)

    def _forget_old(self) -> None:
        now_ms = self._now_ms()
        old = [name for name, (until_ms, _) in self._failures.items() if until_ms <= now_ms]
        for name in old:
            del self._failures[name]
