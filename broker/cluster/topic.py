"""A topic: its value, its document under /quire/topics, and the rules for its name.

/quire/topics/<name>    JSON: format, id, partitions, configs (overrides only),
                        replication_factor (if one was asked for)
"""

from __future__ import annotations

import enum
import json
import re
from dataclasses import field
from types import MappingProxyType
from typing import TYPE_CHECKING
from uuid import UUID

from wire.dataclass import dataclass
from wire.kafka.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Mapping

TOPICS_PATH = "/quire/topics"
PARTITIONS_PATH = "/quire/partitions"
DELETED_PATH = "/quire/deleted"
FORMAT = 1

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTION_TOPIC = "__transaction_state"
SHARE_STATE_TOPIC = "__share_group_state"
INTERNAL_TOPICS = frozenset((OFFSETS_TOPIC, TRANSACTION_TOPIC, SHARE_STATE_TOPIC))

NAME_LENGTH_MAX = 249
PARTITIONS_PER_TOPIC_MAX = 10_000
_NAME = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)


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
    """Kafka's rules for topic names, in the words of its Topic.validate. KafkaError
    INVALID_TOPIC_EXCEPTION says which was broken."""
    if not name:
        problem = "the empty string is not allowed"
    elif name in (".", ".."):
        problem = f"'{name}' is not allowed"
    elif len(name) > NAME_LENGTH_MAX:
        problem = f"the length of '{name}' is longer than the max allowed length {NAME_LENGTH_MAX}"
    elif _NAME.fullmatch(name) is None:
        problem = (
            f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_'"
            " and '-'"
        )
    else:
        return
    raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {problem}")


def collision_key(name: str) -> str:
    """Names that differ only in '.' and '_' collide in Kafka's metric names, so one is enough."""
    return name.replace(".", "_")


def encode_topic(topic: Topic) -> bytes:
    document = {
        "format": FORMAT,
        "id": str(topic.id),
        "partitions": topic.partition_count,
        "configs": dict(topic.configs),
    }
    if topic.replication_factor is not None:
        document["replication_factor"] = topic.replication_factor
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()


def decode_topic(name: str, data: bytes, version: int) -> Topic:
    """ValueError, KeyError or TypeError of what is damaged."""
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
