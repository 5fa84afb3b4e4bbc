"""Delegation tokens, of which there are none: what Kafka says then.

| key | versions | what |
|--|--|--|
| 38 CreateDelegationToken | 1-3 | DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, and so |
| 39 Renew-, 40 ExpireDelegationToken | 1-2 | are these: no listener says who a client is |
| 41 DescribeDelegationToken | 1-3 | |

The answers are those of Kafka 4.3.1 on a PLAINTEXT listener; tools tell by them what is missing.
"""

from __future__ import annotations

from broker.api import Api, Request
from wire.kafka.api_keys import ApiKey
from wire.kafka.errors import ErrorCode
from wire.kafka.messages.security import (
    CreateDelegationTokenResponse,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenResponse,
)

_NO_TIME = -1


class SecurityHandler:
    def apis(self) -> list[Api]:
        return [
            Api(ApiKey.CREATE_DELEGATION_TOKEN, 1, 3, self.create_token),
            Api(ApiKey.RENEW_DELEGATION_TOKEN, 1, 2, self.renew_token),
            Api(ApiKey.EXPIRE_DELEGATION_TOKEN, 1, 2, self.expire_token),
            Api(ApiKey.DESCRIBE_DELEGATION_TOKEN, 1, 3, self.describe_tokens),
        ]

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
