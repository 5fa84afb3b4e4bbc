"""What must be true of a bookie that started after a crash (checks/crash_points.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from bookie.journal.journal_files import SPARE_PREFIX, list_journals
from bookie.start import journal_directory, ledger_directories, ledger_directory
from bookie.storage.checkpoint import read_checkpoint
from checks.crash_scenario import key_of, make_entry
from wire.bookkeeper.status import Status

if TYPE_CHECKING:
    from bookie.bookie import Bookie
    from bookie.config import BookieConfig
    from checks.crash_disk import CrashDisk, CrashIndex
    from checks.crash_scenario import Expectation

#: No ledger of a scenario has this id, and no ledger has so many entries.
NEW_LEDGER_ID = 1000
UNUSED_ENTRY_ID = 10**6
#: A round looks at what crashes left, the next compacts it; the log that the checkpoint names stays
#: for one more.
ROUNDS = 3
#: After a checkpoint: the mark's, the one in use, the next one.
JOURNALS_MAX = 3


class Violation(Exception):
    """`kind`: lost, resurrected (or never added), space."""

    def __init__(self, kind: str, words: str) -> None:
        super().__init__(words)
        self.kind = kind


def require(is_so: bool, kind: str, words: str) -> None:
    if not is_so:
        raise Violation(kind, words)


async def check(bookie: Bookie, index: CrashIndex, expected: Expectation) -> None:
    """Nothing lost, nothing resurrected."""
    listed = set(bookie.list_ledgers())
    for ledger_id in expected.deleted:
        require(ledger_id not in listed, "resurrected", f"ledger {ledger_id} is listed")
        found = index.last_entry_id(ledger_id)
        require(found < 0, "resurrected", f"ledger {ledger_id}: the index has entry {found}")
    acknowledged: dict[int, set[int]] = {}
    for ledger_id, entry_id in expected.acknowledged:
        acknowledged.setdefault(ledger_id, set()).add(entry_id)
    for ledger_id in acknowledged.keys() | expected.fenced | _packed(expected):
        is_there = ledger_id in listed or ledger_id in expected.dying
        require(is_there, "lost", f"ledger {ledger_id} is not listed")
    for ledger_id in sorted({key[0] for key in expected.written} | listed):
        if ledger_id in listed:
            await _check_entries(bookie, ledger_id, acknowledged.get(ledger_id, set()), expected)
            _check_state(bookie, ledger_id, expected)
        else:
            status, _ = await bookie.read_entry(ledger_id, 0)
            words = f"ledger {ledger_id} is not listed, and answers {status!r}"
            require(status is Status.ENOLEDGER, "resurrected", words)


def _packed(expected: Expectation) -> set[int]:
    return {ledger_id for ledger_id, found in expected.packets.items() if None not in found}


async def _check_entries(
    bookie: Bookie, ledger_id: int, acknowledged: set[int], expected: Expectation
) -> None:
    entry_ids = set(await bookie.entries(ledger_id) or ())
    missing = sorted(acknowledged - entry_ids)
    require(not missing, "lost", f"ledger {ledger_id} has no entries {missing}")
    for entry_id in sorted(entry_ids):
        key = (ledger_id, entry_id)
        require(key in expected.written, "resurrected", f"entry {key} was never added")
        status, entry = await bookie.read_entry(*key)
        require(status is Status.EOK, "lost", f"entry {key} answers {status!r}")
        require(bytes(entry) == expected.written[key], "lost", f"entry {key} has other bytes")


def _check_state(bookie: Bookie, ledger_id: int, expected: Expectation) -> None:
    """Its key, its fence, its LAC packet."""
    entry = make_entry(ledger_id, UNUSED_ENTRY_ID, 0)
    answers: list[Status] = []
    bookie.add_entry(ledger_id, UNUSED_ENTRY_ID, b"wrong key", [entry], 0, answers.append)
    require(answers == [Status.EUA], "lost", f"ledger {ledger_id}: a wrong key gets {answers}")
    if ledger_id in expected.fenced:
        key = key_of(ledger_id)
        bookie.add_entry(ledger_id, UNUSED_ENTRY_ID, key, [entry], 0, answers.append)
        is_fenced = answers[1:] == [Status.EFENCED]
        require(is_fenced, "lost", f"ledger {ledger_id} was fenced, and an add gets {answers[1:]}")
    _, packet = bookie.get_explicit_lac(ledger_id)
    packets = expected.packets.get(ledger_id, {None})
    kind = "lost" if packet is None else "resurrected"
    require(packet in packets, kind, f"ledger {ledger_id} has the LAC packet {packet!r}")


async def check_writable(bookie: Bookie, expected: Expectation) -> None:
    """It takes an add, of a new ledger and with the right key of those that are there."""
    for ledger_id in sorted(expected.ledgers - expected.fencing):
        # Of one that is not NEW_LEDGER_ID the first entry once more: no other was ever given.
        key = (ledger_id, 0)
        if key not in expected.written and ledger_id != NEW_LEDGER_ID:
            continue
        entry = expected.written.setdefault(key, make_entry(*key, 40))
        status = await _add(bookie, key, entry)
        require(status is Status.EOK, "lost", f"ledger {ledger_id}: an add gets {status!r}")
        expected.acknowledged.add(key)


async def _add(bookie: Bookie, key: tuple[int, int], entry: bytes) -> Status:
    answers: list[Status] = []
    answered = trio.Event()

    def done(status: Status) -> None:
        answers.append(status)
        answered.set()

    bookie.add_entry(*key, key_of(key[0]), [entry], 0, done)
    await answered.wait()
    return answers[0]


async def check_space(
    bookie: Bookie,
    config: BookieConfig,
    disk: CrashDisk,
    index: CrashIndex,
    expected: Expectation,
) -> None:
    """Some rounds of the collector later only what is alive takes space."""
    for _ in range(ROUNDS):
        await bookie.collect_garbage(force_major=True)
        await bookie.flush()
    logs = bookie._logs.all()
    on_disk = {
        f"{directory}/{name}"
        for directory in ledger_directories(config)
        for name in disk.list(directory)
        if ".log" in name
    }
    known = {log.path for log in logs}
    require(on_disk == known, "space", f"logs {sorted(on_disk ^ known)} are on disk or known only")
    for log in logs:
        require(not log.is_compacting, "space", f"{log.path} is left")
        require(log.is_known, "space", f"{log.path}: nobody knows what is in it")
        gone = sorted(set(await bookie._logs.walk.live_ledgers(log)) - expected.ledgers)
        require(not gone, "space", f"{log.path} still counts ledgers {gone}")
        if not log.is_written and log.log_id not in bookie._checkpointer.checkpoint_log_ids:
            usage = bookie.gc.usage(log)
            is_used = usage >= config.gc.major_threshold
            require(is_used, "space", f"{log.path}: {usage:.2f} of it is alive")
    gone = [i for i, _, _ in index.locations() if i not in expected.ledgers]
    require(not gone, "space", f"the index has entries of ledgers {sorted(set(gone))}")
    _check_journals(config, disk)


def _check_journals(config: BookieConfig, disk: CrashDisk) -> None:
    directory = journal_directory(config)
    mark = read_checkpoint(disk, ledger_directory(config)).mark
    journals = list_journals(disk, directory)
    old = [journal_id for journal_id in journals if journal_id < mark.journal_id]
    require(not old, "space", f"journals {old} are before the mark's, {mark.journal_id}")
    spares = [name for name in disk.list(directory) if name.startswith(SPARE_PREFIX)]
    is_bounded = len(journals) <= JOURNALS_MAX and len(spares) <= config.journal_spare_files_max
    require(is_bounded, "space", f"journals {journals}, spares {spares}")
