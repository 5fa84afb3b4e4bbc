"""Logins by SCRAM: the RFCs' own examples, another project's client, and who tries to cheat."""

import base64
import hashlib
import hmac
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.security.principal import Principal
from broker.security.sasl.mechanism import AuthenticationFailedError, Login
from broker.security.sasl.scram.credentials import Credential
from broker.security.sasl.scram.hashes import BY_NAME, SCRAM_SHA_256, ScramHash
from broker.security.sasl.scram.messages_core import EXTENSIONS_MAX, MESSAGE_BYTES_MAX
from broker.security.sasl.scram.scram_core import Claimed, ScramExchange

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of how it reads its own files
    from kafka.net.sasl.scram import ScramClient

LOGIN = Login(Principal("User", "user"))
#: RFC 5802, section 5, and RFC 7677, section 3.
RFC_EXAMPLES = [
    (
        ScramHash("SCRAM-SHA-1", 0, "sha1", 20),
        base64.b64decode("QSXCR+Q6sek8bf92"),
        "3rfcNHYJY1ZVvWVs7j",
        b"n,,n=user,r=fyko+d2lbbFgONRv9qkxdawL",
        b"r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096",
        b"c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
        b"v=rmF9pqV8S7suAoZWja4dJRkFsKQ=",
    ),
    (
        SCRAM_SHA_256,
        base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="),
        "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
        b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO",
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
        b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
    ),
]


class Claims:
    """The same answer to every name; remembers who asked."""

    def __init__(self, claimed):
        self.answer = claimed
        self.asked = []

    def claimed(self, name, *, is_by_token):
        self.asked.append((name, is_by_token))
        return self.answer


def exchange(kind=SCRAM_SHA_256, password="pencil", nonce="server", salt=b"salty", **fields):
    credential = Credential.of_password(kind, password, salt)
    claims = Claims(Claimed(credential, **(fields or {"login": LOGIN})))
    return ScramExchange(kind, claims, nonce), claims


def final(server_first, first, password="pencil", kind=SCRAM_SHA_256, **other):
    """What an honest client sends, with other parts in place of its own; written after the RFC."""
    parts = dict(each.split("=", 1) for each in server_first.decode().split(","))
    header, _, bare = first.decode().partition(",n=")
    channel = other.get("channel", base64.b64encode(f"{header},".encode()).decode())
    middle = f"c={channel},r={other.get('nonce', parts['r'])}{other.get('more', '')}"
    signed = f"n={bare},{server_first.decode()},{middle}".encode()
    salt = base64.b64decode(parts["s"])
    salted = hashlib.pbkdf2_hmac(kind.digest, password.encode(), salt, int(parts["i"]))
    client_key = hmac.digest(salted, b"Client Key", kind.digest)
    signature = hmac.digest(hashlib.new(kind.digest, client_key).digest(), signed, kind.digest)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    return f"{middle},p={base64.b64encode(proof).decode()}".encode()


@pytest.mark.parametrize("example", RFC_EXAMPLES, ids=["RFC 5802", "RFC 7677"])
def test_the_rfcs_examples(example):
    kind, salt, nonce, first, server_first, last, server_final = example
    one, claims = exchange(kind, nonce=nonce, salt=salt)
    assert one.step(first) == server_first
    assert one.login is None
    assert one.step(last) == server_final
    assert one.login is LOGIN
    assert claims.asked == [("user", False)]


_NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)


@given(_NAMES, st.text(), st.text(), st.binary(min_size=1), st.sampled_from(sorted(BY_NAME)))
def test_another_projects_client_is_let_in_by_its_password_alone(name, right, tried, salt, which):
    kind = BY_NAME[which]
    try:
        right.encode(), tried.encode(), name.encode()
    except UnicodeEncodeError:
        return
    one, claims = exchange(kind, right, salt=salt)
    client = ScramClient(name.replace("=", "=3D").replace(",", "=2C"), tried, which)
    client.process_server_first_message(one.step(client.first_message()))
    assert claims.asked == [(name, False)]
    # HMAC fills short keys up with zeros: to it, these are the same password.
    if right.encode().rstrip(b"\0") == tried.encode().rstrip(b"\0"):
        client.process_server_final_message(one.step(client.final_message()))
        assert one.login is LOGIN
    elif len(right) < 64 > len(tried):
        with pytest.raises(AuthenticationFailedError, match="another password"):
            one.step(client.final_message())
        assert one.login is None


@given(st.binary(), st.binary())
def test_whatever_the_bytes_are_it_fails_as_a_login_fails(first, last):
    for begin in (first, b"n,,n=u,r=" + first, b"n,,n=user,r=client"):
        one, _ = exchange()
        try:
            one.step(begin)
            one.step(last if first else b"c=biws,r=" + last)
        except AuthenticationFailedError:
            assert one.login is None
        else:
            pytest.fail("nobody proved anything")


