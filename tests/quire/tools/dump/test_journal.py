"""`dump journal` against a journal that a bookie wrote, and against the replay's own judgement."""

import random
import shutil

import pytest

from bookie.errors import BookieStartError
from bookie.journal.journal_format import (
    GroupHeader,
    Position,
    first_group_offset,
    pack_file_header,
    pack_group_header,
    padding_size,
    special_record,
)
from bookie.journal.journal_replay import JournalReplay
from runtime.real_disk import RealDisk

ALIGNMENT = 256


async def test_all_that_a_bookie_journaled(running_bookie, dump, read_journal, tmp_path):
    async with running_bookie() as node:
        await node.add(7, range(5))
        await node.add(8, range(3), b"x" * 2000)
        await node.bookie.read_entry(8, 0, flags=1, master_key=None)
        copy = tmp_path / "copy"
        shutil.copytree(node.journal, copy)
    path = copy / "1.txn"
    truth = read_journal(path)
    got = dump("journal", path, "--entries")
    assert got.exit_code == 0, got.stderr
    assert [(row["offset"], row["sequence"], row["durable"]) for row in got.rows("group")] == [
        group[:3] for group in truth
    ]
    records = [record for group in truth for record in group[3]]
    assert [(r["offset"], r["ledger"], r["entry"], r["size"]) for r in got.rows("entry")] == [
        (offset, ledger, entry, len(data)) for offset, ledger, entry, data in records if entry >= 0
    ]
    assert {(row["ledger"], row["entry"]) for row in got.rows("entry")} == set(node.entries)
    assert {row["digest"] for row in got.rows("entry")} == {"ok"}
    assert [row["lac"] for row in got.rows("entry")][:3] == [-1, 0, 1]
    keys = [row for row in got.rows("special") if row["kind"] == "key"]
    assert [row["ledger"] for row in keys] == [7, 8]
    assert {row["key"] for row in keys} == {"no password"}
    end = got.row("end")
    assert (end["verdict"], end["groups"], end["entries"]) == ("clean", len(truth), 8)
    assert end["records"] == len(records)

    summary = dump("journal", path, "--summary")
    assert [(r["ledger"], r["entries"], r["last_entry"]) for r in summary.rows("ledger")] == [
        (7, 5, 4),
        (8, 3, 2),
    ]
    only = dump("journal", path, "--ledger", "8", "--entry", "1")
    assert [(row["ledger"], row["entry"]) for row in only.rows("entry")] == [(8, 1)]


async def test_a_directory_is_judged_from_the_checkpoint_on(
    running_bookie, dump, state_of, tmp_path
):
    async with running_bookie() as node:
        await node.add(1, range(4))
        await node.bookie.flush()
        await node.add(1, range(4, 6))
        before = state_of(node.journal)
        got = dump("journal", tmp_path)
        assert state_of(node.journal) == before
    assert got.exit_code == 0, got.stderr
    states = {}
    last = None
    for row in got.all_rows:
        if row["type"] == "group":
            last = row["state"]
        elif row["type"] == "entry":
            states[row["entry"]] = last
    needed = {entry for entry, state in states.items() if state == "ok"}
    assert needed == {4, 5}
    assert {states[entry] for entry in range(4)} <= {"before the mark"} or states.keys() == needed


# What the replay says of a journal, and what the dump says.


def write_journal(path, groups, size=16 * 1024, journal_id=1):
    """`groups`: (sequence, durable sequence, records). Returns the offsets of the groups."""
    data = bytearray(pack_file_header(journal_id, ALIGNMENT, size).ljust(size, b"\0"))
    at, offsets = first_group_offset(ALIGNMENT), []
    for sequence, durable, records in groups:
        body = b"".join(records)
        header = GroupHeader(journal_id, at, sequence, durable, len(body), len(records))
        group = pack_group_header(header, [body]) + body
        data[at : at + len(group)] = group
        offsets.append(at)
        at += len(group) + padding_size(len(group), ALIGNMENT)
    path.write_bytes(data)
    return [*offsets, at]


def records_of(make_entry, number):
    entries = [make_entry(1, entry_id, b"p" * 37) for entry_id in range(number, number + 3)]
    records = [len(entry).to_bytes(4, "big") + entry for entry in entries]
    return [special_record(1, -0x1000, b"k" * 20), *records]


@pytest.fixture
def eight_groups(tmp_path, make_entry):
    """Groups of which the last but one was not durable yet when the last was written."""
    path = tmp_path / "1.txn"
    groups = [(n, max(n - 2, 0), records_of(make_entry, 3 * n)) for n in range(1, 9)]
    return path, write_journal(path, groups)


def replayed(directory, mark):
    """(records that count, whether the start is refused)"""
    replay = JournalReplay(RealDisk(), str(directory), mark)
    found = []
    try:
        found += [(ledger, entry) for ledger, entry, _ in replay.records()]
    except BookieStartError:
        return found, True
    return found, False


def dumped(dump, path, mark_file):
    got = dump("journal", path, "--checkpoint", mark_file)
    counts, found = False, []
    kinds = {"key": -0x1000}
    for row in got.all_rows:
        if row["type"] == "group":
            counts = row["state"] == "ok"
        elif row["type"] in ("entry", "special") and counts:
            found.append((row["ledger"], row.get("entry", kinds.get(row.get("kind")))))
    return found, got.exit_code == 1, got


def check_judgement(dump, path, mark_file, mark):
    expected, refused = replayed(path.parent, mark)
    found, failed, got = dumped(dump, path, mark_file)
    assert failed is refused, (got.stdout, got.stderr)
    if not refused:
        assert found == expected
        assert got.row("end")["verdict"] in ("clean", "torn", "unused")
    elif got.rows("end"):
        assert got.row("end")["verdict"] == "damaged" or got.rows("damage")


@pytest.fixture
def mark_file(tmp_path):
    from bookie.storage.checkpoint import Checkpoint, encode_checkpoint

    path = tmp_path / "marked" / "checkpoint"
    path.parent.mkdir()
    mark = Position(1, first_group_offset(ALIGNMENT), 0)
    path.write_bytes(encode_checkpoint(Checkpoint(mark, -1, 0, {})))
    return path, mark


def test_every_truncation_is_judged_as_the_replay_does(eight_groups, mark_file, dump):
    path, offsets = eight_groups
    data = path.read_bytes()
    for size in [*range(0, offsets[-1] + 40, 97), len(data) - 1, len(data)]:
        path.write_bytes(data[:size])
        check_judgement(dump, path, *mark_file)


def test_every_damaged_byte_is_judged_as_the_replay_does(eight_groups, mark_file, dump):
    path, offsets = eight_groups
    data = path.read_bytes()
    rng = random.Random(1)
    places = {*range(0, 60), *(o + n for o in offsets[:-1] for n in range(0, 52, 5))}
    places |= {rng.randrange(len(data)) for _ in range(60)}
    for at in sorted(places):
        damaged = bytearray(data)
        damaged[at] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        check_judgement(dump, path, *mark_file)


def test_torn_groups_are_judged_as_the_replay_does(eight_groups, mark_file, dump):
    path, offsets = eight_groups
    data = path.read_bytes()
    for lost in ([7], [6, 7], [6], [5], [0], [0, 1], [3, 6], range(8)):
        damaged = bytearray(data)
        for number in lost:
            damaged[offsets[number] + 60 : offsets[number + 1]] = bytes(
                offsets[number + 1] - offsets[number] - 60
            )
        path.write_bytes(damaged)
        check_judgement(dump, path, *mark_file)


def test_it_says_why_a_journal_ends(tmp_path, make_entry, dump, mark_file):
    path = tmp_path / "1.txn"
    offsets = write_journal(path, [(n, n - 1, records_of(make_entry, n)) for n in (1, 2, 3)])
    good = path.read_bytes()

    def end(data):
        path.write_bytes(data)
        return dump("journal", path, "--checkpoint", mark_file[0]).row("end")

    assert end(good)["reason"] == "nothing was written here"
    torn = bytearray(good)
    torn[offsets[2] + 70] ^= 1
    assert end(torn)["verdict"] == "clean"
    assert end(torn)["reason"] == "torn: the checksum of group 3 is bad"
    hole = bytearray(good)
    hole[offsets[1] + 50] ^= 1
    found = end(hole)
    assert found["verdict"] == "damaged"
    assert found["offset"] == offsets[1]
    assert f"group 3 at {offsets[2]} is good" in found["reason"]
    # The file's earlier life as journal 9 left groups behind those of this one.
    old = tmp_path / "9.txn"
    write_journal(old, [(n, n - 1, records_of(make_entry, n)) for n in range(1, 7)], journal_id=9)
    reused = bytearray(good)
    reused[offsets[3] :] = old.read_bytes()[offsets[3] :]
    assert end(reused)["reason"] == "a group of an earlier life of the file, as journal 9"
    assert end(reused)["verdict"] == "clean"


def test_without_the_checkpoint_it_does_not_guess(tmp_path, make_entry, dump):
    path = tmp_path / "5.txn"
    groups = [(n, 9, records_of(make_entry, n)) for n in (10, 11)]
    offsets = write_journal(path, groups, journal_id=5)
    data = bytearray(path.read_bytes())
    data[offsets[0] + 50] ^= 1
    path.write_bytes(data)
    got = dump("journal", path)
    assert got.row("end")["verdict"] == "unsure"
    assert got.exit_code == 1


def test_a_missing_journal_and_a_gap_between_journals(tmp_path, make_entry, dump):
    one, three = tmp_path / "1.txn", tmp_path / "3.txn"
    write_journal(one, [(1, 0, records_of(make_entry, 1))])
    write_journal(three, [(3, 2, records_of(make_entry, 1))], journal_id=3)
    got = dump("journal", tmp_path)
    assert "2.txn" in got.stderr
    assert got.exit_code == 1
    write_journal(tmp_path / "2.txn", [(2, 1, records_of(make_entry, 1))], journal_id=2)
    assert dump("journal", tmp_path).exit_code == 0
    write_journal(tmp_path / "2.txn", [], journal_id=2)
    got = dump("journal", tmp_path)
    assert "group 3 where 2 should be" in got.stderr


def test_a_journal_that_was_never_used_is_no_damage(tmp_path, dump):
    (tmp_path / "4.txn").write_bytes(pack_file_header(3, ALIGNMENT, 4096).ljust(4096, b"\0"))
    got = dump("journal", tmp_path / "4.txn")
    assert (got.exit_code, got.row("end")["verdict"]) == (0, "unused")


def test_spares_and_unused_journals_do_not_break_the_chain(tmp_path, make_entry, dump):
    write_journal(tmp_path / "spare-1", [(1, 0, records_of(make_entry, 1))])
    write_journal(tmp_path / "5.txn", [(7, 6, records_of(make_entry, 1))], journal_id=5)
    (tmp_path / "6.txn").write_bytes(pack_file_header(2, ALIGNMENT, 4096).ljust(4096, b"\0"))
    write_journal(tmp_path / "7.txn", [(8, 7, records_of(make_entry, 1))], journal_id=7)
    got = dump("journal", tmp_path)
    assert (got.exit_code, got.stderr) == (0, "")
    assert [row["verdict"] for row in got.rows("end")] == ["clean", "clean", "unused", "clean"]
    # In another order it cannot be said what is missing between them.
    assert dump("journal", tmp_path / "7.txn", tmp_path / "5.txn").exit_code == 0


def test_the_marked_journal_is_missing(tmp_path, make_entry, dump):
    write_journal(tmp_path / "5.txn", [(7, 6, records_of(make_entry, 1))], journal_id=5)
    (tmp_path / "lastMark").write_bytes((4).to_bytes(8, "big") + (256).to_bytes(8, "big"))
    got = dump("journal", tmp_path)
    assert got.exit_code == 1
    assert f"{tmp_path}/4.txn: it is missing" in got.stderr


def test_master_keys_are_only_shown_when_asked_for(tmp_path, make_entry, dump):
    path = tmp_path / "1.txn"
    write_journal(path, [(1, 0, records_of(make_entry, 1))])
    assert (b"k" * 20).hex() not in dump("journal", path).stdout
    assert dump("journal", path).row("special")["key"] == "hidden (20 bytes)"
    got = dump("journal", path, "--show-secrets")
    assert got.row("special")["key"] == (b"k" * 20).hex()
