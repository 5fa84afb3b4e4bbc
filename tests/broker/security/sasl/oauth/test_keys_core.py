"""Which keys of a JWKS are taken, and for which algorithms."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.api import STEP_UNITS
from broker.security.sasl.oauth.keys_core import (
    JWKS_BYTES_MAX,
    KEYS_MAX,
    JwksError,
    Keys,
    parsing_jwks,
)
from tests.broker.security.sasl.oauth.conftest import (
    KINDS,
    base64url,
    jwks,
    octets,
    parse_jwks,
    private_key,
    public,
)
from tests.turns import check_turn

RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")


def algorithms(**more):
    (key,) = parse_jwks(jwks(public("rsa", **more))).keys
    return tuple(key.verifiers)


def test_a_key_is_tied_to_its_algorithms():
    keys = parse_jwks(jwks(*map(public, KINDS)))
    found = {key.kid: tuple(key.verifiers) for key in keys.keys}
    assert found == {
        "rsa": RSA,
        "p256": ("ES256",),
        "p384": ("ES384",),
        "p521": ("ES512",),
        "ed": ("EdDSA",),
        "ed448": ("EdDSA",),
    }
    assert algorithms(alg="PS384") == ("PS384",)
    assert algorithms(use="sig", key_ops=["verify"]) == RSA


@pytest.mark.parametrize(
    "more",
    [
        {"use": "enc"},
        {"key_ops": ["encrypt"]},
        {"key_ops": "verify"},
        {"alg": "HS256"},
        {"alg": "none"},
        {"alg": "ES256"},
        {"kid": 7},
        {"kid": "k" * 1001},
        {"kty": "oct"},
        {"kty": ["RSA"]},
        {"n": None},
        {"n": 3},
        {"n": "not base64!"},
        {"n": base64url(b"\xff" * 127)},  # 1016 bits
        {"n": base64url(b"\xff" * 1025)},  # 8200 bits
        {"e": base64url(b"\1" * 5)},
        {"e": base64url(b"\2")},
        {"e": ""},
    ],
)
def test_a_key_that_cannot_be_used_is_left_out(more):
    keys = parse_jwks(jwks(public("rsa", **more), public("p256")))
    assert [key.kid for key in keys.keys] == ["p256"]
    assert len(keys.notes) == 1
    assert keys.notes[0].startswith("key 0: ")


@pytest.mark.parametrize(
    "text",
    [
        {**octets(b"s" * 32).as_dict(private=True), "kid": "secret"},
        {"kty": "OKP", "crv": "X25519", "x": base64url(b"x" * 32)},
        {"kty": "OKP", "crv": "Ed25519", "x": base64url(b"x" * 31)},
        {"kty": "EC", "crv": "secp256k1", "x": base64url(b"x" * 32), "y": base64url(b"y" * 32)},
        {"kty": "EC", "crv": "P-256", "x": base64url(b"x" * 32), "y": base64url(b"y" * 32)},
        {"kty": "EC", "crv": "P-256", "x": base64url(b"x" * 32)},
        {},
        None,
        "key",
    ],
)
def test_what_is_no_key_is_left_out(text):
    assert parse_jwks(jwks(text, public("ed"))).keys[0].kid == "ed"
    with pytest.raises(JwksError, match="no key that can be used; key 0: "):
        parse_jwks(jwks(text))


def test_private_parts_are_not_taken():
    text = {**private_key("rsa").as_dict(private=True), "kid": "rsa", "d": "nonsense"}
    assert parse_jwks(jwks(text)).keys[0].kid == "rsa"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"<html>",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'{"keys": {}}',
        b'{"keys": []}',
        b'{"keys": [], "keys": []}',
        b'{"keys": [NaN]}',
        b'{"keys": ' + b"[" * 20_000,
        b'{"keys": [' + b"9" * 5000 + b"]}",
        jwks(*[public("ed")] * (KEYS_MAX + 1)),
        b" " * (JWKS_BYTES_MAX + 1),
    ],
)
def test_no_jwks(data):
    with pytest.raises(JwksError):
        parse_jwks(data)


def test_a_key_is_found_only_if_one_alone_can_be_meant():
    two = parse_jwks(jwks(public("rsa", kid="a"), public("p256", kid="a"), public("ed")))
    assert two.find("a", "ES256") is two.keys[1]
    assert two.find("a", "PS256") is two.keys[0]
    assert two.find(None, "EdDSA") is two.keys[2]
    assert two.find("a", "EdDSA") is None
    assert two.find("b", "ES256") is None
    assert two.find("a", "none") is None
    same = parse_jwks(jwks(public("rsa", kid="a"), public("rsa", kid="a")))
    assert same.find("a", "RS256") is None
    without = parse_jwks(jwks(public("rsa", kid=None), public("rsa")))
    assert without.find(None, "RS256") is None
    assert Keys().find("a", "RS256") is None


@pytest.mark.turns
def test_reading_keys_is_short():
    """Those of a slice, of the largest document that is allowed."""
    data = jwks(*[public("p521", kid=str(n)) for n in range(KEYS_MAX)])

    def longest():
        longest, units, before = 0.0, 0, time.thread_time()
        for cost in parsing_jwks(data):
            units += cost
            if units > STEP_UNITS:
                longest = max(longest, time.thread_time() - before)
                units, before = cost, time.thread_time()
        return max(longest, time.thread_time() - before)

    check_turn(min(longest() for _ in range(5)), 0.005)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=10,
)


@given(st.sampled_from(list(KINDS)), st.data())
def test_any_part_may_be_anything(kid, data):
    text = public(kid)
    for name in data.draw(st.lists(st.sampled_from([*text, "use", "alg", "key_ops"]), max_size=3)):
        text[name] = data.draw(JSON)
    try:
        keys = parse_jwks(json.dumps({"keys": [text]}).encode())
    except JwksError:
        return
    served = {each for _, algorithms in KINDS.values() for each in algorithms} | {"PS384"}
    assert set(keys.keys[0].verifiers) <= served
