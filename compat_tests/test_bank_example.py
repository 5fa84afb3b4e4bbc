"""The example of docs/locks.md by its own commands: it runs, is broken, and is judged.

QUIRE_BANK_SECONDS: how long it is broken."""

import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest
from harness import paths

SECONDS = float(os.environ.get("QUIRE_BANK_SECONDS", "15"))
WAIT_SECONDS = 90

pytestmark = pytest.mark.timeout(SECONDS + 3 * WAIT_SECONDS)


def example(*arguments):
    return [sys.executable, "-m", "bank_example", *arguments]


@pytest.fixture
def bank(tmp_path):
    """Its options; it runs."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    options = ["--folder", str(tmp_path / "bank"), "--listen", listen]
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
