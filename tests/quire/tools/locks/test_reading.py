"""What `quire locks` reads of a topic: all of it, or nothing."""

import click
import pytest

from quire.tools.locks.reading import bounds
from wire.kafka.messages import ListOffsetsResponse, MetadataResponse
from wire.kafka.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsTopicResponse,
)
from wire.kafka.messages.metadata import (
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)


class Cluster:
    """A topic of two partitions; the broker of the second is down."""

    bootstrap = ("a", 1)

    def ask(self, address, body, version):
        if hasattr(body, "allow_auto_topic_creation"):
            partitions = [
                MetadataResponsePartition(partition_index=n, leader_id=leader)
                for n, leader in ((0, 1), (1, -1))
            ]
            topic = MetadataResponseTopic(name="t", partitions=partitions)
            broker = MetadataResponseBroker(node_id=1, host="a", port=1)
            return MetadataResponse(brokers=[broker], topics=[topic])
        found = ListOffsetsPartitionResponse(partition_index=0, offset=0)
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse("t", [found])])


def test_a_partition_without_a_leader_is_not_passed_over():
    """`validate` would say that there are no violations, and end with 0."""
    with pytest.raises(click.ClickException, match="t-1"):
        bounds(Cluster(), "t")
