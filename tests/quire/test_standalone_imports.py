"""A plain start imports only what runs, not what TLS, tokens, ZooKeeper or metrics need."""

import subprocess
import sys
from pathlib import Path

from quire.cli import TOOLS

QUIRE = Path(sys.executable).parent / "quire"
TIMEOUT_SECONDS = 60
#: Of no use without a setting or an option that asks for them.
UNASKED = {
    "asyncio",
    "cryptography",
    "h11",
    "joserfc",
    "kazoo",
    "multiprocessing",
    "prometheus_client",
    "rich",
}
#: Of ours, the same: for several bookies, for documents by HTTP, for pages.
UNASKED_ROOMS = {
    "bookie.server.server",
    "quire.autorecovery_node",
    "quire.bookie_listener",
    "quire.tools.admin.credentials",
    "runtime.http",
    "runtime.http_client",
}


def imported_until_ready(tmp_path):
    """The names of all modules that a standalone server without settings has imported."""
    log = tmp_path / "stderr"
    command = [sys.executable, "-X", "importtime", str(QUIRE), "standalone"]
    command += ["--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "data")]
    with log.open("w") as stderr:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
        try:
            line = process.stdout.readline()
            assert line.startswith("ready listen="), line + log.read_text()
            process.terminate()
            assert process.wait(TIMEOUT_SECONDS) == 0
        finally:
            process.kill()
            process.communicate()
    rows = (line for line in log.read_text().splitlines() if line.startswith("import time:"))
    return {row.rpartition("|")[2].strip() for row in rows}


def test_a_plain_start_imports_nothing_that_nobody_asked_for(tmp_path):
    names = imported_until_ready(tmp_path)
    assert {"trio", "quire.standalone", "broker.dispatch"} <= names
    assert names & UNASKED == set()
    assert names & UNASKED_ROOMS == set()
    assert names & set(TOOLS.values()) == set()
