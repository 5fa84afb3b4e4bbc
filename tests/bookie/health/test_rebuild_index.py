"""The index made anew from the entry logs: complete, crash-safe, and honest about what is lost."""

import random
import re
import shutil
import struct
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parents[3]))

from bookie.errors import BookieStartError
from bookie.health.digest_guess import DigestGuess
from bookie.health.index_swap import backup_directory, finish_swap, new_directory
from bookie.health.log_salvage import LogSalvager
from bookie.health.rebuild_index import IndexRebuild, MetadataLedger
from bookie.ledger_table import LedgerState, decode_ledger_state
from bookie.storage.entry_log_format import pack_header, pack_ledgers_map
from bookie.storage.rocks_database import read_ledgers
from bookie.storage.rocks_index import RocksIndex
from checks.damage_bookie import (
    FENCED,
    KEY,
    Outcome,
    files_of,
    fill,
    make_config,
    make_entry,
    prepare,
    read_all,
    serving,
)
from quire.tools.bookie.rebuild_index import rebuild_index
from runtime.real_disk import RealDisk
from runtime.sim_disk import SimDisk
from wire.bookkeeper.status import FLAG_DO_FENCING, Status

CURRENT = "ledgers/current"
LOG = re.compile(r"current/[0-9a-f]+\.log$")


@pytest.fixture
async def node(tmp_path):
    """(directory, what is stored) of a bookie that was killed."""
    base, path = str(tmp_path / "base"), str(tmp_path / "node")
    stored = await fill(str(tmp_path / "live"), base, random.Random(3))
    shutil.copytree(base, path)
    prepare(path)
    return path, stored


def rebuild_of(path, **kwargs):
    return IndexRebuild(RealDisk(), [f"{path}/ledgers"], f"{path}/journal", **kwargs)


def logs_of(path):
    return sorted(each for each in files_of(f"{path}/{CURRENT}") if LOG.search(each))


async def outcome_of(path, stored):
    outcome = Outcome(cases=1)
    async with serving(make_config(path)) as bookie:
        await read_all(bookie, stored, outcome, "after the rebuild")
        ledgers = bookie.list_ledgers()
        damages = bookie.scrubber.damages()
        report = await bookie.scrubber.check_index()
    assert outcome.stories == []
    return outcome, ledgers, damages, report


@pytest.mark.parametrize("lost", [(), ("locations",)])
async def test_all_is_there_again(node, lost):
    path, stored = node
    for name in lost:
        shutil.rmtree(f"{path}/{CURRENT}/{name}")
    rebuild = rebuild_of(path)
    progress = []
    total = rebuild.total_bytes()
    report = rebuild.run(progress.append)
    assert report.are_ledgers_kept
    assert (report.limbo, report.gaps, report.damaged, report.backup) == ([], [], 0, "")
    assert report.logs == len(logs_of(path))
    assert sum(progress) == report.bytes == total
    outcome, ledgers, _, check = await outcome_of(path, stored)
    assert outcome.intact == 1
    assert check.damaged == 0
    assert check.entries == len(stored)
    assert sorted(ledgers) == sorted({ledger_id for ledger_id, _ in stored}), "and no deleted one"
    assert not [each for each in files_of(f"{path}/{CURRENT}") if "rebuil" in each]


async def test_twice_and_again_while_running(node):
    path, stored = node
    rebuild_of(path).run()
    rebuild_of(path).run()
    async with serving(make_config(path)):
        with pytest.raises(BookieStartError, match="in use"):
            rebuild_of(path).run()
    assert (await outcome_of(path, stored))[0].intact == 1


async def test_payload_damage_stays_eio(node):
    path, stored = node
    shutil.rmtree(f"{path}/{CURRENT}/locations")
    with open(logs_of(path)[0], "r+b") as file:  # noqa: ASYNC230
        file.seek(1024 + 4 + 45)
        file.write(b"!")
    report = rebuild_of(path).run()
    assert report.damaged == 1
    assert report.limbo == []
    outcome, _, damages, _ = await outcome_of(path, stored)
    assert outcome.unreadable == 1
    assert len(damages) == 1


@pytest.mark.parametrize(
    ("at", "size"), [(3, 1), (1, 2), (4 + 7, 1), (4 + 15, 1), (0, 20), (0, 900)]
)
async def test_records_that_cannot_be_recognised_put_their_ledgers_in_limbo(node, at, size):
    """Lengths, ids, whole regions: what was there is not known, so it is not denied either."""
    path, stored = node
    shutil.rmtree(f"{path}/{CURRENT}/locations")
    log = logs_of(path)[1]
    with open(log, "r+b") as file:  # noqa: ASYNC230
        file.seek(1024)
        for _ in range(7):
            (length,) = struct.unpack(">i", file.read(4))
            file.seek(length, 1)
        start = file.tell() + at
        file.seek(start)
        before = file.read(size)
        file.seek(start)
        file.write(bytes(byte ^ 0x55 for byte in before))
    report = rebuild_of(path).run()
    assert report.limbo or report.damaged
    assert report.backup == (f"{path}/{CURRENT}/index-before-rebuild" if report.gaps else "")
    outcome, _, _, _ = await outcome_of(path, stored)
    assert outcome.unreadable == 1
    async with serving(make_config(path)) as bookie:
        for ledger_id in report.limbo:
            fence = {"flags": FLAG_DO_FENCING, "master_key": KEY}
            for entry_id in (-1, 10**6):
                status, _ = await bookie.read_entry(ledger_id, entry_id, **fence)
                assert status is Status.EUNKNOWNLEDGERSTATE
            answers = []
            late = make_entry(ledger_id, 10**6, b"")
            bookie.add_entry(ledger_id, 10**6, KEY, [late], 0, answers.append)
            assert answers == [Status.EFENCED]


