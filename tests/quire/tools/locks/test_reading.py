"""What `quire locks` reads, of a cluster that answers from a list."""

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
    """A topic «t» of as many partitions as there are leaders; -1 is none."""

    bootstrap = ("127.0.0.1", 1)

    def __init__(self, *leaders):
        self.leaders = leaders

    def ask(self, address, body, version):
        if type(body).__name__ == "MetadataRequest":
            partitions = [
                MetadataResponsePartition(
                    error_code=5 if leader < 0 else 0, partition_index=n, leader_id=leader
                )
                for n, leader in enumerate(self.leaders)
            ]
            topic = MetadataResponseTopic(name="t", partitions=partitions)
            broker = MetadataResponseBroker(node_id=1, host="127.0.0.1", port=1)
            return MetadataResponse(brokers=[broker], topics=[topic])
        number = body.topics[0].partitions[0].partition_index
        found = ListOffsetsPartitionResponse(partition_index=number, offset=3)
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=[found])])


def test_bounds_of_all_partitions():
    topic, found = bounds(Cluster(1, 1), "t")
    assert (topic, [one.partition for one in found]) == ("t", [0, 1])


def test_a_partition_without_a_leader_is_not_passed_over():
    """`validate` would say that nothing is wrong with what it did not read."""
    with pytest.raises(click.ClickException, match="no leader"):
        bounds(Cluster(1, -1), "t")
