"""Which of the topics that had a name one after the other a change is meant for; refusals.

A topic's node is found by name, and a node that was made anew has the versions that the old one
had. So each change goes in one multi with a check of the folder of the topic's partitions, which is
named after the id: its data have version 0 as long as the topic lives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.cluster.topic import PARTITIONS_PATH, PARTITIONS_PER_TOPIC_MAX
from metadata.store import CheckOp, PutOp
from wire.kafka.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.cluster.topic import Topic
    from metadata.store import Node


def life_of(topic: Topic) -> CheckOp:
    """Refuses a change of a topic that was deleted."""
    return CheckOp(f"{PARTITIONS_PATH}/{topic.id}", version=0)


def death_of(topic: Topic) -> PutOp:
    """To be done with the deletion of the topic's node; refuses a second one."""
    return PutOp(f"{PARTITIONS_PATH}/{topic.id}", b"deleted", 0)


def check_alive(topic: Topic, nodes: Sequence[Node | None]) -> None:
    """After a lost compare-and-set that nothing explains, as trying again would have no end.
    `nodes`: the folder's. KafkaError UNKNOWN_SERVER_ERROR."""
    if nodes[0] is None or nodes[0].version != 0:
        raise KafkaError(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            f"topic {topic.name} is damaged: {PARTITIONS_PATH}/{topic.id} is not what a topic"
            " that lives has",
        )


def already_exists(name: str) -> KafkaError:
    return KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")


def unknown_outcome(name: str) -> KafkaError:
    """Retriable: the client asks again, and sees what became of it."""
    return KafkaError(
        ErrorCode.REQUEST_TIMED_OUT, f"metadata did not tell whether topic {name} was changed"
    )


def check_partitions_max(partition_count: int) -> None:
    if partition_count > PARTITIONS_PER_TOPIC_MAX:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"{partition_count} partitions are above the limit of {PARTITIONS_PER_TOPIC_MAX}",
        )