async def test_lost_ledger_states_come_from_the_metadata_and_are_fenced(node):
    path, stored = node
    shutil.rmtree(f"{path}/{CURRENT}/ledgers")
    with pytest.raises(BookieStartError, match=r"ledgers.*--metadata"):
        rebuild_of(path).run()
    assert not Path(new_directory(f"{path}/{CURRENT}")).exists()  # noqa: ASYNC240
    metadata = {i: MetadataLedger(KEY, is_closed=False) for i in (*range(5), *range(50, 53), 777)}
    report = rebuild_of(path, metadata=metadata).run()
    assert not report.are_ledgers_kept
    assert report.backup
    assert report.limbo == []
    assert any("not in the metadata" in note for note in report.notes), (
        "deleted ones, found in logs"
    )
    outcome, ledgers, _, _ = await outcome_of(path, stored)
    assert outcome.intact == 1
    assert 777 in ledgers, "it may have been fenced while it was empty"
    async with serving(make_config(path)) as bookie:
        for ledger_id in (0, 4, FENCED, 777):
            answers = []
            late = make_entry(ledger_id, 10**6, b"")
            bookie.add_entry(ledger_id, 10**6, KEY, [late], 0, answers.append)
            assert answers == [Status.EFENCED]


async def test_lost_ledger_states_with_a_password_only(node):
    path, stored = node
    shutil.rmtree(f"{path}/{CURRENT}/ledgers")
    shutil.rmtree(f"{path}/{CURRENT}/locations")
    report = rebuild_of(path, default_master_key=KEY).run()
    assert any("make sure that no writer" in note for note in report.notes)
    assert (await outcome_of(path, stored))[0].intact == 1


class CrashingDisk(RealDisk):
    """Fails at the n-th call that changes names or makes something durable."""

    def __init__(self, number):
        super().__init__()
        self.left = number

    def _step(self):
        self.left -= 1
        if self.left < 0:
            raise OSError("crash")

    def rename(self, source, target):
        self._step()
        super().rename(source, target)

    def sync_directory(self, path):
        self._step()
        super().sync_directory(path)

    def write_file(self, path, data):
        self._step()
        super().write_file(path, data)


async def test_a_crash_at_every_step_of_the_swap(node, tmp_path):
    path, stored = node
    number = finished = 0
    states = set()
    while not finished:
        copy = str(tmp_path / f"crash{number}")
        shutil.copytree(path, copy)
        for cookie in Path(copy).rglob("VERSION"):  # noqa: ASYNC240
            words = cookie.read_bytes()
            cookie.write_bytes(words.replace(b"/node/", f"/crash{number}/".encode()))
        disk = CrashingDisk(number)
        try:
            IndexRebuild(disk, [f"{copy}/ledgers"], f"{copy}/journal").run()
            finished = number
        except OSError:
            try:
                async with serving(make_config(copy)):
                    states.add("old or new index")
            except* BookieStartError as group:
                states.add("refused" if "rebuild-index" in str(group.exceptions[0]) else "else")
                assert rebuild_of(copy).run().notes or number
        assert (await outcome_of(copy, stored))[0].intact == 1
        shutil.rmtree(copy)
        number += 1
    print(f"steps={finished} states={sorted(states)}")
    assert finished >= 12
    assert states == {"old or new index", "refused"}


class NotingDisk(RealDisk):
    def __init__(self):
        super().__init__()
        self.noted = []

    def rename(self, source, target):
        self.noted.append("rename")
        super().rename(source, target)

    def sync_directory(self, path):
        self.noted.append(path)
        super().sync_directory(path)


def test_a_swap_that_was_begun_is_durably_begun_before_it_goes_on(tmp_path):
    """Who wrote `complete` was killed before its name was durable: if power took that back later,
    nobody would know that two directories have half an index each."""
    directory = str(tmp_path)
    for name in ("locations", "ledgers", "index-rebuilding/locations", "index-rebuilding/ledgers"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "index-rebuilding" / "complete").touch()
    disk = NotingDisk()
    assert finish_swap(disk, directory)
    noted = disk.noted
    assert noted.index(new_directory(directory)) < noted.index("rename")


# Copies of one entry.


def one_log(directory, log_id, records, *, with_map=True):
    body = b"".join(struct.pack(">i", len(record)) + record for record in records)
    ledgers = {}
    for record in records:
        (ledger_id,) = struct.unpack_from(">q", record)
        ledgers[ledger_id] = ledgers.get(ledger_id, 0) + 4 + len(record)
    mapped = pack_ledgers_map(ledgers)
    header = pack_header(1024 + len(body), len(ledgers), mapped) if with_map else pack_header(0, 0)
    data = header + body + (mapped if with_map else b"")
    (directory / f"{log_id:x}.log").write_bytes(data)


