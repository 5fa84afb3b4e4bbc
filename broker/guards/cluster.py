"""Guards of configurations, of the cluster, and of what brokers ask of one another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.authorization import CLUSTER_NAME, AclOperation, ResourceType
from broker.guards import refusals
from broker.guards.tools import (
    CHARACTERS_PER_UNIT,
    CODES,
    QUESTION_UNITS,
    One,
    Refused,
    told_beside,
    told_each,
    words,
)
from wire.kafka.codec import response_class
from wire.kafka.messages import cluster, configs

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.api import Request, Steps
    from broker.guards.tools import Guard
    from broker.rights import Rights
    from wire.kafka.errors import ErrorCode

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER

alters = One(CLUSTER, AclOperation.ALTER)
describes = One(CLUSTER, AclOperation.DESCRIBE)
describes_configs = One(CLUSTER, AclOperation.DESCRIBE_CONFIGS)
moves_directories = One(CLUSTER, AclOperation.ALTER, "", refusals.all_moves)
describes_directories = One(CLUSTER, AclOperation.DESCRIBE, "", refusals.log_dirs)
creates_acls = One(CLUSTER, AclOperation.ALTER, "", refusals.all_creations)
deletes_acls = One(CLUSTER, AclOperation.ALTER, "", refusals.all_filters)
alters_scram_users = One(CLUSTER, AclOperation.ALTER, "", refusals.all_scram_users)
alters_quotas = One(CLUSTER, AclOperation.ALTER_CONFIGS, "", refusals.all_quotas)
describes_quotas = One(CLUSTER, AclOperation.DESCRIBE_CONFIGS, "", refusals.no_quotas)


def _of_brokers(refused: Callable[[Request, ErrorCode], Steps[Any]]) -> One:
    return One(CLUSTER, AclOperation.CLUSTER_ACTION, "", refused)


initializes_states = _of_brokers(refusals.initialized_states)
reads_states = _of_brokers(refusals.read_states)
writes_states = _of_brokers(refusals.written_states)
deletes_states = _of_brokers(refusals.deleted_states)
summarizes_states = _of_brokers(refusals.summarized_states)


_not_elected = Refused(
    cluster.ReplicaElectionResult,
    cluster.PartitionResult,
    same=("topic",),
    parts="partition_result",
    index="partition_id",
    numbers=lambda topic: topic.partitions,
)


def elects_leaders(request: Request, rights: Rights) -> Steps[Any]:
    """Version 0 has its errors in the partitions."""
    outcome = yield from alters(request, rights)
    if outcome is None or request.version >= 1:
        return outcome
    topics = request.body.topic_partitions or ()
    return cluster.ElectLeadersResponse(
        replica_election_results=(yield from told_each(topics, CODES[CLUSTER], _not_elected))
    )


# -- configurations -------------------------------------------------------------------------------

#: `ConfigResource.Type`: which resource is asked about; all others are the cluster's.
_TOPIC, _GROUP = 2, 32
#: BROKER, BROKER_LOGGER, CLIENT_METRICS.
_OF_CLUSTER = (4, 8, 16)


def _configs(
    operation: AclOperation, answers: str, refused: Callable[[Any, ErrorCode], Any]
) -> Guard:
    """One that nothing has is for the handler to refuse."""

    def guard(request: Request, rights: Rights) -> Steps[Any]:
        kept, beside = [], []
        for item in request.body.resources:
            kind, name = item.resource_type, item.resource_name
            yield QUESTION_UNITS + len(name) // CHARACTERS_PER_UNIT
            resource, asked = CLUSTER, CLUSTER_NAME
            if kind == _TOPIC:
                resource, asked = TOPIC, name
            elif kind == _GROUP:
                resource, asked = GROUP, name
            is_known = resource is not CLUSTER or kind in _OF_CLUSTER
            if not is_known or rights.allows(operation, resource, asked):
                kept.append(item)
            else:
                beside.append(refused(item, CODES[resource]))
        if not beside:
            return None
        request.body.resources[:] = kept
        if not kept:
            return response_class(request.key)(**{answers: beside})
        return told_beside(answers, beside)

    return guard


describe_configs = _configs(
    AclOperation.DESCRIBE_CONFIGS,
    "results",
    lambda item, code: configs.DescribeConfigsResult(
        error_code=int(code),
        error_message=words(code),
        resource_type=item.resource_type,
        resource_name=item.resource_name,
    ),
)
alter_configs = _configs(
    AclOperation.ALTER_CONFIGS,
    "responses",
    lambda item, code: configs.AlterConfigsResourceResponse(
        error_code=int(code),
        error_message=words(code),
        resource_type=item.resource_type,
        resource_name=item.resource_name,
    ),
)
