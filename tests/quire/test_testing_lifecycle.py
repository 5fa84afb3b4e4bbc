"""quire.testing: what a block leaves behind (nothing), and how what fails in it is raised."""

# ruff: noqa: PT012  # a block of the server's inside of `pytest.raises` is what is tested

import errno
import logging
import os
import socket
import subprocess
import sys
import textwrap
import threading

import pytest
import trio

import quire.testing
from runtime.config import ConfigError
from wire.kafka.errors import ErrorCode, KafkaError

TIMEOUT_SECONDS = 60


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """Where the servers of a test make their temporary directories."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def descriptors():
    """What each open file descriptor of this process is."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:
            continue  # the listing's own
    return sorted(name for name in found if not name.startswith("/proc/"))


def own_threads():
    """All but trio's pool, whose threads end when they were idle for some seconds."""
    return {each.name for each in threading.enumerate() if not each.name.startswith("Trio thread")}


def test_nothing_is_left_behind_by_threads(scratch):
    with quire.testing.server():
        pass  # what is made once in a process: trio's pool, RocksDB's threads
    before = descriptors()
    threads_before = own_threads()
    with quire.testing.server() as server, quire.testing.server() as other:
        address = (server.host, server.port)
        assert os.listdir(scratch)
        server.restart()
        other.kill()
        with socket.create_connection(address):
            pass
    assert descriptors() == before
    assert own_threads() == threads_before
    assert os.listdir(scratch) == []
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)


@pytest.mark.slow
def test_the_pools_threads_end_when_nobody_needs_them(tmp_path):
    code = """
        import threading, time
        import quire.testing
        with quire.testing.server():
            assert threading.active_count() > 1
        while threading.active_count() > 1:
            time.sleep(0.1)
        """
    process = python(code, tmp_path)
    assert process.returncode == 0, process.stderr


async def test_nothing_is_left_behind_by_trio(scratch):
    async with quire.testing.Server():
        pass
    before = descriptors()
    for _ in range(2):
        async with quire.testing.Server(topics={"t": 1}) as server:
            await server.kill()
        assert not server.is_running
    assert descriptors() == before
    assert os.listdir(scratch) == []


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit])
async def test_what_the_block_raises_is_raised_as_it_is(kind, scratch):
    raised = kind("mine")
    with pytest.raises(kind) as caught:
        async with quire.testing.Server():
            raise raised
    assert caught.value is raised
    with pytest.raises(kind) as caught, quire.testing.server():
        raise raised
    assert caught.value is raised
    assert os.listdir(scratch) == []


async def test_an_outer_cancellation_ends_the_block(scratch):
    with trio.move_on_after(TIMEOUT_SECONDS) as scope:
        async with quire.testing.Server():
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert os.listdir(scratch) == []


async def test_a_cancellation_while_it_starts(scratch):
    """At one moment after another, each further on, until a start gets through."""
    async with quire.testing.Server():
        pass
    before = descriptors()
    checkpoints, entered, tries = 1, False, 0
    while not entered:
        async with trio.open_nursery() as nursery:

            async def enter():
                nonlocal entered
                async with quire.testing.Server():
                    entered = True

            nursery.start_soon(enter)
            for _ in range(checkpoints):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        assert os.listdir(scratch) == []
        assert descriptors() == before
        checkpoints, tries = checkpoints + 1 + checkpoints // 2, tries + 1
    assert tries > 3


def fail(server):
    """The storage fails as it does when its disk does: by an OSError out of the bookie."""
    server._life.bookie.crash()


async def test_a_failure_cancels_the_block_and_is_raised_in_its_place(scratch):
    with pytest.raises(OSError, match="crashed") as caught:
        async with quire.testing.Server() as server:
            address = server.bootstrap_servers
            fail(server)
            await trio.sleep_forever()
    assert caught.value.errno == errno.EIO
    assert caught.value.__notes__ == [f"quire.testing: the server at {address} failed with this"]
    assert os.listdir(scratch) == []


async def test_a_failure_has_the_blocks_own_exception_as_its_context():
    with pytest.raises(OSError, match="crashed") as caught:
        async with quire.testing.Server() as server:
            fail(server)
            raise ValueError("mine")
    assert isinstance(caught.value.__context__, ValueError)


async def test_a_failure_does_not_replace_an_interrupt():
    with pytest.raises(KeyboardInterrupt) as caught:
        async with quire.testing.Server() as server:
            fail(server)
            raise KeyboardInterrupt
    assert "failed, too: OSError(5, 'crashed')" in caught.value.__notes__[0]


def test_a_failure_ends_calls_and_the_block(scratch):
    with (
        pytest.raises(OSError, match="crashed") as caught,
        quire.testing.server() as server,
    ):
        server._token.run_sync_soon(fail, server._server)
        server._ended.wait()
        for call in (server.restart, server.stop, server.kill):
            with pytest.raises(OSError, match="crashed"):
                call()
    assert "failed with this" in caught.value.__notes__[0]
    assert os.listdir(scratch) == []


def test_a_failure_during_a_call_is_raised_by_it():
    async def never():
        await trio.sleep_forever()

    with pytest.raises(OSError, match="crashed"), quire.testing.server() as server:
        server._token.run_sync_soon(fail, server._server)
        with pytest.raises(OSError, match="crashed"):
            server._call(never)


