"""Keys of an issuer, its JWKS, and tokens of every kind, well formed or not."""

import base64
import dataclasses
import functools
import json

import pytest
from joserfc import jws
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey

from broker.api import all_steps
from broker.security.sasl.oauth.keys_core import parsing_jwks

NOW = 1_800_000_000
#: kid -> (how it is made, algorithms)
KINDS = {
    "rsa": (lambda: RSAKey.generate_key(2048), ("RS256", "RS384", "RS512", "PS256", "PS512")),
    "p256": (lambda: ECKey.generate_key("P-256"), ("ES256",)),
    "p384": (lambda: ECKey.generate_key("P-384"), ("ES384",)),
    "p521": (lambda: ECKey.generate_key("P-521"), ("ES512",)),
    "ed": (lambda: OKPKey.generate_key("Ed25519"), ("EdDSA",)),
    "ed448": (lambda: OKPKey.generate_key("Ed448"), ("EdDSA",)),
}


@functools.cache
def private_key(kid):
    return KINDS[kid][0]()


def public(name, **more):
    """A key of a JWKS; None takes a part away."""
    text = {**private_key(name).as_dict(private=False), "kid": name, **more}
    return {part: value for part, value in text.items() if value is not None}


def parse_jwks(data):
    return all_steps(parsing_jwks(data))


def jwks(*keys):
    return json.dumps({"keys": list(keys)}).encode()


def base64url(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def claims(now=NOW, **more):
    """None takes a claim away."""
    text = {"sub": "alice", "iat": now - 5, "exp": now + 600, **more}
    return {name: value for name, value in text.items() if value is not None}


def signed(payload, by="rsa", algorithm=None, **header):
    """`payload`: claims, or the JSON as text. None takes a part of the header away."""
    text = payload if isinstance(payload, str) else json.dumps(payload)
    algorithm = algorithm or KINDS[by][1][0]
    head = {"alg": algorithm, "kid": by, **header}
    head = {name: value for name, value in head.items() if value is not None}
    return by_hand(json.dumps(head), text, private_key(by), algorithm)


def by_hand(head, payload, key, algorithm):
    """Head and payload as they are, signed by `key` as `algorithm` says, whatever the head says."""
    data = f"{base64url(head.encode())}.{base64url(payload.encode(errors='surrogateescape'))}"
    model = jws.JWSRegistry.algorithms[algorithm]
    return f"{data}.{base64url(model.sign(data.encode(), key))}"


def octets(data):
    return OctKey.import_key(data)


def message(token, authorization="", **extensions):
    who = f"a={authorization}" if authorization else ""
    more = "".join(f"{key}={value}\1" for key, value in extensions.items())
    return f"n,{who},\1auth=Bearer {token}\1{more}\1".encode()


@dataclasses.dataclass
class Hand:
    """A clock that is moved by hand; seconds."""

    now: float = NOW

    def time_ms(self):
        return int(self.now * 1000)

    def monotonic(self):
        return self.now


@pytest.fixture
def hand():
    return Hand()
