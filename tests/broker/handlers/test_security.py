"""What is said of tokens and users that are not there: Kafka 4.3.1's words."""

from wire.kafka.errors import ErrorCode
from wire.kafka.messages import (
    CreateDelegationTokenRequest,
    DescribeDelegationTokenRequest,
    DescribeUserScramCredentialsRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)
from wire.kafka.messages.security import UserName


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


async def test_nobody_has_credentials(client):
    answer = await client.call(DescribeUserScramCredentialsRequest(None))
    assert (answer.error_code, answer.results) == (0, [])
    names = [UserName(name) for name in ("b", "a", "b", "")]
    answer = await client.call(DescribeUserScramCredentialsRequest(names))
    found = [(one.user, ErrorCode(one.error_code).name) for one in answer.results]
    assert found == [
        ("", "RESOURCE_NOT_FOUND"),
        ("a", "RESOURCE_NOT_FOUND"),
        ("b", "DUPLICATE_RESOURCE"),
    ]
    assert answer.results[1].error_message == (
        "Attempt to describe a user credential that does not exist: a"
    )
