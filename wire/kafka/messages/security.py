"""Authentication: SASL, delegation tokens, SCRAM credentials (keys 17, 36, 38-41, 50, 51)."""

from wire.kafka.api_keys import ApiKey
from wire.kafka.message import (
    BYTES,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    Message,
    array,
    field,
    request,
    response,
)
from wire.kafka.structs import Struct, declared


@request(ApiKey.SASL_HANDSHAKE, "0-1", flexible=None)
@declared
class SaslHandshakeRequest(Message):
    """Choose a mechanism; 0: raw SASL bytes follow, 1: SaslAuthenticate (KIP-152)."""

    mechanism: str = field(STRING, "0+")


@response(ApiKey.SASL_HANDSHAKE, "0-1", flexible=None)
@declared
class SaslHandshakeResponse(Message):
    """The mechanisms on offer."""

    error_code: int = field(INT16, "0+")
    mechanisms: list[str] = field(array(STRING), "0+")


@request(ApiKey.SASL_AUTHENTICATE, "0-2", flexible="2+")
@declared
class SaslAuthenticateRequest(Message):
    """One step of the exchange (KIP-152)."""

    auth_bytes: bytes = field(BYTES, "0+")


@response(ApiKey.SASL_AUTHENTICATE, "0-2", flexible="2+")
@declared
class SaslAuthenticateResponse(Message):
    """1: session lifetime (KIP-368)."""

    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", null="0+")
    auth_bytes: bytes = field(BYTES, "0+")
    session_lifetime_ms: int = field(INT64, "1+")


@declared
class CreatableRenewers(Struct):
    principal_type: str = field(STRING, "0+")
    principal_name: str = field(STRING, "0+")


@request(ApiKey.CREATE_DELEGATION_TOKEN, "0-3", flexible="2+")
@declared
class CreateDelegationTokenRequest(Message):
    """Make a token (KIP-48); 3: for another owner (KIP-373)."""

    owner_principal_type: str | None = field(STRING, "3+", null="3+")
    owner_principal_name: str | None = field(STRING, "3+", null="3+")
    renewers: list[CreatableRenewers] = field(array(CreatableRenewers), "0+")
    max_lifetime_ms: int = field(INT64, "0+")


@response(ApiKey.CREATE_DELEGATION_TOKEN, "0-3", flexible="2+")
@declared
class CreateDelegationTokenResponse(Message):
    """The token and its secret."""

    error_code: int = field(INT16, "0+")
    principal_type: str = field(STRING, "0+")
    principal_name: str = field(STRING, "0+")
    token_requester_principal_type: str = field(STRING, "3+")
    token_requester_principal_name: str = field(STRING, "3+")
    issue_timestamp_ms: int = field(INT64, "0+")
    expiry_timestamp_ms: int = field(INT64, "0+")
    max_timestamp_ms: int = field(INT64, "0+")
    token_id: str = field(STRING, "0+")
    hmac: bytes = field(BYTES, "0+")
    throttle_time_ms: int = field(INT32, "0+")


@request(ApiKey.RENEW_DELEGATION_TOKEN, "0-2", flexible="2+")
@declared
class RenewDelegationTokenRequest(Message):
    """Make a token last longer (KIP-48)."""

    hmac: bytes = field(BYTES, "0+")
    renew_period_ms: int = field(INT64, "0+")


@response(ApiKey.RENEW_DELEGATION_TOKEN, "0-2", flexible="2+")
@declared
class RenewDelegationTokenResponse(Message):
    """The new expiry."""

    error_code: int = field(INT16, "0+")
    expiry_timestamp_ms: int = field(INT64, "0+")
    throttle_time_ms: int = field(INT32, "0+")


@request(ApiKey.EXPIRE_DELEGATION_TOKEN, "0-2", flexible="2+")
@declared
class ExpireDelegationTokenRequest(Message):
    """Shorten or end a token (KIP-48)."""

    hmac: bytes = field(BYTES, "0+")
    expiry_time_period_ms: int = field(INT64, "0+")


@response(ApiKey.EXPIRE_DELEGATION_TOKEN, "0-2", flexible="2+")
@declared
class ExpireDelegationTokenResponse(Message):
    """The new expiry."""

    error_code: int = field(INT16, "0+")
    expiry_timestamp_ms: int = field(INT64, "0+")
    throttle_time_ms: int = field(INT32, "0+")


