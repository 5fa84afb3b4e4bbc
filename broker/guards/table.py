"""Which guard an API has. One that has none cannot be served: dispatch would not know whom to
refuse."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.guards import cluster, groups, records, transactions
from broker.guards.tools import free
from wire.kafka.api_keys import ApiKey

if TYPE_CHECKING:
    from collections.abc import Mapping

    from broker.guards.tools import Guard

#: Whose handler asks (`Request.rights`), as the request does not say what it is about: a session's
#: partitions, all topics there are.
ASKED_BY_HANDLERS = frozenset(
    {
        ApiKey.FETCH,
        ApiKey.METADATA,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
    }
)

GUARDS: Mapping[ApiKey, Guard] = {
    **dict.fromkeys(ASKED_BY_HANDLERS, free),
    ApiKey.PRODUCE: records.produce,
    ApiKey.LIST_OFFSETS: records.list_offsets,
    ApiKey.OFFSET_COMMIT: groups.commit,
    ApiKey.OFFSET_FETCH: groups.fetch_offsets,
    ApiKey.FIND_COORDINATOR: groups.find_coordinator,
    ApiKey.JOIN_GROUP: groups.joins_group,
    ApiKey.HEARTBEAT: groups.reads_group,
    ApiKey.LEAVE_GROUP: groups.reads_group,
    ApiKey.SYNC_GROUP: groups.reads_group,
    ApiKey.DESCRIBE_GROUPS: groups.describe_classic,
    ApiKey.LIST_GROUPS: groups.list_groups,
    # Whoever asks has not logged in yet.
    ApiKey.SASL_HANDSHAKE: free,
    ApiKey.SASL_AUTHENTICATE: free,
    ApiKey.API_VERSIONS: free,
    ApiKey.CREATE_TOPICS: records.create_topics,
    ApiKey.DELETE_TOPICS: records.delete_topics,
    ApiKey.DELETE_RECORDS: records.delete_records,
    ApiKey.INIT_PRODUCER_ID: transactions.init_producer_id,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: records.offsets_for_leader_epochs,
    ApiKey.ADD_PARTITIONS_TO_TXN: transactions.add_partitions,
    ApiKey.ADD_OFFSETS_TO_TXN: transactions.add_offsets,
    ApiKey.END_TXN: transactions.own_transaction,
    ApiKey.WRITE_TXN_MARKERS: transactions.write_markers,
    ApiKey.TXN_OFFSET_COMMIT: transactions.commit_offsets,
    ApiKey.DESCRIBE_ACLS: cluster.describes,
    ApiKey.CREATE_ACLS: cluster.creates_acls,
    ApiKey.DELETE_ACLS: cluster.deletes_acls,
    ApiKey.DESCRIBE_CONFIGS: cluster.describe_configs,
    ApiKey.ALTER_CONFIGS: cluster.alter_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: cluster.alter_configs,
    ApiKey.ALTER_REPLICA_LOG_DIRS: cluster.moves_directories,
    ApiKey.DESCRIBE_LOG_DIRS: cluster.describes_directories,
    ApiKey.CREATE_PARTITIONS: records.create_partitions,
    # Of a token its handler asks its owner.
    ApiKey.CREATE_DELEGATION_TOKEN: free,
    ApiKey.RENEW_DELEGATION_TOKEN: free,
    ApiKey.EXPIRE_DELEGATION_TOKEN: free,
    ApiKey.DESCRIBE_DELEGATION_TOKEN: free,
    ApiKey.DELETE_GROUPS: groups.delete_groups,
    ApiKey.ELECT_LEADERS: cluster.elects_leaders,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: cluster.alters,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: cluster.describes,
    ApiKey.OFFSET_DELETE: groups.delete_offsets,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: cluster.describes_quotas,
    ApiKey.ALTER_CLIENT_QUOTAS: cluster.alters_quotas,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: cluster.describes,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: cluster.alters_scram_users,
    ApiKey.DESCRIBE_QUORUM: cluster.describes,
    ApiKey.UPDATE_FEATURES: cluster.alters,
    # What may be done with the cluster is told to who may describe it.
    ApiKey.DESCRIBE_CLUSTER: free,
    ApiKey.DESCRIBE_PRODUCERS: transactions.describe_producers,
    ApiKey.UNREGISTER_BROKER: cluster.alters,
    ApiKey.DESCRIBE_TRANSACTIONS: transactions.describe_transactions,
    ApiKey.LIST_TRANSACTIONS: transactions.list_transactions,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: groups.heartbeat_with_names,
    ApiKey.CONSUMER_GROUP_DESCRIBE: groups.describe_consumer,
    # As Kafka: a client may tell of itself.
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: free,
    ApiKey.PUSH_TELEMETRY: free,
    ApiKey.LIST_CONFIG_RESOURCES: cluster.describes_configs,
    ApiKey.SHARE_GROUP_HEARTBEAT: groups.heartbeat_with_names,
    ApiKey.SHARE_GROUP_DESCRIBE: groups.describe_share,
    ApiKey.SHARE_FETCH: groups.reads_group,
    ApiKey.SHARE_ACKNOWLEDGE: groups.reads_group,
    ApiKey.ADD_RAFT_VOTER: cluster.alters,
    ApiKey.REMOVE_RAFT_VOTER: cluster.alters,
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: cluster.initializes_states,
    ApiKey.READ_SHARE_GROUP_STATE: cluster.reads_states,
    ApiKey.WRITE_SHARE_GROUP_STATE: cluster.writes_states,
    ApiKey.DELETE_SHARE_GROUP_STATE: cluster.deletes_states,
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: cluster.summarizes_states,
    ApiKey.STREAMS_GROUP_HEARTBEAT: groups.heartbeat_with_topology,
    ApiKey.STREAMS_GROUP_DESCRIBE: groups.describe_streams,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: groups.describe_share_offsets,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: groups.alter_share_offsets,
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: groups.delete_share_offsets,
}


def guard_of(key: ApiKey) -> Guard:
    """KeyError: nobody has said what it needs."""
    return GUARDS[key]
