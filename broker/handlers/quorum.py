"""What Kafka's quorum of controllers is asked: DescribeQuorum, AddRaftVoter, RemoveRaftVoter.

| key | versions | what |
|--|--|--|
| 55 DescribeQuorum | 0-2 | UNSUPPORTED_VERSION |
| 80 AddRaftVoter | 0-1 | UNSUPPORTED_VERSION; INCONSISTENT_CLUSTER_ID for another cluster's |
| 81 RemoveRaftVoter | 0 | the same |

There is no Raft quorum here: metadata is in ZooKeeper or SQLite, so that there is no log of it with
a leader, an epoch and offsets that could be told. UNSUPPORTED_VERSION is what clients of Kafka's
brokers on ZooKeeper saw, and what Kafka answers of voters that cannot change (kraft.version 0).
Kafka's error for a partition that is not the log of its metadata, UNKNOWN_TOPIC_OR_PARTITION, would
have its tool try for a minute, and then say something else. Who the controller is, is told by
DescribeCluster and Metadata.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.api import Api, Request
from wire.kafka.api_keys import ApiKey
from wire.kafka.errors import ErrorCode
from wire.kafka.messages.cluster import (
    AddRaftVoterRequest,
    AddRaftVoterResponse,
    DescribeQuorumResponse,
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
)

if TYPE_CHECKING:
    from broker.cluster.view import ClusterView

_NO_QUORUM = "There is no Raft quorum: the metadata of this cluster is not kept by KRaft."


class QuorumHandler:
    def __init__(self, cluster: ClusterView) -> None:
        self._cluster = cluster

    def apis(self) -> list[Api]:
        return [
            Api(ApiKey.DESCRIBE_QUORUM, 0, 2, self.describe_quorum),
            Api(ApiKey.ADD_RAFT_VOTER, 0, 1, self.add_raft_voter),
            Api(ApiKey.REMOVE_RAFT_VOTER, 0, 0, self.remove_raft_voter),
        ]

    def describe_quorum(self, _: Request) -> DescribeQuorumResponse:
        return DescribeQuorumResponse(
            error_code=int(ErrorCode.UNSUPPORTED_VERSION), error_message=_NO_QUORUM
        )

    def add_raft_voter(self, request: Request) -> AddRaftVoterResponse:
        body: AddRaftVoterRequest = request.body
        code, message = self._refusal(body.cluster_id, "adding")
        return AddRaftVoterResponse(error_code=int(code), error_message=message)

    def remove_raft_voter(self, request: Request) -> RemoveRaftVoterResponse:
        body: RemoveRaftVoterRequest = request.body
        code, message = self._refusal(body.cluster_id, "removing")
        return RemoveRaftVoterResponse(error_code=int(code), error_message=message)

    def _refusal(self, cluster_id: str | None, what: str) -> tuple[ErrorCode, str]:
        own = self._cluster.cluster_id
        if cluster_id is not None and cluster_id != own:
            return (
                ErrorCode.INCONSISTENT_CLUSTER_ID,
                f'The given id "{cluster_id}" doesn\'t match the cluster id "{own}"',
            )
        return (
            ErrorCode.UNSUPPORTED_VERSION,
            f"Cluster doesn't support {what} voter because the kraft.version feature is 0",
        )
