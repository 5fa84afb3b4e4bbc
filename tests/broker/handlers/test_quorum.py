"""What is said of a quorum that is not there."""

import uuid

import pytest

from wire.kafka.errors import ErrorCode
from wire.kafka.messages import (
    AddRaftVoterRequest,
    DescribeClusterRequest,
    DescribeQuorumRequest,
    RemoveRaftVoterRequest,
)
from wire.kafka.messages.cluster import (
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
)


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_there_is_no_log_of_metadata(client, version):
    parts = [DescribeQuorumRequestPartitionData(0)]
    wanted = [DescribeQuorumRequestTopicData("__cluster_metadata", parts)]
    answer = await client.call(DescribeQuorumRequest(wanted), version)
    assert ErrorCode(answer.error_code).name == "UNSUPPORTED_VERSION"
    assert (answer.topics, answer.nodes) == ([], [])
    if version == 2:
        assert answer.error_message.startswith("There is no Raft quorum")


@pytest.mark.parametrize("what", ["adding", "removing"])
async def test_voters_cannot_change(client, what):
    own = (await client.call(DescribeClusterRequest())).cluster_id

    async def ask(cluster_id):
        body = RemoveRaftVoterRequest(cluster_id, 7, uuid.uuid4())
        if what == "adding":
            body = AddRaftVoterRequest(cluster_id, 1000, 7, uuid.uuid4(), [])
        answer = await client.call(body)
        return ErrorCode(answer.error_code).name, answer.error_message

    for cluster_id in (None, own):
        assert await ask(cluster_id) == (
            "UNSUPPORTED_VERSION",
            f"Cluster doesn't support {what} voter because the kraft.version feature is 0",
        )
    assert await ask("other") == (
        "INCONSISTENT_CLUSTER_ID",
        f'The given id "other" doesn\'t match the cluster id "{own}"',
    )