def test_a_full_disk_is_raised(tmp_path):
    """A process whose files may not grow beyond 20 MiB: the entry log meets that limit."""
    code = """
        import os, resource, signal
        from confluent_kafka import Producer
        import quire.testing
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20 << 20, 20 << 20))
        failed = []
        # An entry that stays in its journal makes no entry log grow.
        config = {"flushInterval": 50, "journalKeptEntryMinBytes": 0}
        try:
            with quire.testing.server(topics={"t": 1}, config=config) as server:
                producer = Producer({"bootstrap.servers": server.bootstrap_servers, "log_level": 0,
                                     "message.timeout.ms": 1000, "compression.type": "none"})
                for _ in range(4000):
                    while True:
                        try:
                            producer.produce("t", os.urandom(10_000),
                                             on_delivery=lambda error, _: failed.append(error))
                            break
                        except BufferError:
                            producer.poll(0.1)
                producer.flush(30)
                assert any(failed)
        except OSError as error:
            print("raised", error.errno, error.__notes__)
        """
    process = python(code, tmp_path)
    assert process.returncode == 0, process.stderr
    assert process.stdout.startswith(f"raised {errno.EFBIG} "), process.stdout + process.stderr
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("moment", ["block", "start"])
@pytest.mark.parametrize("kind", ["thread", "trio"])
def test_ctrl_c(kind, moment, tmp_path):
    code = """
        import os, signal, sys, threading, trio
        import quire.testing

        # Who started the tests may have it ignored (a job in the background of a script).
        signal.signal(signal.SIGINT, signal.default_int_handler)

        def interrupt():
            os.kill(os.getpid(), signal.SIGINT)

        async def in_trio():
            if MOMENT == "start":
                trio.lowlevel.current_trio_token().run_sync_soon(
                    trio.lowlevel.spawn_system_task, soon
                )
            async with quire.testing.Server():
                if MOMENT == "block":
                    interrupt()
                await trio.sleep_forever()

        async def soon():
            await trio.sleep(0.01)
            interrupt()

        def in_thread():
            if MOMENT == "start":
                threading.Timer(0.01, interrupt).start()
            with quire.testing.server():
                if MOMENT == "block":
                    interrupt()
                signal.pause()

        try:
            in_thread() if KIND == "thread" else trio.run(in_trio)
        except KeyboardInterrupt:
            print("interrupted", os.listdir(os.environ["TMPDIR"]))
        """
    process = python(f"KIND, MOMENT = {kind!r}, {moment!r}\n" + textwrap.dedent(code), tmp_path)
    assert process.returncode == 0, process.stderr
    assert process.stdout == "interrupted []\n", process.stderr


def python(code, temporary_directory):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "TMPDIR": str(temporary_directory)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )


def enter_both(**arguments):
    """The error of entering, which is the same in both ways."""

    async def enter():
        async with quire.testing.Server(**arguments):
            pass

    with pytest.raises(Exception) as one:  # noqa: PT011  # the caller looks at it
        trio.run(enter)
    with pytest.raises(type(one.value)) as other, quire.testing.server(**arguments):
        pass
    assert str(one.value) == str(other.value)
    return one.value


def test_errors_of_the_start(scratch):
    assert "num.partitions" in str(enter_both(config={"num.partition": 1}))
    assert isinstance(enter_both(config={"num.partitions": "many"}), ConfigError)
    assert isinstance(enter_both(config={"listeners": "PLAINTEXT://:1"}), ValueError)
    error = enter_both(topics={"bad/name": 1})
    assert isinstance(error, KafkaError)
    assert error.code is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert os.listdir(scratch) == []

    file = scratch / "file"
    file.write_text("")
    assert isinstance(enter_both(data_dir=file), OSError)
    with quire.testing.server(data_dir=scratch / "data") as server:
        assert "in use by another server" in str(enter_both(data_dir=scratch / "data"))
        error = enter_both(port=server.port)
        assert (error.errno, str(server.port) in str(error)) == (errno.EADDRINUSE, True)
    assert sorted(os.listdir(scratch)) == ["data", "file"]


def test_errors_of_calls_leave_the_server_as_it_was():
    with quire.testing.server(topics={"t": 1}) as server:
        with pytest.raises(KafkaError, match="TOPIC_ALREADY_EXISTS"):
            server.create_topic("t")
        with pytest.raises(KafkaError, match="INVALID_CONFIG"):
            server.create_topic("u", config={"retention.ms": "soon"})
        server.stop()
        server.stop()
        with pytest.raises(OSError, match="refused"):
            server.create_topic("u")
        server.start()
        server.start()
        server.create_topic("u")
    with pytest.raises(RuntimeError, match="block"):
        server.restart()
    with pytest.raises(RuntimeError, match="block"):
        _ = server.bootstrap_servers


def test_the_port_is_kept_while_the_server_is_down():
    with quire.testing.server() as server:
        server.stop()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((server.host, server.port))
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind((server.host, server.port))
        server.start()
        socket.create_connection((server.host, server.port)).close()


def test_a_library_leaves_logging_alone(tmp_path):
    """Neither a line on stderr, warnings included, nor a handler at the root."""
    code = """
        import logging, socket
        import quire.testing
        with quire.testing.server(config={"log.cleaner.threads": 3}) as server:
            with socket.create_connection((server.host, server.port)) as peer:
                peer.sendall(bytes([0, 0, 0, 4]) + b"junk")
                assert peer.recv(1) == b""
            server.kill()
        assert logging.getLogger().handlers == []
        assert logging.getLogger("broker").level == logging.NOTSET
        """
    process = python(code, tmp_path)
    assert (process.returncode, process.stdout, process.stderr) == (0, "", "")


def test_warnings_reach_who_listens(caplog):
    with quire.testing.server() as server:
        with socket.create_connection((server.host, server.port)) as peer:
            peer.sendall(bytes([0, 0, 0, 4]) + b"junk")
            assert peer.recv(1) == b""
        assert logging.getLogger("broker").propagate
    assert "bad_request" in caplog.text
