"""ACLs, of which there are none: what Kafka says then.

| key | versions | what |
|--|--|--|
| 29 DescribeAcls, 30 CreateAcls, 31 DeleteAcls | 1-3 | SECURITY_DISABLED: there is no authorizer |

The answers are those of Kafka 4.3.1 without an authorizer, on a PLAINTEXT listener; tools tell by
them what is missing.
Known deviation: an ACL or a filter that Kafka cannot read (of an unknown type) gets the same answer
as any other; Kafka closes the connection.
"""

from __future__ import annotations

from broker.api import Api, Request, Steps
from wire.kafka.api_keys import ApiKey
from wire.kafka.errors import ErrorCode
from wire.kafka.messages.acls import (
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsResponse,
)

_NO_AUTHORIZER = "No Authorizer is configured."
_NO_AUTHORIZER_HERE = "No Authorizer is configured on the broker"


class SecurityHandler:
    def apis(self) -> list[Api]:
        return [
            Api(ApiKey.DESCRIBE_ACLS, 1, 3, self.describe_acls),
            Api(ApiKey.CREATE_ACLS, 1, 3, self.create_acls),
            Api(ApiKey.DELETE_ACLS, 1, 3, self.delete_acls),
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
