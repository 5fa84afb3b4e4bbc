"""Names that nobody has look like users; every one is checked by what is his alone."""

import base64
import random

import pytest

from broker.security.sasl.mechanism import AuthenticationFailedError
from broker.security.sasl.scram.credentials import Credential
from broker.security.sasl.scram.hashes import ITERATIONS_MIN, SCRAM_SHA_256, SCRAM_SHA_512
from broker.security.sasl.scram.mechanism import ScramMechanism
from tests.broker.security.sasl.scram.test_scram_core import final

SECRET = b"the cluster's own"


class Users(dict):
    def credentials(self, name):
        return self.get(name, {})


def made(users=(), kind=SCRAM_SHA_256, secret=SECRET, seed=0):
    return ScramMechanism(kind, Users(users), None, secret, random.Random(seed))


def asked(mechanism, name, **message):
    """(salt, iterations) that a client is told."""
    answer = mechanism.begin().step(message.get("first", f"n,,n={name},r=c".encode()))
    parts = dict(each.split("=", 1) for each in answer.decode().split(","))
    return base64.b64decode(parts["s"]), int(parts["i"])


def log_in(mechanism, name="alice", password="wonder", more=""):
    first = f"n,,n={name},r=c{more}".encode()
    one = mechanism.begin()
    one.step(final(one.step(first), first, password, mechanism._kind))
    return one.login


def alice(kind=SCRAM_SHA_256, iterations=ITERATIONS_MIN):
    return {"alice": {kind.name: Credential.of_password(kind, "wonder", b"salt", iterations)}}


@pytest.mark.parametrize("kind", [SCRAM_SHA_256, SCRAM_SHA_512])
def test_a_user_logs_in(kind):
    assert str(log_in(made(alice(kind), kind)).principal) == "User:alice"
    with pytest.raises(AuthenticationFailedError, match="another password"):
        log_in(made(alice(kind), kind), password="wander")


def test_a_name_that_nobody_has_is_asked_the_same_each_time_by_every_broker():
    """Attack 16."""
    salt, iterations = asked(made(alice()), "nobody")
    assert (salt, iterations) == asked(made({}, seed=1), "nobody")
    assert iterations == ITERATIONS_MIN
    assert salt.decode().isalnum()
    assert 20 < len(salt) < 27
    others = {asked(made(alice()), f"nobody{n}")[0] for n in range(100)}
    assert len(others | {salt}) == 101
    assert asked(made({}, secret=b"another's"), "nobody")[0] != salt
    assert asked(made({}, SCRAM_SHA_512), "nobody")[0] != salt
    assert asked(made(), "nobody", first=b"n,,n=nobody,r=c,tokenauth=true")[0] != salt


def test_it_fails_where_a_wrong_password_does():
    with pytest.raises(AuthenticationFailedError, match="no such user") as raised:
        log_in(made(alice()), "nobody")
    assert raised.value.user == "nobody"


def test_a_mechanism_is_proven_by_its_own_credential_alone():
    """Attack 19."""
    with pytest.raises(AuthenticationFailedError, match="a user without SCRAM-SHA-256"):
        log_in(made(alice(SCRAM_SHA_512)))


def test_few_iterations_are_refused_like_somebody_who_is_not_there():
    weak = made(alice(iterations=ITERATIONS_MIN - 1))
    assert asked(weak, "alice")[1] == ITERATIONS_MIN
    with pytest.raises(AuthenticationFailedError, match="only 4095 iterations"):
        log_in(weak)


def test_without_tokens_nobody_comes_by_one():
    """Attack 17: nor by a user's password."""
    with pytest.raises(AuthenticationFailedError, match="no such delegation token"):
        log_in(made(alice()), more=",tokenauth=true")


def test_nonces_are_new():
    one = made()
    nonces = {one.begin().step(b"n,,n=a,r=c").split(b",")[0] for _ in range(100)}
    assert len(nonces) == 100