@declared
class DescribeDelegationTokenOwner(Struct):
    principal_type: str = field(STRING, "0+")
    principal_name: str = field(STRING, "0+")


@request(ApiKey.DESCRIBE_DELEGATION_TOKEN, "0-3", flexible="2+")
@declared
class DescribeDelegationTokenRequest(Message):
    """Tokens of owners; null means all (KIP-48)."""

    owners: list[DescribeDelegationTokenOwner] | None = field(
        array(DescribeDelegationTokenOwner), "0+", null="0+"
    )


@declared
class DescribedDelegationTokenRenewer(Struct):
    principal_type: str = field(STRING, "0+")
    principal_name: str = field(STRING, "0+")


@declared
class DescribedDelegationToken(Struct):
    principal_type: str = field(STRING, "0+")
    principal_name: str = field(STRING, "0+")
    token_requester_principal_type: str = field(STRING, "3+")
    token_requester_principal_name: str = field(STRING, "3+")
    issue_timestamp: int = field(INT64, "0+")
    expiry_timestamp: int = field(INT64, "0+")
    max_timestamp: int = field(INT64, "0+")
    token_id: str = field(STRING, "0+")
    hmac: bytes = field(BYTES, "0+")
    renewers: list[DescribedDelegationTokenRenewer] = field(
        array(DescribedDelegationTokenRenewer), "0+"
    )


@response(ApiKey.DESCRIBE_DELEGATION_TOKEN, "0-3", flexible="2+")
@declared
class DescribeDelegationTokenResponse(Message):
    """3: who asked for it (KIP-373)."""

    error_code: int = field(INT16, "0+")
    tokens: list[DescribedDelegationToken] = field(array(DescribedDelegationToken), "0+")
    throttle_time_ms: int = field(INT32, "0+")


@declared
class UserName(Struct):
    name: str = field(STRING, "0+")


@request(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, "0", flexible="0+")
@declared
class DescribeUserScramCredentialsRequest(Message):
    """Which users have SCRAM credentials (KIP-554); null means all."""

    users: list[UserName] | None = field(array(UserName), "0+", null="0+")


@declared
class CredentialInfo(Struct):
    mechanism: int = field(INT8, "0+")
    iterations: int = field(INT32, "0+")


@declared
class DescribeUserScramCredentialsResult(Struct):
    user: str = field(STRING, "0+")
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", null="0+")
    credential_infos: list[CredentialInfo] = field(array(CredentialInfo), "0+")


@response(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, "0", flexible="0+")
@declared
class DescribeUserScramCredentialsResponse(Message):
    """Mechanisms and iterations, never the secrets."""

    throttle_time_ms: int = field(INT32, "0+")
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", null="0+")
    results: list[DescribeUserScramCredentialsResult] = field(
        array(DescribeUserScramCredentialsResult), "0+"
    )


@declared
class ScramCredentialDeletion(Struct):
    name: str = field(STRING, "0+")
    mechanism: int = field(INT8, "0+")


@declared
class ScramCredentialUpsertion(Struct):
    name: str = field(STRING, "0+")
    mechanism: int = field(INT8, "0+")
    iterations: int = field(INT32, "0+")
    salt: bytes = field(BYTES, "0+")
    salted_password: bytes = field(BYTES, "0+")


@request(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, "0", flexible="0+")
@declared
class AlterUserScramCredentialsRequest(Message):
    """Set and remove SCRAM credentials (KIP-554)."""

    deletions: list[ScramCredentialDeletion] = field(array(ScramCredentialDeletion), "0+")
    upsertions: list[ScramCredentialUpsertion] = field(array(ScramCredentialUpsertion), "0+")


@declared
class AlterUserScramCredentialsResult(Struct):
    user: str = field(STRING, "0+")
    error_code: int = field(INT16, "0+")
    error_message: str | None = field(STRING, "0+", null="0+")


@response(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, "0", flexible="0+")
@declared
class AlterUserScramCredentialsResponse(Message):
    """A result per user."""

    throttle_time_ms: int = field(INT32, "0+")
    results: list[AlterUserScramCredentialsResult] = field(
        array(AlterUserScramCredentialsResult), "0+"
    )
