"""Every message of the broker listener, one module per API family.

| module | APIs |
|---|---|
| produce, fetch | Produce, Fetch |
| list_offsets | ListOffsets, OffsetForLeaderEpoch |
| metadata | ApiVersions, Metadata, DescribeTopicPartitions, DescribeCluster |
| groups | FindCoordinator, Join/Sync/LeaveGroup, Heartbeat, Describe/List/DeleteGroups |
| consumer_groups | ConsumerGroupHeartbeat, ConsumerGroupDescribe (KIP-848) |
| offsets | OffsetCommit, OffsetFetch, OffsetDelete |
| topics | CreateTopics, DeleteTopics, CreatePartitions, DeleteRecords |
| configs | Describe/Alter/IncrementalAlterConfigs, ListConfigResources, client quotas |
| transactions | InitProducerId, AddPartitions/OffsetsToTxn, EndTxn, TxnOffsetCommit, markers |
| transactions_admin | DescribeProducers, DescribeTransactions, ListTransactions |
| acls, security | ACLs; SASL, delegation tokens, SCRAM credentials |
| cluster | log dirs, reassignments, elections, features, quorum, voters |
| telemetry | GetTelemetrySubscriptions, PushTelemetry (KIP-714) |
| share_groups, share_state | share groups (KIP-932) and their persister |
| streams_groups | StreamsGroupHeartbeat, StreamsGroupDescribe (KIP-1071) |

Requests and responses may be imported from here; their nested structs from the family's module.
A server imports the families that it serves, by their modules: declaring a class costs half a
millisecond, and there are 389. A name asked of this package imports them all.
A nested struct has the name of Kafka's JSON definition, with its message's name in front where two
messages of a family use one name for different things.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wire.kafka.messages.everything import *  # noqa: F403  # its `__all__` is the list


def __getattr__(name: str) -> object:
    # Not for the import system's own questions, nor for a module of the package.
    if name.endswith(("Request", "Response")):
        from wire.kafka.messages import everything

        if (found := getattr(everything, name, None)) is not None:
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
