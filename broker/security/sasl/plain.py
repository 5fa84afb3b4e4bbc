"""PLAIN (RFC 4616): authorization id NUL user NUL password, all in one message.

Users are the `user_<name>="password"` options of the listener's PlainLoginModule. Nobody may act
for another one: the authorization id is empty, or the user (CVE-2017-12610).
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING

from broker.security.principal import USER, Principal
from broker.security.sasl.mechanism import AuthenticationFailedError, Login

if TYPE_CHECKING:
    from collections.abc import Mapping

PLAIN = "PLAIN"
#: Longer ones are nobody's: comparing takes as long as they are.
MESSAGE_BYTES_MAX = 16 << 10
_PARTS = 3
#: Compared with for a user who does not exist, so that this takes as long.
_NOBODYS = b"\0nobody's password"


class PlainMechanism:
    name = PLAIN

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._passwords = {user: text.encode() for user, text in passwords.items()}

    def begin(self) -> PlainExchange:
        return PlainExchange(self._passwords)


class PlainExchange:
    def __init__(self, passwords: Mapping[str, bytes]) -> None:
        self._passwords = passwords
        self.login: Login | None = None

    def step(self, token: bytes) -> bytes:
        if len(token) > MESSAGE_BYTES_MAX:
            raise AuthenticationFailedError(f"a message of {len(token)} bytes")
        parts = token.split(b"\0")
        if len(parts) != _PARTS:
            raise AuthenticationFailedError(f"{len(parts)} parts instead of {_PARTS}")
        try:
            authorization, user, _ = (part.decode() for part in parts)
        except UnicodeDecodeError:
            raise AuthenticationFailedError("not UTF-8") from None
        password = parts[2]
        if not user or not password:
            raise AuthenticationFailedError("an empty user or password", user)
        known = self._passwords.get(user)
        is_right = hmac.compare_digest(_NOBODYS if known is None else known, password)
        if known is None or not is_right:
            raise AuthenticationFailedError("no such user, or another password", user)
        if authorization not in ("", user):
            raise AuthenticationFailedError("would act for somebody else", user)
        self.login = Login(Principal(USER, user))
        return b""
