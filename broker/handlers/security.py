"""ACLs, delegation tokens and SCRAM users, of which there are none: what Kafka says then.

| key | versions | what |
|--|--|--|
| 29 DescribeAcls, 30 CreateAcls, 31 DeleteAcls | 1-3 | SECURITY_DISABLED: there is no authorizer |
| 38 CreateDelegationToken | 1-3 | DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, and so |
| 39 Renew-, 40 ExpireDelegationToken | 1-2 | are these: no listener says who a client is |
| 41 DescribeDelegationToken | 1-3 | |
| 50 DescribeUserScramCredentials | 0 | nobody has any |

The answers are those of Kafka 4.3.1 without an authorizer, on a PLAINTEXT listener; tools tell by
them what is missing. Credentials cannot be made (51 is not served): nobody would be asked for them.
Known deviation: an ACL or a filter that Kafka cannot read (of an unknown type) gets the same answer
as any other; Kafka closes the connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.api import Api, Request, Steps
from wire.kafka.api_keys import ApiKey
from wire.kafka.errors import ErrorCode, short
from wire.kafka.messages.acls import (
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsResponse,
)
from wire.kafka.messages.security import (
    CreateDelegationTokenResponse,
    DescribeDelegationTokenResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenResponse,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

_NO_AUTHORIZER = "No Authorizer is configured."
_NO_AUTHORIZER_HERE = "No Authorizer is configured on the broker"
_NO_TIME = -1
#: Users that are sorted at once.
_SORTED_MAX = 5000


class SecurityHandler:
    def apis(self) -> list[Api]:
        return [
            Api(ApiKey.DESCRIBE_ACLS, 1, 3, self.describe_acls),
            Api(ApiKey.CREATE_ACLS, 1, 3, self.create_acls),
            Api(ApiKey.DELETE_ACLS, 1, 3, self.delete_acls),
            Api(ApiKey.CREATE_DELEGATION_TOKEN, 1, 3, self.create_token),
            Api(ApiKey.RENEW_DELEGATION_TOKEN, 1, 2, self.renew_token),
            Api(ApiKey.EXPIRE_DELEGATION_TOKEN, 1, 2, self.expire_token),
            Api(ApiKey.DESCRIBE_DELEGATION_TOKEN, 1, 3, self.describe_tokens),
            Api(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, 0, self.describe_scram_users),
        ]

    # -- ACLs -------------------------------------------------------------------------------------

    def describe_acls(self, _: Request) -> DescribeAclsResponse:
        return DescribeAclsResponse(
            error_code=int(ErrorCode.SECURITY_DISABLED), error_message=_NO_AUTHORIZER_HERE
        )

    def create_acls(self, request: Request) -> Steps[CreateAclsResponse]:
        body: CreateAclsRequest = request.body
        response = CreateAclsResponse()
        for _ in body.creations:
            yield 1
            response.results.append(
                AclCreationResult(int(ErrorCode.SECURITY_DISABLED), _NO_AUTHORIZER)
            )
        return response

    def delete_acls(self, request: Request) -> Steps[DeleteAclsResponse]:
        body: DeleteAclsRequest = request.body
        response = DeleteAclsResponse()
        for _ in body.filters:
            yield 1
            response.filter_results.append(
                DeleteAclsFilterResult(int(ErrorCode.SECURITY_DISABLED), _NO_AUTHORIZER)
            )
        return response

    # -- delegation tokens ------------------------------------------------------------------------

    def create_token(self, request: Request) -> CreateDelegationTokenResponse:
        who = request.connection.principal
        return CreateDelegationTokenResponse(
            error_code=int(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED),
            principal_type=who.type,
            principal_name=who.name,
            token_requester_principal_type=who.type,
            token_requester_principal_name=who.name,
            issue_timestamp_ms=_NO_TIME,
            expiry_timestamp_ms=_NO_TIME,
            max_timestamp_ms=_NO_TIME,
        )

    def renew_token(self, _: Request) -> RenewDelegationTokenResponse:
        return RenewDelegationTokenResponse(
            error_code=int(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED),
            expiry_timestamp_ms=_NO_TIME,
        )

    def expire_token(self, _: Request) -> ExpireDelegationTokenResponse:
        return ExpireDelegationTokenResponse(
            error_code=int(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED),
            expiry_timestamp_ms=_NO_TIME,
        )

    def describe_tokens(self, _: Request) -> DescribeDelegationTokenResponse:
        return DescribeDelegationTokenResponse(
            error_code=int(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
        )

    # -- SCRAM users ------------------------------------------------------------------------------

    def describe_scram_users(self, request: Request) -> Steps[DescribeUserScramCredentialsResponse]:
        body: DescribeUserScramCredentialsRequest = request.body
        response = DescribeUserScramCredentialsResponse()
        counts: dict[str, int] = {}
        for user in body.users or ():
            yield 1
            counts[user.name] = counts.get(user.name, 0) + 1
        for name in _in_order(list(counts)):
            yield 2
            result = DescribeUserScramCredentialsResult(
                user=name,
                error_code=int(ErrorCode.RESOURCE_NOT_FOUND),
                error_message=short(
                    f"Attempt to describe a user credential that does not exist: {name}"
                ),
            )
            if counts[name] > 1:
                result.error_code = int(ErrorCode.DUPLICATE_RESOURCE)
                result.error_message = (
                    "Cannot describe SCRAM credentials for the same user twice in a single"
                    f" request: {name}"
                )
            response.results.append(result)
        return response


def _in_order(names: list[str]) -> Sequence[str]:
    """As Kafka's; of so many that sorting would hold the loop, as they came."""
    return sorted(names) if len(names) <= _SORTED_MAX else names
