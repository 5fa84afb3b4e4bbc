"""Delegation tokens in metadata, as two brokers have them."""

import base64
import random
from types import SimpleNamespace

import pytest
import trio

from broker.security.principal import Principal
from broker.security.sasl.mechanism import AuthenticationFailedError
from broker.security.sasl.scram.hashes import BY_NAME
from broker.security.sasl.scram.mechanism import ScramMechanism
from broker.security.tokens.store import DelegationTokens
from broker.security.tokens.token_core import Lifetimes
from metadata.memory import MemoryStore, MemoryTree
from runtime.env import Env
from tests.broker.security.sasl.scram.test_mechanism import log_in
from wire.kafka.errors import KafkaError

OWNER, RENEWER = Principal("User", "owner"), Principal("User", "renewer")
LIMITS = Lifetimes(1000, 100)
BOTH = sorted(BY_NAME)


class Clock:
    now_ms = 50_000

    def time_ms(self):
        return self.now_ms


async def inline(function, *arguments):
    return function(*arguments)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def open_tokens(nursery, clock):
    tree = MemoryTree()

    async def open_one(secret="secret"):
        open_one.count += 1
        store = MemoryStore(tree)
        await nursery.start(store.run)
        rng = random.Random(open_one.count)
        env = Env(clock=clock, rng=rng, net=None, disk=SimpleNamespace(run=inline), turn=None)
        tokens = DelegationTokens(store, env, secret, b"the cluster's", LIMITS)
        await tokens.load()
        await nursery.start(tokens.run)
        return tokens

    open_one.count = 0
    return open_one


async def settled():
    await trio.testing.wait_all_tasks_blocked(0.002)


def login(tokens, token_id, password, mechanism="SCRAM-SHA-512"):
    users = SimpleNamespace(credentials=lambda name: {})
    made = ScramMechanism(BY_NAME[mechanism], users, tokens, b"", random.Random(0))
    return log_in(made, token_id, password, more=",tokenauth=true")


def password_of(tokens, token_id):
    return base64.b64encode(tokens.hmac(token_id)).decode()


@pytest.mark.parametrize("mechanism", BOTH)
async def test_who_has_it_is_its_owner_at_every_broker_until_it_ends(open_tokens, clock, mechanism):
    here, there = await open_tokens(), await open_tokens()
    token_id, token = await here.create(OWNER, RENEWER, [], -1)
    await settled()
    assert list(there.items()) == [(token_id, token)]
    for tokens in (here, there):
        found = login(tokens, token_id, password_of(here, token_id), mechanism)
        assert found.principal == OWNER
        assert found.principal.is_by_token
        assert found.expires_ms == clock.now_ms + LIMITS.renewal_ms
    clock.now_ms += LIMITS.renewal_ms + 1
    with pytest.raises(AuthenticationFailedError, match="no such delegation token"):
        login(there, token_id, password_of(here, token_id), mechanism)


async def test_another_tokens_password_is_none(open_tokens):
    """Attack 33."""
    tokens = await open_tokens()
    one, _ = await tokens.create(OWNER, OWNER, [], -1)
    two, _ = await tokens.create(OWNER, OWNER, [], -1)
    assert one != two
    with pytest.raises(AuthenticationFailedError, match="another password"):
        login(tokens, one, password_of(tokens, two))
    with pytest.raises(AuthenticationFailedError, match="no such"):
        login(tokens, one + "x", password_of(tokens, one))


