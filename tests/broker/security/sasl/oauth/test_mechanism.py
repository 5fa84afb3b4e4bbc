"""Logins by token, over the wire: what is answered, who somebody is then, and for how long."""

import json
import logging
import time

import pytest
import trio

from broker.security.sasl.mechanism import AuthenticationFailedError
from broker.security.sasl.oauth.key_source import KeySource, KeyTimes
from broker.security.sasl.oauth.mechanism import OAuthMechanism
from broker.security.sasl.oauth.message_core import INVALID_TOKEN
from broker.security.sasl.oauth.token_core import TokenRules
from tests.broker.security.sasl.oauth.conftest import claims, jwks, message, public, signed
from wire.kafka.errors import ErrorCode
from wire.kafka.messages import MetadataRequest

FAILED = int(ErrorCode.SASL_AUTHENTICATION_FAILED)
OAUTHBEARER = "OAUTHBEARER"


def token(seconds=600, by="rsa", **more):
    now = int(time.time())
    return signed(claims(now=now, exp=now + seconds, **more), by)


@pytest.fixture
def start_oauth(start_server, tmp_path):
    """start_oauth(**settings): keys of «rsa» and «ed» in a file."""
    path = tmp_path / "jwks.json"
    path.write_bytes(jwks(public("rsa"), public("ed")))

    async def start(**settings):
        own = {name.replace("_", "."): text for name, text in settings.items()}
        return await start_server(
            {
                "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
                "sasl.enabled.mechanisms": OAUTHBEARER,
                "sasl.oauthbearer.jwks.endpoint.url": f"file://{path}",
                **own,
            }
        )

    start.path = path
    return start


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_a_login(start_oauth, speak, version):
    speaker = await speak(await start_oauth())
    assert (await speaker.handshake(OAUTHBEARER)).mechanisms == [OAUTHBEARER]
    answer = await speaker.authenticate(message(token(), logicalCluster="lkc"), version)
    assert (answer.error_code, answer.auth_bytes) == (0, b"")
    lifetime_ms = answer.session_lifetime_ms
    assert lifetime_ms == 0 if version == 0 else 590_000 < lifetime_ms <= 600_000
    assert (await speaker.client.call(MetadataRequest(topics=[]))).cluster_id


async def test_a_bad_token_is_answered_and_then_fails(start_oauth, speak, caplog):
    caplog.set_level(logging.INFO)
    server = await start_oauth()
    for seconds, confirmation in ((-100, b"\1"), (-100, b""), (-100, message(token()))):
        speaker = await speak(server)
        await speaker.handshake(OAUTHBEARER)
        bad = token(seconds, iat=1)
        answer = await speaker.authenticate(message(bad))
        assert answer.error_code == 0
        assert json.loads(answer.auth_bytes) == {"status": "invalid_token"}
        answer = await speaker.authenticate(confirmation)
        assert (answer.error_code, answer.error_message) == (
            FAILED,
            "Authentication failed: invalid credentials with SASL mechanism OAUTHBEARER",
        )
        assert await speaker.client.is_closed()
    failed = [each for each in caplog.records if each.msg == "authentication_failed"]
    assert {each.args["reason"] for each in failed} == {"expired"}
    assert {each.args["user"] for each in failed} == {"alice"}
    assert bad.split(".")[2] not in caplog.text


@pytest.mark.parametrize("data", [b"", b"\1", b"\0alice\0wonder", b"n,,\1auth=Bearer x y\1\1"])
async def test_what_is_no_message_fails_at_once(start_oauth, speak, data):
    speaker = await speak(await start_oauth())
    await speaker.handshake(OAUTHBEARER)
    assert (await speaker.authenticate(data)).error_code == FAILED
    assert await speaker.client.is_closed()


async def test_before_its_confirmation_nobody_is_in(start_oauth, speak):
    speaker = await speak(await start_oauth())
    await speaker.handshake(OAUTHBEARER)
    await speaker.authenticate(message(token(sub="bob")[:-9]))
    await speaker.client.send(MetadataRequest(topics=[]))
    assert await speaker.client.is_closed()


