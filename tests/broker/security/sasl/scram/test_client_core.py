"""A broker's own login by SCRAM, against the server's side here, and against whatever answers."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.security.principal import USER, Principal
from broker.security.sasl.mechanism import AuthenticationFailedError, Login
from broker.security.sasl.scram.client_core import ScramClient
from broker.security.sasl.scram.credentials import Credential
from broker.security.sasl.scram.hashes import BY_NAME, SCRAM_SHA_256
from broker.security.sasl.scram.scram_core import Claimed, ScramExchange

PASSWORD = "wonder land"
SALT = b"0123456789"


class Users:
    def __init__(self, kind, name):
        self.credential = Credential.of_password(kind, PASSWORD, SALT)
        self.name = name

    def claimed(self, name, *, is_by_token):
        assert not is_by_token
        if name != self.name:
            return Claimed(self.credential, refusal="no such user")
        return Claimed(self.credential, Login(Principal(USER, name)))


@pytest.mark.parametrize("kind", BY_NAME.values())
@pytest.mark.parametrize("name", ["broker", "a,b", "=2C", "ä=,"])
def test_it_logs_in_at_the_servers_side(kind, name):
    server, client = ScramExchange(kind, Users(kind, name), "servers"), ScramClient(kind, name, "x")
    salting = client.salting(server.step(client.first()))
    assert (salting.salt, salting.iterations) == (SALT, 4096)
    salted = kind.salted(PASSWORD.encode(), salting.salt, salting.iterations)
    client.check(server.step(client.final(salted)))
    assert server.login == Login(Principal(USER, name))


def begun():
    """A client that has sent its first message, and the right first answer."""
    client = ScramClient(SCRAM_SHA_256, "broker", "mine")
    client.first()
    return client, b"r=mine-theirs,s=" + base64.b64encode(SALT) + b",i=4096"


@pytest.mark.parametrize(
    ("answer", "match"),
    [
        (b"r=mine,s=c2FsdA==,i=4096", "nothing added"),
        (b"r=theirs,s=c2FsdA==,i=4096", "another nonce"),
        (b"r=mine2,s=c2FsdA==,i=1", "1 iterations; 4096 to 16384"),
        (b"r=mine2,s=c2FsdA==,i=4095", "4095 iterations"),
        (b"r=mine2,s=c2FsdA==,i=999999", "999999 iterations"),
        (b"r=mine2,s=c2FsdA==,i=99999999999999", "no number"),
        (b"r=mine2,s=c2FsdA==,i=+4096", "no number"),
        (b"r=mine2,s=%,i=4096", "not base64"),
        (b"s=c2FsdA==,r=mine2,i=4096", "no nonce, salt and iterations"),
        (b"m=x,r=mine2,s=c2FsdA==,i=4096", "no nonce, salt and iterations"),
        (b"e=other-error", "no nonce, salt and iterations"),
        (b"", "no nonce"),
        (b"\xff", "not ASCII"),
        (b"r=mine" + b"x" * 9000, "an answer of 9006 bytes"),
    ],
)
def test_first_answers_that_are_not_right(answer, match):
    client, _ = begun()
    with pytest.raises(AuthenticationFailedError, match=match):
        client.salting(answer)


@pytest.mark.parametrize("answer", [b"", b"v=", b"v=AAAA", b"e=invalid-proof", b"v=%", b"\xff"])
def test_who_does_not_know_the_password_is_not_believed(answer):
    client, first = begun()
    client.salting(first)
    client.final(bytes(32))
    with pytest.raises(AuthenticationFailedError):
        client.check(answer)


@given(first=st.binary(max_size=80), last=st.binary(max_size=80))
def test_whatever_the_bytes_are_it_fails_as_a_login_fails(first, last):
    client, right = begun()
    for answer in (first, b"r=mine" + first, right[:20] + first):
        with pytest.raises(AuthenticationFailedError):
            ScramClient(SCRAM_SHA_256, "broker", "mine-own").salting(answer)
    client.salting(right)
    client.final(bytes(32))
    with pytest.raises(AuthenticationFailedError):
        client.check(last)


@given(at=st.integers(0, 200), bit=st.integers(0, 7))
def test_no_changed_answer_is_believed(at, bit):
    """One bit of what the server says is another one."""
    kind, users = SCRAM_SHA_256, Users(SCRAM_SHA_256, "broker")
    server, client = ScramExchange(kind, users, "servers"), ScramClient(kind, "broker", "x")
    first = server.step(client.first())
    salting = client.salting(first)
    salted = kind.salted(PASSWORD.encode(), salting.salt, 4096)
    last = bytearray(server.step(client.final(salted)))
    index = 2 + at % (len(last) - 2)
    last[index] ^= 1 << bit
    with pytest.raises(AuthenticationFailedError):
        client.check(bytes(last))
