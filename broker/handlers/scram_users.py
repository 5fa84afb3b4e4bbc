"""SCRAM users: DescribeUserScramCredentials, AlterUserScramCredentials (KIP-554).

| key | versions | what |
|--|--|--|
| 50 DescribeUserScramCredentials | 0 | mechanisms and iterations, never more |
| 51 AlterUserScramCredentials | 0 | sets and removes; what the client sends is no password |

What a request asks for one user is done as a whole or not at all. It is durable and in force in
this broker when it is answered, and in the others when they have seen it; sessions stay until their
end (broker/security/sasl/). Errors and messages are those of Kafka 4.3.1 (`ScramControlManager`,
`ScramImage`).
Known deviations: a request may change both mechanisms of a user, as KIP-554 has it, where Kafka's
controller says DUPLICATE_RESOURCE; an empty salt, a salted password that is not of the mechanism's
size, and a name of more than 1024 bytes are refused (UNACCEPTABLE_CREDENTIAL): nobody could log in
by them, or anybody. A super user's credentials are altered by super users only
(CLUSTER_AUTHORIZATION_FAILED): in Kafka whoever has ALTER on the cluster can become one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.api import Api, Request, Steps
from broker.handlers.topics import metadata_failure
from broker.security.principal import USER, Principal
from broker.security.sasl.scram.credentials import Credential
from broker.security.sasl.scram.hashes import BY_NAME, BY_NUMBER, ITERATIONS_MAX, ITERATIONS_MIN
from broker.security.users.store import NAME_BYTES_MAX
from metadata.store import MetadataError
from runtime.slices import Slices
from wire.kafka.api_keys import ApiKey
from wire.kafka.errors import ErrorCode, KafkaError, short
from wire.kafka.messages.security import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from broker.rights import Rights
    from broker.security.sasl.scram.credentials import Credentials
    from broker.security.sasl.scram.hashes import ScramHash
    from broker.security.users.store import ScramUsers

#: Users that are sorted at once.
SORTED_MAX = 5000
#: Elements of a request that are looked at before others have the loop.
CHANGES_PER_TURN = 200
SALT_BYTES_MAX = 1024

_Change = ScramCredentialDeletion | ScramCredentialUpsertion


class ScramUsersHandler:
    def __init__(self, users: ScramUsers) -> None:
        self._users = users

    def apis(self) -> list[Api]:
        return [
            Api(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, 0, self.describe),
            Api(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, 0, self.alter),
        ]

    # -- DescribeUserScramCredentials -------------------------------------------------------------

    def describe(self, request: Request) -> Steps[DescribeUserScramCredentialsResponse]:
        body: DescribeUserScramCredentialsRequest = request.body
        response = DescribeUserScramCredentialsResponse()
        counts: dict[str, int] = {}
        for user in body.users or ():
            yield 1
            counts[user.name] = counts.get(user.name, 0) + 1
        for name in _in_order(list(counts) or self._users.names()):
            yield 3
            response.results.append(self._described(name, counts.get(name, 1)))
        return response

    def _described(self, name: str, count: int) -> DescribeUserScramCredentialsResult:
        result = DescribeUserScramCredentialsResult(user=name, error_message=None)
        if count > 1:
            result.error_code = int(ErrorCode.DUPLICATE_RESOURCE)
            result.error_message = (
                "Cannot describe SCRAM credentials for the same user twice in a single"
                f" request: {name}"
            )
            return result
        for mechanism, credential in sorted(self._users.credentials(name).items()):
            number = BY_NAME[mechanism].number
            result.credential_infos.append(CredentialInfo(number, credential.iterations))
        if not result.credential_infos:
            result.error_code = int(ErrorCode.RESOURCE_NOT_FOUND)
            result.error_message = short(
                f"Attempt to describe a user credential that does not exist: {name}"
            )
        return result

    # -- AlterUserScramCredentials ----------------------------------------------------------------

    async def alter(self, request: Request) -> AlterUserScramCredentialsResponse:
        body: AlterUserScramCredentialsRequest = request.body
        slices = Slices(CHANGES_PER_TURN)
        by_user: dict[str, list[_Change]] = {}
        for changes in (body.deletions, body.upsertions):
            for change in changes:
                if slices.due(1):
                    await slices.turn()
                by_user.setdefault(change.name, []).append(change)
        response = AlterUserScramCredentialsResponse()
        for name, wanted in by_user.items():
            if slices.due(1 + len(wanted)):
                await slices.turn()
            result = AlterUserScramCredentialsResult(user=name, error_message=None)
            response.results.append(result)
            try:
                _check_may_alter(request.rights, name)
                await self._alter(name, wanted)
            except KafkaError as error:
                result.error_code, result.error_message = int(error.code), error.message
            except MetadataError as error:
                failure = metadata_failure(error)
                result.error_code, result.error_message = int(failure.code), failure.message
        return response

    async def _alter(self, name: str, changes: Sequence[_Change]) -> None:
        """KafkaError, MetadataError."""
        kinds = [_checked(change) for change in changes[: len(BY_NUMBER) + 1]]
        if len(set(kinds)) < len(changes):
            raise KafkaError(
                ErrorCode.DUPLICATE_RESOURCE,
                "A user credential cannot be altered twice in the same request",
            )
        pairs = list(zip(kinds, changes, strict=True))

        def change(before: Mapping[str, Credential]) -> Credentials:
            after = dict(before)
            for kind, one in pairs:
                if isinstance(one, ScramCredentialUpsertion):
                    after[kind.name] = Credential.of_salted(
                        kind, one.salted_password, one.salt, one.iterations
                    )
                elif after.pop(kind.name, None) is None:
                    raise _absent()
            return after

        await self._users.change(name, change)


def _check_may_alter(rights: Rights | None, name: str) -> None:
    """KafkaError. That he may alter users at all was asked before."""
    if rights is not None and not rights.is_over(str(Principal(USER, name))):
        raise KafkaError(
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            "A super user's credentials are altered by super users only",
        )


def _checked(change: _Change) -> ScramHash:
    """KafkaError."""
    if not change.name:
        raise _unacceptable("Username must not be empty")
    kind = BY_NUMBER.get(change.mechanism)
    if kind is None:
        raise KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    is_long = len(change.name.encode()) > NAME_BYTES_MAX
    if not isinstance(change, ScramCredentialUpsertion):
        if is_long:
            raise _absent()
    else:
        if change.iterations < ITERATIONS_MIN:
            raise _unacceptable("Too few iterations")
        if change.iterations > ITERATIONS_MAX:
            raise _unacceptable("Too many iterations")
        if not 0 < len(change.salt) <= SALT_BYTES_MAX:
            raise _unacceptable("Salt must not be empty, or very long")
        if len(change.salted_password) != kind.size:
            raise _unacceptable(f"A salted password of {kind.name} has {kind.size} bytes")
        if is_long:
            raise _unacceptable("Username is too long")
    return kind


def _unacceptable(message: str) -> KafkaError:
    return KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, message)


def _absent() -> KafkaError:
    return KafkaError(
        ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist"
    )


def _in_order(names: list[str]) -> Sequence[str]:
    """As Kafka's; of so many that sorting would hold the loop, as they came."""
    return sorted(names) if len(names) <= SORTED_MAX else names