async def test_an_hmac_is_right_as_a_whole_only(open_tokens):
    tokens = await open_tokens()
    token_id, _ = await tokens.create(OWNER, OWNER, [], -1)
    right = tokens.hmac(token_id)
    for place in (0, len(right) // 2, len(right) - 1):
        other = bytearray(right)
        other[place] ^= 1
        for wrong in (bytes(other), right[:place], right + right[:1]):
            with pytest.raises(KafkaError, match="DELEGATION_TOKEN_NOT_FOUND"):
                await tokens.renew(wrong, OWNER, -1)
            with pytest.raises(KafkaError, match="DELEGATION_TOKEN_NOT_FOUND"):
                await tokens.expire(wrong, OWNER, -1)
    assert await tokens.renew(right, OWNER, -1)


async def test_it_is_renewed_and_ended_by_its_hmac_at_any_broker(open_tokens, clock):
    here, there = await open_tokens(), await open_tokens()
    token_id, token = await here.create(OWNER, OWNER, [RENEWER], -1)
    await settled()
    known = here.hmac(token_id)
    clock.now_ms += 50
    assert await there.renew(known, RENEWER, -1) == token.expiry_ms + 50
    await settled()
    assert dict(here.items())[token_id].expiry_ms == token.expiry_ms + 50
    assert await here.expire(known, OWNER, 5) == clock.now_ms + 5
    assert await here.expire(known, OWNER, -1) == clock.now_ms
    await settled()
    for tokens in (here, there):
        assert list(tokens.items()) == []
        with pytest.raises(KafkaError, match="DELEGATION_TOKEN_NOT_FOUND"):
            await tokens.renew(known, OWNER, 1)
    with pytest.raises(KafkaError, match="DELEGATION_TOKEN_NOT_FOUND"):
        await here.renew(known[:-1], OWNER, 1)


async def test_both_renew_at_once_and_who_may_not_changes_nothing(open_tokens, clock):
    here, there = await open_tokens(), await open_tokens()
    token_id, token = await here.create(OWNER, OWNER, [], -1)
    await settled()
    known = here.hmac(token_id)
    with pytest.raises(KafkaError, match="DELEGATION_TOKEN_OWNER_MISMATCH"):
        await there.renew(known, RENEWER, 90)
    clock.now_ms += 20
    async with trio.open_nursery() as both:
        both.start_soon(here.renew, known, OWNER, 90)
        both.start_soon(there.renew, known, OWNER, 95)
    await settled()
    assert dict(here.items()) == dict(there.items())
    assert dict(here.items())[token_id].expiry_ms in (clock.now_ms + 90, clock.now_ms + 95)
    assert token.expiry_ms == clock.now_ms + 80


async def test_with_another_secret_it_is_as_if_it_were_not_there(open_tokens, clock):
    before = await open_tokens()
    token_id, _ = await before.create(OWNER, OWNER, [], -1)
    after = await open_tokens("another")
    assert list(after.items()) == []
    for secrets in (before, after):
        with pytest.raises(AuthenticationFailedError, match="no such"):
            login(after, token_id, password_of(secrets, token_id))
        with pytest.raises(KafkaError, match="DELEGATION_TOKEN_NOT_FOUND"):
            await after.renew(secrets.hmac(token_id), OWNER, 1)
    assert login(before, token_id, password_of(before, token_id)).principal == OWNER
    clock.now_ms += LIMITS.max_ms + 1
    await after.sweep_once()
    await settled()
    assert list(before.items()) == []


async def test_what_has_ended_is_swept(open_tokens, clock, caplog):
    tokens = await open_tokens()
    gone, _ = await tokens.create(OWNER, OWNER, [], 10)
    kept, _ = await tokens.create(OWNER, OWNER, [], -1)
    clock.now_ms += 11
    assert len(dict(tokens.items())) == 2
    await tokens.sweep_once()
    assert [token_id for token_id, _ in tokens.items()] == [kept]
    assert repr(tokens) == "DelegationTokens(1)"
    with pytest.raises(KafkaError, match="DELEGATION_TOKEN_NOT_FOUND"):
        await tokens.renew(tokens.hmac(gone), OWNER, 1)
    assert password_of(tokens, gone) not in caplog.text


async def test_ids_do_not_begin_with_a_dash(open_tokens):
    tokens = await open_tokens()
    ids = {tokens._new_id() for _ in range(500)}
    assert len(ids) == 500
    assert not [one for one in ids if one.startswith("-") or len(one) != 22]


async def test_one_principal_has_a_bounded_number_of_them(open_tokens, clock, monkeypatch):
    monkeypatch.setattr("broker.security.tokens.store.TOKENS_OF_ONE_MAX", 2)
    tokens, other = await open_tokens(), await open_tokens()
    for _ in range(2):
        await tokens.create(OWNER, RENEWER, [], -1)
    await settled()
    for broker in (tokens, other):
        with pytest.raises(KafkaError, match="DELEGATION_TOKEN_REQUEST_NOT_ALLOWED"):
            await broker.create(OWNER, RENEWER, [], -1)
    await tokens.create(OWNER, OWNER, [], -1)
    clock.now_ms += 10_000
    await tokens.sweep_once()
    await tokens.create(OWNER, RENEWER, [], -1)
