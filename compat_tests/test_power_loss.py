"""Power loss under load: what was not synced is really gone, and nothing acknowledged was that.

A file system of its own (ext4 in a file) is shut down by an ioctl while a producer writes: from
then on every call fails, as on a dead disk, and after mounting it again only what was synced is
there. The server must end by itself, for it can promise nothing any more.
"""

import contextlib
import fcntl
import os
import shutil
import struct
import subprocess
import time

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from harness import figures, servers
from harness.history import Watcher, Writer, check, read_all

#: EXT4_IOC_SHUTDOWN without flushing the log.
SHUTDOWN = 0x8004587D
NO_LOG_FLUSH = struct.pack("I", 2)
IMAGE_SIZE = "1500M"
PARTITIONS = 4
ROUNDS = 3


def run(*command):
    subprocess.run(command, check=True, capture_output=True)


class Disk:
    """An ext4 file system that can lose its power."""

    def __init__(self, folder):
        self.folder = folder
        self.image = folder / "image"
        self.mount_point = folder / "disk"
        self.mount_point.mkdir(parents=True)
        run("truncate", "-s", IMAGE_SIZE, str(self.image))
        run("mkfs.ext4", "-q", "-m0", str(self.image))
        self.mount()

    def mount(self):
        run("mount", "-o", "loop", str(self.image), str(self.mount_point))

    def unmount(self):
        for _ in range(50):
            with contextlib.suppress(subprocess.CalledProcessError):
                run("umount", str(self.mount_point))
                return
            time.sleep(0.1)
        raise AssertionError("the file system stays busy")

    def lose_power(self):
        fd = os.open(self.mount_point, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, SHUTDOWN, NO_LOG_FLUSH)
        finally:
            os.close(fd)


@pytest.fixture
def disk(scratch, name):
    if servers.target() == "control":
        pytest.skip("Kafka does not promise this: it acknowledges before it syncs")
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        pytest.skip("making and mounting a file system needs root and e2fsprogs")
    folder = scratch / name("power")
    try:
        made = Disk(folder)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no loop devices here: {error.stderr.decode().strip()}")
    yield made
    with contextlib.suppress(subprocess.CalledProcessError):
        run("umount", str(made.mount_point))


def wait_for(condition, timeout_s, what):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


@pytest.mark.timeout(300)
def test_what_was_acknowledged_had_been_synced(disk, topic):
    server = servers.make_server(disk.folder / "server")  # its log stays on a disk that lives
    server.data_dir = disk.mount_point / "data"
    server.start()
    try:
        admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(20)
        writer = Writer(server.bootstrap, topic, PARTITIONS)
        watcher = Watcher(server.bootstrap, topic, PARTITIONS)
        writer.start()
        watcher.start()
        for _ in range(ROUNDS):
            acked = len(writer.acked)
            wait_for(lambda acked=acked: len(writer.acked) > acked + 500, 30, "no load")
            disk.lose_power()
            wait_for(lambda: server.process.poll() is not None, 20, "the server goes on")
            assert server.process.returncode != 0
            server.kill()
            disk.unmount()
            disk.mount()
            server.start()
        acked = len(writer.acked)
        wait_for(lambda: len(writer.acked) > acked + 500, 60, "no load")
        assert writer.finish() == 0
        watcher.finish()
        rows = read_all(server.bootstrap, topic, PARTITIONS)
        assert check(writer, watcher, rows) == []
        figures.add(
            f"power loss: {ROUNDS} times under load, {len(writer.acked)} records acknowledged,"
            " none lost, doubled or moved"
        )
    finally:
        server.discard()
