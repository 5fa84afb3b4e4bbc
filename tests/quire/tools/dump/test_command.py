"""`quire dump` as a person and a script meet it: files, directories, errors, pipes, any bytes."""

import io
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from bookie.cookie import Cookie
from bookie.journal.journal_format import Position, pack_file_header
from bookie.storage.checkpoint import Checkpoint, encode_checkpoint
from bookie.storage.entry_log_format import pack_header
from quire.tools.dump.command import dump as dump_group
from quire.tools.dump.options import OutputOptions
from quire.tools.dump.rows import make_output
from wire.kafka.records.batch import build_batch
from wire.kafka.records.record import Record

QUIRE = Path(sys.executable).parent / "quire"
COMMANDS = sorted(dump_group.commands)


def test_checkpoint_last_mark_and_cookie(tmp_path, dump):
    saved = Checkpoint(Position(3, 8192, 41), 6, 5000, {7: 100, 8: 200}, (11, 12))
    (tmp_path / "checkpoint").write_bytes(encode_checkpoint(saved))
    (tmp_path / "lastMark").write_bytes(struct.pack(">qq", 3, 8192))
    (tmp_path / "VERSION").write_text(Cookie("b\t1", "/j", "/l", "i").encode())
    got = dump("checkpoint", tmp_path)
    assert (got.exit_code, got.stderr) == (0, "")
    row = got.row("checkpoint")
    assert (row["journal"], row["offset"], row["sequence"]) == (3, 8192, 41)
    assert (row["log"], row["log_end"], row["ledgers"]) == (6, 5000, 2)
    assert (row["locations_stamp"], row["ledgers_stamp"]) == (11, 12)
    assert [(r["ledger"], r["bytes"]) for r in got.rows("ledger")] == [(7, 100), (8, 200)]
    assert (got.row("lastMark")["journal"], got.row("lastMark")["offset"]) == (3, 8192)
    cookie = dump("cookie", tmp_path).row("cookie")
    assert (cookie["bookie_id"], cookie["instance_id"]) == ("b\t1", "i")
    assert cookie["ledger_directories"] == ["/l"]
    for name, command in (("checkpoint",) * 2, ("lastMark", "checkpoint"), ("VERSION", "cookie")):
        path = tmp_path / name
        path.write_bytes(path.read_bytes()[:-10])
        got = dump(command, path)
        assert (got.exit_code, f"{path}: offset " in got.stderr) == (1, True)
        path.write_bytes(b"")
        assert "the file is empty" in dump(command, path).stderr


async def test_a_whole_directory(running_bookie, dump, tmp_path, state_of):
    async with running_bookie() as node:
        await node.add(7, range(5))
        await node.bookie.flush()
        await node.add(7, range(5, 8))
        running = dump("all", tmp_path)
    before = state_of(tmp_path)
    stopped = dump("all", tmp_path)
    assert state_of(tmp_path) == before
    for got in (running, stopped):
        assert (got.exit_code, got.stderr) == (0, "")
        kinds = {row["type"] for row in got.all_rows if "file" in row}
        assert kinds == {"cookie", "journal", "entrylog", "index", "checkpoint", "lastMark"}
    text = dump("all", tmp_path, json_rows=False)
    assert text.exit_code == 0
    assert len(text.stdout.splitlines()) >= len(stopped.all_rows)


def test_bad_files_do_not_keep_the_good_ones_from_being_shown(tmp_path, dump):
    good = tmp_path / "1.log"
    good.write_bytes(pack_header(0, 0))
    empty = tmp_path / "2.log"
    empty.touch()
    folder = tmp_path / "nothing here"
    folder.mkdir()
    got = dump("entrylog", empty, tmp_path / "missing", folder, "/dev/null", good)
    assert got.exit_code == 1
    assert [row["file"] for row in got.rows("damage")] == [
        str(tmp_path / "missing"),
        str(folder),
        str(empty),
        "/dev/null",
    ]
    assert [row["file"] for row in got.rows("entrylog")] == [str(empty), str(good)]
    assert len(got.stderr.splitlines()) == 4
    assert all(line.startswith("Error: ") for line in got.stderr.splitlines())
    assert dump("all", good).exit_code == 0
    unknown = tmp_path / "unknown"
    unknown.write_bytes(b"?")
    assert "none of the structures" in dump("all", unknown).stderr
    locked = tmp_path / "3.log"
    os.mkfifo(locked)
    assert "not a regular file" in dump("entrylog", locked).stderr


@pytest.fixture(scope="module")
def pieces():
    """Beginnings that look right."""
    header = pack_file_header(1, 256, 4096)
    log = pack_header(0, 0)
    return {
        "1.txn": header,
        "1.log": log,
        "mapped.log": pack_header(1024, 1),
        "checkpoint": encode_checkpoint(Checkpoint(Position(1, 256, 0), 1, 1, {1: 2}, (0, 0))),
        "lastMark": b"",
        "VERSION": b"5\n",
        "metadata.db": b"SQLite format 3\0",
        "znode": b"BookieMetadataFormatVersion\t3\n",
        "CURRENT": b"MANIFEST-000001\n",
        "MANIFEST-000001": b"",
        "batches": build_batch([Record(0, 0, b"k", b"v")]),
        "index": b"QIX1\0\0\0\1",
        "snapshot": b"\0\1",
        "payload": b"\1\1\0\0\0\0\0\1" + bytes(8),
        "old": bytes(16) + b"\1",
    }


