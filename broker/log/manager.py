"""LogManager: the partitions that this broker holds, found by name or by topic id.

Follows the topic catalog: a created topic's partitions are taken over, a deleted topic's are put
offline and their ledgers deleted. One keeper task per partition, started in `run`'s nursery.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from broker.cluster.catalog import DELETED_PATH, PARTITIONS_PATH, TopicChange
from broker.log.chain import Chain, ChainFormatError
from broker.log.keeper import Keeper
from broker.log.partition import PartitionLog, State
from ledger.errors import LedgerError
from metadata.store import MetadataError, NoNodeError
from runtime.logs import kv
from wire.kafka.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from broker.cluster.catalog import Topic, TopicCatalog, TopicEvent
    from broker.log.settings import LogSettings
    from ledger.client import LedgerClient
    from metadata.store import MetadataStore
    from runtime.env import Env

logger = logging.getLogger(__name__)

#: How long a partition that went offline by accident rests before it is taken over again.
RETAKE_DELAY_SECONDS = 1.0
RETAKE_DELAY_MAX_SECONDS = 10.0


@dataclass(slots=True)
class _Held:
    log: PartitionLog
    keeper: Keeper
    scope: trio.CancelScope


class LogManager:
    def __init__(
        self,
        catalog: TopicCatalog,
        store: MetadataStore,
        ledgers: LedgerClient,
        env: Env,
        settings: LogSettings,
        *,
        retention_check_interval_ms: int = 300_000,
    ) -> None:
        self._catalog = catalog
        self._store = store
        self._ledgers = ledgers
        self._env = env
        self._settings = settings
        self._retention_check_seconds = retention_check_interval_ms / 1000
        self._held: dict[tuple[str, int], _Held] = {}
        self._names: dict[UUID, str] = {}
        self._retake_delays: dict[tuple[str, int], float] = {}
        self._nursery: trio.Nursery | None = None
        self._stopping = False

    # -- look-up -------------------------------------------------------------------------------

    def get(self, topic: str, partition: int) -> PartitionLog:
        """KafkaError UNKNOWN_TOPIC_OR_PARTITION."""
        held = self._held.get((topic, partition))
        if held is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return held.log

    def get_by_id(self, topic_id: UUID, partition: int) -> PartitionLog:
        """KafkaError UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION."""
        name = self._names.get(topic_id)
        if name is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        return self.get(name, partition)

    def name_of(self, topic_id: UUID) -> str | None:
        return self._names.get(topic_id)

    def all(self) -> Iterator[PartitionLog]:
        return (held.log for held in self._held.values())

    async def delete_records(self, topic: str, partition: int, offset: int) -> int:
        """The new log start. KafkaError as Keeper.delete_records and `get`."""
        held = self._held.get((topic, partition))
        if held is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return await held.keeper.delete_records(offset)

    # -- life ----------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Takes over every partition of the catalog and keeps them; when cancelled, closes the
        open ledgers first (shielded)."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._sweep_deleted)
                for topic in self._catalog.all():
                    self.follow(topic)
                self._catalog.subscribe(self._on_topic_event)
                task_status.started()
                try:
                    while True:
                        await trio.sleep(self._retention_check_seconds)
                        for held in list(self._held.values()):
                            held.keeper.check_retention()
                finally:
                    self._stopping = True
                    with trio.CancelScope(shield=True):
                        await self._close_all()
        finally:
            self._nursery = None

    async def _close_all(self) -> None:
        async with trio.open_nursery() as nursery:
            for held in self._held.values():
                nursery.start_soon(held.keeper.close)

    def refresh_configs(self) -> None:
        """A broker-wide default changed: every topic's settings are looked up anew."""
        for held in self._held.values():
            held.log.config = self._catalog.config(held.log.topic)

    def bookies_changed(self) -> None:
        """Bookies came or went (BookieWatcher.subscribe)."""
        for held in self._held.values():
            held.keeper.bookies_changed()

    def _on_topic_event(self, event: TopicEvent) -> None:
        self.follow(event.topic)
        if event.change is TopicChange.DISCARDED and self._nursery is not None:
            self._nursery.start_soon(self._sweep_deleted)

    def follow(self, topic: Topic) -> None:
        """Makes what is held agree with the catalog's picture of one topic."""
        current = self._catalog.get(topic.name)
        if current is None or current.id != topic.id:
            self._drop(topic)
        if current is None:
            return
        self._names[current.id] = current.name
        for partition in range(current.partition_count):
            held = self._held.get((current.name, partition))
            if held is None:
                self._hold(current, partition)
            else:
                held.log.topic = current
                held.log.config = self._catalog.config(current)

    def _hold(self, topic: Topic, partition: int) -> None:
        if self._nursery is None or self._stopping:
            return
        config = self._catalog.config(topic)
        log = PartitionLog(topic, partition, config, self._env, self._settings)
        keeper = Keeper(
            log,
            partition_path(topic.id, partition),
            self._store,
            self._ledgers,
            self._env,
            self._settings,
        )
        scope = trio.CancelScope()
        self._held[topic.name, partition] = _Held(log, keeper, scope)
        self._nursery.start_soon(self._keep, topic, partition, keeper, scope)

    async def _keep(
        self, topic: Topic, partition: int, keeper: Keeper, scope: trio.CancelScope
    ) -> None:
        with scope:
            await keeper.run()
            if self._stopping:
                return
            await trio.sleep(self._retake_delay((topic.name, partition), keeper))
            held = self._held.get((topic.name, partition))
            if held is not None and held.keeper is keeper:
                del self._held[topic.name, partition]
                current = self._catalog.get(topic.name)
                if current is not None and current.id == topic.id:
                    self._hold(current, partition)

    def _retake_delay(self, key: tuple[str, int], keeper: Keeper) -> float:
        """Longer each time that the take-over itself fails."""
        delay = RETAKE_DELAY_SECONDS
        if not keeper.took_over:
            delay = min(2 * self._retake_delays.get(key, delay), RETAKE_DELAY_MAX_SECONDS)
            self._retake_delays[key] = delay
        else:
            self._retake_delays.pop(key, None)
        return delay

    def _drop(self, topic: Topic) -> None:
        self._names.pop(topic.id, None)
        dropped = [
            key
            for key, held in self._held.items()
            if key[0] == topic.name and held.log.topic.id == topic.id
        ]
        for key in dropped:
            held = self._held.pop(key)
            self._retake_delays.pop(key, None)
            held.log.go_offline("topic deleted")
            held.scope.cancel()

    async def _sweep_deleted(self) -> None:
        """Deletes the ledgers of deleted topics: their documents wait under DELETED_PATH, so a
        crash in between only delays it."""
        try:
            topic_ids = await self._store.children(DELETED_PATH)
        except NoNodeError:
            return
        for topic_id in topic_ids:
            try:
                # A topic that is gone by now was swept by an earlier call that still ran.
                with suppress(NoNodeError):
                    await self._sweep_topic(f"{DELETED_PATH}/{topic_id}")
            except (MetadataError, LedgerError, ChainFormatError) as error:
                logger.warning("sweep_failed", kv(topic_id=topic_id, error=error))

    async def _sweep_topic(self, path: str) -> None:
        for partition in await self._store.children(path):
            try:
                node = await self._store.get(f"{path}/{partition}")
            except NoNodeError:
                continue  # another sweep was quicker
            chain = Chain.from_bytes(node.data)
            for ledger_id in (*(info.ledger_id for info in chain.ledgers), *chain.deleting):
                await self._ledgers.delete_ledger(ledger_id)
            await self._delete_node(f"{path}/{partition}")
        await self._delete_node(path)

    async def _delete_node(self, path: str) -> None:
        with suppress(NoNodeError):
            await self._store.delete(path)

    def statistics(self) -> tuple[int, int]:
        """(partitions held, of them offline)."""
        offline = sum(held.log.state is State.OFFLINE for held in self._held.values())
        return len(self._held), offline


def partition_path(topic_id: UUID, partition: int) -> str:
    return f"{PARTITIONS_PATH}/{topic_id}/{partition}"
