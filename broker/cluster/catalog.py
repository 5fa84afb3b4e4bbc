"""TopicCatalog: the cluster's topics, in metadata and in memory.

Owner of the topics' nodes and of which partitions exist; what is *in* a partition's node is
broker/log's. Reads are plain memory; changes are compare-and-set, durable before memory changes and
before listeners hear of them. Layout:

    /quire/topics/<name>             JSON: format, id, partitions, configs (overrides only)
    /quire/partitions/<topic id>/<n> a document of broker/log, made with the topic in one multi
    /quire/deleted/<topic id>/<n>    the documents of deleted topics, until their ledgers are gone

Invariant: a partition's node is only ever made in one multi with a check of its topic's node, so
one without a topic is left over from a deletion. Deleting removes the topic's node first (from then
on the topic is gone), then moves the documents; a crash in between is made good by `load`. So no
ledger is ever without a document that names it (ledgers.md 2.4).
"""

from __future__ import annotations

import contextlib
import enum
import json
import re
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING
from uuid import UUID

from broker.cluster.durability import default_factor
from metadata.store import (
    BadVersionError,
    CreateOp,
    DeleteOp,
    MetadataUnknownOutcomeError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    PutOp,
)
from runtime.config import ConfigError
from wire.kafka.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from broker.cluster.config import TopicConfig
    from broker.cluster.registry import ConfigRegistry
    from metadata.store import MetadataStore, Op
    from runtime.env import Env

TOPICS_PATH = "/quire/topics"
PARTITIONS_PATH = "/quire/partitions"
DELETED_PATH = "/quire/deleted"
FORMAT = 1

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTION_TOPIC = "__transaction_state"
INTERNAL_TOPICS = frozenset((OFFSETS_TOPIC, TRANSACTION_TOPIC))

NAME_LENGTH_MAX = 249
PARTITIONS_PER_TOPIC_MAX = 10_000
_NAME = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)

#: Nodes made or moved in one multi: ZooKeeper refuses a request above 1 MiB.
_OPS_PER_MULTI_MAX = 500


@dataclass(slots=True, frozen=True)
class Topic:
    """`configs` holds the overrides as they were given (texts). `version` is its node's."""

    id: UUID
    name: str
    partition_count: int
    configs: Mapping[str, str] = field(hash=False)
    internal: bool
    version: int = field(default=0, compare=False)
    #: Copies that were asked for; None: as the broker's settings say.
    replication_factor: int | None = None


class TopicChange(enum.Enum):
    CREATED = "created"
    PARTITIONS_ADDED = "partitions added"
    CONFIG_CHANGED = "config changed"
    #: It is gone, and nobody may append to it any more.
    DELETED = "deleted"
    #: After DELETED: its partitions' documents wait under DELETED_PATH.
    DISCARDED = "discarded"


@dataclass(slots=True, frozen=True)
class TopicEvent:
    """`topic` is what it is after the change; of a deleted one, what it last was."""

    change: TopicChange
    topic: Topic


def check_name(name: str) -> None:
    """Kafka's rules for topic names. KafkaError INVALID_TOPIC_EXCEPTION says which was broken."""
    if not name:
        problem = "it is empty"
    elif name in (".", ".."):
        problem = f"it cannot be {name!r}"
    elif len(name) > NAME_LENGTH_MAX:
        problem = f"it is longer than {NAME_LENGTH_MAX} characters"
    elif _NAME.fullmatch(name) is None:
        problem = f"{name!r} has characters other than a-z, A-Z, 0-9, '.', '_' and '-'"
    else:
        return
    raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"not a topic's name: {problem}")


