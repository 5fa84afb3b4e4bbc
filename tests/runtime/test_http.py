"""The HTTP server against the standard library's client, odd bytes, slow and greedy clients."""

import http.client
import os
import socket
from contextlib import ExitStack

import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime import http as server
from runtime.http import HttpError, HttpResponse, json_response, text_response


class Site:
    """An `http.Handler` with a page for each thing to try."""

    def __init__(self):
        self.requests = []
        self.streams_closed = 0

    async def __call__(self, request):
        self.requests.append(request)
        if request.path == "/fail":
            raise ValueError("on purpose")
        if request.path == "/refuse":
            raise HttpError(418, "no coffee")
        if request.path.startswith("/stream"):
            return HttpResponse(200, self._chunks(request))
        if request.path == "/large":
            return text_response("x" * 5_000_000)
        return json_response(
            {"method": request.method, "query": request.query, "body": request.body.decode()}
        )

    async def _chunks(self, request):
        count = int(request.query.get("count", 3))
        fail_at = int(request.query.get("fail_at", -1))
        try:
            for number in range(count):
                if number == fail_at:
                    raise HttpError(503, "lost")
                yield b"%d," % number * 1000
                await trio.lowlevel.checkpoint()
        finally:
            self.streams_closed += 1


@pytest.fixture
async def site(nursery):
    site = Site()
    site.address = await nursery.start(server.serve, site, "127.0.0.1", 0)
    return site


async def ask(site, *arguments, **keywords):
    def run():
        connection = http.client.HTTPConnection(*site.address, timeout=20)
        try:
            connection.request(*arguments, **keywords)
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()
        finally:
            connection.close()

    return await trio.to_thread.run_sync(run)


async def exchange(site, data, *, end=True):
    """All that the server says to these bytes until it closes."""
    stream = await trio.open_tcp_stream(*site.address)
    answer = bytearray()
    async with stream:
        try:
            with trio.fail_after(20):
                await stream.send_all(data)
                if end:
                    await stream.send_eof()
                while part := await stream.receive_some(65536):
                    answer += part
        except trio.BrokenResourceError:
            pass
    return bytes(answer)


async def test_what_a_handler_gets(site):
    status, _, _ = await ask(
        site, "PUT", "/a%20b/%C3%A9?x=1&y=%26&x=2&z", body="text", headers={"X-Thing": "7"}
    )
    assert status == 200
    request = site.requests[0]
    assert (request.method, request.path, request.body) == ("PUT", "/a b/é", b"text")
    assert request.query == {"x": "2", "y": "&", "z": ""}
    assert request.headers["x-thing"] == "7"
    assert request.peer == "127.0.0.1"


async def test_answers_and_errors(site, caplog):
    assert (await ask(site, "GET", "/refuse"))[::2] == (418, b'{\n  "error": "no coffee"\n}\n')
    assert (await ask(site, "GET", "/fail"))[0] == 500
    assert "on purpose" in caplog.text
    status, headers, body = await ask(site, "HEAD", "/x")
    assert (status, body) == (200, b"")
    assert int(headers["Content-Length"]) > 10


async def test_bodies_are_streamed(site):
    expected = b"".join(b"%d," % number * 1000 for number in range(200))
    status, headers, body = await ask(site, "GET", "/stream?count=200")
    assert (status, body) == (200, expected)
    assert headers["Transfer-Encoding"] == "chunked"
    assert (await ask(site, "GET", "/stream?count=0"))[2] == b""
    assert (await ask(site, "HEAD", "/stream?count=200"))[2] == b""
    assert (await ask(site, "GET", "/stream?fail_at=0"))[0] == 503
    with pytest.raises(http.client.IncompleteRead):
        await ask(site, "GET", "/stream?fail_at=2")
    assert site.streams_closed == 5


async def test_a_client_that_leaves_ends_the_stream(site):
    stream = await trio.open_tcp_stream(*site.address)
    await stream.send_all(b"GET /stream?count=1000000000 HTTP/1.1\r\nHost: x\r\n\r\n")
    await stream.receive_some(1000)
    await stream.aclose()
    with trio.fail_after(10):
        while not site.streams_closed:
            await trio.sleep(0.01)