@given(data=st.data(), as_json=st.booleans())
def test_any_bytes_are_dumped_or_refused_in_words(pieces, data, as_json):
    """No command ends with anything but 0, or 1 and a line on stderr that names the file."""
    name = data.draw(st.sampled_from(sorted(pieces)))
    content = pieces[name] + data.draw(st.binary(max_size=600))
    flips = data.draw(st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 255)), max_size=3))
    changed = bytearray(content)
    for at, flip in flips:
        if changed:
            changed[at % len(changed)] ^= flip
    command = data.draw(st.sampled_from(COMMANDS))
    options = ["--json"] if as_json else []
    if command in ("journal", "entrylog", "batch", "all"):
        options += data.draw(
            st.sampled_from([["--records"], ["--offsets-decoder"], ["--transaction-log-decoder"]])
        )
    if command in ("batch", "snapshot"):
        options += data.draw(st.sampled_from([[], ["--at", "3"], ["--at", "1028"]]))
    directory = tempfile.mkdtemp()
    try:
        path = Path(directory, name)
        path.write_bytes(changed)
        if name.startswith(("CURRENT", "MANIFEST")):
            for other in ("CURRENT", "MANIFEST-000001"):
                if other != name:
                    Path(directory, other).write_bytes(pieces[other])
            path = path.parent
        got = CliRunner().invoke(dump_group, [command, str(path), *options])
        assert got.exception is None or isinstance(got.exception, SystemExit), got.exception
        assert got.exit_code in (0, 1)
        assert bool(got.stderr) is (got.exit_code == 1)
        if as_json:
            for line in got.stdout.splitlines():
                json.loads(line)
        else:
            assert all(line.isprintable() for line in got.stdout.splitlines())
    finally:
        shutil.rmtree(directory)


def test_a_reader_that_goes_away(tmp_path):
    path = tmp_path / "batches"
    path.write_bytes(build_batch([Record(0, 0, b"k", b"v")]) * 20_000)
    process = subprocess.Popen(
        [QUIRE, "dump", "batch", path], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout.readline().startswith(b"batches")
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(30) == 141


LIMITED = """
import resource, sys
from click.testing import CliRunner
from quire.tools.dump.command import dump
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
got = CliRunner().invoke(dump, sys.argv[1:])
assert got.exit_code == 0, got.output
sys.stdout.write(got.output)
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
assert grown < 100 * 1024, f"{grown} KiB"
"""


@pytest.mark.slow
@pytest.mark.parametrize("command", ["journal", "entrylog"])
def test_memory_does_not_grow_with_the_file(tmp_path, command):
    """Two gigabytes, most of them a hole in the file."""
    size = 2**31 - 4096
    path = tmp_path / ("1.txn" if command == "journal" else "1.log")
    with path.open("wb") as file:
        file.write(pack_file_header(1, 4096, size) if command == "journal" else pack_header(0, 0))
        file.truncate(size)
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, command, str(path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "end" in done.stdout


# How rows look.


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


ROWS = [
    ("thing", {"file": "a", "size": 5}, 0),
    ("part", {"offset": 1, "key": b"text", "value": b"\xff\x00", "gone": None, "no": False}, 1),
    ("part", {"offset": 22, "key": b"", "value": "ü".encode(), "gone": None, "no": True}, 1),
    ("part", {"offset": 3, "key": b"x" * 300, "value": b"a\nb", "gone": 1, "no": False}, 1),
    ("node", {"path": "/a", "value": {"x": 1, "list": [{"y": 2, "z": None}], "empty": {}}}, 0),
]
TEXT = """\
thing    file=a size=5
  part     offset=1         key="text" value=0xff00
  part     offset=22        key="" value="ü" no=yes
  part     offset=3         key="xxxxx"... (300 bytes) value="a\\nb" gone=1
node     path=/a
    value: x=1 empty={}
      list:
        - y=2 z=-
"""


def show(monkeypatch, stream, **options):
    monkeypatch.setattr(sys, "stdout", stream)
    out = make_output(OutputOptions(**options))
    for kind, fields, level in ROWS:
        out.row(kind, fields, level)
    out.flush()
    return stream.getvalue()


def test_text_is_stable(monkeypatch):
    assert show(monkeypatch, io.StringIO(), value_size_max=5) == TEXT


def test_a_terminal_gets_tables(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    shown = re.sub(r"\x1b\[[0-9;]*m", "", show(monkeypatch, Terminal(), value_size_max=5))
    lines = [line.rstrip() for line in shown.splitlines()]
    assert lines[0] == "thing    file=a size=5"
    assert lines[-4:] == TEXT.splitlines()[-4:]
    table = "\n".join(lines[1:-4])
    assert re.search(r"offset +key +value +gone +no", table)
    assert re.search(r"^ +22 +\"\" +\"ü\" +- +yes$", table, re.M)


def test_an_encoding_that_does_not_know_all_characters(monkeypatch):
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    out = make_output(OutputOptions())
    out.row("node", {"value": "ü"}, 0)
    out.flush()
    assert raw.getvalue() == b"node     value=\\xfc\n"
