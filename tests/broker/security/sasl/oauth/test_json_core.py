"""JSON and base64url, read strictly."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.security.sasl.oauth.json_core import decode_base64url, read_object


@given(st.binary(max_size=40))
def test_base64url(data):
    text = base64.urlsafe_b64encode(data).decode()
    assert decode_base64url(text.rstrip("=")) == data


@pytest.mark.parametrize(
    "text", ["AA==", "+/+/", "-_+_", "A", "AAAAA", "A A", "AA\n", "é", "=", "AA="]
)
def test_no_base64url(text):
    with pytest.raises(ValueError, match="no base64url"):
        decode_base64url(text)


def test_objects():
    assert read_object(b' {"a": [1, {"b": null}]} ') == {"a": [1, {"b": None}]}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"1",
        b"[]",
        b"{",
        b"{}x",
        b'{"a":1,"a":1}',
        b'{"a":NaN}',
        b'{"a":-Infinity}',
        b'{"a":' + b"[" * 5000,
        b'{"a":' + b"9" * 5000 + b"}",
        b"\xff",
        '{"a":1}'.encode("utf-16"),
        b"\xef\xbb\xbf{}",
    ],
)
def test_no_objects(data):
    with pytest.raises(ValueError, match=r"."):
        read_object(data)
