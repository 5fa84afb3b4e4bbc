"""Keys that are kept fresh: when they are read again, and what those who send unknown ones cost."""

import logging

import pytest
import trio

from broker.security.sasl.oauth.key_source import (
    UNKNOWN_KID_SECONDS,
    UNKNOWN_KIDS_MAX,
    KeySource,
    KeyTimes,
)
from broker.security.sasl.oauth.keys_core import JwksError
from runtime.documents import DocumentError
from tests.broker.security.sasl.oauth.conftest import jwks, public

TIMES = KeyTimes(refresh_ms=3_600_000, backoff_ms=100, backoff_max_ms=10_000)


class TrioClock:
    def monotonic(self):
        return trio.current_time()

    def time_ms(self):
        return int(trio.current_time() * 1000)


class Issuer:
    """What the keys are read from; None: it is away."""

    def __init__(self, *names):
        self.data = jwks(*map(public, names))
        self.asked_at = []

    async def fetch(self):
        self.asked_at.append(trio.current_time())
        await trio.sleep(0.05)
        if self.data is None:
            raise DocumentError("https://issuer/keys: away")
        return self.data


@pytest.fixture
async def started(nursery):
    async def start(issuer, times=TIMES):
        source = KeySource("https://issuer/keys", issuer.fetch, TrioClock(), times)
        await source.try_load()
        nursery.start_soon(source.run)
        return source

    return start


def kids(source):
    return [key.kid for key in source.keys.keys]


async def test_keys_are_read_again(started, autojump_clock):
    issuer = Issuer("rsa")
    source = await started(issuer)
    assert kids(source) == ["rsa"]
    issuer.data = jwks(public("ed"))
    await trio.sleep(3500)
    assert len(issuer.asked_at) == 1
    await trio.sleep(200)
    assert kids(source) == ["ed"], "one that was taken away is believed no more"
    await trio.sleep(36_000)
    assert len(issuer.asked_at) == 12


async def test_28_a_host_that_is_dead_at_the_start(started, autojump_clock, caplog):
    """Attack 28: there are no keys, and it is asked again and again."""
    issuer = Issuer()
    issuer.data = None
    source = await started(issuer)
    assert kids(source) == []
    await trio.sleep(60)
    pauses = [b - a for a, b in zip(issuer.asked_at, issuer.asked_at[1:], strict=False)]
    # Its own first attempt comes at once; each takes 0.05 s.
    assert [round(each - 0.05, 3) for each in pauses[:9]] == [
        *(0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10)
    ]
    failed = [each for each in caplog.records if each.msg == "token_keys_failed"]
    assert len([each for each in failed if each.levelno == logging.WARNING]) == 1
    issuer.data = jwks(public("rsa"))
    await trio.sleep(11)
    assert kids(source) == ["rsa"]


@pytest.mark.parametrize("data", [None, b"<html>", b'{"keys": []}', b'{"keys": [{"kty": "oct"}]}'])
async def test_28_a_host_that_is_dead_later(started, autojump_clock, data):
    """What was known stays."""
    issuer = Issuer("rsa")
    source = await started(issuer)
    issuer.data = data
    await trio.sleep(3600)
    count = len(issuer.asked_at)
    await trio.sleep(100)
    assert kids(source) == ["rsa"]
    assert 8 < len(issuer.asked_at) - count <= 18
    issuer.data = jwks(public("p256"))
    await trio.sleep(11)
    assert kids(source) == ["p256"]


async def test_an_unknown_key_is_asked_for_once(started, autojump_clock):
    issuer = Issuer("rsa")
    source = await started(issuer)
    issuer.data = jwks(public("rsa"), public("ed"))
    for _ in range(100):
        source.missing("ed")
        await trio.sleep(0.01)
    assert len(issuer.asked_at) == 2
    assert kids(source) == ["rsa", "ed"]
    await trio.sleep(UNKNOWN_KID_SECONDS - 2)
    source.missing("ed")
    await trio.sleep(0.5)
    assert len(issuer.asked_at) == 2
    await trio.sleep(2)
    source.missing("ed")
    await trio.sleep(0.5)
    assert len(issuer.asked_at) == 3


async def test_one_that_comes_while_they_are_read_is_asked_for_once_more(started, autojump_clock):
    issuer = Issuer("rsa")
    source = await started(issuer)
    source.missing("a")
    await trio.sleep(0.02)
    source.missing("b")
    source.missing("c")
    await trio.sleep(5)
    assert len(issuer.asked_at) == 3


async def test_22_a_storm_of_new_ones(started, autojump_clock):
    """Attack 22: ten thousand in ten minutes are 16 refreshes a minute at most."""
    issuer = Issuer("rsa")
    source = await started(issuer)
    for number in range(10_000):
        source.missing(f"kid-{number}")
        assert len(source._unknown) <= UNKNOWN_KIDS_MAX
        await trio.sleep(0.06)
    assert len(issuer.asked_at) <= 1 + 11 * UNKNOWN_KIDS_MAX
    assert kids(source) == ["rsa"]


async def test_22_a_storm_in_one_moment_is_one_refresh(started, autojump_clock):
    issuer = Issuer("rsa")
    source = await started(issuer)
    for number in range(10_000):
        source.missing(f"kid-{number}")
    await trio.sleep(59)
    assert len(issuer.asked_at) == 2
    source.missing("k" * 1001)
    await trio.sleep(600)
    source.missing("k" * 1001)
    await trio.sleep(600)
    assert len(issuer.asked_at) == 2


async def test_a_key_that_is_left_out_is_in_the_log(started, autojump_clock, caplog):
    issuer = Issuer("rsa")
    issuer.data = jwks(public("rsa"), public("ed", use="enc"))
    await started(issuer)
    await trio.sleep(8000)
    left_out = [each for each in caplog.records if each.msg == "token_key_left_out"]
    assert [each.args["reason"] for each in left_out] == ["key 1: not for signatures (use)"]


async def test_load_says_what_is_wrong():
    issuer = Issuer()
    source = KeySource("here", issuer.fetch, TrioClock(), TIMES)
    with pytest.raises(JwksError):
        await source.load()
    issuer.data = None
    with pytest.raises(DocumentError):
        await source.load()
