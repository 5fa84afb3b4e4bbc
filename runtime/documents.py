"""A small document that a setting names by its URL: a file, or by HTTPS (runtime/http_client.py).

    url = parse_url("https://id.example.org/keys")      while settings are read
    data = await fetch(url, tls, bytes_max=65536)       as often as it is wanted

Plain http: is for addresses of this machine only, and only if the caller allows it.
"""

from __future__ import annotations

import os
import stat
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import trio

from wire.dataclass import dataclass

if TYPE_CHECKING:
    import ssl

_PORTS = {"https": 443, "http": 80}


class DocumentError(Exception):
    """It could not be read; the words say why, and where it was looked for."""


@dataclass(slots=True, frozen=True)
class DocumentUrl:
    """`path`: of a file, else path and query. `str` leaves the query out, as it may be secret."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def is_file(self) -> bool:
        return self.scheme == "file"

    def __str__(self) -> str:
        if self.is_file:
            return f"file:{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path.partition('?')[0]}"


def parse_url(text: str, *, allows_loopback_http: bool = False) -> DocumentUrl:
    """ValueError says what is wrong, without the text."""
    if not text.isascii() or not text.isprintable() or " " in text or "\\" in text:
        raise ValueError("a URL has only visible ASCII characters")
    parts = urlsplit(text)  # ValueError
    if parts.fragment or "@" in parts.netloc:
        raise ValueError("neither a user nor a fragment may be in it")
    if parts.scheme == "file":
        path = unquote(parts.path, errors="strict")
        if parts.netloc or parts.query or not path.startswith("/") or "\0" in path:
            raise ValueError("expected file:///path")
        return DocumentUrl("file", "", 0, path)
    if parts.scheme not in _PORTS:
        raise ValueError("expected file: or https:")
    host = parts.hostname or ""
    if not host:
        raise ValueError("no host")
    if parts.scheme == "http" and not (allows_loopback_http and _is_loopback(host)):
        raise ValueError("http: is not secure; expected https: or file:")
    request = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return DocumentUrl(parts.scheme, host, parts.port or _PORTS[parts.scheme], request)


def _is_loopback(host: str) -> bool:
    """Only of an address: who a name is, somebody else may say."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


async def fetch(url: DocumentUrl, tls: ssl.SSLContext | None, *, bytes_max: int) -> bytes:
    """`tls` is needed for https:. DocumentError."""
    # With h11 a sixtieth of a start's imports; the first document is read before the start ends.
    from runtime.http_client import HttpGetError, HttpTarget, get

    try:
        if url.is_file:
            return await trio.to_thread.run_sync(
                _read_file, url.path, bytes_max, abandon_on_cancel=True
            )
        secure = tls if url.scheme == "https" else None
        assert secure is not None or url.scheme == "http"
        target = HttpTarget(url.host, url.port, url.path, secure)
        return await get(target, body_bytes_max=bytes_max)
    except (HttpGetError, OSError) as error:
        raise DocumentError(f"{url}: {error}") from error


def _read_file(path: str, bytes_max: int) -> bytes:
    """OSError."""
    # A pipe that nobody writes to would be waited for.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("no regular file")
        data = file.read(bytes_max + 1)
    if len(data) > bytes_max:
        raise OSError(f"larger than {bytes_max} bytes")
    return data
