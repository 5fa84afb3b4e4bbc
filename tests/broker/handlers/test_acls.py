"""What is said of rights, and tokens that are not there: Kafka 4.3.1's words."""

import pytest

from wire.kafka.errors import ErrorCode
from wire.kafka.messages import (
    CreateAclsRequest,
    CreateDelegationTokenRequest,
    DeleteAclsRequest,
    DescribeAclsRequest,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)
from wire.kafka.messages.acls import AclCreation, DeleteAclsFilter


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_without_an_authorizer_there_are_no_acls(client, version):
    disabled = int(ErrorCode.SECURITY_DISABLED)
    answer = await client.call(DescribeAclsRequest(1, None, 1, None, None, 1, 1), version)
    assert (answer.error_code, answer.resources) == (disabled, [])
    assert answer.error_message == "No Authorizer is configured on the broker"
    acl = AclCreation(2, "t", 3, "User:a", "*", 3, 3)
    answer = await client.call(CreateAclsRequest([acl, acl]), version)
    assert [(one.error_code, one.error_message) for one in answer.results] == [
        (disabled, "No Authorizer is configured.")
    ] * 2
    wanted = DeleteAclsFilter(2, "t", 3, None, None, 1, 1)
    [answer] = (await client.call(DeleteAclsRequest([wanted]), version)).filter_results
    assert (answer.error_code, answer.matching_acls) == (disabled, [])
    assert answer.error_message == "No Authorizer is configured."


async def test_who_is_not_known_gets_no_tokens(client):
    refused = int(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
    made = await client.call(CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=-1))
    assert (made.error_code, made.principal_type, made.principal_name) == (
        refused, "User", "ANONYMOUS",
    )  # fmt: skip
    assert (made.issue_timestamp_ms, made.expiry_timestamp_ms, made.token_id) == (-1, -1, "")
    for body in (
        RenewDelegationTokenRequest(b"x", 1),
        ExpireDelegationTokenRequest(b"x", 1),
        DescribeDelegationTokenRequest(None),
    ):
        assert (await client.call(body)).error_code == refused
