"""Asks a server's administration pages, blocking: for the command line."""

from __future__ import annotations

import json
import os
import ssl
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlencode, urlsplit

import click

TIMEOUT_SECONDS = 60.0
API = "/api/v1/"
#: A PEM file of the authorities that https is believed by, instead of the system's.
CA_VARIABLE = "QUIRE_ADMIN_CA_FILE"


class AdminClient:
    """ClickException for whatever goes wrong: it ends the command with a line and code 1."""

    def __init__(self, url: str, token: str | None = None) -> None:
        """`token`: for what changes something (quire/tools/admin/credentials.py)."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise click.UsageError(f"{url!r} is no http://HOST:PORT or https://HOST:PORT")
        self._tls = _trusting(os.environ.get(CA_VARIABLE)) if parts.scheme == "https" else None
        try:
            port = parts.port or (80 if self._tls is None else 443)
        except ValueError as error:
            raise click.UsageError(f"{url!r}: {error}") from error
        self._url = url
        self._address = (parts.hostname, port)
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def get(self, page: str, **query: str) -> Any:  # noqa: ANN401  # JSON
        return self._value("GET", page, None, query)

    def put(self, page: str, body: object) -> Any:  # noqa: ANN401  # JSON
        return self._value("PUT", page, json.dumps(body), {})

    def find(self, page: str) -> Any:  # noqa: ANN401  # JSON
        """As `get`; None if it is not there (404)."""
        return self._value("GET", page, None, {}, is_needed=False)

    def post(self, page: str) -> Any:  # noqa: ANN401  # JSON
        """Without a body; None if it is not there (404)."""
        return self._value("POST", page, "", {}, is_needed=False)

    def is_ready(self) -> bool:
        """Whether the bookie takes requests; False too if nobody answers."""
        try:
            return self._ask("GET", f"{API}bookie/is_ready", None)[0] == 200
        except click.ClickException:
            return False

    def _value(  # JSON's values
        self,
        method: str,
        page: str,
        body: str | None,
        query: dict[str, str],
        *,
        is_needed: bool = True,
    ) -> Any:  # noqa: ANN401
        path = API + page + (f"?{urlencode(query)}" if query else "")
        status, data = self._ask(method, path, body)
        try:
            value = json.loads(data)
        except ValueError:
            value = data.decode(errors="replace").strip()
        if status == 404 and not is_needed:
            return None
        if status != 200:
            error = value.get("error", value) if isinstance(value, dict) else value
            if status == 401:
                error = f"{error}: give the server's token with --token-file"
            raise click.ClickException(f"{self._url}{path}: {status}: {error}")
        return value

    def _ask(self, method: str, path: str, body: str | None) -> tuple[int, bytes]:
        if self._tls is None:
            connection = HTTPConnection(*self._address, timeout=TIMEOUT_SECONDS)
        else:
            host, port = self._address
            connection = HTTPSConnection(host, port, timeout=TIMEOUT_SECONDS, context=self._tls)
        try:
            connection.request(method, path, body, self._headers)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, HTTPException) as error:
            words = str(error) or type(error).__name__
            raise click.ClickException(f"{self._url} does not answer: {words}") from error
        finally:
            connection.close()


def _trusting(path: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=path or None)
    except OSError as error:
        raise click.UsageError(f"{CA_VARIABLE}={path}: {error}") from error