async def test_a_session_ends_with_its_token_and_begins_anew_by_another(start_oauth, speak):
    speaker = await speak(await start_oauth(sasl_oauthbearer_clock_skew_seconds="0"))
    await speaker.handshake(OAUTHBEARER)
    answer = await speaker.authenticate(message(token(2)))
    assert 0 < answer.session_lifetime_ms <= 2000
    await speaker.handshake(OAUTHBEARER)
    # A token's end is in whole seconds, so up to one of them is gone already.
    answer = await speaker.authenticate(message(token(6, by="ed")))
    assert 4000 < answer.session_lifetime_ms <= 6000
    await trio.sleep(2.1)
    assert (await speaker.client.call(MetadataRequest(topics=[]))).cluster_id
    await trio.sleep(4)
    await speaker.client.send(MetadataRequest(topics=[]))
    assert await speaker.client.is_closed()


async def test_a_token_of_somebody_else_ends_a_session(start_oauth, speak):
    """Attack 29, by token."""
    speaker = await speak(await start_oauth())
    await speaker.handshake(OAUTHBEARER)
    await speaker.authenticate(message(token()))
    await speaker.handshake(OAUTHBEARER)
    answer = await speaker.authenticate(message(token(sub="bob")))
    assert answer.error_code == FAILED
    assert await speaker.client.is_closed()


async def test_one_that_expired_within_the_skew_still_ends(start_oauth, speak):
    """Never negative (KAFKA-13848): 0 would be a session without an end."""
    speaker = await speak(await start_oauth())
    await speaker.handshake(OAUTHBEARER)
    answer = await speaker.authenticate(message(token(-5, iat=1)))
    assert (answer.error_code, answer.session_lifetime_ms) == (0, 1)
    await trio.sleep(0.01)
    await speaker.client.send(MetadataRequest(topics=[]))
    assert await speaker.client.is_closed()


async def test_connections_max_reauth_ms_is_shorter(start_oauth, speak):
    speaker = await speak(await start_oauth(connections_max_reauth_ms="5000"))
    await speaker.handshake(OAUTHBEARER)
    assert (await speaker.authenticate(message(token()))).session_lifetime_ms == 5000


async def test_a_key_that_is_new_is_found_at_the_second_login(start_oauth, speak, wait_until):
    server = await start_oauth()
    start_oauth.path.write_bytes(jwks(public("rsa"), public("p256")))

    async def login():
        speaker = await speak(server)
        await speaker.handshake(OAUTHBEARER)
        return (await speaker.authenticate(message(token(by="p256")))).auth_bytes

    assert await login() == INVALID_TOKEN
    with trio.fail_after(10):
        while await login() != b"":
            await trio.sleep(0.01)


# -- without a server


@pytest.fixture
async def mechanism(hand):
    async def fetch():
        return jwks(public("rsa"))

    source = KeySource("here", fetch, hand, KeyTimes(1000, 100, 100))
    await source.load()
    return OAuthMechanism(source, TokenRules(), hand)


async def test_who_one_would_act_for(mechanism):
    good = signed(claims(sub="a,b=c"))
    exchange = mechanism.begin()
    assert exchange.step(message(good, "a=2Cb=3Dc")) == b""
    assert str(exchange.login.principal) == "User:a,b=c"
    for other in ("bob", "a", "a=2Cb", "User:a"):
        exchange = mechanism.begin()
        with pytest.raises(AuthenticationFailedError, match="act for somebody else"):
            exchange.step(message(good, other))
        assert exchange.login is None


async def test_an_exchange_that_failed_stays_failed(mechanism):
    exchange = mechanism.begin()
    assert exchange.step(message(signed(claims(exp=1)))) == INVALID_TOKEN
    for _ in range(3):
        with pytest.raises(AuthenticationFailedError, match="expired"):
            exchange.step(message(signed(claims())))
        assert exchange.login is None


async def test_time_is_the_clock_s(mechanism, hand):
    good = signed(claims())
    hand.now += 629
    assert mechanism.validate(good).name == "alice"
    hand.now += 1
    exchange = mechanism.begin()
    assert exchange.step(message(good)) == INVALID_TOKEN
