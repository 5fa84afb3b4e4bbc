"""A bookie with its administration pages, asked over real HTTP."""

import http.client
import json
import random
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from bookie.bookie import Bookie
from bookie.config import BookieConfig
from joined.ledger_gc import MetadataLedgers
from joined.local_bookie import LocalBookieClient
from ledger.client import LedgerClient
from ledger.metadata import LedgerManager
from ledger.placement import RandomPlacement
from metadata.memory import MemoryStore
from quire.tools.admin import serve as admin_serve
from runtime.env import Env, RealClock
from runtime.metrics import Metrics, gauge
from runtime.real_disk import RealDisk
from runtime.turn import Turn

MIB = 1 << 20
QUIRE = Path(sys.executable).parent / "quire"
TIMEOUT_SECONDS = 60
SMALL = {
    "num.partitions": 1,
    "journalMaxSizeMB": 14,
    "dbStorage_writeCacheMaxSizeMb": 16,
    "logSizeLimit": 4 << 20,
    "flushInterval": 200,
    "nettyMaxFrameSizeBytes": 1 << 20,
}


def ask_http(address, method, path, body=None, headers=None):
    """(status, headers, body)"""
    connection = http.client.HTTPConnection(*address, timeout=20)
    try:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()
    finally:
        connection.close()


class Admin(SimpleNamespace):
    async def ask(self, method, path, body=None, headers=None):
        """With the server's token, unless other headers are given."""
        if headers is None:
            token = (self.directory / "admin.token").read_text().strip()
            headers = {"Authorization": f"Bearer {token}"}
        return await trio.to_thread.run_sync(ask_http, self.address, method, path, body, headers)

    async def json(self, method, path, body=None, *, status=200):
        found, headers, data = await self.ask(method, path, body)
        assert found == status, (found, data)
        assert headers["Content-Type"] == "application/json"
        return json.loads(data)


def small_config(directory, **changes):
    return BookieConfig(
        **{
            "bookie_id": "b1",
            "instance_id": "i",
            "journal_directory": str(directory / "journal"),
            "ledger_directory": str(directory / "ledgers"),
            "journal_size_bytes": 16 * MIB,
            "write_cache_size_bytes": 16 * MIB,
            "write_cache_preallocated_size_bytes": 1 * MIB,
            "index_block_cache_size_bytes": 4 * MIB,
            **changes,
        }
    )


@pytest.fixture
async def admin(tmp_path, nursery, monkeypatch):
    """The pages, and what is behind them: bookie, ledgers, store, context, metrics."""
    turn = Turn()
    env = Env(clock=RealClock(), rng=random.Random(1), net=None, disk=RealDisk(), turn=turn)
    config = small_config(tmp_path)
    nursery.start_soon(turn.serve)
    store = MemoryStore()
    bookie = Bookie(
        config, env, known_ledgers=MetadataLedgers(LedgerManager(store, env), 1_000_000, 0.0)
    )
    await nursery.start(bookie.run)
    ledgers = LedgerClient(
        store,
        LocalBookieClient({"b1": bookie}),
        env,
        placement=RandomPlacement(lambda: ["b1"], env.rng),
    )
    await ledgers.manager.ensure_layout()
    await nursery.start(ledgers.run)
    metrics = Metrics()
    metrics.register(lambda: [gauge("test_figure", "A figure.", 4)])
    contexts = []
    made = admin_serve.AdminContext
    monkeypatch.setattr(
        admin_serve, "AdminContext", lambda **parts: contexts.append(made(**parts)) or contexts[0]
    )
    parts = admin_serve.AdminParts(
        bookie, config, {"flushInterval": 700}, store, ledgers, env, metrics, str(tmp_path)
    )
    scope = await nursery.start(_serve, parts)
    yield Admin(
        address=scope.address,
        bookie=bookie,
        config=config,
        context=contexts[0],
        directory=tmp_path,
        ledgers=ledgers,
        metrics=metrics,
        store=store,
    )
    nursery.cancel_scope.cancel()


async def _serve(parts, *, task_status):
    async with trio.open_nursery() as nursery:
        address = await nursery.start(admin_serve.serve_admin, parts, "127.0.0.1", 0)
        task_status.started(SimpleNamespace(address=address))


class Standalone:
    def __init__(self, directory):
        self.directory = directory
        self.process = None

    def start(self):
        command = [str(QUIRE), "standalone", "--listen", "127.0.0.1:0"]
        command += ["--metrics", "127.0.0.1:0", "--data-dir", str(self.directory)]
        command += [word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        line = self.process.stdout.readline()
        assert line.startswith("ready listen=")
        self.address = line.removeprefix("ready listen=").strip()
        note = (self.directory / "admin.url").read_text().strip()
        host, _, port = note.removeprefix("http://").partition(":")
        self.pages = (host, int(port))

    def ask(self, method, path, body=None, headers=None):
        """(status, headers, body) of one of its pages."""
        return ask_http(self.pages, method, path, body, headers)

    def stop(self, number=signal.SIGTERM):
        if self.process is not None:
            self.process.send_signal(number)
            self.process.communicate(timeout=TIMEOUT_SECONDS)
            self.process = None

    def produce(self, topic, count):
        failed = []
        producer = Producer({"bootstrap.servers": self.address, "log_level": 0})
        for number in range(count):
            producer.produce(
                topic, bytes(1000) + b"%d" % number, on_delivery=lambda e, _: e and failed.append(e)
            )
            producer.poll(0)
        assert producer.flush(TIMEOUT_SECONDS) == 0
        assert failed == []

    def consume(self, topic, count):
        consumer = Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": "g",
                "auto.offset.reset": "earliest",
                "log_level": 0,
            }
        )
        consumer.subscribe([topic])
        while count > 0:
            messages = consumer.consume(count, TIMEOUT_SECONDS)
            assert messages
            count -= len(messages)
        consumer.close()

    def delete(self, topic):
        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        admin.delete_topics([topic])[topic].result(TIMEOUT_SECONDS)


@pytest.fixture
def server(tmp_path):
    """A `quire standalone` process with its pages, that tests may stop, kill and start again."""
    server = Standalone(tmp_path / "data")
    server.start()
    yield server
    server.stop(signal.SIGKILL)


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory):
    server = Standalone(tmp_path_factory.mktemp("shared") / "data")
    server.start()
    yield server
    server.stop(signal.SIGKILL)
