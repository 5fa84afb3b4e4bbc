"""Keys that tokens are signed by, from a JWKS (RFC 7517): which there are, and what each may check.

A key is tied to its algorithms when it is read: by its type and curve, or by its `alg` alone if it
has one. Symmetric keys are none (what checks could sign), private parts are not looked at, and
whatever cannot be used is left out with a reason. A set in which nothing is left is an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.security.sasl.oauth.json_core import decode_base64url, read_object
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

JWKS_BYTES_MAX = 128 << 10
#: All of a document are read in one turn of the loop: 0.1 ms for each of the costliest kind.
KEYS_MAX = 32
#: A key of the slowest curve takes 0.06 ms, and a slow machine three times as long.
KEY_UNITS = 150
KID_CHARACTERS_MAX = 1000
RSA_BITS = range(2048, 8192 + 1)
#: Each step of a verification costs as many multiplications as this has bits.
_RSA_EXPONENT_BYTES_MAX = 4
_RSA_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_CURVE_ALGORITHMS = {
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA",),
    ("OKP", "Ed448"): ("EdDSA",),
}
#: Public parts by type: all that is taken of a key.
_PARTS = {"RSA": ("n", "e"), "EC": ("crv", "x", "y"), "OKP": ("crv", "x")}


class JwksError(ValueError):
    """No set of keys that could be used."""


@dataclass(slots=True, frozen=True)
class VerificationKey:
    """`verifiers`: by algorithm. `kid`: None if it has none."""

    kid: str | None
    verifiers: Mapping[str, Callable[[bytes, bytes], bool]]


@dataclass(slots=True, frozen=True)
class Keys:
    keys: tuple[VerificationKey, ...] = ()
    #: Why others were left out.
    notes: tuple[str, ...] = ()

    def has(self, kid: str) -> bool:
        return any(key.kid == kid for key in self.keys)

    def find(self, kid: str | None, algorithm: str) -> VerificationKey | None:
        """The one key that this can mean. Without a kid: the only one of that algorithm."""
        fitting = [
            key
            for key in self.keys
            if algorithm in key.verifiers and (kid is None or key.kid == kid)
        ]
        return fitting[0] if len(fitting) == 1 else None


def load_libraries() -> None:
    """At a start, as it takes 0.1 s; a server without OAUTHBEARER does without."""
    import joserfc.jwk
    import joserfc.jws  # noqa: F401  # both for `_verifiers`


def parsing_jwks(data: bytes) -> Generator[int, None, Keys]:
    """Yields what each key costs, in units of about a microsecond (broker/api.py). JwksError."""
    if len(data) > JWKS_BYTES_MAX:
        raise JwksError(f"larger than {JWKS_BYTES_MAX} bytes")
    try:
        texts = read_object(data).get("keys")
    except ValueError as error:
        raise JwksError(str(error)) from None
    if not isinstance(texts, list) or len(texts) > KEYS_MAX:
        raise JwksError(f"no list `keys` of at most {KEYS_MAX}")
    keys, notes = [], []
    for index, text in enumerate(texts):
        yield KEY_UNITS
        try:
            keys.append(_key(text))
        except ValueError as error:
            notes.append(f"key {index}: {error}")
    if not keys:
        raise JwksError("no key that can be used" + "".join(f"; {note}" for note in notes[:3]))
    return Keys(tuple(keys), tuple(notes))


def _key(text: object) -> VerificationKey:
    """ValueError: why it is left out."""
    if not isinstance(text, dict):
        raise ValueError("no object")
    if text.get("use", "sig") != "sig":
        raise ValueError("not for signatures (use)")
    operations = text.get("key_ops", ["verify"])
    if not isinstance(operations, list) or "verify" not in operations:
        raise ValueError("not to verify with (key_ops)")
    kid = text.get("kid")
    if kid is not None and (not isinstance(kid, str) or len(kid) > KID_CHARACTERS_MAX):
        raise ValueError("a kid that is no text, or very long")
    algorithms = _algorithms(text)
    if "alg" in text:
        algorithms = tuple(each for each in algorithms if each == text["alg"])
        if not algorithms:
            raise ValueError("an alg that is not served for its type")
    return VerificationKey(kid, _verifiers(text, algorithms))


def _algorithms(text: Mapping[str, Any]) -> tuple[str, ...]:
    """By type and curve. ValueError."""
    kind = text.get("kty")
    if not isinstance(kind, str) or kind not in _PARTS:
        raise ValueError("a kty that is not served: only RSA, EC and OKP are")
    for name in _PARTS[kind]:
        if not isinstance(text.get(name), str):
            raise ValueError(f"without {name}")
    if kind == "RSA":
        bits = int.from_bytes(decode_base64url(text["n"])).bit_length()
        if bits not in RSA_BITS:
            raise ValueError(f"an RSA key of {bits} bits")
        if len(decode_base64url(text["e"])) > _RSA_EXPONENT_BYTES_MAX:
            raise ValueError("an RSA exponent that is very long")
        return _RSA_ALGORITHMS
    found = _CURVE_ALGORITHMS.get((kind, text["crv"]))
    if found is None:
        raise ValueError("a curve that is not served")
    return found


def _verifiers(
    text: Mapping[str, Any], algorithms: tuple[str, ...]
) -> dict[str, Callable[[bytes, bytes], bool]]:
    """ValueError."""
    # Not before somebody needs it (`load_libraries`).
    from cryptography.exceptions import UnsupportedAlgorithm
    from joserfc.errors import JoseError
    from joserfc.jwk import ECKey, OKPKey, RSAKey
    from joserfc.jws import JWSRegistry

    kind = text["kty"]
    public: Any = {"kty": kind, **{name: text[name] for name in _PARTS[kind]}}
    classes: dict[str, Any] = {"RSA": RSAKey, "EC": ECKey, "OKP": OKPKey}
    try:
        key = classes[kind].import_key(public)
        key.get_op_key("verify")  # which makes it
    except (JoseError, UnsupportedAlgorithm, ValueError, TypeError):
        raise ValueError("no such key") from None

    def verifier(algorithm: str) -> Callable[[bytes, bytes], bool]:
        model = JWSRegistry.algorithms[algorithm]

        def verify(signed: bytes, signature: bytes) -> bool:
            try:
                return model.verify(signed, signature, key)
            except ValueError:
                return False  # of no size that a signature could have

        return verify

    return {algorithm: verifier(algorithm) for algorithm in algorithms}
