"""DIGEST-MD5: RFC 2831's own example, both sides against each other, and arbitrary bytes."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.bookkeeper import sasl_digest
from wire.bookkeeper.sasl_digest import DigestClient, DigestError, DigestServer, parse_directives

USERS = {"alice": "secret", "bö": "pässwörd", "日本": '"quo\\ted" 語'}


def server(nonce=b"n1", allowed=lambda _: True):
    return DigestServer(USERS, nonce, allowed)


def test_the_example_of_the_rfc():
    """RFC 2831, section 4: IMAP, user chris, password secret."""
    secret = sasl_digest._secret("chris", "elwood.innosoft.com", "secret")
    exchange = (b"imap/elwood.innosoft.com", secret, b"OA6MG9tEQGm2hh", b"OA6MHXh6VqTrRk", None)
    assert sasl_digest._response(b"AUTHENTICATE", *exchange) == b"d388dad90d4bbd760a152321f2143af7"
    assert sasl_digest._response(b"", *exchange) == b"ea40f60335c427b5527b84dbabcdfffd"


@pytest.mark.parametrize("user", list(USERS))
def test_both_sides_believe_each_other(user):
    ours, client = server(), DigestClient(user, USERS[user], b"c1")
    told, answer = ours.verify(client.respond(ours.challenge()))
    assert told == user
    client.check(answer)


@pytest.mark.parametrize(
    ("user", "password", "words"),
    [
        ("alice", "Secret", "wrong password"),
        ("alice", "", "wrong password"),
        ("nobody", "secret", "unknown user"),
        ("", "", "unknown user"),
    ],
)
def test_who_does_not_know_the_password(user, password, words):
    ours = server()
    token = DigestClient(user, password, b"c1").respond(ours.challenge())
    with pytest.raises(DigestError, match=words):
        ours.verify(token)


def test_an_empty_password_of_nobody_is_not_the_one_that_is_hashed_instead():
    ours = DigestServer({}, b"n", lambda _: True)
    token = DigestClient("ghost", "", b"c").respond(ours.challenge())
    with pytest.raises(DigestError, match="unknown user"):
        ours.verify(token)


def test_a_response_that_was_heard_elsewhere():
    heard = DigestClient("alice", "secret", b"c1").respond(server(b"n1").challenge())
    assert server(b"n1").verify(heard)[0] == "alice"
    with pytest.raises(DigestError, match="nonce"):
        server(b"n2").verify(heard)


def test_a_bookie_that_does_not_know_the_password():
    client = DigestClient("alice", "secret", b"c1")
    client.respond(server().challenge())
    for token in (b"", b"rspauth=", b"rspauth=" + b"0" * 32, b"x=1"):
        with pytest.raises(DigestError, match="does not know the password"):
            client.check(token)
    with pytest.raises(DigestError):
        DigestClient("alice", "secret", b"c1").check(b"rspauth=")


def altered(token, old, new):
    assert old in token
    return token.replace(old, new)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (b"nc=00000001", b"nc=00000002", "nc is"),
        (b'realm="bookkeeper"', b'realm="other"', "realm is"),
        (b"bookkeeper/bookkeeper", b"zookeeper/zk", "digest-uri"),
        (b"qop=auth", b"qop=auth-conf", "qop"),
        (b"nc=00000001", b"nc=00000001,nc=00000001", "nc comes twice"),
        (b'cnonce="c1",', b"", "no cnonce"),
        (b"qop=auth", b'qop=auth,authzid="bob"', "wrong password"),
        (b'username="alice"', b'username="\xff\xfe"', "username is no utf-8"),
    ],
)
def test_responses_that_are_altered(old, new, words):
    ours = server()
    token = DigestClient("alice", "secret", b"c1").respond(ours.challenge())
    with pytest.raises(DigestError, match=words):
        ours.verify(altered(token, old, new))


def response_as(authzid):
    """Of a client that, like Java's, says as whom it wants to act."""
    secret = sasl_digest._secret("alice", "bookkeeper", "secret")
    uri = b"bookkeeper/bookkeeper"
    value = sasl_digest._response(b"AUTHENTICATE", uri, secret, b"n1", b"c1", authzid)
    return (
        b'charset=utf-8,username="alice",realm="bookkeeper",nonce="n1",nc=00000001,cnonce="c1",'
        b'digest-uri="bookkeeper/bookkeeper",maxbuf=65536,qop=auth,authzid="%s",response=%s'
        % (authzid, value)
    )


def test_to_act_as_somebody_else():
    assert server().verify(response_as(b"alice"))[0] == "alice"
    with pytest.raises(DigestError, match="act as"):
        server().verify(response_as(b"bob"))


def test_who_is_right_but_not_welcome():
    ours = server(allowed=lambda user: user != "alice")
    token = DigestClient("alice", "secret", b"c1").respond(ours.challenge())
    with pytest.raises(DigestError, match="saslJaasClientAllowedIds"):
        ours.verify(token)


@pytest.mark.parametrize(
    ("challenge", "words"),
    [
        (b'realm="r",algorithm=md5-sess', "no nonce"),
        (b'nonce="n",algorithm=md5', "algorithm"),
        (b'nonce="n",algorithm=md5-sess,qop="auth-int,auth-conf"', "qop"),
        (b'nonce="n" realm="r"', "no directive at byte"),
        (b'nonce="n', "no directive at byte"),
        (b"nonce=" + b"n" * 5000, "5006 bytes"),
    ],
)
def test_challenges_that_cannot_be_answered(challenge, words):
    with pytest.raises(DigestError, match=words):
        DigestClient("alice", "secret", b"c").respond(challenge)


def test_directives():
    assert parse_directives(b' A="x\\"y\\\\", b = c,, d="" ,e=') == {
        "a": b'x"y\\',
        "b": b"c",
        "d": b"",
        "e": b"",
    }


@given(st.binary(max_size=300))
def test_any_bytes_are_refused_or_read(data):
    for read in (server().verify, DigestClient("a", "b", b"c").respond, parse_directives):
        with contextlib.suppress(DigestError):
            read(data)


@given(st.text(), st.text(), st.binary(min_size=1, max_size=30))
def test_any_name_and_password(user, password, cnonce):
    if len(user) > 500 or "\ud800" <= max(user + password, default="") <= "\udfff":
        return
    ours = DigestServer({user: password}, b"n", lambda _: True)
    client = DigestClient(user, password, cnonce)
    told, answer = ours.verify(client.respond(ours.challenge()))
    assert told == user
    client.check(answer)
