"""Who may ask a server's pages for what: `PageCredentials`.

| pages | who |
|--|--|
| /api/v1: what changes something, and records (/api/v1/ledger/) | this machine, with the token |
| /api/v1: the rest | this machine; with the token, if quire.admin.reads.need.token |
| /metrics | everybody; with its own token, if quire.metrics.token.file |
| /health, /heartbeat, /ping, /buildinfo | everybody |

With httpServerTlsEnable all of them are served by https only (tls.py).

A token goes as `Authorization: Bearer <token>`. A browser does not add that by itself, so no page
of somebody else's can have it sent. It is the text of quire.admin.token.file. Without that setting
a server that has a data directory makes one at each start, and leaves it there in a file which is
its user's only (token_note.py); one that has none takes no changes.
"""

from __future__ import annotations

import hmac
import logging
from dataclasses import field
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING

from runtime.config import ConfigError
from runtime.http import HttpError
from runtime.logs import kv
from runtime.secret_files import SecretFileError, read_secret
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from bookie.server.pages_config import PagesConfig
    from runtime.http import HttpRequest
    from runtime.renewed_tls import RenewedTls

logger = logging.getLogger(__name__)

RECORDS = "/api/v1/ledger/"
_BEARER = "bearer "
_CHALLENGE = (("WWW-Authenticate", "Bearer"),)


@dataclass(slots=True, frozen=True)
class PageCredentials:
    """`admin`, `metrics`: tokens; None: there is none. `tls`: what the pages are spoken over."""

    admin: str | None = field(default=None, repr=False)
    metrics: str | None = field(default=None, repr=False)
    reads_need_token: bool = False
    tls: RenewedTls | None = field(default=None, repr=False)

    def check_admin(self, request: HttpRequest) -> None:
        """HttpError 401 or 403 unless it may have what it asks /api/v1 for."""
        check_local(request)
        is_read = request.method in ("GET", "HEAD") and not request.path.startswith(RECORDS)
        if is_read and not self.reads_need_token:
            return
        if self.admin is None:
            raise HttpError(
                403, "this needs a token, and the server has none: set quire.admin.token.file"
            )
        _check(request, self.admin)

    def check_metrics(self, request: HttpRequest) -> None:
        """HttpError 401."""
        if self.metrics is not None:
            _check(request, self.metrics)


def read_credentials(config: PagesConfig) -> PageCredentials:
    """ConfigError: a file that cannot be read, or that others can."""
    return PageCredentials(
        _read("quire.admin.token.file", config.admin_token_file),
        _read("quire.metrics.token.file", config.metrics_token_file),
        config.reads_need_token,
        _tls(config) if config.has_tls else None,
    )


def _tls(config: PagesConfig) -> RenewedTls:
    """ConfigError."""
    # What it needs is slow to import, and not often wanted.
    from quire.tools.admin.tls import pages_tls

    return pages_tls(config)


def _read(setting: str, path: str | None) -> str | None:
    if not path:
        return None
    try:
        return read_secret(path)
    except SecretFileError as error:
        raise ConfigError(setting, f"{setting}: {error}") from None


def _check(request: HttpRequest, token: str) -> None:
    given = request.headers.get("authorization", "")
    if given[: len(_BEARER)].lower() == _BEARER:
        # As bytes: of text, compare_digest takes ASCII only.
        if hmac.compare_digest(given[len(_BEARER) :].strip().encode(), token.encode()):
            return
        logger.warning(
            "page_refused", kv(peer=request.peer, method=request.method, path=request.path[:200])
        )
    raise HttpError(401, "this needs the header Authorization: Bearer <token>", _CHALLENGE)


def check_local(request: HttpRequest) -> None:
    """HttpError 403 unless the client is on this machine and called it by address or `localhost`:
    with another host's name a web page could have sent it."""
    if not _is_loopback(request.peer):
        raise HttpError(403, "the administration is for clients on the same machine only")
    host = request.headers.get("host", "")
    name = host[: host.find("]") + 1] if host.startswith("[") else host.partition(":")[0]
    name = name.strip("[]").lower()
    if name != "localhost" and not _is_address(name):
        raise HttpError(403, f"Host: {host[:100]}: call this machine by its address or localhost")


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _is_loopback(peer: str) -> bool:
    try:
        address = ip_address(peer.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback
