"""`dump entrylog` and `dump index` against what a bookie wrote, and against damage."""

import random
import struct
import zlib
from contextlib import closing

import pytest

from bookie.storage.entry_log_format import pack_header, pack_ledgers_map
from bookie.storage.rocks_index import RocksIndex
from quire.tools.dump.entries import LedgerTotals


async def write_some(node):
    for number in range(3):
        await node.add(7, range(number * 20, number * 20 + 20), b"a" * (100 + 300 * number))
        await node.add(9, range(number * 5, number * 5 + 5), b"b" * 50)
        await node.bookie.flush()


async def test_all_that_a_bookie_flushed(running_bookie, dump, read_log, state_of):
    async with running_bookie() as node:
        await write_some(node)
    paths = sorted(node.ledgers.glob("*.log"))
    before = state_of(node.ledgers)
    got = dump("entrylog", *paths)
    assert state_of(node.ledgers) == before
    assert (got.exit_code, got.stderr) == (0, "")
    truth = [(offset, entry) for path in paths for offset, entry in read_log(path)[0]]
    assert {entry for _, entry in truth} == set(node.entries.values())
    shown = got.rows("entry")
    assert [(row["offset"], row["size"]) for row in shown] == [(o, len(e)) for o, e in truth]
    for row, (_, entry) in zip(shown, truth, strict=True):
        ids = struct.unpack_from(">qqqq", entry)
        assert (row["ledger"], row["entry"], row["lac"], row["length"]) == ids
        assert (row["digest"], row["digest_type"]) == ("ok", "crc32c")
    mapped = {row["ledger"]: row["bytes"] for row in got.rows("mapped")}
    assert mapped == read_log(paths[0])[1]
    assert mapped[9] == 15 * (4 + 36 + 50)
    summary = dump("entrylog", paths[0], "--summary")
    assert [
        (r["ledger"], r["entries"], r["bytes"], r["mapped_bytes"]) for r in summary.rows("ledger")
    ] == [
        (7, 60, mapped[7], mapped[7]),
        (9, 15, mapped[9], mapped[9]),
    ]
    assert summary.row("end")["entries"] == got.row("end")["entries"] == 75
    one = dump("entrylog", paths[0], "--ledger", "9", "--entry", "3").rows("entry")
    assert [(row["ledger"], row["entry"]) for row in one] == [(9, 3)]
    assert "no ledger 8" in dump("entrylog", paths[0], "--ledger", "8").row("end")["reason"]


async def test_the_index_of_a_running_and_of_a_stopped_bookie(running_bookie, dump, state_of):
    async with running_bookie() as node:
        await write_some(node)
        await node.bookie.read_entry(9, 0, flags=1, master_key=None)
        await node.bookie.flush()
        before = state_of(node.ledgers)
        running = dump("index", node.ledgers)
        assert state_of(node.ledgers) == before
        assert running.exit_code == 0, running.stderr
        # The bookie was not disturbed.
        await node.add(7, range(60, 65))
        await node.bookie.flush()
    stopped = dump("index", node.ledgers)
    assert stopped.exit_code == 0, stopped.stderr
    index = RocksIndex(str(node.ledgers), 1 << 20)
    index.open()
    with closing(index):
        truth = {key: index.get(*key) for key in node.entries}

    def shown(got):
        return {
            (r["ledger"], r["entry"]): r["log"] << 32 | r["offset"] for r in got.rows("location")
        }

    assert shown(stopped) == truth
    assert shown(running) == {key: at for key, at in truth.items() if key < (7, 60) or key[0] == 9}
    for got in (running, stopped):
        assert [(r["ledger"], r["master_key"]) for r in got.rows("ledger")] == [
            (7, "no password"),
            (9, "no password"),
        ]
    only = dump("index", node.ledgers / "locations", "--ledger", "9", "--summary")
    assert [
        (r["ledger"], r["entries"], r["first_entry"], r["last_entry"]) for r in only.rows("ledger")
    ] == [(9, 15, 0, 14)]
    # Where the index points is what the entry log's dump says is there.
    logs = dump("entrylog", node.ledgers)
    files, at = {}, None
    for row in logs.all_rows:
        if row["type"] == "entrylog":
            at = row["log"]
        elif row["type"] == "entry":
            files[row["ledger"], row["entry"]] = at << 32 | row["offset"]
    assert files == truth


async def test_one_entry_by_its_offset(running_bookie, dump):
    async with running_bookie() as node:
        await write_some(node)
    (path,) = node.ledgers.glob("*.log")
    location = dump("index", node.ledgers, "--ledger", "9", "--entry", "4").row("location")
    got = dump("batch", path, "--at", location["offset"])
    assert (got.row("entry")["ledger"], got.row("entry")["entry"]) == (9, 4)
    assert got.row("payload")["kind"] == "unknown"
    wrong = dump("batch", path, "--at", location["offset"] + 1)
    assert wrong.exit_code == 1
    assert f"offset {location['offset'] + 1}: " in wrong.stderr
    beyond = dump("batch", path, "--at", path.stat().st_size + 9)
    assert "there is no entry here" in beyond.stderr


# Damage.


@pytest.fixture
def log(tmp_path, make_entry):
    """(path, [(offset, entry)]) of a log with a map, entries of two ledgers."""
    path = tmp_path / "a.log"
    rng = random.Random(4)
    parts, places, ledgers, at = [bytes(1024)], [], {}, 1024
    for number in range(40):
        ledger_id = 1 + number // 20
        entry = make_entry(ledger_id, number % 20, rng.randbytes(rng.randrange(400)))
        places.append((at + 4, entry))
        parts += [len(entry).to_bytes(4, "big"), entry]
        at += 4 + len(entry)
        ledgers[ledger_id] = ledgers.get(ledger_id, 0) + 4 + len(entry)
    records = pack_ledgers_map(ledgers)
    parts[0] = pack_header(at, len(ledgers), records)
    path.write_bytes(b"".join(parts) + records)
    return path, places


def ok_entries(got):
    return [(row["offset"], row["size"]) for row in got.rows("entry") if row["digest"] == "ok"]


@pytest.mark.parametrize("summary", [False, True])
def test_a_damaged_record_costs_no_other(log, dump, summary):
    path, places = log
    data = path.read_bytes()
    for number, (offset, entry) in enumerate(places):
        # In the length, the ids, the payload: always this record alone is lost.
        for at in (-4, -3, -1, 0, 7, 12, 20, 35, len(entry) - 1):
            damaged = bytearray(data)
            damaged[offset + at] ^= 0x41
            path.write_bytes(damaged)
            got = dump("entrylog", path, *(["--summary"] if summary else []))
            assert got.exit_code == 1
            assert str(path) in got.stderr
            assert f"offset {offset}: " in got.stderr
            others = [(o, len(e)) for o, e in places if o != offset]
            if summary:
                assert sum(row["entries"] for row in got.rows("ledger")) in (39, 40)
            else:
                assert ok_entries(got) == others, (number, at)


def test_zeroed_and_random_ranges(log, dump):
    path, places = log
    data = path.read_bytes()
    rng = random.Random(5)
    for fill in (bytes, rng.randbytes):
        first, last = 10, 14
        start, end = places[first][0] - 4, places[last][0] - 4
        path.write_bytes(data[:start] + fill(end - start) + data[end:])
        got = dump("entrylog", path)
        assert got.exit_code == 1
        kept = places[:first] + places[last:]
        assert ok_entries(got) == [(offset, len(entry)) for offset, entry in kept]


def test_damaged_headers_and_maps(log, dump):
    path, places = log
    data = path.read_bytes()
    everything = [(offset, len(entry)) for offset, entry in places]
    map_offset = struct.unpack_from(">q", data, 8)[0]
    cases = {
        "no map where the header points": struct.pack(">4siqi", b"BKLO", 1, 2000, 2),
        "another number of ledgers": struct.pack(">4siqi", b"BKLO", 1, map_offset, 3),
        "negative": struct.pack(">4siqi", b"BKLO", 1, -5, 2),
    }
    for words, header in cases.items():
        path.write_bytes(header.ljust(1024, b"\0") + data[1024:])
        got = dump("entrylog", path)
        assert got.exit_code == 1, words
        assert ok_entries(got) == everything, words
    flipped = bytearray(data)
    flipped[-1] ^= 1
    path.write_bytes(flipped)
    got = dump("entrylog", path)
    assert "the ledgers map does not match its checksum" in got.stderr
    assert ok_entries(got) == everything
    for bad in (b"", data[:1000], b"XXXX" + data[4:], data[:4] + b"\0\0\0\2" + data[8:]):
        path.write_bytes(bad)
        got = dump("entrylog", path)
        assert got.exit_code == 1
        assert "offset" in got.stderr


def test_a_log_that_is_being_written_is_no_damage(log, dump):
    path, places = log
    data = pack_header(0, 0) + path.read_bytes()[1024:]
    offset, entry = places[30]
    for cut in (0, 1, 3, 4, 20, 40, len(entry) - 1):
        path.write_bytes(data[: offset - 4 + cut])
        got = dump("entrylog", path)
        assert (got.exit_code, got.stderr) == (0, ""), cut
        assert ok_entries(got) == [(o, len(e)) for o, e in places[:30]]
        assert got.row("end")["offset"] == offset - 4
    path.write_bytes(data[: offset - 4] + bytes(5000))
    assert dump("entrylog", path).row("end")["reason"] == "zeros up to the end"


def test_other_digests(tmp_path, dump):
    header = struct.pack(">qqqq", 3, 0, -1, 5)
    entry = header + struct.pack(">q", zlib.crc32(b"hello", zlib.crc32(header))) + b"hello"
    path = tmp_path / "0.log"
    path.write_bytes(pack_header(0, 0) + len(entry).to_bytes(4, "big") + entry)
    row = dump("entrylog", path).row("entry")
    assert (row["digest"], row["digest_type"]) == ("ok", "crc32")
    assert dump("entrylog", path, "--digest", "crc32c").exit_code == 1
    row = dump("entrylog", path, "--digest", "none").row("entry")
    assert row["digest"] == "unchecked"


def test_totals_keep_the_ends_in_any_order():
    totals = LedgerTotals()
    for entry_id in (5, 2, 9, 4):
        totals.add(1, entry_id, 10)
    rows = []

    class Out:
        def row(self, kind, fields, level):
            rows.append(fields)

    totals.show(Out(), 0)
    assert rows == [{"ledger": 1, "entries": 4, "first_entry": 2, "last_entry": 9, "bytes": 40}]
