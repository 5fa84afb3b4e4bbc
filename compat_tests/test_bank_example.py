"""The example of docs/locks.md by its own commands: it runs, is broken, and is judged.

QUIRE_BANK_SECONDS: how long it is broken."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Producer
from harness import paths

from bank_example.audit import audit as judge
from bank_example.databases import SqliteDatabase
from bank_example.world import make_topic

SECONDS = float(os.environ.get("QUIRE_BANK_SECONDS", "15"))
WAIT_SECONDS = 90

pytestmark = pytest.mark.timeout(SECONDS + 3 * WAIT_SECONDS)


def example(*arguments):
    return [sys.executable, "-m", "bank_example", *arguments]


@pytest.fixture
def bank(tmp_path, postgres):
    """Its options; it runs: two tellers with a database each, two who share one."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    options = ["--folder", str(tmp_path / "bank"), "--listen", listen]
    options += ["--postgres", postgres.conninfo]
    with psycopg.connect(postgres.conninfo) as db:
        db.execute("DROP TABLE IF EXISTS account, quire_position")
    with (tmp_path / "run.log").open("wb") as log:
        process = subprocess.Popen(example("run", *options), cwd=paths.ROOT, stdout=log, stderr=log)
    try:
        yield options
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(WAIT_SECONDS)


def audit(options):
    done = subprocess.run(
        example("audit", *options), cwd=paths.ROOT, capture_output=True, text=True, check=False
    )
    found = re.search(r"^(\d+) transfers, 0 things wrong$", done.stdout, re.M)
    assert "WRONG" not in done.stdout, done.stdout
    return int(found[1]) if found and done.returncode == 0 else None, done.stdout + done.stderr


def wait_for_more_than(options, count):
    """While a server or a teller starts the audit has nothing to say."""
    until, said = time.monotonic() + WAIT_SECONDS, ""
    while time.monotonic() < until:
        found, said = audit(options)
        if found is not None and found > count:
            return found
        time.sleep(0.5)
    raise AssertionError(f"no more than {count} transfers:\n{said}")


def test_it_survives_kills(bank, closing_line):
    before = wait_for_more_than(bank, 0)
    done = subprocess.run(
        example("break", *bank, "--seconds", str(SECONDS), "--between", "3"),
        cwd=paths.ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert re.search(r"^[1-9]\d* kills$", done.stdout, re.M), done.stdout
    after = wait_for_more_than(bank, before)
    closing_line(f"bank example: {after} transfers, {done.stdout.split()[-2]} kills")


@pytest.mark.parametrize("has_tables", [False, True])
def test_before_a_teller_has_begun_nothing_is_wrong(tmp_path, has_tables):
    """The page says that the audit may be asked at any time. A teller who is killed between his
    tables and his client's has accounts and no position."""
    if has_tables:
        SqliteDatabase(tmp_path / "teller-1.db").make_tables()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    log = tmp_path / "run.log"
    server = Path(sys.executable).parent / "quire"
    command = [str(server), "standalone", "--listen", listen, "--data-dir", str(tmp_path / "data")]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        make_topic(listen)
        assert judge(tmp_path, listen) == ([], 0)
    finally:
        process.kill()
        process.wait(WAIT_SECONDS)


def test_a_teller_whose_client_applies_no_more_ends(bank):
    """`run` starts again what has ended; he goes on for ever, writes transfers that he never
    applies, and the audit finds nothing wrong with that."""
    wait_for_more_than(bank, 0)
    folder = Path(bank[bank.index("--folder") + 1])
    listen = bank[bank.index("--listen") + 1]
    before = (folder / "teller-1.pid").read_text()
    producer = Producer({"bootstrap.servers": listen})
    producer.produce("bank", b"no transfer", headers=[("quire.lock.append", b"nobody")])
    assert producer.flush(30) == 0
    until = time.monotonic() + 20
    while time.monotonic() < until:
        if (folder / "teller-1.pid").read_text() != before:
            return
        time.sleep(0.2)
    raise AssertionError((folder / "teller-1.log").read_text()[-300:])