async def test_requests_follow_each_other_on_a_connection(site):
    one = b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n"
    close = b"GET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    answer = await exchange(site, b"".join(one % n for n in range(20)) + close, end=False)
    assert answer.count(b"HTTP/1.1 200") == 21
    assert [request.path for request in site.requests] == [
        *(f"/{n}" for n in range(20)),
        "/last",
    ]
    old = await exchange(site, b"GET / HTTP/1.0\r\n\r\n", end=False)
    assert old.startswith(b"HTTP/1.1 200")


async def test_bodies_in_chunks_and_on_request(site):
    chunked = (
        b"PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    )
    assert b'"body": "abcde"' in await exchange(site, chunked)
    stream = await trio.open_tcp_stream(*site.address)
    async with stream:
        await stream.send_all(
            b"PUT / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
        )
        assert (await stream.receive_some(1000)).startswith(b"HTTP/1.1 100")
        await stream.send_all(b"hi")
        assert b'"body": "hi"' in await stream.receive_some(1000)


HEAD = b"PUT / HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 400),  # no Host
        (b"hello\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64), 400),  # TLS
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X: " + b"y" * 100_000, 431),
        (HEAD + b"Content-Length: 99999999\r\n\r\n" + bytes(server.BODY_SIZE_MAX_BYTES + 1), 413),
        (HEAD + b"Content-Length: -1\r\n\r\n", 400),
        (HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nabc", 400),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"GET /%zz%ff HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET http://[::1/ HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        # Lines that h11 would parse all at once, for 40 ms.
        (HEAD + b"a:\r\n" * 3000 + b"\r\n", 431),
        (HEAD + b"a:b\r\n" + b" c\r\n" * 3000 + b"\r\n", 431),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"a:\r\n" * 3000 + b"\r\n", 431),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"a" * 6000 + b"\r\nx\r\n", 431),
    ],
)
async def test_bad_requests(site, data, status):
    answer = await exchange(site, data)
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer
    assert b'"error"' in answer
    assert site.requests == []


async def test_slow_clients_are_cut_off(nursery, monkeypatch):
    monkeypatch.setattr(server, "REQUEST_TIMEOUT_SECONDS", 0.2)
    monkeypatch.setattr(server, "IDLE_TIMEOUT_SECONDS", 0.3)
    monkeypatch.setattr(server, "SEND_TIMEOUT_SECONDS", 0.3)
    monkeypatch.setattr(server, "LINGER_SECONDS", 0.1)
    site = Site()
    site.address = await nursery.start(server.serve, site, "127.0.0.1", 0)
    with trio.fail_after(10):
        assert await exchange(site, b"", end=False) == b""
        assert (await exchange(site, b"GET / HT", end=False)).startswith(b"HTTP/1.1 408")
        partial = HEAD + b"Content-Length: 10\r\n\r\nabc"
        assert (await exchange(site, partial, end=False)).startswith(b"HTTP/1.1 408")
        stream = await trio.open_tcp_stream(*site.address)
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await stream.send_all(b"GET /stream?count=1000000000 HTTP/1.1\r\nHost: x\r\n\r\n")
        while not site.streams_closed:  # it never reads
            await trio.sleep(0.01)
        await stream.aclose()
    assert (await ask(site, "GET", "/x"))[0] == 200


async def test_connections_are_counted(nursery):
    site = Site()

    async def serve(*, task_status):
        await server.serve(site, "127.0.0.1", 0, connections_max=2, task_status=task_status)

    site.address = await nursery.start(serve)
    asking = [await trio.open_tcp_stream(*site.address) for _ in range(2)]
    for stream in asking:
        await stream.send_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await stream.receive_some(1000)
        await stream.send_all(b"GET / HTTP/1.1\r\n")  # it is not silent any more
    await trio.testing.wait_all_tasks_blocked(0.05)
    with trio.move_on_after(0.3) as scope:
        await exchange(site, b"GET /third HTTP/1.1\r\nHost: x\r\n\r\n")
    assert scope.cancelled_caught
    await asking[0].aclose()
    assert b"200" in await exchange(site, b"GET /third HTTP/1.1\r\nHost: x\r\n\r\n")
    await asking[1].aclose()