@pytest.mark.parametrize("damaged_first", [True, False])
def test_a_damaged_copy_never_wins(tmp_path, damaged_first):
    current = tmp_path / "current"
    current.mkdir()
    good = make_entry(1, 1, b"payload")
    bad = good[:-1] + b"?"
    neighbours = [make_entry(1, 0, b"a"), make_entry(1, 2, b"c")]
    for log_id, middle in enumerate((bad, good) if damaged_first else (good, bad)):
        one_log(current, log_id, [neighbours[0], middle, neighbours[1]])
    state = LedgerState(1, KEY)
    index = RocksIndex(str(current), 1 << 20)
    index.open()
    index.put_ledgers([(1, state.encode())])
    index.sync()
    index.close()
    report = IndexRebuild(RealDisk(), [str(tmp_path)], None).run()
    assert (report.damaged, report.limbo) == (0, [])
    index.open(must_exist=True)
    assert index.get(1, 1) >> 32 == (1 if damaged_first else 0)
    assert index.last_entry_id(1) == 2
    index.close()


def test_a_ledger_whose_records_are_all_lost_is_in_limbo(tmp_path):
    current = tmp_path / "current"
    current.mkdir()
    one_log(current, 0, [make_entry(1, 0, b"a" * 50), make_entry(2, 0, b"b" * 50)])
    log = current / "0.log"
    data = bytearray(log.read_bytes())
    second = 1024 + 4 + len(make_entry(1, 0, b"a" * 50))
    data[second : second + 30] = bytes(30)
    log.write_bytes(data)
    report = IndexRebuild(RealDisk(), [str(tmp_path)], None, default_master_key=KEY).run()
    assert report.limbo == [2]
    stored, stamp = read_ledgers(str(current))
    assert stamp == 1
    states = {i: decode_ledger_state(i, data) for i, data in stored}
    assert [(i, s.limbo, s.fenced) for i, s in states.items()] == [
        (1, False, True),
        (2, True, True),
    ]
    assert backup_directory(str(current)) == report.backup


# Salvage.


def salvage_of(data, known=(), **kwargs):
    disk = SimDisk(random.Random(0))
    disk.open("/1.log", create=True).pwrite([data], 0)
    file = disk.open("/1.log")
    salvager = LogSalvager(file, file.size(), set(known), DigestGuess(**kwargs), lambda n: None)
    keys = [key for batch in salvager.batches() for key in batch.keys]
    return keys, salvager.salvage


def test_salvage_finds_all_but_what_is_damaged():
    rng = random.Random(4)
    records, ends = [], [1024]
    for ledger_id in (1, 5, 1 << 40):
        for entry_id in range(30):
            records.append(
                (
                    (ledger_id, entry_id),
                    make_entry(ledger_id, entry_id, rng.randbytes(rng.randrange(80))),
                )
            )
            ends.append(ends[-1] + 4 + len(records[-1][1]))
    body = b"".join(struct.pack(">i", len(r)) + r for _, r in records)
    whole = pack_header(0, 0) + body
    keys = [key for key, _ in records]
    assert salvage_of(whole)[0] == keys
    assert salvage_of(whole + bytes(5000))[1].gaps == []
    found, salvage = salvage_of(whole + b"\0\0\0\x50garbage at the end")
    assert found == keys
    assert salvage.gaps == [(ends[-1], len(whole) + 22)]
    for _ in range(300):
        at = rng.randrange(1024, len(whole))
        damaged = bytearray(whole)
        damaged[at] ^= 1 << rng.randrange(8)
        number = sum(end <= at for end in ends) - 1
        for known in ((), (1, 5, 1 << 40)):
            found, salvage = salvage_of(bytes(damaged), known, is_crc32c=True)
            assert [k for k in found if k != keys[number]] == keys[:number] + keys[number + 1 :]
            assert keys[number] in found or salvage.gaps


# The command.


async def test_the_command(node):
    path, stored = node
    shutil.rmtree(f"{path}/{CURRENT}/locations")
    arguments = ["--ledger-dir", f"{path}/ledgers", "--journal-dir", f"{path}/journal", "--json"]
    result = CliRunner().invoke(rebuild_index, arguments)
    assert result.exit_code == 0, result.output
    assert '"are_ledgers_kept": true' in result.output
    assert (await outcome_of(path, stored))[0].intact == 1
    with open(logs_of(path)[0], "r+b") as file:  # noqa: ASYNC230
        file.seek(1024 + 4 + 45)
        file.write(b"!")
    result = CliRunner().invoke(rebuild_index, arguments[:-1])
    assert result.exit_code == 1
    assert "damaged\t1" in result.output
    shutil.rmtree(f"{path}/{CURRENT}/ledgers")
    result = CliRunner().invoke(rebuild_index, arguments)
    assert result.exit_code == 1
    assert "--metadata" in result.output
