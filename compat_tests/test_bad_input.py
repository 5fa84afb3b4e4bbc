"""Bytes that no client sends: the sender is cut off or answered, and nobody else notices."""

import contextlib
import json
import os
import resource
import socket
import struct
import subprocess
import threading
import time
from pathlib import Path

import pytest
from harness import figures, servers
from harness.raw import (
    API_VERSIONS,
    PRODUCE,
    Connection,
    Reader,
    array,
    batch,
    frame,
    header,
    random_bytes,
    sized,
    string,
)

MEBIBYTE = 1 << 20


@pytest.fixture(scope="module")
def attacked(scratch):
    """A server of this module's own, so that its memory and descriptors can be watched."""
    one = servers.make_server(scratch / "attacked").start()
    one.idle_socket_count = socket_count(one)
    yield one
    one.discard()


def socket_count(server):
    """Of the server's open descriptors."""
    count = 0
    for link in Path(f"/proc/{server.process.pid}/fd").iterdir():
        # One that is closed meanwhile counts no more.
        with contextlib.suppress(FileNotFoundError):
            count += os.readlink(link).startswith("socket:")
    return count


def wait_until_left(server):
    """Until it has seen that the connections of the test before were closed."""
    deadline = time.monotonic() + 60
    while socket_count(server) > server.idle_socket_count + 5:
        assert time.monotonic() < deadline, "connections that were closed are still open"
        time.sleep(0.05)


@pytest.fixture
def unharmed(attacked, name):
    """A client with an open connection that must go on working while others misbehave."""
    topic = name("bystander")
    with Connection(attacked.port) as connection:
        assert connection.create_topic(topic) == 0
        produce_until_leader(connection, topic)
        yield connection
        answer = connection.produce(topic, batch([b"after"]))
        assert (answer.error, answer.base_offset) == ("NONE", 1)
        with Connection(attacked.port) as late:
            assert late.fetch(topic, 1)[0:2] == ("NONE", 2)


def produce_until_leader(connection, topic):
    deadline = time.monotonic() + 60
    while (answer := connection.produce(topic, batch([b"x"]))).error != "NONE":
        assert time.monotonic() < deadline, answer
        time.sleep(0.02)


def end_of_sending(connection):
    # It may have hung up already.
    with contextlib.suppress(OSError):
        connection.socket.shutdown(socket.SHUT_WR)


def produce_frame(body):
    return frame(header(PRODUCE, 8, 1) + body)


HANG_UPS = {
    "length of 2 GiB": struct.pack(">i", 0x7FFFFFFF) + b"x" * 1000,
    "length over the limit": struct.pack(">i", 101 * MEBIBYTE) + b"x" * 1000,
    "negative length": struct.pack(">i", -1) + b"x" * 1000,
    "length of zero": struct.pack(">i", 0) * 3,
    "header cut short": frame(b"\0\x12\0"),
    "unknown key": frame(header(999, 0, 1)),
    "negative key": frame(header(-1, 0, 1)),
    "version too high": frame(header(PRODUCE, 99, 1) + bytes(40)),
    "version too low": frame(header(PRODUCE, 0, 1) + struct.pack(">hi", -1, 1000) + array()),
    "negative version": frame(header(PRODUCE, -1, 1) + bytes(40)),
    "inter-broker key": frame(header(4, 0, 1) + bytes(40)),
    "produce cut short": produce_frame(
        string(None) + struct.pack(">hi", -1, 1000) + b"\0\0\0\1\0\5to"
    ),
    "array of two billion": produce_frame(string(None) + struct.pack(">hii", -1, 1000, 0x7FFFFFFF)),
    "array of minus two": produce_frame(string(None) + struct.pack(">hii", -1, 1000, -2)),
    "string longer than its frame": produce_frame(struct.pack(">h", 30000) + b"short"),
    "records longer than their frame": produce_frame(
        string(None)
        + struct.pack(">hi", -1, 1000)
        + array(string("t") + array(struct.pack(">ii", 0, 0x70000000) + b"short"))
    ),
    "text that is no UTF-8": produce_frame(struct.pack(">h", 4) + b"\xff\xfe\xfd\xfc"),
    "compact array of four billion": frame(
        header(PRODUCE, 9, 1)
        + b"\0"
        + b"\0"
        + struct.pack(">hi", -1, 1000)
        + b"\xff\xff\xff\xff\x0f"
    ),
    "varint without end": frame(header(PRODUCE, 9, 1) + b"\0" + b"\xff" * 30),
    "a web browser": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "TLS": bytes.fromhex("16030100c8010000c40303") + bytes(200),
}