async def test_who_is_silent_for_longest_goes_when_there_is_no_room(nursery):
    site = Site()

    async def serve(*, task_status):
        await server.serve(site, "127.0.0.1", 0, connections_max=3, task_status=task_status)

    site.address = await nursery.start(serve)
    silent = []
    for _ in range(3):
        silent.append(await trio.open_tcp_stream(*site.address))
        await trio.testing.wait_all_tasks_blocked(0.05)
    await silent[0].send_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"200" in await silent[0].receive_some(1000)
    with trio.fail_after(5):
        assert b"200" in await exchange(site, b"GET /new HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await silent[1].receive_some(1000) == b"", "the others have asked later"
    for stream in (silent[0], silent[2]):
        await stream.send_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200" in await stream.receive_some(1000)
    for stream in silent:
        await stream.aclose()


async def test_who_is_too_many_takes_no_descriptor(nursery):
    """Each that is accepted takes one, and without any left the disk's files cannot be opened: a
    bookie ended so."""
    site = Site()

    async def serve(*, task_status):
        await server.serve(site, "127.0.0.1", 0, connections_max=2, task_status=task_status)

    site.address = await nursery.start(serve)
    before = len(os.listdir("/proc/self/fd"))
    with ExitStack() as stack:
        for _ in range(20):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(site.address)  # those beyond the backlog go on trying
            await trio.testing.wait_all_tasks_blocked()
        assert len(os.listdir("/proc/self/fd")) - before - 20 <= 3
    assert b"200" in await exchange(site, b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n")


class ChunksInATurn(trio.abc.Instrument):
    """The most that were taken while nobody else ran."""

    def __init__(self):
        self.most = self.count = 0

    def before_task_step(self, task):
        self.count = 0

    def one_more(self):
        self.count += 1
        self.most = max(self.most, self.count)


async def test_a_body_of_very_many_chunks_leaves_the_loop_to_others(site, monkeypatch):
    """Each takes h11 10 us: those of one packet held the loop for 120 ms."""
    turns = ChunksInATurn()
    take = server._Connection._next_event

    async def counted(connection):
        turns.one_more()
        return await take(connection)

    monkeypatch.setattr(server._Connection, "_next_event", counted)
    trio.lowlevel.add_instrument(turns)
    body = b"1\r\nx\r\n" * 20_000 + b"0\r\n\r\n"
    answer = await exchange(site, HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + body)
    trio.lowlevel.remove_instrument(turns)
    assert b"x" * 20_000 in answer
    assert turns.most <= server.CHUNKS_PER_TURN + 1


PIECES = st.sampled_from(
    [
        b"GET ", b"PUT ", b"/", b"/stream", b"?a=b", b" HTTP/1.1", b" HTTP/1.0", b"\r\n", b"\n",
        b"Host: x\r\n", b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"\r\n\r\n",
        b"3\r\nabc\r\n", b"0\r\n\r\n", b"Expect: 100-continue\r\n", b"Connection: close\r\n",
    ]
)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.lists(PIECES | st.binary(max_size=30), max_size=12).map(b"".join))
def test_no_bytes_end_the_server(data):
    async def main():
        site = Site()
        async with trio.open_nursery() as nursery:
            site.address = await nursery.start(server.serve, site, "127.0.0.1", 0)
            answer = await exchange(site, data)
            assert answer == b"" or answer.startswith(b"HTTP/1.1 ")
            good = b"GET /ok HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
            assert (await exchange(site, good)).startswith(b"HTTP/1.1 200")
            nursery.cancel_scope.cancel()

    trio.run(main)
