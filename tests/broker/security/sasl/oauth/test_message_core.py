"""OAUTHBEARER's first message: what is one, and what is none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.security.sasl.oauth.message_core import (
    EXTENSIONS_MAX,
    MESSAGE_BYTES_MAX,
    TOKEN_BYTES_MAX,
    ClientMessage,
    MessageError,
    parse_message,
)


@pytest.mark.parametrize(
    ("data", "token", "authorization"),
    [
        (b"n,,\1auth=Bearer a.b.c\1\1", "a.b.c", ""),
        (b"n,a=alice,\1auth=Bearer a.b.c\1\1", "a.b.c", "alice"),
        (b"n,a=a=2Cb=3Dc,\1auth=bearer   a.b.c\1\1", "a.b.c", "a,b=c"),
        (b"n,,\1auth=BEARER -_9.b.c\1\1", "-_9.b.c", ""),
        (b"n,,\1auth=Bearer a.b.c\1logicalCluster=x y=z\1Pool=1\1\1", "a.b.c", ""),
        (b"n,,\1pool=1\1auth=Bearer a.b.c\1\1", "a.b.c", ""),
    ],
)
def test_messages(data, token, authorization):
    assert parse_message(data) == ClientMessage(token, authorization)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\1",
        b"n,,",
        b"n,,\1",
        b"n,,\1\1",
        b"n,,\1auth=Bearer a.b.c",
        b"n,,\1auth=Bearer a.b.c\1",
        b"n,,\1auth=Bearer a.b.c\1\1\1",
        b"n,,\1auth=Bearer a.b.c\1key=1\1",
        b"n,,\1auth=Bearer a.b.c\1\1x",
        b"n,,auth=Bearer a.b.c\1\1",
        b"y,,\1auth=Bearer a.b.c\1\1",
        b"p=x,,\1auth=Bearer a.b.c\1\1",
        b"n,a=,\1auth=Bearer a.b.c\1\1",
        b"n,a=a=b,\1auth=Bearer a.b.c\1\1",
        b"n,a=a=2,\1auth=Bearer a.b.c\1\1",
        b"n,alice,\1auth=Bearer a.b.c\1\1",
        b"n,,\1auth=Basic a.b.c\1\1",
        b"n,,\1auth=Bearera.b.c\1\1",
        b"n,,\1auth=Bearer\ta.b.c\1\1",
        b"n,,\1auth=Bearer a.b.c=\1\1",
        b"n,,\1auth=Bearer a.b.c\n\1\1",
        b"n,,\1auth=Bearer \1\1",
        b"n,,\1AUTH=Bearer a.b.c\1\1",
        b"n,,\1auth=Bearer a.b.c\1k-y=1\1\1",
        b"n,,\1auth=Bearer a.b.c\1key\1\1",
        b"n,,\1auth=Bearer a.b.c\1key=\1\1",
        b"n,,\1auth=Bearer a.b.c\1=1\1\1",
        b"n,,\1auth=Bearer a.b.c\1key=\0\1\1",
        b"n,,\1auth=Bearer a.b.c\1key=\xc3\xa4\1\1",
        b"n,,\1auth=Bearer a.b.c\1key=1\1key=2\1\1",
    ],
)
def test_no_messages(data):
    with pytest.raises(MessageError) as raised:
        parse_message(data)
    assert "a.b.c" not in str(raised.value)


@pytest.mark.parametrize(
    "data",
    [
        b"n,,\1auth=Bearer a.b.c\1auth=Bearer d.e.f\1\1",
        b"n,,\1auth=Bearer a.b.c d.e.f\1\1",
        b"n,,\1auth=Bearer a.b.c,d.e.f\1\1",
        b"n,,\1auth=Bearer a.b.c\1\1n,,\1auth=Bearer d.e.f\1\1",
    ],
)
def test_27_two_tokens(data):
    """Attack 27."""
    with pytest.raises(MessageError):
        parse_message(data)


def test_sizes():
    def of(token_bytes=10, extensions=0, value_bytes=1):
        more = "".join(f"{'x' * (1 + n)}={'v' * value_bytes}\1" for n in range(extensions))
        return f"n,,\1auth=Bearer {'t' * token_bytes}\1{more}\1".encode()

    assert len(parse_message(of(TOKEN_BYTES_MAX)).token) == TOKEN_BYTES_MAX
    assert parse_message(of(extensions=EXTENSIONS_MAX))
    for data in (of(TOKEN_BYTES_MAX + 1), of(extensions=EXTENSIONS_MAX + 1), of(20_000, 30, 3000)):
        with pytest.raises(MessageError):
            parse_message(data)
    assert len(of(20_000, 30, 3000)) > MESSAGE_BYTES_MAX


def test_a_token_is_not_shown():
    assert "secret" not in repr(ClientMessage("secret.a.b", "alice"))


NAMES = st.text(st.characters(min_codepoint=1, max_codepoint=127), min_size=1, max_size=20)
TOKENS = st.from_regex(r"[-_.A-Za-z0-9]{1,40}", fullmatch=True)
EXTENSIONS = st.dictionaries(
    st.from_regex(r"[A-Za-z]{1,5}", fullmatch=True).filter(lambda key: key != "auth"),
    st.from_regex(r"[\x21-\x7e \t\r\n]{1,9}", fullmatch=True),
    max_size=5,
)


@given(NAMES, TOKENS, EXTENSIONS)
def test_what_a_client_makes_is_read(name, token, extensions):
    who = name.replace("=", "=3D").replace(",", "=2C")
    more = "".join(f"{key}={value}\1" for key, value in extensions.items())
    data = f"n,a={who},\1auth=Bearer {token}\1{more}\1".encode()
    assert parse_message(data) == ClientMessage(token, name)


@given(
    st.binary(max_size=60)
    | st.lists(
        st.sampled_from(
            [b"n,", b",", b"a=", b"\1", b"auth=Bearer ", b"a.b.c", b"k=v", b"=2C", b"\xff"]
        ),
        max_size=14,
    ).map(b"".join)
)
def test_anything_is_read_or_refused(data):
    try:
        got = parse_message(data)
    except MessageError:
        return
    assert got.token.encode() in data
    assert data.endswith(b"\1\1")
    assert data.count(b"auth=") == 1
