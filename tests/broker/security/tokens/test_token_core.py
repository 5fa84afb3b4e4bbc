"""What may be done to a delegation token: Kafka's rules, by its errors."""

import dataclasses
import hashlib
import hmac

import pytest

from broker.security.principal import ANONYMOUS, Principal
from broker.security.tokens.token_core import (
    RENEWER_BYTES_MAX,
    RENEWERS_MAX,
    Lifetimes,
    Token,
    check_principals,
    credentials_of,
    expired,
    from_bytes,
    hmac_of,
    renewed,
    times_of_new,
    to_bytes,
)
from wire.kafka.errors import ErrorCode, KafkaError

OWNER, RENEWER = Principal("User", "owner"), Principal("User", "renewer")
REQUESTER = Principal("User", "requester")
LIMITS = Lifetimes(1000, 100)
NOW = 50_000
TOKEN = Token(OWNER, REQUESTER, (RENEWER,), NOW, NOW + 100, NOW + 1000, "k", {})
MAX = 2**63 - 1


def raises(code):
    return pytest.raises(KafkaError, match=f"^{ErrorCode[code].name}$")


@pytest.mark.parametrize(
    ("wanted_ms", "limits", "times"),
    [
        (-1, LIMITS, (100, 1000)),
        (0, LIMITS, (100, 1000)),
        (50, LIMITS, (50, 50)),
        (999, LIMITS, (100, 999)),
        (MAX, LIMITS, (100, 1000)),
        (-1, Lifetimes(MAX, MAX), (MAX - NOW, MAX - NOW)),
    ],
)
def test_how_long_a_new_one_is_good(wanted_ms, limits, times):
    found = times_of_new(NOW, wanted_ms, limits)
    assert found == tuple(NOW + each for each in times)


@pytest.mark.parametrize("who", [OWNER, RENEWER, Principal("User", "owner", is_by_token=True)])
@pytest.mark.parametrize(
    ("period_ms", "now_ms", "expiry_ms"),
    [
        (-1, NOW + 50, NOW + 150),
        (0, NOW + 50, NOW + 150),
        (30, NOW + 50, NOW + 80),
        (MAX, NOW + 50, NOW + 150),
        (30, NOW + 100, NOW + 130),
    ],
)
def test_owner_and_renewers_renew_it(who, period_ms, now_ms, expiry_ms):
    after = renewed(TOKEN, who, period_ms, now_ms, LIMITS)
    assert after == dataclasses.replace(TOKEN, expiry_ms=expiry_ms)


def test_no_renewal_goes_past_the_largest_time():
    """Attack 33."""
    late = dataclasses.replace(TOKEN, expiry_ms=NOW + 990)
    assert renewed(late, OWNER, 500, NOW + 980, LIMITS).expiry_ms == NOW + 1000
    assert expired(late, OWNER, MAX, NOW + 980).expiry_ms == NOW + 1000


def test_who_may_not():
    for who in (REQUESTER, ANONYMOUS, Principal("Group", "owner"), Principal("User", "")):
        with raises("DELEGATION_TOKEN_OWNER_MISMATCH"):
            renewed(TOKEN, who, 1, NOW, LIMITS)
        with raises("DELEGATION_TOKEN_OWNER_MISMATCH"):
            expired(TOKEN, who, -1, NOW)


def test_of_none_and_of_one_that_has_ended():
    with raises("DELEGATION_TOKEN_NOT_FOUND"):
        renewed(None, OWNER, 1, NOW, LIMITS)
    with raises("DELEGATION_TOKEN_NOT_FOUND"):
        expired(None, OWNER, -1, NOW)
    for token in (TOKEN, dataclasses.replace(TOKEN, expiry_ms=MAX, max_ms=NOW + 100)):
        assert not token.has_ended(NOW + 100)
        assert token.has_ended(NOW + 101)
        with raises("DELEGATION_TOKEN_EXPIRED"):
            renewed(token, OWNER, 1, NOW + 101, LIMITS)
        with raises("DELEGATION_TOKEN_EXPIRED"):
            expired(token, OWNER, 1, NOW + 101)
        assert expired(token, OWNER, -1, NOW + 101) is None


def test_one_is_ended_now_or_later():
    assert expired(TOKEN, RENEWER, -1, NOW) is None
    assert expired(TOKEN, RENEWER, 0, NOW).expiry_ms == NOW
    assert expired(TOKEN, RENEWER, 300, NOW).expiry_ms == NOW + 300


def test_principals_are_users_and_of_a_number_and_length_that_can_be_stored():
    check_principals(OWNER, [RENEWER] * RENEWERS_MAX)
    long = Principal("User", "x" * RENEWER_BYTES_MAX)
    check_principals(OWNER, [long] * 15)
    with raises("INVALID_REQUEST"):
        check_principals(OWNER, [long] * 16)
    with raises("INVALID_PRINCIPAL_TYPE"):
        check_principals(OWNER, [RENEWER, Principal("Group", "x")])
    with raises("INVALID_PRINCIPAL_TYPE"):
        check_principals(Principal("user", "x"), [])
    with raises("INVALID_REQUEST"):
        check_principals(OWNER, [RENEWER] * (RENEWERS_MAX + 1))
    with raises("INVALID_REQUEST"):
        check_principals(OWNER, [Principal("User", "ä" * (RENEWER_BYTES_MAX // 2 + 1))])


def test_its_document_has_no_hmac_and_neither_has_its_repr():
    known = hmac_of(b"secret", "an id")
    assert known == hmac.new(b"secret", b"an id", hashlib.sha512).digest()
    token = dataclasses.replace(TOKEN, credentials=credentials_of(known, [b"salt1", b"salt2"]))
    data = to_bytes(token)
    assert from_bytes(data) == token
    assert set(token.credentials) == {"SCRAM-SHA-256", "SCRAM-SHA-512"}
    for shown in (data, repr(token).encode()):
        assert known not in shown
        assert known.hex().encode() not in shown
    assert "stored_key" not in repr(token)


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"owner": 5}', b'{"owner": ["User"]}'])
def test_what_is_damaged_is_no_token(data):
    with pytest.raises(ValueError, match=r"no delegation token|Expecting value|unpack"):
        from_bytes(data)
