"""What each API needs authorised: the checks of Kafka 4.3's `KafkaApis` and `ControllerApis`.

One row for each API that a handler serves: dispatch does not start with an API that has none. All
needs of a row are needed. docs/apis.md shows the same table; broker/guards/ asks for what it says.
Not in it is what depends on more than the request: the topics of a fetch session, those that an
answer shows, or that a request would make.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.authorization import AclOperation, Extent, Need, ResourceType, Where
from wire.kafka.api_keys import ApiKey

if TYPE_CHECKING:
    from collections.abc import Mapping

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
CLUSTER, TRANSACTIONAL_ID = ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID
READ, WRITE = AclOperation.READ, AclOperation.WRITE
CREATE, DELETE, ALTER = AclOperation.CREATE, AclOperation.DELETE, AclOperation.ALTER
DESCRIBE, CLUSTER_ACTION = AclOperation.DESCRIBE, AclOperation.CLUSTER_ACTION
IDEMPOTENT_WRITE = AclOperation.IDEMPOTENT_WRITE
DESCRIBE_CONFIGS, ALTER_CONFIGS = AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS

#: A broker's id, rather than the -1 of a consumer and the -2 of a tool.
_REPLICA = range(1 << 31)
#: `ConfigResource.Type`: TOPIC, then BROKER, BROKER_LOGGER and CLIENT_METRICS, then GROUP.
_TOPIC_CONFIGS, _CLUSTER_CONFIGS, _GROUP_CONFIGS = (2,), (4, 8, 16), (32,)
#: `CoordinatorType`: GROUP, TRANSACTION, SHARE.
_GROUP_KEYS, _TRANSACTION_KEYS, _SHARE_KEYS = (0,), (1,), (2,)

_TOPICS_TO_DELETE = ("topics.name", "topics.topic_id", "topic_names")
_READ_GROUP = Need(GROUP, READ, ("group_id",))


def _configs(operation: AclOperation) -> tuple[Need, ...]:
    of = "resource_type"
    names = ("resources.resource_name",)
    return (
        Need(TOPIC, operation, names, where=Where(of, _TOPIC_CONFIGS)),
        Need(GROUP, operation, names, where=Where(of, _GROUP_CONFIGS)),
        Need(CLUSTER, operation, names, where=Where(of, _CLUSTER_CONFIGS)),
    )


def _keys(resource: ResourceType, operation: AclOperation, kinds: tuple[int, ...]) -> Need:
    return Need(resource, operation, ("key", "coordinator_keys"), where=Where("key_type", kinds))


AUTHORISED: Mapping[ApiKey, tuple[Need, ...]] = {
    ApiKey.PRODUCE: (
        Need(TRANSACTIONAL_ID, WRITE, ("transactional_id",)),
        Need(TOPIC, WRITE, ("topic_data.name", "topic_data.topic_id")),
    ),
    ApiKey.FETCH: (
        Need(TOPIC, READ, ("topics.topic", "topics.topic_id")),
        Need(CLUSTER, CLUSTER_ACTION, where=Where("replica_id", _REPLICA)),
        Need(CLUSTER, CLUSTER_ACTION, where=Where("replica_state.replica_id", _REPLICA)),
    ),
    # Brokers ask it of one another, here.
    ApiKey.LIST_OFFSETS: (
        Need(CLUSTER, CLUSTER_ACTION, instead=Need(TOPIC, DESCRIBE, ("topics.name",))),
    ),
    ApiKey.METADATA: (
        Need(TOPIC, DESCRIBE, ("topics.name", "topics.topic_id"), empty_is_all_until=0),
    ),
    ApiKey.OFFSET_COMMIT: (_READ_GROUP, Need(TOPIC, READ, ("topics.name", "topics.topic_id"))),
    ApiKey.OFFSET_FETCH: (
        Need(GROUP, DESCRIBE, ("group_id", "groups.group_id")),
        Need(
            *(TOPIC, DESCRIBE),
            ("topics.name", "groups.topics.name", "groups.topics.topic_id"),
        ),
    ),
    ApiKey.FIND_COORDINATOR: (
        _keys(GROUP, DESCRIBE, _GROUP_KEYS),
        _keys(TRANSACTIONAL_ID, DESCRIBE, _TRANSACTION_KEYS),
        _keys(CLUSTER, CLUSTER_ACTION, _SHARE_KEYS),
    ),
    ApiKey.JOIN_GROUP: (_READ_GROUP,),
    ApiKey.HEARTBEAT: (_READ_GROUP,),
    ApiKey.LEAVE_GROUP: (_READ_GROUP,),
    ApiKey.SYNC_GROUP: (_READ_GROUP,),
    ApiKey.DESCRIBE_GROUPS: (Need(GROUP, DESCRIBE, ("groups",)),),
    ApiKey.LIST_GROUPS: (Need(CLUSTER, DESCRIBE, instead=Need(GROUP, DESCRIBE, whole=Extent.ALL)),),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: (
        _READ_GROUP,
        Need(TOPIC, DESCRIBE, ("subscribed_topic_names",)),
    ),
    ApiKey.CONSUMER_GROUP_DESCRIBE: (Need(GROUP, DESCRIBE, ("group_ids",)),),
    ApiKey.SHARE_GROUP_HEARTBEAT: (
        _READ_GROUP,
        Need(TOPIC, DESCRIBE, ("subscribed_topic_names",)),
    ),
    ApiKey.SHARE_GROUP_DESCRIBE: (Need(GROUP, DESCRIBE, ("group_ids",)),),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: (
        Need(GROUP, DESCRIBE, ("groups.group_id",)),
        Need(TOPIC, DESCRIBE, ("groups.topics.topic_name",)),
    ),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: (_READ_GROUP, Need(TOPIC, READ, ("topics.topic_name",))),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: (
        Need(GROUP, DELETE, ("group_id",)),
        Need(TOPIC, READ, ("topics.topic_name",)),
    ),
    ApiKey.SHARE_FETCH: (_READ_GROUP, Need(TOPIC, READ, ("topics.topic_id",))),
    ApiKey.SHARE_ACKNOWLEDGE: (_READ_GROUP, Need(TOPIC, READ, ("topics.topic_id",))),
    ApiKey.STREAMS_GROUP_HEARTBEAT: (
        _READ_GROUP,
        Need(
            *(TOPIC, DESCRIBE),
            (
                "topology.subtopologies.source_topics",
                "topology.subtopologies.repartition_sink_topics",
                "topology.subtopologies.repartition_source_topics.name",
                "topology.subtopologies.state_changelog_topics.name",
            ),
        ),
    ),
    ApiKey.STREAMS_GROUP_DESCRIBE: (Need(GROUP, DESCRIBE, ("group_ids",)),),
    ApiKey.API_VERSIONS: (),
    ApiKey.CREATE_TOPICS: (Need(CLUSTER, CREATE, instead=Need(TOPIC, CREATE, ("topics.name",))),),
    ApiKey.DELETE_TOPICS: (
        Need(CLUSTER, DELETE, instead=Need(TOPIC, DESCRIBE, _TOPICS_TO_DELETE)),
        Need(CLUSTER, DELETE, instead=Need(TOPIC, DELETE, _TOPICS_TO_DELETE)),
    ),
    ApiKey.DELETE_RECORDS: (Need(TOPIC, DELETE, ("topics.name",)),),
    ApiKey.INIT_PRODUCER_ID: (
        Need(TRANSACTIONAL_ID, WRITE, ("transactional_id",)),
        Need(
            *(CLUSTER, IDEMPOTENT_WRITE),
            where=Where("transactional_id", (None,)),
            instead=Need(TOPIC, WRITE, whole=Extent.ANY),
        ),
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: (
        Need(TRANSACTIONAL_ID, WRITE, ("v3_and_below_transactional_id",)),
        Need(TOPIC, WRITE, ("v3_and_below_topics.name",)),
        Need(CLUSTER, CLUSTER_ACTION, ("transactions.transactional_id",)),
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: (Need(TRANSACTIONAL_ID, WRITE, ("transactional_id",)), _READ_GROUP),
    ApiKey.END_TXN: (Need(TRANSACTIONAL_ID, WRITE, ("transactional_id",)),),
    ApiKey.DESCRIBE_TRANSACTIONS: (Need(TRANSACTIONAL_ID, DESCRIBE, ("transactional_ids",)),),
    ApiKey.LIST_TRANSACTIONS: (Need(TRANSACTIONAL_ID, DESCRIBE, whole=Extent.ALL),),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (
        Need(CLUSTER, CLUSTER_ACTION, instead=Need(TOPIC, DESCRIBE, ("topics.topic",))),
    ),
    ApiKey.WRITE_TXN_MARKERS: (Need(CLUSTER, CLUSTER_ACTION, instead=Need(CLUSTER, ALTER)),),
    ApiKey.TXN_OFFSET_COMMIT: (
        Need(TRANSACTIONAL_ID, WRITE, ("transactional_id",)),
        _READ_GROUP,
        Need(TOPIC, READ, ("topics.name",)),
    ),
    ApiKey.DESCRIBE_PRODUCERS: (Need(TOPIC, READ, ("topics.name",)),),
    ApiKey.DESCRIBE_ACLS: (Need(CLUSTER, DESCRIBE),),
    ApiKey.CREATE_ACLS: (Need(CLUSTER, ALTER),),
    ApiKey.DELETE_ACLS: (Need(CLUSTER, ALTER),),
    ApiKey.DESCRIBE_CONFIGS: _configs(DESCRIBE_CONFIGS),
    ApiKey.ALTER_CONFIGS: _configs(ALTER_CONFIGS),
    ApiKey.ALTER_REPLICA_LOG_DIRS: (Need(CLUSTER, ALTER),),
    ApiKey.DESCRIBE_LOG_DIRS: (Need(CLUSTER, DESCRIBE),),
    ApiKey.CREATE_PARTITIONS: (Need(TOPIC, ALTER, ("topics.name",)),),
    # Of a token Kafka asks its owner, and CREATE_TOKENS of a user for another one's.
    ApiKey.CREATE_DELEGATION_TOKEN: (),
    ApiKey.RENEW_DELEGATION_TOKEN: (),
    ApiKey.EXPIRE_DELEGATION_TOKEN: (),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: (),
    ApiKey.DELETE_GROUPS: (Need(GROUP, DELETE, ("groups_names",)),),
    ApiKey.ELECT_LEADERS: (Need(CLUSTER, ALTER),),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _configs(ALTER_CONFIGS),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (Need(CLUSTER, ALTER),),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (Need(CLUSTER, DESCRIBE),),
    ApiKey.OFFSET_DELETE: (Need(GROUP, DELETE, ("group_id",)), Need(TOPIC, READ, ("topics.name",))),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (Need(CLUSTER, DESCRIBE_CONFIGS),),
    ApiKey.ALTER_CLIENT_QUOTAS: (Need(CLUSTER, ALTER_CONFIGS),),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (Need(CLUSTER, DESCRIBE),),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (Need(CLUSTER, ALTER),),
    ApiKey.SASL_HANDSHAKE: (),
    ApiKey.SASL_AUTHENTICATE: (),
    ApiKey.DESCRIBE_QUORUM: (Need(CLUSTER, DESCRIBE),),
    ApiKey.UPDATE_FEATURES: (Need(CLUSTER, ALTER),),
    ApiKey.DESCRIBE_CLUSTER: (),
    ApiKey.UNREGISTER_BROKER: (Need(CLUSTER, ALTER),),
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: (),
    ApiKey.PUSH_TELEMETRY: (),
    ApiKey.ADD_RAFT_VOTER: (Need(CLUSTER, ALTER),),
    ApiKey.REMOVE_RAFT_VOTER: (Need(CLUSTER, ALTER),),
    ApiKey.LIST_CONFIG_RESOURCES: (Need(CLUSTER, DESCRIBE_CONFIGS),),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (
        Need(TOPIC, DESCRIBE, ("topics.name",), empty_is_all_until=0),
    ),
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: (Need(CLUSTER, CLUSTER_ACTION),),
    ApiKey.READ_SHARE_GROUP_STATE: (Need(CLUSTER, CLUSTER_ACTION),),
    ApiKey.WRITE_SHARE_GROUP_STATE: (Need(CLUSTER, CLUSTER_ACTION),),
    ApiKey.DELETE_SHARE_GROUP_STATE: (Need(CLUSTER, CLUSTER_ACTION),),
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: (Need(CLUSTER, CLUSTER_ACTION),),
}
