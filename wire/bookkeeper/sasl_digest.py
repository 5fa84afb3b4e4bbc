"""SASL DIGEST-MD5 (RFC 2831), both sides, as BookKeeper's AUTH carries it.

    client -> bookie   (nothing)
    bookie -> client   realm="bookkeeper",nonce="...",qop="auth",charset=utf-8,algorithm=md5-sess
    client -> bookie   username, realm, nonce, nc, cnonce, digest-uri, qop, response
    bookie -> client   rspauth=...        which only who knows the password can make

Authentication only: no integrity, no encryption, no subsequent authentication (nc is always 1). So
it proves to both sides that the other knows the password, over a connection that is not protected
by it: that is what TLS is for. Realm and digest-uri are the ones that are fixed in BookKeeper's
SaslConstants. Pure: nonces are arguments, and both classes are for one exchange.
"""

from __future__ import annotations

import hmac
import re
from hashlib import md5
from typing import TYPE_CHECKING

from wire.bookkeeper.errors import WireError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: AuthMessage's authPluginName (SaslConstants.PLUGIN_NAME).
PLUGIN_NAME = "sasl"
#: Of one token, either way: RFC 2831 allows a challenge 2047 bytes and a response 4095.
TOKEN_BYTES_MAX = 4095

_REALM = "bookkeeper"
_DIGEST_URI = "bookkeeper/bookkeeper"
_FIRST_COUNT = b"00000001"
_QOP = b"auth"
_DIRECTIVE = re.compile(rb'\s*([^\s=,"]+)\s*=\s*("(?:[^"\\]|\\.)*"|[^\s,"]*)\s*(?:,|$)', re.DOTALL)
_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)
_SPECIAL = re.compile(rb'(["\\])')


class DigestError(WireError):
    """The exchange failed; the words say how, and hold no secret."""


def parse_directives(token: bytes) -> dict[str, bytes]:
    """Names in lower case; values without quotes. DigestError, also for a name that comes twice."""
    if len(token) > TOKEN_BYTES_MAX:
        raise DigestError(f"a token of {len(token)} bytes; allowed are {TOKEN_BYTES_MAX}")
    found: dict[str, bytes] = {}
    position = 0
    while position < len(token):
        if token[position : position + 1] in b", \t\r\n":
            position += 1
            continue
        match = _DIRECTIVE.match(token, position)
        if match is None:
            raise DigestError(f"no directive at byte {position} of the token")
        name = match[1].decode("latin-1").lower()
        if name in found:
            raise DigestError(f"{name} comes twice")
        value = match[2]
        found[name] = _ESCAPED.sub(rb"\1", value[1:-1]) if value.startswith(b'"') else value
        position = match.end()
    return found


class DigestServer:
    """One client's exchange: `challenge`, then `verify` once."""

    def __init__(
        self, passwords: Mapping[str, str], nonce: bytes, is_allowed: Callable[[str], bool]
    ) -> None:
        """`nonce`: printable, never used before. `is_allowed(user)`: whether who has proved to be
        that user is welcome."""
        self._passwords = passwords
        self._nonce = nonce
        self._is_allowed = is_allowed

    def challenge(self) -> bytes:
        words = f'realm="{_REALM}",qop="auth",charset=utf-8,algorithm=md5-sess'
        return b'nonce="' + self._nonce + b'",' + words.encode()

    def verify(self, token: bytes) -> tuple[str, bytes]:
        """(user, the token for the client). DigestError."""
        found = parse_directives(token)
        charset = _charset(found)
        expected = {
            "nonce": self._nonce,
            "nc": _FIRST_COUNT,
            "realm": _REALM.encode(),
        }
        for name, value in expected.items():
            if found.get(name) != value:
                raise DigestError(f"{name} is {found.get(name)!r}, not {value!r}")
        uri = found.get("digest-uri", b"")
        if uri.lower() != _DIGEST_URI.encode():
            raise DigestError(f"digest-uri is {uri!r}, not {_DIGEST_URI!r}")
        if found.get("qop", _QOP) != _QOP:
            raise DigestError(f"qop is {found['qop']!r}, and only 'auth' is offered")
        if not found.get("cnonce"):
            raise DigestError("there is no cnonce")
        user = _text(found.get("username", b""), charset, "username")
        authorized = found.get("authzid")
        password = self._passwords.get(user)
        # Who is not known costs the same time and is told the same as a wrong password.
        secret = _secret(user, _REALM, password or "")
        exchange = (self._nonce, found["cnonce"], authorized)
        response = _response(b"AUTHENTICATE", uri, secret, *exchange)
        is_right = hmac.compare_digest(response, found.get("response", b""))
        if password is None or not is_right:
            raise DigestError(f"unknown user or wrong password, user {user!r}")
        if authorized is not None and _text(authorized, charset, "authzid") != user:
            raise DigestError(f"user {user!r} wants to act as {authorized!r}")
        if not self._is_allowed(user):
            raise DigestError(f"user {user!r} is not allowed by saslJaasClientAllowedIds")
        return user, b"rspauth=" + _response(b"", uri, secret, *exchange)


