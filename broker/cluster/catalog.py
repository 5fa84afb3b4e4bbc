"""TopicCatalog: the cluster's topics, in metadata and in memory.

Owner of the topics' nodes and of which partitions exist; what is *in* a partition's node is
broker/log's. Reads are plain memory; changes are compare-and-set, durable before memory changes and
before listeners hear of them. `run` follows what other brokers change. A topic's versions decide
which picture is newer, so nobody hears of a change twice, or of an older one after it. Layout:

    /quire/topics/<name>             broker/cluster/topic.py
    /quire/partitions/<topic id>/<n> a document of broker/log, made with the topic in one multi
    /quire/staged/<topic id>         broker/cluster/documents.py
    /quire/deleted/<topic id>/<n>    the documents of deleted topics, until their ledgers are gone

Invariant: a partition's node is only ever made in one multi with a check of its topic's life, or of
the node that says that its topic is being made; so one without either is left over from a deletion.
Deleting removes the topic's node first (from then
on the topic is gone), then moves the documents; a crash in between is made good by `load`, and by
every other broker a while after it saw the deletion. So no ledger is ever without a document that
names it (invariants L). A name may be used again, so each change checks the topic's id, too
(broker/cluster/topic_life.py).
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING
from uuid import UUID

import trio

from broker.cluster import documents, internal_topics, optimistic
from broker.cluster.config_topic import ARCHIVE, LOCKS, LOCKS_OFF, check_archive, check_locks
from broker.cluster.durability import default_factor
from broker.cluster.topic import (
    DELETED_PATH,
    INTERNAL_TOPICS,
    OFFSETS_TOPIC,
    PARTITIONS_PATH,
    PARTITIONS_PER_TOPIC_MAX,
    TOPICS_PATH,
    Topic,
    TopicChange,
    TopicEvent,
    check_name,
    collision_key,
    decode_topic,
    encode_topic,
)
from broker.cluster.topic_life import (
    already_exists,
    check_alive,
    check_partitions_max,
    death_of,
    life_of,
    unknown_outcome,
)
from broker.cluster.watched_folder import WatchedFolder
from metadata.store import (
    CreateOp,
    DeleteOp,
    MetadataError,
    MetadataUnknownOutcomeError,
    NodeExistsError,
    NoNodeError,
    PutOp,
)
from runtime.config import ConfigError
from runtime.logs import kv
from wire.kafka.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from broker.cluster.config import TopicConfig
    from broker.cluster.placing import Placing
    from broker.cluster.registry import ConfigRegistry
    from metadata.store import MetadataStore, Node, Op
    from runtime.env import Env

__all__ = [
    "DELETED_PATH",
    "OFFSETS_TOPIC",
    "PARTITIONS_PATH",
    "PARTITIONS_PER_TOPIC_MAX",
    "TOPICS_PATH",
    "Topic",
    "TopicCatalog",
    "TopicChange",
    "TopicEvent",
    "check_name",
]

logger = logging.getLogger(__name__)

#: How long the broker that deletes a topic has to move its documents, before others do.
DISCARD_AFTER_SECONDS = 60.0


class TopicCatalog:
    def __init__(
        self,
        store: MetadataStore,
        env: Env,
        registry: ConfigRegistry,
        *,
        initial_partition_document: Callable[[], bytes],
    ) -> None:
        """`initial_partition_document` is broker/log's document of a partition without data."""
        self._store = store
        self._env = env
        self._registry = registry
        self._initial_partition_document = initial_partition_document
        self._topics: dict[str, Topic] = {}
        self._by_id: dict[UUID, Topic] = {}
        self._collisions: dict[str, str] = {}
        self._configs: dict[UUID, tuple[Topic, TopicConfig]] = {}
        self._listeners: list[Callable[[TopicEvent], None]] = []
        self._folder = WatchedFolder(store, TOPICS_PATH)
        #: Topics that are gone; `run` looks whether their documents are.
        self._deleted: dict[UUID, Topic] = {}
        self._has_deleted = trio.Event()
        #: Who gives new partitions their leaders; None: this broker leads all.
        self.placing: Placing | None = None
        registry.subscribe(self._configs.clear)

    async def load(self) -> None:
        """Reads all topics, and finishes deletions that a crash cut short."""
        # Partitions first: those of a topic made meanwhile are then not taken for left-overs.
        with_partitions = await self._children(PARTITIONS_PATH)
        # Before the topics: one that was being made by now, and is not any more, is among them.
        staged = await documents.staged(self._store)
        names = await self._children(TOPICS_PATH)
        nodes = await self._store.get_many([f"{TOPICS_PATH}/{name}" for name in names])
        self._topics.clear()
        self._by_id.clear()
        self._collisions.clear()
        self._configs.clear()
        for name, node in zip(names, nodes, strict=True):
            if node is not None:
                self._remember(decode_topic(name, node.data, node.version))
        for text in with_partitions:
            if UUID(text) in self._by_id:
                continue
            if text in staged:
                await documents.give_up(self._store, UUID(text))
            else:
                await documents.discard(self._store, UUID(text))

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follows the topics in metadata, also before and after `load`; started once memory agrees
        with them."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._discard_for_ever)
            await nursery.start(self._folder.run, self._look, self._topics.keys)
            task_status.started()

    async def _look(self, names: list[str]) -> None:
        """MetadataError."""
        for name, node in (await self._folder.read(names)).items():
            try:
                self._take(name, node)
            except (ValueError, KeyError, TypeError) as error:
                # A newer broker's, say. What is known of it stays in force.
                logger.error("topic_not_understood", kv(topic=name, error=repr(error)))

    async def _discard_for_ever(self) -> None:
        """Whoever deletes a topic moves its documents; if it died before it was done, we do."""
        while True:
            await self._has_deleted.wait()
            self._has_deleted = trio.Event()
            topics, self._deleted = self._deleted, {}
            await trio.sleep(DISCARD_AFTER_SECONDS)
            for topic in topics.values():
                try:
                    if await documents.discard(self._store, topic.id):
                        self._tell(TopicChange.DISCARDED, topic)
                except MetadataError as error:
                    logger.warning("not_discarded", kv(topic=topic.name, error=error))
                    self._note_deleted(topic)

    def _note_deleted(self, topic: Topic) -> None:
        self._deleted[topic.id] = topic
        self._has_deleted.set()

    async def catch_up(self) -> None:
        """Memory has all that was made or deleted, by whomever, before this call. MetadataError."""
        for name in await self._folder.differing(self._topics):
            await self._reread(name)

    # -- reads ----------------------------------------------------------------------------------

    def get(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def get_by_id(self, topic_id: UUID) -> Topic | None:
        return self._by_id.get(topic_id)

    def all(self) -> list[Topic]:
        return list(self._topics.values())

    def config(self, topic: Topic) -> TopicConfig:
        """What is in force for a topic: its overrides over the broker's defaults of now."""
        cached = self._configs.get(topic.id)
        if cached is not None and cached[0] is topic:
            return cached[1]
        config = self._registry.topic_config(internal_topics.configs_in_force(topic))
        # A deleted topic may be asked for a last time; it is not to stay in memory.
        if self._by_id.get(topic.id) is topic:
            self._configs[topic.id] = (topic, config)
        return config

    def subscribe(self, listener: Callable[[TopicEvent], None]) -> None:
        """`listener(event)` after each change, in order of the changes of one topic."""
        self._listeners.append(listener)

    # -- checks, without any change ---------------------------------------------------------------

    def check_create(self, name: str, partition_count: int, configs: Mapping[str, str]) -> None:
        """KafkaError: INVALID_TOPIC_EXCEPTION, TOPIC_ALREADY_EXISTS, INVALID_PARTITIONS,
        INVALID_CONFIG."""
        check_name(name)
        if name in self._topics:
            raise already_exists(name)
        other = self._collisions.get(collision_key(name))
        if other == name:  # on its way
            raise already_exists(name)
        if other is not None:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"topic {name} collides with {other}: '.' and '_' count as one",
            )
        if partition_count < 1:
            raise KafkaError(ErrorCode.INVALID_PARTITIONS, "a topic has at least one partition")
        check_partitions_max(partition_count)
        self.check_configs(name, configs)

    def check_configs(self, name: str, configs: Mapping[str, str]) -> None:
        """KafkaError INVALID_CONFIG."""
        internal_topics.check_configs(name, configs)
        try:
            self._registry.check_topic(configs)
            if configs.get(LOCKS, LOCKS_OFF).strip() != LOCKS_OFF:
                check_locks(self._registry.topic_config(configs))
            if ARCHIVE in configs:
                check_archive(self._registry.topic_config(configs))
        except ConfigError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None

    def check_add_partitions(self, name: str, partition_count: int) -> Topic:
        """KafkaError: UNKNOWN_TOPIC_OR_PARTITION, INVALID_PARTITIONS."""
        topic = self._existing(name)
        internal_topics.check_partitions_fixed(name)
        if partition_count == topic.partition_count:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS, f"the topic has {partition_count} partitions already"
            )
        if partition_count < topic.partition_count:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS,
                f"the topic has {topic.partition_count} partitions; their number cannot be"
                f" lowered to {partition_count}",
            )
        check_partitions_max(partition_count)
        return topic

    # -- changes --------------------------------------------------------------------------------

    async def create(
        self,
        name: str,
        partition_count: int,
        configs: Mapping[str, str] | None = None,
        replication_factor: int | None = None,
        by_hand: Sequence[Sequence[int]] | None = None,
    ) -> Topic:
        """Makes a topic; `by_hand`: node ids for each partition, the leader first. KafkaError as
        `check_create`."""
        configs = dict(configs or {})
        self.check_create(name, partition_count, configs)
        if replication_factor is None:
            replication_factor = default_factor(name, self._registry.broker)
        topic = Topic(
            id=self._env.new_uuid(),
            name=name,
            partition_count=partition_count,
            configs=MappingProxyType(configs),
            internal=name in INTERNAL_TOPICS,
            replication_factor=replication_factor,
        )
        # Taken in memory while it is made, so that of two colliding requests only one succeeds.
        self._collisions[key := collision_key(name)] = name
        try:
            await self._create_nodes(topic, by_hand)
        except NodeExistsError:
            await self._reread(name)
            raise already_exists(name) from None
        except NoNodeError:
            # A broker that started meanwhile took what was staged for left over.
            raise unknown_outcome(name) from None
        except MetadataUnknownOutcomeError:
            # Whether it was made is seen by its id, which nobody else can have chosen.
            await self._reread(name)
            if topic.id not in self._by_id:
                raise unknown_outcome(name) from None
        else:
            if topic.id not in self._by_id:
                await self._reread(name)  # it may be changed and deleted by now
        finally:
            if name not in self._topics:
                self._collisions.pop(key, None)
            if self.placing is not None:
                self.placing.end(topic)
        self._folder.mark(name)
        return self._by_id.get(topic.id, topic)

    async def _create_nodes(self, topic: Topic, by_hand: Sequence[Sequence[int]] | None) -> None:
        ops: list[Op] = [
            CreateOp(f"{TOPICS_PATH}/{topic.name}", encode_topic(topic), make_parents=True)
        ]
        if self.placing is not None:
            ops += await self.placing.create_ops(topic, by_hand)
        document = self._initial_partition_document()
        partitions = range(topic.partition_count)
        made = documents.document_ops(topic.id, partitions, document)
        await documents.make(self._store, topic.id, ops, made)

    async def delete(self, name: str) -> Topic:
        """Removes a topic. KafkaError UNKNOWN_TOPIC_OR_PARTITION. Its ledgers are deleted by
        whoever listens for DISCARDED."""

        async def write(topic: Topic, _: Topic) -> None:
            node = f"{TOPICS_PATH}/{name}"
            await self._store.multi([DeleteOp(node, topic.version), death_of(topic)])

        async def recognise(topic: Topic) -> bool:
            await self._reread(name)
            if topic.id in self._by_id:
                raise unknown_outcome(name) from None
            return True

        topic = await self._change(
            partial(self._existing, name), lambda topic: topic, write, recognise
        )
        if self._forget(topic):
            self._tell(TopicChange.DELETED, topic)
        self._note_deleted(topic)  # in case that we do not get through what follows
        await documents.discard(self._store, topic.id)
        self._tell(TopicChange.DISCARDED, topic)
        return topic

    async def add_partitions(
        self, name: str, partition_count: int, by_hand: Sequence[Sequence[int]] | None = None
    ) -> Topic:
        """Raises the number of partitions to `partition_count`, `by_hand` as in `create`.
        KafkaError as `check_add_partitions`."""

        def grown(topic: Topic) -> Topic:
            return replace(topic, partition_count=partition_count, version=topic.version + 1)

        async def write(topic: Topic, changed: Topic) -> None:
            added = range(topic.partition_count, partition_count)
            ops: list[Op] = [PutOp(f"{TOPICS_PATH}/{name}", encode_topic(changed), topic.version)]
            if self.placing is not None:
                ops += await self.placing.grow_ops(topic, len(added), by_hand)
            document = self._initial_partition_document()
            life = life_of(topic)
            await documents.stage_more(
                self._store, topic.id, added, document, topic_ops=ops, life=life
            )

        known = partial(self.check_add_partitions, name, partition_count)
        changed = await self._change(known, grown, write)
        return self._replace(changed, TopicChange.PARTITIONS_ADDED)

    async def change_configs(
        self, name: str, change: Callable[[Topic], Mapping[str, str]]
    ) -> Topic:
        """Sets the overrides to `change(topic)`, which may run again if another broker was
        quicker, and may raise. KafkaError: UNKNOWN_TOPIC_OR_PARTITION, INVALID_CONFIG."""

        def decide(topic: Topic) -> Topic:
            configs = dict(change(topic))
            self.check_configs(name, configs)
            return replace(topic, configs=MappingProxyType(configs), version=topic.version + 1)

        async def write(topic: Topic, changed: Topic) -> None:
            put = PutOp(f"{TOPICS_PATH}/{name}", encode_topic(changed), topic.version)
            await self._store.multi([life_of(topic), put])

        changed = await self._change(partial(self._existing, name), decide, write)
        return self._replace(changed, TopicChange.CONFIG_CHANGED)

    async def _change(
        self,
        known: Callable[[], Topic],
        decide: Callable[[Topic], Topic],
        write: Callable[[Topic, Topic], Awaitable[None]],
        recognise: Callable[[Topic], Awaitable[bool]] | None = None,
    ) -> Topic:
        """As `optimistic.change`. A lost answer is the client's, unless it is recognised."""
        changed = await optimistic.change(
            *(known, decide, write),
            look_again=self._reread_another,
            recognise=recognise or self._cannot_tell,
        )
        assert changed is not None
        return changed

    async def _cannot_tell(self, topic: Topic) -> bool:
        """Somebody else may have changed it to the same. KafkaError REQUEST_TIMED_OUT."""
        await self._reread(topic.name)
        raise unknown_outcome(topic.name) from None

    async def _reread_another(self, topic: Topic) -> None:
        """After a lost compare-and-set. KafkaError if there is nothing else to be seen, as trying
        again would have no end."""
        await self._reread(topic.name)
        known = self._topics.get(topic.name)
        if known is None or (known.id, known.version) != (topic.id, topic.version):
            return
        check_alive(topic, await self._store.get_many([f"{PARTITIONS_PATH}/{topic.id}"]))

    async def _reread(self, name: str) -> None:
        self._take(name, await self._folder.read_one(name))

    def _take(self, name: str, node: Node | None) -> None:
        """Takes what was read of a topic."""
        before = self._topics.get(name)
        topic = None if node is None else decode_topic(name, node.data, node.version)
        is_new = topic is not None and (before is None or topic.id != before.id)
        if before is not None and (topic is None or is_new):
            self._forget(before)
            if topic is not None:
                self._remember(topic)  # who hears of the end is not to take the name for free
            self._tell(TopicChange.DELETED, before)
            self._note_deleted(before)
        if topic is not None and is_new:
            self._remember(topic)
            self._tell(TopicChange.CREATED, topic)
        elif topic is not None and before is not None:
            grown = topic.partition_count > before.partition_count
            self._replace(
                topic, TopicChange.PARTITIONS_ADDED if grown else TopicChange.CONFIG_CHANGED
            )

    # -- memory ---------------------------------------------------------------------------------

    def _existing(self, name: str) -> Topic:
        topic = self._topics.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
        return topic

    def _remember(self, topic: Topic) -> None:
        internal_topics.note_ill_made(topic, self._registry.broker)
        self._folder.touch(topic.name)
        self._topics[topic.name] = topic
        self._by_id[topic.id] = topic
        self._collisions[collision_key(topic.name)] = topic.name

    def _replace(self, topic: Topic, change: TopicChange) -> Topic:
        """Takes a newer picture of a topic, unless an even newer one or its deletion was first."""
        known = self._by_id.get(topic.id)
        if known is not None and known.version < topic.version:
            self._remember(topic)
            self._tell(change, topic)
        return topic

    def _forget(self, topic: Topic) -> bool:
        """Whether it was still known."""
        known = self._by_id.pop(topic.id, None)
        self._configs.pop(topic.id, None)
        if known is None:
            return False
        self._folder.touch(topic.name)
        if self._topics.get(topic.name) is known:
            del self._topics[topic.name]
            self._collisions.pop(collision_key(topic.name), None)
        return True

    def _tell(self, change: TopicChange, topic: Topic) -> None:
        event = TopicEvent(change, topic)
        for listener in self._listeners:
            listener(event)

    async def _children(self, path: str) -> list[str]:
        with contextlib.suppress(NoNodeError):
            return await self._store.children(path)
        return []
