"""A token (JWT, RFC 7515 and 7519): its signature by a known key, and then what it claims.

Pure: keys and the time are given. Nothing of the payload is read before the signature was right,
and nothing of the header leads anywhere: `jku`, `jwk`, `x5u`, `x5c` are not looked at. `alg` is one
of the algorithms of the key, hence never «none» and never an HMAC.

As Kafka's `BrokerJwtValidator` (jose4j): `exp` and `iat` must be there, a token with an `aud` needs
an expected audience and the other way round. Stricter: an `iat` in the future, names that come
twice, and a principal's name with blanks around it, control characters or halves of characters
(Kafka takes the blanks away, and lets « admin» in as «admin»).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from broker.security.sasl.oauth.json_core import decode_base64url, read_object
from broker.security.sasl.oauth.keys_core import KID_CHARACTERS_MAX
from broker.security.sasl.oauth.message_core import TOKEN_BYTES_MAX
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from broker.security.sasl.oauth.keys_core import Keys

HEADER_CHARACTERS_MAX = 8 << 10
#: Objects within a header or a payload, by their braces: each is looked through by Python, for
#: names that come twice, and 32 KiB have room for eight thousand. Providers' tokens have a few.
OBJECTS_MAX = 1000
NAME_CHARACTERS_MAX = 1024
#: The end of the year 9999; beyond, a number is no time.
SECONDS_MAX = 253_402_300_799
_PARTS = re.compile(r"[-_A-Za-z0-9]+\.[-_A-Za-z0-9]+\.[-_A-Za-z0-9]+")
#: Halves of characters, too, which are no UTF-8: no answer and no page could show the name.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class InvalidTokenError(ValueError):
    """Why it is not believed; the words hold nothing secret. `name`: whose it is, if its signature
    was right."""

    def __init__(self, reason: str, name: str = "") -> None:
        super().__init__(reason)
        self.name = name


class UnknownKeyError(InvalidTokenError):
    """Signed by a key that is not among the known ones, and may be new."""

    def __init__(self, kid: str) -> None:
        super().__init__(f"no key {kid[:64]!r}")
        self.kid = kid


@dataclass(slots=True, frozen=True)
class TokenRules:
    """What tokens must claim; `issuer` None: any."""

    issuer: str | None = None
    audience: frozenset[str] = frozenset()
    skew_seconds: int = 30
    sub_claim: str = "sub"
    scope_claim: str = "scope"


class ValidToken(NamedTuple):
    name: str
    expires_ms: int


def validate(token: str, keys: Keys, rules: TokenRules, now_ms: int) -> ValidToken:
    """InvalidTokenError."""
    return _checked(_signed_claims(token, keys), rules, now_ms / 1000)


# -- what is signed --------------------------------------------------------------------------------


def _signed_claims(token: str, keys: Keys) -> dict[str, Any]:
    """InvalidTokenError."""
    if len(token) > TOKEN_BYTES_MAX or not _PARTS.fullmatch(token):
        raise InvalidTokenError("not three parts, or very large")
    header, payload, signature = token.split(".")
    if len(header) > HEADER_CHARACTERS_MAX:
        raise InvalidTokenError("a very large header")
    algorithm, kid = _header(header)
    key = keys.find(kid, algorithm)
    if key is None:
        if kid is not None and not keys.has(kid):
            raise UnknownKeyError(kid)
        raise InvalidTokenError("no key for its alg, or several")
    try:
        is_right = key.verifiers[algorithm](
            f"{header}.{payload}".encode(), decode_base64url(signature)
        )
        if not is_right:
            raise InvalidTokenError("another signature")
        return _read_object(payload)
    except InvalidTokenError:
        raise
    except ValueError as error:
        raise InvalidTokenError(str(error)) from None


def _read_object(text: str) -> dict[str, Any]:
    """ValueError."""
    data = decode_base64url(text)
    if data.count(b"{") > OBJECTS_MAX:
        raise ValueError(f"more than {OBJECTS_MAX} objects")
    return read_object(data)


def _header(text: str) -> tuple[str, str | None]:
    """(alg, kid). InvalidTokenError."""
    try:
        header = _read_object(text)
    except ValueError as error:
        raise InvalidTokenError(f"header: {error}") from None
    if "crit" in header:
        raise InvalidTokenError("header: extensions that must be understood (crit)")
    algorithm, kid = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str):
        raise InvalidTokenError("header: no alg")
    if kid is not None and (not isinstance(kid, str) or len(kid) > KID_CHARACTERS_MAX):
        raise InvalidTokenError("header: a kid that is no text, or very long")
    return algorithm, kid


# -- what it claims --------------------------------------------------------------------------------


def _checked(claims: Mapping[str, Any], rules: TokenRules, now: float) -> ValidToken:
    """InvalidTokenError."""
    name = _name(claims.get(rules.sub_claim), rules.sub_claim)
    expires = _times(claims, rules.skew_seconds, now, name)
    if rules.issuer is not None and claims.get("iss") != rules.issuer:
        raise InvalidTokenError("another issuer", name)
    _audience(claims, rules.audience, name)
    _scopes(claims.get(rules.scope_claim), rules.scope_claim, name)
    return ValidToken(name, int(expires * 1000))


def _name(value: object, claim: str) -> str:
    if not isinstance(value, str) or not value or len(value) > NAME_CHARACTERS_MAX:
        raise InvalidTokenError(f"{claim}: no name")
    if value != value.strip() or _CONTROL.search(value):
        raise InvalidTokenError(f"{claim}: a name with blanks around it or control characters")
    return value


def _times(claims: Mapping[str, Any], skew: int, now: float, name: str) -> float:
    """`exp`."""
    expires, issued = (_seconds(claims.get(claim), claim, name) for claim in ("exp", "iat"))
    if expires <= now - skew:
        raise InvalidTokenError("expired", name)
    if issued > now + skew:
        raise InvalidTokenError("issued in the future", name)
    begins = issued
    if "nbf" in claims:
        begins = _seconds(claims["nbf"], "nbf", name)
        if begins > now + skew:
            raise InvalidTokenError("not valid yet", name)
    if expires < max(issued, begins):
        raise InvalidTokenError("expires before it begins", name)
    return expires


def _seconds(value: object, claim: str, name: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= SECONDS_MAX:
        return value  # 1e400 is infinite, and not within
    raise InvalidTokenError(f"{claim}: no time", name)


def _audience(claims: Mapping[str, Any], expected: frozenset[str], name: str) -> None:
    if "aud" not in claims:
        if expected:
            raise InvalidTokenError("for no audience", name)
        return
    value = claims["aud"]
    audience = [value] if isinstance(value, str) else value
    if not isinstance(audience, list) or not all(isinstance(each, str) for each in audience):
        raise InvalidTokenError("aud: no audience", name)
    if expected.isdisjoint(audience):
        raise InvalidTokenError("for another audience", name)


def _scopes(value: object, claim: str, name: str) -> None:
    if value is None:
        return
    scopes = [value] if isinstance(value, str) else value
    if not isinstance(scopes, list):
        raise InvalidTokenError(f"{claim}: no scopes", name)
    if not all(isinstance(each, str) and each.strip() for each in scopes):
        raise InvalidTokenError(f"{claim}: an empty scope", name)
    if len({each.strip() for each in scopes}) < len(scopes):
        raise InvalidTokenError(f"{claim}: a scope that comes twice", name)
