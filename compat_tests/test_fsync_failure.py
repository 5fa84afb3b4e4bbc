"""A sync that fails ends the server, whichever file it was of; nothing acknowledged is lost.

A library in front of the C library's fdatasync and fsync fails those of files whose path holds what
a flag file says. The kernel's asynchronous fdatasync does not come by there, so the library also
says that there is none.
"""

import contextlib
import shutil
import subprocess
import threading
import time

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from harness import figures, servers
from harness.history import Watcher, Writer, check, read_all

PARTITIONS = 2
SETTINGS = {"flushInterval": "200"}
LIBRARY = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int is_failing(int fd) {
    char wanted[256], link[64], path[4096];
    const char *flag = getenv("FAILSYNC");
    int file = flag ? open(flag, O_RDONLY) : -1;
    if (file < 0) return 0;
    ssize_t size = read(file, wanted, sizeof wanted - 1);
    close(file);
    if (size <= 0) return 0;
    wanted[size] = 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    size = readlink(link, path, sizeof path - 1);
    if (size <= 0) return 0;
    path[size] = 0;
    return strstr(path, wanted) != NULL;
}

static int sync_or_fail(const char *name, int fd) {
    if (is_failing(fd)) { errno = EIO; return -1; }
    return ((int (*)(int))dlsym(RTLD_NEXT, name))(fd);
}

int fdatasync(int fd) { return sync_or_fail("fdatasync", fd); }
int fsync(int fd) { return sync_or_fail("fsync", fd); }

long syscall(long number, ...) {
    if (number == SYS_io_setup) { errno = ENOSYS; return -1; }
    va_list list;
    va_start(list, number);
    long a = va_arg(list, long), b = va_arg(list, long), c = va_arg(list, long);
    long d = va_arg(list, long), e = va_arg(list, long), f = va_arg(list, long);
    va_end(list);
    return ((long (*)(long, ...))dlsym(RTLD_NEXT, "syscall"))(number, a, b, c, d, e, f);
}
"""
#: What fails, and a part of the path by which it is known.
FILES = {
    "journal": "/bookie/journal/current/",
    "entry-log": "/bookie/ledgers/current/0.log",
    "index": "/bookie/ledgers/current/locations/",
    "ledger-states": "/bookie/ledgers/current/ledgers/",
    "checkpoint": "/bookie/ledgers/current/checkpoint.",
    "metadata": "/metadata.db-wal",
}


@pytest.fixture
def failing(scratch, name, monkeypatch):
    """failing(part of a path) from then on; failing(None): no more."""
    if servers.target() == "control":
        pytest.skip("a promise of ours")
    if shutil.which("gcc") is None:
        pytest.skip("there is no C compiler")
    folder = scratch / name("failsync")
    folder.mkdir()
    source, library, flag = folder / "failsync.c", folder / "failsync.so", folder / "flag"
    source.write_text(LIBRARY)
    subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-o", str(library), str(source)], check=True)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("FAILSYNC", str(flag))

    def fail(part):
        if part is None:
            flag.unlink()
        else:
            flag.write_text(part)

    return fail


def wait_for(condition, timeout_s, what):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


class TopicMaker(threading.Thread):
    """Makes topics, so that metadata are written, too."""

    def __init__(self, bootstrap, topic):
        super().__init__(daemon=True)
        self.admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        self.topic = topic
        self.made = []
        self.stopping = threading.Event()

    def run(self):
        number = 0
        while not self.stopping.wait(0.05):
            number += 1
            name = f"{self.topic}-{number}"
            with contextlib.suppress(KafkaException, TimeoutError):
                self.admin.create_topics([NewTopic(name, 1, 1)])[name].result(5)
                self.made.append(name)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("what", FILES)
def test_a_failed_sync_ends_the_server(start_server, failing, topic, what):
    server = start_server(SETTINGS)
    admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(20)
    writer = Writer(server.bootstrap, topic, PARTITIONS)
    watcher = Watcher(server.bootstrap, topic, PARTITIONS)
    maker = TopicMaker(server.bootstrap, topic)
    for thread in (writer, watcher, maker):
        thread.start()
    wait_for(lambda: len(writer.acked) > 500 and maker.made, 30, "no load")
    failing(FILES[what])
    started = time.monotonic()
    wait_for(lambda: server.process.poll() is not None, 20, "the server goes on")
    seconds = time.monotonic() - started
    code = server.process.returncode
    server.kill()
    assert code > 0, "ended by itself, and not well"
    failing(None)
    server.start()
    acked = len(writer.acked)
    wait_for(lambda: len(writer.acked) > acked + 500, 60, "no load after the restart")
    maker.stopping.set()
    maker.join(20)
    assert writer.finish() == 0
    watcher.finish()
    rows = read_all(server.bootstrap, topic, PARTITIONS)
    assert check(writer, watcher, rows)[:10] == []
    assert set(maker.made) <= set(admin.list_topics(timeout=20).topics)
    figures.add(
        f"failed sync ({what}): the server ended after {seconds:.1f} s with exit code {code}; "
        f"{len(writer.acked)} records acknowledged, none lost"
    )