class DigestClient:
    """`respond` to the challenge, then `check` what the server answers to that."""

    def __init__(self, user: str, password: str, cnonce: bytes) -> None:
        self._user = user
        self._password = password
        self._cnonce = cnonce
        self._expected: bytes | None = None

    def respond(self, challenge: bytes) -> bytes:
        """DigestError."""
        found = parse_directives(challenge)
        charset = _charset(found)
        nonce = found.get("nonce")
        if not nonce:
            raise DigestError("the challenge has no nonce")
        if found.get("algorithm", b"").lower() != b"md5-sess":
            raise DigestError(f"algorithm is {found.get('algorithm')!r}, not md5-sess")
        offered = found.get("qop", _QOP)
        if _QOP not in (each.strip() for each in offered.split(b",")):
            raise DigestError(f"qop is {offered!r}, without 'auth'")
        realm = _text(found.get("realm", b""), charset, "realm")
        try:
            user = self._user.encode(charset)
        except UnicodeEncodeError:
            raise DigestError(f"user {self._user!r} needs charset=utf-8") from None
        secret = _secret(self._user, realm, self._password)
        exchange = (nonce, self._cnonce, None)
        uri = _DIGEST_URI.encode()
        self._expected = _response(b"", uri, secret, *exchange)
        words = [
            b"username=" + _quoted(user),
            b"realm=" + _quoted(found.get("realm", b"")),
            b"nonce=" + _quoted(nonce),
            b"nc=" + _FIRST_COUNT,
            b"cnonce=" + _quoted(self._cnonce),
            b"digest-uri=" + _quoted(uri),
            b"qop=" + _QOP,
            b"response=" + _response(b"AUTHENTICATE", uri, secret, *exchange),
        ]
        if charset == "utf-8":
            words.insert(0, b"charset=utf-8")
        return b",".join(words)

    def check(self, token: bytes) -> None:
        """DigestError unless the server knows the password, too."""
        told = parse_directives(token).get("rspauth", b"")
        if self._expected is None or not hmac.compare_digest(self._expected, told):
            raise DigestError("the bookie does not know the password: its rspauth is wrong")


def _charset(found: Mapping[str, bytes]) -> str:
    return "utf-8" if found.get("charset", b"").lower() == b"utf-8" else "latin-1"


def _text(value: bytes, charset: str, name: str) -> str:
    try:
        return value.decode(charset)
    except UnicodeDecodeError:
        raise DigestError(f"{name} is no {charset}") from None


def _quoted(value: bytes) -> bytes:
    return b'"' + _SPECIAL.sub(rb"\\\1", value) + b'"'


def _hashed(text: str) -> bytes:
    """What is ISO 8859-1 is hashed as that, whatever the charset (RFC 2831, 2.1.2.1)."""
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode()


def _secret(user: str, realm: str, password: str) -> bytes:
    return md5(b":".join(map(_hashed, (user, realm, password)))).digest()


def _response(
    method: bytes, uri: bytes, secret: bytes, nonce: bytes, cnonce: bytes, authorized: bytes | None
) -> bytes:
    """RFC 2831, 2.1.2.1; `method` is empty for rspauth."""
    first = [secret, nonce, cnonce]
    if authorized is not None:
        first.append(authorized)
    a1 = md5(b":".join(first)).hexdigest().encode()
    a2 = md5(method + b":" + uri).hexdigest().encode()
    return md5(b":".join((a1, nonce, _FIRST_COUNT, cnonce, _QOP, a2))).hexdigest().encode()
