"""Auto-recovery inside `quire standalone --bookies N`: a bookie that is gone for good is repaired
by the server itself."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from harness import paths, servers
from harness.history import read_all

pytestmark = [
    pytest.mark.skipif(servers.target() != "quire", reason="about our own processes"),
    pytest.mark.timeout(400),
]

BOOKIES = 4
DELAY_S = 3


class RecoveringServer(servers.QuireServer):
    def command(self):
        return [*super().command(), "--bookies", str(BOOKIES)]

    def bookie_pid(self, name):
        """Of a child that runs now; None without one."""
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (folder / "cmdline").read_text().split("\0")
                if "--child-of" in words and f"/{name}/" in words[words.index("--config") + 1]:
                    parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
                    if int(parent) == self.process.pid:
                        return int(folder.name)
        return None

    def quire(self, *arguments):
        """(exit code, what it said)"""
        uri = f"quire+unix://{self.data_dir}/metadata.sock"
        command = [str(paths.python_script("quire")), *arguments, "-u", uri]
        done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
        return done.returncode, done.stdout + done.stderr


def wait_for(condition, timeout_s, what):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


@pytest.fixture
def server(scratch, name):
    made = RecoveringServer(scratch / name("recovering"), {"lostBookieRecoveryDelay": str(DELAY_S)})
    made.start()
    yield made
    made.discard()


def produce(server, topic, first, count):
    producer = Producer({"bootstrap.servers": server.bootstrap, "enable.idempotence": True})
    failed = []
    for n in range(first, first + count):
        producer.produce(
            topic, b"%d" % n, partition=n % 3, on_delivery=lambda e, _: e and failed.append(e)
        )
    assert producer.flush(90) == 0
    assert failed == []


def test_a_bookie_that_is_gone_for_good(server, topic):
    admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(topic, 3, 3)])[topic].result(30)
    produce(server, topic, 0, 600)
    lost = "bookie-2"
    pid = server.bookie_pid(lost)
    assert pid is not None
    # Its disk is empty, so the parent cannot bring it back: its cookie refuses.
    os.kill(pid, signal.SIGSTOP)
    for folder in ("journal", "ledgers"):
        shutil.rmtree(server.data_dir / lost / folder)
    os.kill(pid, signal.SIGKILL)
    produce(server, topic, 600, 600)
    wait_for(lambda: "event=ledger_repaired" in server.log_since_start(), 120, "nothing repaired")
    wait_for(
        lambda: server.quire("ledger", "check")[0] == 0,
        120,
        "copies are missing: " + server.quire("ledger", "check")[1],
    )
    repaired = re.findall(r"event=ledger_repaired", server.log_since_start())
    assert len(repaired) >= 1
    rows = read_all(server.bootstrap, topic, 3)
    values = [int(value) for partition in rows.values() for _, value in partition]
    assert sorted(values) == list(range(1200))
    assert all(int(v) % 3 == p for p, found in rows.items() for _, v in found)
    assert server.process.poll() is None
