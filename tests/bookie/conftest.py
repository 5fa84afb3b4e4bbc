"""Helpers for the bookie's tests: small configurations, entries, and a bookie on a disk that can
be crashed, simulated or real."""

from __future__ import annotations

import logging
import random
import struct
import subprocess
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trio
from crc32c import crc32c

from bookie.bookie import Bookie
from bookie.config import BookieConfig
from bookie.storage.index import MemoryIndex
from runtime.env import Env, RealClock
from runtime.sim_disk import SimDisk
from runtime.turn import Turn

if TYPE_CHECKING:
    from wire.bookkeeper.status import Status

KEY = b"k" * 20


def make_entry(ledger_id: int, entry_id: int, payload: bytes) -> list[bytes]:
    """An entry as BookKeeper's clients make it, with a CRC32C digest, in three pieces."""
    header = struct.pack(">qqqq", ledger_id, entry_id, entry_id - 1, len(payload))
    digest = struct.pack(">I", crc32c(payload, crc32c(header)))
    half = len(payload) // 2
    return [header + digest, payload[:half], payload[half:]]


def tiny_config(**changes) -> BookieConfig:
    """Rolls, swaps and fills up after a few entries."""
    values = {
        "bookie_id": "bookie-1:3181",
        "instance_id": "instance",
        "journal_directory": "/journal",
        "ledger_directory": "/ledgers",
        "journal_size_bytes": 16 * 1024,
        "journal_alignment_bytes": 256,
        "journal_group_size_max_bytes": 2048,
        "journal_turn_size_max_bytes": 1000,
        "journal_queue_size_max_bytes": 8 * 1024,
        "write_cache_size_bytes": 16 * 1024,
        "write_cache_segment_size_bytes": 2 * 1024,
        "flush_entry_log_bytes": 4 * 1024,
        "entry_log_size_limit_bytes": 16 * 1024,
        "entry_size_max_bytes": 4 * 1024,
        "held_adds_max": 16,
        "held_adds_size_max_bytes": 16 * 1024,
        "read_ahead_size_bytes": 4 * 1024,
        "flush_interval_ms": 60_000,
    }
    return BookieConfig(**{**values, **changes})


class Machine:
    """A disk, an index and whatever bookie runs on them at the time."""

    def __init__(self, seed: int = 0, **config) -> None:
        self.rng = random.Random(seed)
        self.disk = SimDisk(self.rng)
        self.index = MemoryIndex()
        self.config = tiny_config(**config)
        #: See bookie/known_ledgers.py.
        self.known_ledgers = None
        self.turn = Turn()

    @asynccontextmanager
    async def running(self):
        """A bookie that serves; leaving is a clean stop, unless it failed or was crashed."""
        self.turn = Turn()
        env = Env(clock=RealClock(), rng=self.rng, net=None, disk=self.disk, turn=self.turn)
        bookie = Bookie(self.config, env, index=self.index, known_ledgers=self.known_ledgers)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.turn.serve)
            await nursery.start(lambda task_status: bookie.run(task_status=task_status))
            yield bookie
            nursery.cancel_scope.cancel()

    @asynccontextmanager
    async def running_until_crash(self):
        """A bookie that serves until the power fails, at the latest on leaving."""
        self.turn = Turn()
        env = Env(clock=RealClock(), rng=self.rng, net=None, disk=self.disk, turn=self.turn)
        bookie = Bookie(self.config, env, index=self.index, known_ledgers=self.known_ledgers)
        serving = []

        async def run(task_status):
            try:
                await bookie.run(task_status=task_status)
            except OSError as error:
                if not serving:
                    raise
                logging.getLogger(__name__).info("bookie ended: %s", error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.turn.serve)
            await nursery.start(run)
            serving.append(True)
            try:
                yield bookie
            finally:
                self.crash()
                bookie.crash()
                nursery.cancel_scope.cancel()

    def crash(self) -> None:
        """Power fails. The bookie that ran is not usable any more."""
        self.disk.crash()
        self.index.crash()


@pytest.fixture
def disk() -> SimDisk:
    """An empty directory, /d, on a simulated disk."""
    disk = SimDisk(random.Random(0))
    disk.make_directory("/d")
    return disk


@pytest.fixture
def machine_class():
    return Machine


@pytest.fixture
def machine():
    return Machine()


async def wait_until(condition) -> None:
    with trio.fail_after(10):
        while not condition():
            await trio.sleep(0.0005)


@pytest.fixture(name="wait_until")
def wait_until_fixture():
    return wait_until


class Adds:
    """Adds and their answers, in the order in which they came."""

    def __init__(self, bookie: Bookie) -> None:
        self.bookie = bookie
        self.answers: list[tuple[int, int, Status]] = []

    def add(self, ledger_id, entry_id, payload=b"payload", *, flags=0, key=KEY, entry=None):
        def done(status: Status) -> None:
            self.answers.append((ledger_id, entry_id, status))

        pieces = entry if entry is not None else make_entry(ledger_id, entry_id, payload)
        self.bookie.add_entry(ledger_id, entry_id, key, pieces, flags, done)

    async def wait(self, count: int) -> None:
        await wait_until(lambda: len(self.answers) >= count)

    def statuses(self) -> list[Status]:
        return [status for _, _, status in self.answers]


@pytest.fixture
def adds_class():
    return Adds


@pytest.fixture
def entry_bytes():
    return lambda ledger_id, entry_id, payload=b"payload": b"".join(
        make_entry(ledger_id, entry_id, payload)
    )


@pytest.fixture
def tiny():
    return tiny_config


@pytest.fixture(scope="session")
def tls_settings(tmp_path_factory):
    """A server's, as in bk_server.conf, with a certificate of its own."""
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = str(folder / "certificate.pem"), str(folder / "key.pem")
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
            "-nodes", "-keyout", key, "-out", certificate, "-days", "2", "-subj", "/CN=localhost",
            "-addext", "subjectAltName=DNS:localhost",
        ],
        check=True,
        capture_output=True,
    )  # fmt: skip
    return {
        "advertisedAddress": "127.0.0.1",
        "allowLoopback": True,
        "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
        "tlsCertificatePath": certificate,
        "tlsKeyStore": key,
        "tlsTrustStore": certificate,
    }