@pytest.mark.parametrize("what", HANG_UPS)
def test_hung_up_on(what, attacked, unharmed):
    with Connection(attacked.port) as connection:
        connection.send(HANG_UPS[what])
        if what == "text that is no UTF-8":
            # The control takes it for text of some kind; an answer would be as good.
            end_of_sending(connection)
        assert connection.is_closed_by_server()


def test_random_bytes(attacked, unharmed):
    for size in [1, 3, 4, 5, 17, 100, 1000, 60_000] * 5:
        with Connection(attacked.port) as connection:
            try:
                connection.send(random_bytes(size))
            except OSError:
                continue  # it took the first bytes and had enough
            end_of_sending(connection)
            assert connection.is_closed_by_server()


def test_random_bodies_of_every_request(attacked, unharmed):
    """A right header and a body of nonsense, for each request in each version that is offered."""
    sent = hung_up = 0
    with Connection(attacked.port) as connection:
        offered = connection.api_versions()
    for key, (low, high) in offered.items():
        for version in {low, (low + high) // 2, high}:
            for body in (b"", random_bytes(7), random_bytes(300), b"\xff" * 50, b"\x7f" * 50):
                with Connection(attacked.port) as connection:
                    tagged = b"\0"  # an empty tag section, should the header be of that kind
                    connection.send(frame(header(key, version, 1) + tagged + body))
                    end_of_sending(connection)
                    sent += 1
                    hung_up += connection.is_closed_by_server()
    assert hung_up == sent
    figures.add(f"bad input: {sent} requests with nonsense for a body, server unharmed")


def test_unknown_version_of_api_versions_is_answered(attacked):
    """KIP-511: error 35 in the layout of version 0, and the connection goes on."""
    for version in (5, 99, 32767):
        with Connection(attacked.port) as connection:
            connection.send(frame(header(API_VERSIONS, version, 7) + b"\0junk"))
            answer = Reader(connection.receive_frame())
            assert answer.number("i") == 7
            assert answer.number("h") == 35
            rows = [
                (answer.number("h"), answer.number("h"), answer.number("h"))
                for _ in range(answer.number("i"))
            ]
            answer.end()
            assert 3 <= {key: high for key, _, high in rows}[API_VERSIONS] < version
            assert connection.api_versions()


def test_trickle(attacked, unharmed, topic):
    """A request that comes a byte at a time is a request."""
    with Connection(attacked.port) as connection:
        connection.create_topic(topic)
        produce_until_leader(connection, topic)
        records = batch([b"slow"])
        body = string(None) + struct.pack(">hi", -1, 10000)
        body += array(string(topic) + array(struct.pack(">i", 0) + sized(records)))
        for byte in frame(header(PRODUCE, 8, 77) + body):
            connection.send(bytes([byte]))
            time.sleep(0.001)
        assert Reader(connection.receive_frame()).number("i") == 77
        assert connection.end_offset(topic) == 2


def test_many_requests_in_one_segment(attacked):
    """Pipelined requests are answered all, in order; also when the frames are cut anywhere."""
    with Connection(attacked.port) as connection:
        data = b"".join(frame(header(API_VERSIONS, 0, n)) for n in range(500))
        for start in range(0, len(data), 777):
            connection.send(data[start : start + 777])
        for n in range(500):
            assert Reader(connection.receive_frame()).number("i") == n


def test_client_that_never_reads(attacked, unharmed, topic):
    """Answers that nobody takes stop the reading of requests: bounded memory."""
    with Connection(attacked.port) as connection:
        connection.create_topic(topic)
        produce_until_leader(connection, topic)
        for _ in range(20):
            assert connection.produce(topic, batch([bytes(500_000)])).error == "NONE"
    before = attacked.rss_bytes()
    body = struct.pack(">iiiib", -1, 100, 1, 50 * MEBIBYTE, 0)
    body += array(string(topic) + array(struct.pack(">iqi", 0, 0, 50 * MEBIBYTE)))
    greedy = [Connection(attacked.port) for _ in range(20)]
    for connection in greedy:
        connection.socket.setblocking(False)
        try:
            for n in range(200):  # 200 answers of 10 MB each, times 20
                connection.socket.send(frame(header(1, 4, n) + body))
        except BlockingIOError:
            pass
    peak = 0
    for _ in range(30):
        time.sleep(0.1)
        peak = max(peak, attacked.rss_bytes())
    for connection in greedy:
        connection.socket.close()
    growth = (peak - before) // MEBIBYTE
    figures.add(f"bad input: 20 clients that ask for 40 GB and never read: RSS {growth:+} MiB")
    if servers.target() == "quire":
        assert growth < 300


def test_half_sent_frames_do_not_pile_up(attacked, unharmed):
    """100 clients announce 90 MB each and send 2 MB of it."""
    if servers.target() == "control":
        pytest.skip("the control takes memory for what is announced, and runs out of it")
    before = attacked.rss_bytes()
    clients = [Connection(attacked.port) for _ in range(100)]
    piece = struct.pack(">i", 90 * MEBIBYTE) + header(PRODUCE, 8, 1) + bytes(2 * MEBIBYTE)
    for connection in clients:
        connection.socket.settimeout(0.2)
        # Not taking that much is a way to do it.
        with contextlib.suppress(TimeoutError, ConnectionError):
            connection.send(piece)
    time.sleep(1)
    growth = (attacked.rss_bytes() - before) // MEBIBYTE
    for connection in clients:
        connection.socket.close()
    figures.add(f"bad input: 100 half-sent requests of 90 MB: RSS {growth:+} MiB")
    assert growth < 500  # what was really sent is 200


def test_two_thousand_connections(attacked, unharmed):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 6000:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 6000), hard))
    wait_until_left(attacked)
    before = attacked.open_file_count()
    started = time.monotonic()
    clients = [Connection(attacked.port) for _ in range(2000)]
    for n, connection in enumerate(clients):
        connection.send(frame(header(API_VERSIONS, 0, n)))
    for n, connection in enumerate(clients):
        assert Reader(connection.receive_frame()).number("i") == n
    seconds = time.monotonic() - started
    assert attacked.open_file_count() >= before + 2000
    for connection in clients[:500]:
        connection.send(b"\xff" * 100)
    for connection in clients:
        connection.socket.close()
    deadline = time.monotonic() + 60
    while attacked.open_file_count() > before + 20:
        assert time.monotonic() < deadline, "descriptors of closed connections are still open"
        time.sleep(0.1)
    figures.add(f"bad input: 2000 connections, opened and answered in {seconds:.1f} s")


