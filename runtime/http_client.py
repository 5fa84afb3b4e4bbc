"""One GET over HTTP/1.1 or HTTPS, for small documents: `get`.

The protocol is h11's. A connection is for one request. What the other side can cost is bounded: the
size of head and body, and the time of all of it together. Redirects are not followed, content is
not decompressed, no proxy is asked, and no environment variable matters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import h11
import trio

from wire.dataclass import dataclass

if TYPE_CHECKING:
    import ssl

HEAD_BYTES_MAX = 16 * 1024
RECEIVE_BYTES = 16 * 1024
TIMEOUT_SECONDS = 10.0


class HttpGetError(Exception):
    """No document: what went wrong, without what the URL asks for."""


@dataclass(slots=True, frozen=True)
class HttpTarget:
    """`tls` None: plain HTTP. `request`: path and query. IPv6 hosts are without brackets."""

    host: str
    port: int
    request: str
    tls: ssl.SSLContext | None


async def get(
    target: HttpTarget, *, body_bytes_max: int, timeout_seconds: float = TIMEOUT_SECONDS
) -> bytes:
    """The body of a 200. HttpGetError."""
    try:
        with trio.fail_after(timeout_seconds):
            stream = await _connect(target)
            try:
                return await _exchange(target, stream, body_bytes_max)
            finally:
                await trio.aclose_forcefully(stream)
    except trio.TooSlowError:
        raise HttpGetError(f"no answer within {timeout_seconds:g} seconds") from None
    except (trio.BrokenResourceError, OSError) as error:
        # A stream that broke says why in its cause: a certificate, say.
        raise HttpGetError(str(error.__cause__ or error) or "the connection broke") from error
    except h11.RemoteProtocolError as error:
        raise HttpGetError(f"no HTTP/1.1: {error}") from error


async def _connect(target: HttpTarget) -> trio.abc.Stream:
    stream = await trio.open_tcp_stream(target.host, target.port)
    if target.tls is None:
        return stream
    secure = trio.SSLStream(stream, target.tls, server_hostname=target.host, https_compatible=True)
    try:
        await secure.do_handshake()
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise
    return secure


async def _exchange(target: HttpTarget, stream: trio.abc.Stream, body_bytes_max: int) -> bytes:
    protocol = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES_MAX)
    request = h11.Request(method="GET", target=target.request, headers=_headers(target))
    head = protocol.send(request) or b""
    await stream.send_all(head + (protocol.send(h11.EndOfMessage()) or b""))
    body = bytearray()
    while True:
        event = protocol.next_event()
        if event is h11.NEED_DATA:
            protocol.receive_data(bytes(await stream.receive_some(RECEIVE_BYTES)))
        elif isinstance(event, h11.Response):
            _check_head(event)
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > body_bytes_max:
                raise HttpGetError(f"larger than {body_bytes_max} bytes")
        elif isinstance(event, h11.EndOfMessage):
            return bytes(body)
        elif isinstance(event, h11.ConnectionClosed):
            raise HttpGetError("closed without an answer")


def _headers(target: HttpTarget) -> list[tuple[str, str]]:
    host = f"[{target.host}]" if ":" in target.host else target.host
    return [
        ("Host", f"{host}:{target.port}"),
        ("Accept", "application/json"),
        ("Accept-Encoding", "identity"),
        ("User-Agent", "quire"),
        ("Connection", "close"),
    ]


def _check_head(head: h11.Response) -> None:
    """HttpGetError."""
    if 300 <= head.status_code < 400:
        raise HttpGetError(f"status {head.status_code}: redirects are not followed")
    if head.status_code != 200:
        raise HttpGetError(f"status {head.status_code}")
    encodings = [value for name, value in head.headers if name == b"content-encoding"]
    if any(value.strip().lower() not in (b"", b"identity") for value in encodings):
        raise HttpGetError("compressed, which was not asked for")
