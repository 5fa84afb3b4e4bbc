"""Delegation tokens: created, renewed, expired, described (KIP-48, KIP-373).

| key | versions | what |
|--|--|--|
| 38 CreateDelegationToken | 1-3 | for oneself, or for another one whom it is allowed for |
| 39 RenewDelegationToken | 1-2 | by its owner or a renewer, up to its largest timestamp |
| 40 ExpireDelegationToken | 1-2 | by the same; a negative period ends it now |
| 41 DescribeDelegationToken | 1-3 | one's own, those one may renew, and those one may describe |

Nobody asks over PLAINTEXT, without a name over SSL, or when he came by a token himself
(DELEGATION_TOKEN_REQUEST_NOT_ALLOWED). Without delegation.token.secret.key there are none
(DELEGATION_TOKEN_AUTH_DISABLED). Errors and their order are Kafka 4.3.1's (`KafkaApis`,
`DelegationTokenControlManager`). Without an authorizer everybody may do what one asks.
Known deviations: an owner who is no User is INVALID_PRINCIPAL_TYPE; more than 256 renewers, and
names of more than 1024 bytes, are INVALID_REQUEST; a super user's tokens are created by super users
only (DELEGATION_TOKEN_AUTHORIZATION_FAILED), as his password is (scram_users.py), and described to
them and to its renewers only, as whoever has a token's hmac can log in as its owner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.api import Api, Request, Steps
from broker.authorization import AclOperation, ResourceType
from broker.handlers.topics import metadata_failure
from broker.security.listener import SecurityProtocol
from broker.security.principal import ANONYMOUS, Principal
from broker.security.tokens.token_core import RENEWERS_MAX
from metadata.store import MetadataError
from wire.kafka.api_keys import ApiKey
from wire.kafka.errors import ErrorCode, KafkaError
from wire.kafka.messages.security import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from broker.api import ConnectionInfo
    from broker.rights import Rights
    from broker.security.tokens.store import DelegationTokens
    from broker.security.tokens.token_core import Token

_NO_TIME = -1
#: What a described token costs, in units of `Steps`.
DESCRIBED_UNITS = 10

_FAILURES = (KafkaError, MetadataError)


class DelegationTokensHandler:
    def __init__(
        self,
        tokens: DelegationTokens | None,
        protocols: Mapping[str, str],
    ) -> None:
        """`tokens`: None without a secret. `protocols`: of the listeners, by name."""
        self._tokens = tokens
        self._protocols = protocols

    def apis(self) -> list[Api]:
        return [
            Api(ApiKey.CREATE_DELEGATION_TOKEN, 1, 3, self.create),
            Api(ApiKey.RENEW_DELEGATION_TOKEN, 1, 2, self.renew),
            Api(ApiKey.EXPIRE_DELEGATION_TOKEN, 1, 2, self.expire),
            Api(ApiKey.DESCRIBE_DELEGATION_TOKEN, 1, 3, self.describe),
        ]

    async def create(self, request: Request) -> CreateDelegationTokenResponse:
        body: CreateDelegationTokenRequest = request.body
        requester = request.connection.principal
        owner = requester
        if body.owner_principal_name:
            owner = Principal(body.owner_principal_type or "", body.owner_principal_name)
        response = CreateDelegationTokenResponse(
            principal_type=owner.type,
            principal_name=owner.name,
            token_requester_principal_type=requester.type,
            token_requester_principal_name=requester.name,
            issue_timestamp_ms=_NO_TIME,
            expiry_timestamp_ms=_NO_TIME,
            max_timestamp_ms=_NO_TIME,
        )
        renewers = [
            Principal(one.principal_type, one.principal_name)
            for one in body.renewers[: RENEWERS_MAX + 1]
        ]
        try:
            self._check_may_ask(request.connection)
            _check_may_create(request.rights, owner, requester)
            tokens = self._enabled()
            token_id, token = await tokens.create(owner, requester, renewers, body.max_lifetime_ms)
        except _FAILURES as error:
            response.error_code = _code(error)
            return response
        response.issue_timestamp_ms = token.issue_ms
        response.expiry_timestamp_ms = token.expiry_ms
        response.max_timestamp_ms = token.max_ms
        response.token_id = token_id
        response.hmac = tokens.hmac(token_id)
        return response

    async def renew(self, request: Request) -> RenewDelegationTokenResponse:
        body: RenewDelegationTokenRequest = request.body
        response = RenewDelegationTokenResponse(expiry_timestamp_ms=_NO_TIME)
        try:
            self._check_may_ask(request.connection)
            response.expiry_timestamp_ms = await self._enabled().renew(
                bytes(body.hmac), request.connection.principal, body.renew_period_ms
            )
        except _FAILURES as error:
            response.error_code = _code(error)
        return response

    async def expire(self, request: Request) -> ExpireDelegationTokenResponse:
        body: ExpireDelegationTokenRequest = request.body
        response = ExpireDelegationTokenResponse(expiry_timestamp_ms=_NO_TIME)
        try:
            self._check_may_ask(request.connection)
            response.expiry_timestamp_ms = await self._enabled().expire(
                bytes(body.hmac), request.connection.principal, body.expiry_time_period_ms
            )
        except _FAILURES as error:
            response.error_code = _code(error)
        return response

    def describe(self, request: Request) -> Steps[DescribeDelegationTokenResponse]:
        body: DescribeDelegationTokenRequest = request.body
        response = DescribeDelegationTokenResponse()
        try:
            self._check_may_ask(request.connection)
            tokens = self._enabled()
        except KafkaError as error:
            response.error_code = _code(error)
            return response
        owners: set[Principal] | None = None
        if body.owners is not None:
            owners = set()
            for one in body.owners:
                yield 1
                owners.add(Principal(one.principal_type, one.principal_name))
        for token_id, token in tokens.items():
            yield 1 + len(token.renewers)
            if owners is not None and owners.isdisjoint((token.owner, *token.renewers)):
                continue
            if not _may_describe(request, token_id, token):
                continue
            yield DESCRIBED_UNITS + len(token.renewers)
            response.tokens.append(_described(token_id, token, tokens.hmac(token_id)))
        return response

    # -- who may ----------------------------------------------------------------------------------

    def _check_may_ask(self, connection: ConnectionInfo) -> None:
        """KafkaError."""
        protocol = self._protocols.get(connection.listener, SecurityProtocol.PLAINTEXT)
        is_nobody = protocol == SecurityProtocol.SSL and connection.principal == ANONYMOUS
        is_refused = protocol == SecurityProtocol.PLAINTEXT or is_nobody
        if is_refused or connection.principal.is_by_token:
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)

    def _enabled(self) -> DelegationTokens:
        """KafkaError."""
        if self._tokens is None:
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
        return self._tokens


def _check_may_create(rights: Rights | None, owner: Principal, requester: Principal) -> None:
    """KafkaError."""
    if owner == requester or rights is None:
        return
    name = str(owner)
    may = rights.allows(AclOperation.CREATE_TOKENS, ResourceType.USER, name)
    if not may or not rights.is_over(name):
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED)


def _may_describe(request: Request, token_id: str, token: Token) -> bool:
    rights = request.rights
    if rights is None or token.may_renew(request.connection.principal):
        return True
    owner = str(token.owner)
    if not rights.is_over(owner):
        return False  # its hmac is a login
    # Not to the audit log: the client did not name it.
    describe, of_tokens = AclOperation.DESCRIBE, ResourceType.DELEGATION_TOKEN
    return rights.allows(describe, of_tokens, token_id, is_told=False) or rights.allows(
        AclOperation.DESCRIBE_TOKENS, ResourceType.USER, owner, is_told=False
    )


def _code(error: KafkaError | MetadataError) -> int:
    return int((metadata_failure(error) if isinstance(error, MetadataError) else error).code)


def _described(token_id: str, token: Token, token_hmac: bytes) -> DescribedDelegationToken:
    return DescribedDelegationToken(
        principal_type=token.owner.type,
        principal_name=token.owner.name,
        token_requester_principal_type=token.requester.type,
        token_requester_principal_name=token.requester.name,
        issue_timestamp=token.issue_ms,
        expiry_timestamp=token.expiry_ms,
        max_timestamp=token.max_ms,
        token_id=token_id,
        hmac=token_hmac,
        renewers=[DescribedDelegationTokenRenewer(one.type, one.name) for one in token.renewers],
    )