def test_connection_churn(attacked, unharmed):
    """Clients that leave at once, with and without a farewell, leave nothing behind."""
    wait_until_left(attacked)
    before = attacked.open_file_count()
    rss = attacked.rss_bytes()

    def churn():
        for n in range(500):
            with Connection(attacked.port) as connection:
                connection.send(frame(header(API_VERSIONS, 0, n)))
                if n % 2:
                    linger = struct.pack("ii", 1, 0)  # close with a reset
                    connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)

    threads = [threading.Thread(target=churn) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    deadline = time.monotonic() + 60
    while attacked.open_file_count() > before + 10:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    if servers.target() == "quire":
        assert attacked.rss_bytes() - rss < 50 * MEBIBYTE


def test_second_server_on_the_same_data_is_refused(attacked, scratch, unharmed):
    """It says so and ends with 1, and the first goes on."""
    if servers.target() == "control":
        pytest.skip("how the control refuses is no model for us")
    second = servers.make_server(scratch / "second")
    second.data_dir = attacked.data_dir
    second.directory.mkdir()
    done = subprocess.run(
        second.command(), capture_output=True, text=True, timeout=120, check=False
    )
    said = done.stdout + done.stderr
    assert done.returncode == 1, said
    assert str(attacked.data_dir) in said
    assert "in use" in said or "lock" in said
    assert "Traceback" not in said


def test_second_server_on_the_same_port_is_refused(attacked, scratch, unharmed):
    if servers.target() == "control":
        pytest.skip("how the control refuses is no model for us")
    second = servers.make_server(scratch / "same-port")
    second.port = attacked.port
    second.directory.mkdir()
    done = subprocess.run(
        second.command(), capture_output=True, text=True, timeout=120, check=False
    )
    said = done.stdout + done.stderr
    assert done.returncode == 1, said
    assert str(attacked.port) in said
    assert "Traceback" not in said


def test_wrong_setting_is_refused(scratch):
    if servers.target() == "control":
        pytest.skip("how the control refuses is no model for us")
    for key, value in [("num.partitions", "many"), ("no.such.setting", "1")]:
        one = servers.make_server(scratch / "wrong", {key: value})
        done = subprocess.run(
            one.command(), capture_output=True, text=True, timeout=120, check=False
        )
        said = done.stdout + done.stderr
        assert done.returncode in (1, 2), said
        assert key in said
        assert "Traceback" not in said
        assert not one.data_dir.exists() or not os.listdir(one.data_dir), json.dumps(said)
