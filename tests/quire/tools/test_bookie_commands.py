"""`quire bookie` on a server that runs, and on the directories that it left."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from quire.cli import main

QUIRE = Path(sys.executable).parent / "quire"
TIMEOUT_SECONDS = 60


def quire(*arguments, code=0, environment=None):
    """stdout of `quire bookie ...`, piped."""
    result = subprocess.run(
        [str(QUIRE), "bookie", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        env={**os.environ, **(environment or {})},
    )
    assert result.returncode == code, (result.stdout, result.stderr)
    assert "Traceback" not in result.stderr
    return result.stdout if code != 2 else result.stderr


def quire_json(*arguments, code=0):
    return json.loads(quire(*arguments, "--json", code=code))


@pytest.mark.slow
def test_on_a_server_that_runs(server):
    where = ("--data-dir", server.directory)
    server.produce("t", 2000)
    assert quire("is-ready", *where) == "what\tvalue\nready\tyes\n"
    (space,) = quire_json("info", *where)
    assert 0 < space["free_bytes"] < space["total_bytes"]
    (mark,) = quire_json("last-mark", *where)
    assert mark["journal"] == f"{mark['journal_id']:x}.txn"
    ids = [row["ledger"] for row in quire_json("list-ledgers", *where)]
    assert ids == sorted(ids)
    described = quire_json("list-ledgers", "--meta", *where)
    assert [row["ledger"] for row in described] == ids
    assert {row["quorums"] for row in described} == {"1/1/1"}
    files = quire_json("list-files", *where)
    assert {row["type"] for row in files} >= {"journal", "entrylog"}
    assert {row["type"] for row in quire_json("list-files", "--type", "journal", *where)} == {
        "journal"
    }
    assert quire_json("sanity", *where) == {"passed": True, "readOnly": False}
    assert quire_json("state", *where)["running"] is True

    suspended = quire_json("suspend-compaction", "--minor", *where)
    assert suspended == {"isMinorGcSuspended": "true", "isMajorGcSuspended": "false"}
    suspended = quire_json("suspend-compaction", *where)
    assert set(suspended.values()) == {"true"}
    assert set(quire_json("resume-compaction", *where).values()) == {"false"}

    before = quire_json("compact", "--major", *where)["majorCompactionCounter"]
    assert before == 1
    assert quire_json("gc", *where)["forceCompacting"] is False
    (location,) = quire_json("compact", "--entry-location", *where)["compacted"]
    assert location.endswith("locations")
    assert quire_json("scrub", *where)["damaged_entries"] == 0

    note = (server.directory / "admin.url").read_text().strip()
    assert quire("is-ready", "--url", note)
    assert quire("is-ready", "--data-dir", "none", environment={"QUIRE_ADMIN_URL": note})
    # What changes the directories is refused while a server has them.
    (server.directory / "admin.url").unlink()
    assert quire("gc", *where, code=1) == ""
    (server.directory / "admin.url").write_text(note)
    server.stop()
    assert not (server.directory / "admin.url").exists()


@pytest.mark.slow
def test_on_the_directories_of_one_that_was_killed(server):
    server.produce("kept", 3000)
    server.produce("dropped", 3000)
    where = ("--data-dir", server.directory)
    server.delete("dropped")
    # All its ledgers: the one made ahead of need has no entry that the bookie could delete.
    while "ZHJvcHBlZA==" in _topics_of_ledgers(where):
        time.sleep(0.1)
    server.stop(signal.SIGKILL)
    assert quire("is-ready", *where, code=1) == "what\tvalue\nready\tno\n"
    assert "does not answer" in _stderr("state", *where, code=1)
    (server.directory / "admin.url").unlink()  # what a killed server could not take back
    _on_directories(server, where)
    assert "no server is known" in _stderr("state", *where, code=1)
    server.start()
    server.produce("kept", 10)  # nothing of this has harmed it


def _stderr(*arguments, code):
    result = subprocess.run(
        [str(QUIRE), "bookie", *map(str, arguments)], capture_output=True, text=True, timeout=60
    )
    assert result.returncode == code, result.stdout
    assert "Traceback" not in result.stderr
    return result.stderr


def _topics_of_ledgers(where):
    """Topics' names, in base64."""
    ledgers = quire_json("list-ledgers", "--meta", *where)
    return {row["customMetadata"].get("topic") for row in ledgers}