def _collision_key(name: str) -> str:
    """Names that differ only in '.' and '_' collide in Kafka's metric names, so one is enough."""
    return name.replace(".", "_")


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
        registry.subscribe(self._configs.clear)

    async def load(self) -> None:
        """Reads all topics, and finishes deletions that a crash cut short."""
        # Partitions first: those of a topic made meanwhile are then not taken for left-overs.
        with_partitions = await self._children(PARTITIONS_PATH)
        names = await self._children(TOPICS_PATH)
        nodes = await self._store.get_many([f"{TOPICS_PATH}/{name}" for name in names])
        self._topics.clear()
        self._by_id.clear()
        self._collisions.clear()
        self._configs.clear()
        for name, node in zip(names, nodes, strict=True):
            if node is not None:
                self._remember(_decode_topic(name, node.data, node.version))
        for text in with_partitions:
            if UUID(text) not in self._by_id:
                await self._discard(UUID(text))

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
        config = self._registry.topic_config(topic.configs)
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
            raise _already_exists(name)
        other = self._collisions.get(_collision_key(name))
        if other == name:  # on its way
            raise _already_exists(name)
        if other is not None:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"topic {name} collides with {other}: '.' and '_' count as one",
            )
        if partition_count < 1:
            raise KafkaError(ErrorCode.INVALID_PARTITIONS, "a topic has at least one partition")
        _check_partitions_max(partition_count)
        self.check_configs(configs)

    def check_configs(self, configs: Mapping[str, str]) -> None:
        """KafkaError INVALID_CONFIG."""
        try:
            self._registry.check_topic(configs)
        except ConfigError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None

    def check_add_partitions(self, name: str, partition_count: int) -> Topic:
        """KafkaError: UNKNOWN_TOPIC_OR_PARTITION, INVALID_PARTITIONS."""
        topic = self._existing(name)
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
        _check_partitions_max(partition_count)
        return topic

    # -- changes --------------------------------------------------------------------------------

    async def create(
        self,
        name: str,
        partition_count: int,
        configs: Mapping[str, str] | None = None,
        replication_factor: int | None = None,
    ) -> Topic:
        """Makes a topic. KafkaError as `check_create`."""
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
        # A name is taken in memory while it is made, so that of two colliding requests that are
        # on their way at once only one succeeds.
        key = _collision_key(name)
        self._collisions[key] = name
        try:
            await self._create_nodes(topic)
        except NodeExistsError:
            await self._reread(name)
            raise _already_exists(name) from None
        except MetadataUnknownOutcomeError:
            # Whether it was made is seen by its id, which nobody else can have chosen.
            await self._reread(name)
            if topic.id not in self._by_id:
                raise _unknown_outcome(name) from None
            return topic
        finally:
            if name not in self._topics:
                self._collisions.pop(key, None)
        self._remember(topic)
        self._tell(TopicChange.CREATED, topic)
        return topic

    async def _create_nodes(self, topic: Topic) -> None:
        """One multi, whatever its size: half a topic must not be seen."""
        document = self._initial_partition_document()
        ops: list[Op] = [
            CreateOp(f"{TOPICS_PATH}/{topic.name}", _encode_topic(topic), make_parents=True)
        ]
        ops += self._partition_ops(topic.id, range(topic.partition_count), document)
        await self._store.multi(ops)

    def _partition_ops(
        self, topic_id: UUID, partitions: Iterable[int], document: bytes
    ) -> list[CreateOp]:
        folder = f"{PARTITIONS_PATH}/{topic_id}"
        return [CreateOp(f"{folder}/{n}", document, make_parents=True) for n in partitions]

    async def delete(self, name: str) -> Topic:
        """Removes a topic. KafkaError UNKNOWN_TOPIC_OR_PARTITION. Its ledgers are deleted by
        whoever listens for DISCARDED."""
        while True:
            topic = self._existing(name)
            try:
                await self._store.delete(f"{TOPICS_PATH}/{name}", topic.version)
            except BadVersionError:
                await self._reread(name)
                continue
            except NoNodeError:
                await self._reread(name)
                continue
            except MetadataUnknownOutcomeError:
                await self._reread(name)
                if topic.id in self._by_id:
                    raise _unknown_outcome(name) from None
            break
        if self._forget(topic):
            self._tell(TopicChange.DELETED, topic)
        await self._discard(topic.id)
        self._tell(TopicChange.DISCARDED, topic)
        return topic

    async def _discard(self, topic_id: UUID) -> None:
        """Moves a deleted topic's documents; may be repeated after a crash at any point."""
        source, target = f"{PARTITIONS_PATH}/{topic_id}", f"{DELETED_PATH}/{topic_id}"
        while names := await self._children(source):
            for start in range(0, len(names), _OPS_PER_MULTI_MAX // 2):
                chunk = names[start : start + _OPS_PER_MULTI_MAX // 2]
                nodes = await self._store.get_many([f"{source}/{name}" for name in chunk])
                ops: list[Op] = []
                for name, node in zip(chunk, nodes, strict=True):
                    if node is not None:
                        ops.append(CreateOp(f"{target}/{name}", node.data, make_parents=True))
                        ops.append(DeleteOp(f"{source}/{name}", node.version))
                try:
                    await self._store.multi(ops)
                except (BadVersionError, NoNodeError, NodeExistsError):
                    # The partition's holder wrote a last time, or another broker moves them too.
                    break
        with contextlib.suppress(NoNodeError, NotEmptyError):  # another broker was quicker
            await self._store.delete(source)

    async def add_partitions(self, name: str, partition_count: int) -> Topic:
        """Raises the number of partitions to `partition_count`. KafkaError as
        `check_add_partitions`."""
        while True:
            topic = self.check_add_partitions(name, partition_count)
            changed = replace(topic, partition_count=partition_count, version=topic.version + 1)
            added = range(topic.partition_count, partition_count)
            ops: list[Op] = [
                PutOp(f"{TOPICS_PATH}/{name}", _encode_topic(changed), topic.version),
                *self._partition_ops(topic.id, added, self._initial_partition_document()),
            ]
            if await self._try(self._store.multi(ops), name):
                break
        return self._replace(changed, TopicChange.PARTITIONS_ADDED)

    async def set_configs(self, name: str, configs: Mapping[str, str]) -> Topic:
        """Replaces all overrides. KafkaError: UNKNOWN_TOPIC_OR_PARTITION, INVALID_CONFIG."""
        return await self.change_configs(name, lambda _: configs)

    async def change_configs(
        self, name: str, change: Callable[[Topic], Mapping[str, str]]
    ) -> Topic:
        """Sets the overrides to `change(topic)`, which may run again if another broker was
        quicker, and may raise. KafkaError as `set_configs`."""
        while True:
            topic = self._existing(name)
            configs = dict(change(topic))
            self.check_configs(configs)
            changed = replace(topic, configs=MappingProxyType(configs), version=topic.version + 1)
            path = f"{TOPICS_PATH}/{name}"
            if await self._try(self._store.put(path, _encode_topic(changed), topic.version), name):
                break
        return self._replace(changed, TopicChange.CONFIG_CHANGED)

    async def _try(self, change: Awaitable[object], name: str) -> bool:
        """False: the topic is not what memory says; it was read again, and the caller repeats."""
        try:
            await change
        except (BadVersionError, NoNodeError, NodeExistsError):
            await self._reread(name)
            return False
        except MetadataUnknownOutcomeError:
            await self._reread(name)
            raise _unknown_outcome(name) from None
        return True

    async def _reread(self, name: str) -> None:
        known = self._topics.get(name)
        try:
            node = await self._store.get(f"{TOPICS_PATH}/{name}")
        except NoNodeError:
            if known is not None and self._forget(known):
                self._tell(TopicChange.DELETED, known)
            return
        topic = _decode_topic(name, node.data, node.version)
        if known is not None and known.id != topic.id:
            self._forget(known)
            self._tell(TopicChange.DELETED, known)
            known = None
        if known is None:
            self._remember(topic)
            self._tell(TopicChange.CREATED, topic)
        elif topic.version > known.version:
            grown = topic.partition_count > known.partition_count
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
        self._topics[topic.name] = topic
        self._by_id[topic.id] = topic
        self._collisions[_collision_key(topic.name)] = topic.name

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
        if self._topics.get(topic.name) is known:
            del self._topics[topic.name]
            self._collisions.pop(_collision_key(topic.name), None)
        return True

    def _tell(self, change: TopicChange, topic: Topic) -> None:
        event = TopicEvent(change, topic)
        for listener in self._listeners:
            listener(event)

    async def _children(self, path: str) -> list[str]:
        try:
            return await self._store.children(path)
        except NoNodeError:
            return []


def _already_exists(name: str) -> KafkaError:
    return KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name} exists already")


def _unknown_outcome(name: str) -> KafkaError:
    """Retriable: the client asks again, and sees what became of it."""
    return KafkaError(
        ErrorCode.REQUEST_TIMED_OUT, f"metadata did not tell whether topic {name} was changed"
    )


def _check_partitions_max(partition_count: int) -> None:
    if partition_count > PARTITIONS_PER_TOPIC_MAX:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"{partition_count} partitions are above the limit of {PARTITIONS_PER_TOPIC_MAX}",
        )


def _encode_topic(topic: Topic) -> bytes:
    document = {
        "format": FORMAT,
        "id": str(topic.id),
        "partitions": topic.partition_count,
        "configs": dict(topic.configs),
    }
    if topic.replication_factor is not None:
        document["replication_factor"] = topic.replication_factor
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()


def _decode_topic(name: str, data: bytes, version: int) -> Topic:
    document = json.loads(data)
    if document["format"] != FORMAT:
        raise ValueError(f"{TOPICS_PATH}/{name}: format {document['format']} is not known")
    return Topic(
        id=UUID(document["id"]),
        name=name,
        partition_count=document["partitions"],
        configs=MappingProxyType(document["configs"]),
        internal=name in INTERNAL_TOPICS,
        version=version,
        replication_factor=document.get("replication_factor"),
    )