def fails(first, last=None, match=None, **options):
    one, claims = exchange(**options)

    def log_in():
        answer = one.step(first)
        one.step(last(answer) if callable(last) else last)

    with pytest.raises(AuthenticationFailedError, match=match) as raised:
        log_in()
    assert one.login is None
    with pytest.raises(AuthenticationFailedError, match="after the end"):
        one.step(first)
    return raised.value, claims


@pytest.mark.parametrize(
    ("first", "match"),
    [
        (b"", "no SCRAM message"),
        (b"y,,n=user,r=c", "channel binding"),
        (b"p=tls-unique,,n=user,r=c", "channel binding"),
        (b"n,,n=,r=c", "empty name"),
        (b"n,,n==,r=c", "equals sign"),
        (b"n,,n==2c,r=c", "equals sign"),
        (b"n,,n=a=3D=,r=c", "equals sign"),
        (b"n,,n=a\0b,r=c", "NUL"),
        (b"n,,n=\xff,r=c", "UTF-8"),
        (b"n,,n=" + b"a" * 100_000 + b",r=c", "100009 bytes"),
        (b"n,,n=user,r=", "nonce"),
        (b"n,,n=user,r=c d", "nonce"),
        (b"n,,r=c,n=user", "no name and nonce"),
        (b"n,,m=x,n=user,r=c", "no name and nonce"),
        (b"n,,n=user,r=c,m=x", "mandatory"),
        (b"n,,n=user,r=c,", "malformed"),
        (b"n,,n=user,r=c,a=b,a=b", "twice"),
        (b"n,,n=user,r=c" + b",e=f" * (EXTENSIONS_MAX + 1), "very many"),
        (b"n,b=user,n=user,r=c", "neither"),
        (b"n,a=,n=user,r=c", "empty name"),
        (b"n,a=root,n=user,r=c", "somebody else"),
    ],
)
def test_first_messages_that_are_none(first, match):
    """Attacks 14 and 15."""
    _, claims = fails(first, match=match)
    assert claims.asked == []


@pytest.mark.parametrize("first", [b"n,,n=user,r=c", b"n,a=user,n=user,r=c,e=f"])
def test_headers_and_extensions_that_are_right(first):
    one, _ = exchange()
    assert one.step(final(one.step(first), first, more=",e=f")).startswith(b"v=")
    assert one.login is LOGIN


@pytest.mark.parametrize(
    ("other", "match"),
    [
        # Attack 13, and CVE-2024-56128.
        ({"nonce": "clientserverx"}, "another nonce"),
        ({"nonce": "client"}, "another nonce"),
        ({"nonce": "server"}, "another nonce"),
        ({"nonce": "clientserve"}, "another nonce"),
        ({"nonce": "klientserver"}, "another nonce"),
        ({"nonce": "clientsérver"}, "another nonce"),
        # Attack 14: the header that was not sent.
        ({"channel": base64.b64encode(b"n,a=user,").decode()}, "another header"),
        ({"channel": base64.b64encode(b"y,,").decode()}, "another header"),
        ({"channel": ""}, "another header"),
        ({"channel": "biw"}, "not base64"),
        ({"channel": "bi*ws"}, "not base64"),
        ({"more": ",m=x"}, "mandatory"),
        ({"password": "pen"}, "another password"),
    ],
)
def test_last_messages_that_are_not_right(other, match):
    first = b"n,,n=user,r=client"
    fails(first, lambda answer: final(answer, first, **other), match)


@pytest.mark.parametrize(
    "last",
    [
        b"",
        b"c=biws,r=clientserver",
        b"r=clientserver,c=biws,p=AAAA",
        b"c=biws,r=clientserver,p=",
        b"c=biws,r=clientserver,p=AAAA",
        b"c=biws,r=clientserver,p=" + b"A" * MESSAGE_BYTES_MAX,
        b"c=biws,r=clientserver,p=" + base64.b64encode(bytes(32)),
        b"c=biws,r=clientserver,p=" + base64.b64encode(bytes(33)),
    ],
)
def test_last_messages_without_a_proof(last):
    fails(b"n,,n=user,r=client", last)


def test_an_overheard_login_is_of_no_use():
    """Attack 13: whoever sends all of it again meets another nonce of the server's."""
    first = b"n,,n=user,r=client"
    one, _ = exchange(nonce="server1")
    last = final(one.step(first), first)
    one.step(last)
    assert one.login is LOGIN
    fails(first, last, "another nonce", nonce="server2")


def test_who_is_refused_learns_it_after_the_proof():
    """Even if it were right: as a name that nobody has."""
    first = b"n,,n=user,r=client"
    error, _ = fails(first, lambda a: final(a, first), "no such user", refusal="no such user")
    assert error.user == "user"


@pytest.mark.parametrize(
    ("extensions", "is_by_token"),
    [
        ("", False),
        (",tokenauth=true", True),
        (",tokenauth=TRUE", True),
        (",tokenauth=false", False),
        (",x=y,tokenauth=true", True),
        (",tokenAuth=true", False),
    ],
)
def test_who_comes_by_a_token_says_so(extensions, is_by_token):
    one, claims = exchange()
    one.step(f"n,,n=user,r=client{extensions}".encode())
    assert claims.asked == [("user", is_by_token)]