def _on_directories(server, where):
    assert [row["directory"] for row in quire_json("info", *where)] == [
        str(server.directory / "bookie" / "ledgers")
    ]
    (mark,) = quire_json("last-mark", *where)
    assert mark["journal_id"] > 0
    assert "a2VwdA==" in _topics_of_ledgers(where)  # kept
    files = quire_json("list-files", *where)
    for row in files:
        assert os.path.getsize(row["path"]) == row["size_bytes"]

    # It replays the journal, which may be all that had the deleted topic's entries.
    assert quire_json("sanity", *where)["passed"] is True
    logs = quire_json("list-files", "--type", "entrylog", *where)
    logs_before = sum(row["size_bytes"] for row in logs)
    report = quire_json("compact", "--major", *where)
    assert report["is_complete"] is True
    assert report["deleted_ledgers"] >= 1
    logs = quire_json("list-files", "--type", "entrylog", *where)
    assert sum(row["size_bytes"] for row in logs) < logs_before
    assert quire_json("compact", "--entry-location", *where) == {
        "entryLocationCompactionCounter": 1
    }
    assert quire_json("gc", *where)["deleted_ledgers"] == 0
    assert quire_json("scrub", *where)["damaged_entries"] == 0

    conf = server.directory / "bk_server.conf"
    conf.write_text(
        f"journalDirectory={server.directory}/bookie/journal\n"
        f"ledgerDirectories={server.directory}/bookie/ledgers\n"
    )
    assert quire_json("list-files", "--type", "entrylog", "--conf", conf) == logs
    _damage(logs, where)


def _damage(logs, where):
    """A byte of the largest log is flipped: the scrub finds it, then it is put back."""
    path = max(logs, key=lambda row: row["size_bytes"])["path"]
    shutil.copy(path, f"{path}.copy")
    with open(path, "r+b") as file:
        file.seek(50_000)
        byte = file.read(1)
        file.seek(50_000)
        file.write(bytes([byte[0] ^ 1]))
    assert quire_json("scrub", *where, code=1)["damaged_entries"] >= 1
    os.replace(f"{path}.copy", path)
    assert quire_json("scrub", *where)["damaged_entries"] == 0


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["compact"], 2, "say what"),
        (["info", "--data-dir", "/none/such"], 1, "is no directory"),
        (["state", "--data-dir", "/none/such"], 1, "start it with --metrics"),
        (["list-ledgers", "--data-dir", "/none/such"], 1, "metadata.db is not there"),
        (["state", "--url", "ftp://x"], 2, "is no http://HOST:PORT"),
        (["state", "--url", "http://127.0.0.1:1"], 1, "does not answer"),
        (["info", "--conf", "/none/such"], 2, "does not exist"),
        (["list-files", "--type", "other"], 2, "is not one of"),
    ],
)
def test_what_is_wrong_is_said(arguments, code, words, monkeypatch):
    monkeypatch.delenv("QUIRE_ADMIN_URL", raising=False)
    result = CliRunner().invoke(main, ["bookie", *arguments])
    assert result.exit_code == code, result.output
    assert words in " ".join(result.output.split())


def test_a_configuration_without_directories(tmp_path):
    path = tmp_path / "bk_server.conf"
    path.write_text("journalDirectory=/x\n")
    result = CliRunner().invoke(main, ["bookie", "info", "--conf", str(path)])
    assert result.exit_code == 2
    assert "ledgerDirectories" in result.output


def test_every_command_is_listed():
    output = CliRunner().invoke(main, ["bookie", "--help"]).output
    for name in (
        "info", "last-mark", "list-ledgers", "list-files", "sanity", "gc", "compact", "scrub",
        "state", "suspend-compaction", "resume-compaction", "is-ready",
    ):  # fmt: skip
        assert f"  {name} " in output
