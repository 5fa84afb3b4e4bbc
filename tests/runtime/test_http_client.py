"""GET of a small document: by plain HTTP and HTTPS, from servers that are odd, slow or hostile."""

import ssl
import subprocess

import pytest
import trio

from runtime.http_client import HttpGetError, HttpTarget, get
from runtime.tls_context import client_context, server_context

OK = b"HTTP/1.1 200 OK\r\n"


@pytest.fixture
def answering(nursery):
    """answering(bytes) -> (port, requests): to each request what it gets, and the end."""

    async def start(answer, tls=None, ends=True):
        requests = []

        async def handle(stream):
            if tls is not None:
                stream = trio.SSLStream(stream, tls, server_side=True, https_compatible=True)
            try:
                requests.append(bytes(await stream.receive_some(4096)))
                await stream.send_all(answer)
                if not ends:
                    await trio.sleep_forever()
                await stream.aclose()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                requests.append(None)

        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, handle, listeners)
        return listeners[0].socket.getsockname()[1], requests

    return start


async def fetch(port, *, body_bytes_max=100, tls=None, host="127.0.0.1", timeout=5):
    target = HttpTarget(host, port, "/keys?a=b", tls)
    return await get(target, body_bytes_max=body_bytes_max, timeout_seconds=timeout)


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"Content-Length: 4\r\n\r\nbody",
        OK + b"\r\nbody",
        OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nbo\r\n2\r\ndy\r\n0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: 4\r\n\r\nbody",
        b"HTTP/1.0 200 OK\r\nContent-Encoding: identity\r\n\r\nbody",
    ],
)
async def test_what_is_an_answer(answering, answer):
    port, requests = await answering(answer)
    assert await fetch(port) == b"body"
    head = requests[0].decode()
    assert head.startswith("GET /keys?a=b HTTP/1.1\r\n")
    assert f"\r\nHost: 127.0.0.1:{port}\r\n" in head


@pytest.mark.parametrize(
    ("answer", "match"),
    [
        (b"", "no HTTP|closed without"),
        (b"nonsense\r\n\r\n", "no HTTP"),
        (b"HTTP/1.1 404 Not Found\r\n\r\n", "status 404"),
        (b"HTTP/1.1 204 Nothing\r\n\r\n", "status 204"),
        (OK + b"Content-Length: 9\r\n\r\nbody", "no HTTP|closed without"),
        (OK + b"\r\n" + b"x" * 101, "larger than 100 bytes"),
        (OK + b"Content-Length: 5000000000\r\n\r\n" + b"x" * 200, "larger than 100 bytes"),
        (OK + b"Content-Encoding: gzip\r\n\r\nbody", "compressed"),
        (OK + b"X: " + b"x" * 20_000, "no HTTP"),
    ],
)
async def test_what_is_none(answering, answer, match):
    port, _ = await answering(answer)
    with pytest.raises(HttpGetError, match=match):
        await fetch(port)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_not_followed(answering, status):
    elsewhere, asked = await answering(OK + b"\r\nstolen")
    to = f"http://127.0.0.1:{elsewhere}/".encode()
    port, _ = await answering(b"HTTP/1.1 %d Moved\r\nLocation: %s\r\n\r\n" % (status, to))
    with pytest.raises(HttpGetError, match="redirects are not followed"):
        await fetch(port)
    assert asked == []


@pytest.mark.parametrize("begin", [b"", b"HTTP/1.1 2", OK + b"Content-Length: 9\r\n\r\nbody"])
async def test_all_of_it_has_its_time(answering, begin):
    port, _ = await answering(begin, ends=False)
    before = trio.current_time()
    with pytest.raises(HttpGetError, match="no answer within"):
        await fetch(port, timeout=0.3)
    assert trio.current_time() - before < 3


async def test_nobody_listens(answering):
    listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    port = listener.socket.getsockname()[1]
    await listener.aclose()
    with pytest.raises(HttpGetError, match="connect"):
        await fetch(port)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """By name: a certificate for 127.0.0.1 and localhost that signs itself, and its key."""
    folder = tmp_path_factory.mktemp("certificates")
    for name in ("ours", "others"):
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
             "-nodes", "-keyout", folder / f"{name}-key.pem", "-out", folder / f"{name}.pem",
             "-subj", "/CN=keys", "-days", "2", "-addext", "subjectAltName=IP:127.0.0.1"],
            check=True, capture_output=True,
        )  # fmt: skip
    return folder


async def test_https(answering, certificates):
    def served(name):
        return server_context(
            certificate_path=str(certificates / f"{name}.pem"),
            key_path=str(certificates / f"{name}-key.pem"),
        )

    ours = client_context(trust_path=str(certificates / "ours.pem"))
    port, _ = await answering(OK + b"\r\nbody", served("ours"))
    assert await fetch(port, tls=ours) == b"body"
    other, _ = await answering(OK + b"\r\nbody", served("others"))
    with pytest.raises(HttpGetError, match="certificate verify failed"):
        await fetch(other, tls=ours)
    with pytest.raises(HttpGetError, match="certificate verify failed"):
        await fetch(port, tls=client_context(trust_path=None))
    with pytest.raises(HttpGetError, match=r"certificate verify failed.*(mismatch|not valid)"):
        await fetch(port, tls=ours, host="localhost")
    plain, _ = await answering(OK + b"\r\nbody")
    with pytest.raises(HttpGetError):
        await fetch(plain, tls=ours)
    assert ours.verify_mode is ssl.CERT_REQUIRED
