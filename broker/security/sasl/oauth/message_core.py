"""OAUTHBEARER's messages (RFC 7628, KIP-255, KIP-342; Kafka's `OAuthBearerClientInitialResponse`).

    n,[a=<authorization id>],^Aauth=Bearer <token>^A[<key>=<value>^A…]^A

^A is the byte 1. What follows the token are extensions: none has a meaning here, and they are
dropped, but they must be well formed. Stricter than Kafka: `auth` and each extension come once.
"""

from __future__ import annotations

import re

from wire.dataclass import dataclass

#: One is read in one turn of the loop: at the dearest 0.1 ms for each KiB, on a slow machine.
TOKEN_BYTES_MAX = 32 << 10
MESSAGE_BYTES_MAX = 48 << 10
EXTENSIONS_MAX = 64
#: To a token that is not valid; the client answers ^A, and only then the login has failed.
INVALID_TOKEN = b'{"status":"invalid_token"}'

_SEPARATOR = "\1"
_AUTH = "auth"
_HEAD = re.compile(r"n,(?:a=(?P<authorization>(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+))?,")
_KEY = re.compile(r"[A-Za-z]+")
_VALUE = re.compile(r"[\x21-\x7e \t\r\n]+")
_BEARER = re.compile(r"bearer +(?P<token>[-_.A-Za-z0-9]+)", re.IGNORECASE | re.ASCII)


class MessageError(ValueError):
    """No message of a client's; the words hold nothing of it."""


@dataclass(slots=True, frozen=True)
class ClientMessage:
    """`authorization`: whom the client would act for; "": it does not say."""

    token: str
    authorization: str = ""

    def __repr__(self) -> str:
        # A token is a password.
        return "ClientMessage()"


def parse_message(data: bytes) -> ClientMessage:
    """MessageError."""
    if len(data) > MESSAGE_BYTES_MAX:
        raise MessageError(f"a message of {len(data)} bytes")
    try:
        text = data.decode("ascii")
    except UnicodeDecodeError:
        raise MessageError("not ASCII") from None
    head = _HEAD.match(text)
    # The head's name may hold ^A, so the pairs begin behind the comma that ends the head.
    if head is None or text[head.end() : head.end() + 1] != _SEPARATOR:
        raise MessageError("no GS2 header")
    pairs = text[head.end() + 1 :].split(_SEPARATOR, EXTENSIONS_MAX + 2)
    # Each pair has its end, and the message one more.
    if pairs[-2:] != ["", ""]:
        raise MessageError("not ended, or very many extensions")
    values = _pairs(pairs[:-2])
    bearer = _BEARER.fullmatch(values.get(_AUTH, ""))
    if bearer is None:
        raise MessageError("no bearer token")
    if len(bearer["token"]) > TOKEN_BYTES_MAX:
        raise MessageError(f"a token of {len(bearer['token'])} bytes")
    authorization = head["authorization"] or ""
    return ClientMessage(bearer["token"], authorization.replace("=2C", ",").replace("=3D", "="))


def _pairs(texts: list[str]) -> dict[str, str]:
    """MessageError."""
    values: dict[str, str] = {}
    for text in texts:
        key, _, value = text.partition("=")
        if not _KEY.fullmatch(key) or not _VALUE.fullmatch(value):
            raise MessageError("an extension that is no key=value")
        if key in values:
            raise MessageError("a key that comes twice")
        values[key] = value
    return values
