"""A sync that fails ends the server, whichever file it was of; nothing acknowledged is lost.

How syncs are made to fail is in harness/failsync.py.
"""

import contextlib
import shutil
import threading
import time

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from harness import failsync, figures, servers
from harness.history import Watcher, Writer, check, read_all

PARTITIONS = 2
SETTINGS = {"flushInterval": "200"}
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
    flag = folder / "flag"
    library = failsync.compile_library(folder)
    for variable, value in failsync.environment(library, flag).items():
        monkeypatch.setenv(variable, value)

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


@pytest.mark.timeout(400)
@pytest.mark.parametrize("what", FILES)
def test_a_failed_sync_ends_the_server(start_server, failing, topic, what):
    server = start_server(SETTINGS)
    admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(60)
    writer = Writer(server.bootstrap, topic, PARTITIONS)
    watcher = Watcher(server.bootstrap, topic, PARTITIONS)
    maker = TopicMaker(server.bootstrap, topic)
    for thread in (writer, watcher, maker):
        thread.start()
    wait_for(lambda: len(writer.acked) > 500 and maker.made, 60, "no load")
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
