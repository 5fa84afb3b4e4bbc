"""A whole bookie: killed, damaged in one place of one file, started again (checks/damage.py)."""

from __future__ import annotations

import os
import random
import shutil
import struct
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import trio
from crc32c import crc32c

from bookie.bookie import Bookie
from bookie.config import BookieConfig
from bookie.errors import BookieStartError
from bookie.storage.rocks_index import RocksIndex
from runtime.env import real_env
from runtime.turn import Turn
from wire.bookkeeper.status import FLAG_DO_FENCING, Status

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

KEY = b"k" * 20
LEDGERS = 5
SECTOR_SIZE_BYTES = 512
#: The first of the fenced ledgers, one for each life.
FENCED = 50
KINDS = ("flip", "zero", "truncate", "remove")

#: The directory in which the bookie ran; each case is a copy with a name of its own.
LIVE = "live"
#: Files that RocksDB writes and never reads.
UNREAD = tuple(
    f"{d}: {n}" for d in ("locations", "ledgers") for n in ("LOG", "OPTIONS", "IDENTITY")
)

Entries = dict[tuple[int, int], bytes]


def make_config(path: str) -> BookieConfig:
    return BookieConfig(
        bookie_id="bookie",
        instance_id="instance",
        journal_directory=f"{path}/journal",
        ledger_directory=f"{path}/ledgers",
        journal_size_bytes=128 * 1024,
        journal_group_size_max_bytes=16 * 1024,
        journal_attest_interval_ms=10,
        write_cache_size_bytes=64 * 1024,
        write_cache_segment_size_bytes=8 * 1024,
        write_cache_preallocated_size_bytes=0,
        entry_log_size_limit_bytes=64 * 1024,
        entry_size_max_bytes=8 * 1024,
        read_ahead_size_bytes=16 * 1024,
        flush_interval_ms=60_000,
        verify_digest_on_write=True,
        disk_reserve_size_bytes=0,
        disk_usage_threshold=1.0,
        disk_usage_warn_threshold=1.0,
    )


def make_entry(ledger_id: int, entry_id: int, payload: bytes) -> bytes:
    header = struct.pack(">qqqq", ledger_id, entry_id, entry_id - 1, len(payload))
    return header + struct.pack(">I", crc32c(payload, crc32c(header))) + payload


@asynccontextmanager
async def serving(config: BookieConfig, *, kill: bool = False) -> AsyncIterator[Bookie]:
    """A bookie on a real disk. `kill`: it ends as a killed process does."""
    turn = Turn()
    bookie = Bookie(config, real_env(turn=turn))

    async def run(task_status: trio.TaskStatus[None]) -> None:
        try:
            await bookie.run(task_status=task_status)
        except OSError:
            if not kill:
                raise

    async with trio.open_nursery() as nursery:
        nursery.start_soon(turn.serve)
        await nursery.start(run)
        yield bookie
        if kill:
            bookie.crash()
        nursery.cancel_scope.cancel()


async def add_all(bookie: Bookie, entries: Entries) -> None:
    """Returns when all are acknowledged."""
    waiting = len(entries)
    event = trio.Event()

    def done(status: Status) -> None:
        nonlocal waiting
        assert status is Status.EOK, status
        waiting -= 1
        if not waiting:
            event.set()

    for number, ((ledger_id, entry_id), entry) in enumerate(entries.items()):
        bookie.add_entry(ledger_id, entry_id, KEY, [entry], 0, done)
        if number % 20 == 19:
            await trio.lowlevel.checkpoint()
    await event.wait()


async def fill(path: str, base: str, rng: random.Random, *, lives: int = 3) -> Entries:
    """Several lives of a bookie in `path`, and in `base` a copy of its files, as a kill in the last
    one leaves them: entries in complete logs, in tables of the index and in its log, and in the
    journal alone; deleted ledgers, a fenced one. Returns what must be readable."""
    config = make_config(path)
    stored: Entries = {}
    next_ids = [0] * LEDGERS
    for life in range(lives):
        async with serving(config, kill=life == lives - 1) as bookie:
            for round_number in range(4):
                entries = {}
                if round_number == 0:
                    deleted = {(80 + life, 0): make_entry(80 + life, 0, b"flushed, then deleted")}
                    await add_all(bookie, deleted)
                for _ in range(60):
                    ledger_id = rng.randrange(LEDGERS)
                    key = (ledger_id, next_ids[ledger_id])
                    next_ids[ledger_id] += 1
                    entries[key] = make_entry(*key, rng.randbytes(rng.randrange(400)))
                await add_all(bookie, entries)
                stored.update(entries)
                if round_number != 3:
                    await bookie.flush()
                if round_number == 1:
                    index = bookie._index
                    assert isinstance(index, RocksIndex)
                    for database in (index._locations, index._ledgers):
                        assert database is not None
                        database.rocks.flush(True)
            # Of the last life, a fence that only the journal and the ledgers' log have.
            await add_all(bookie, {(FENCED + life, 0): make_entry(FENCED + life, 0, b"fenced")})
            stored[FENCED + life, 0] = make_entry(FENCED + life, 0, b"fenced")
            status, _ = await bookie.read_entry(
                FENCED + life, -1, flags=FLAG_DO_FENCING, master_key=KEY
            )
            assert status is Status.EOK
            if life == lives - 1:
                await bookie.flush()
            await add_all(bookie, {(99 + life, 0): make_entry(99 + life, 0, b"deleted")})
            assert await bookie.delete_ledger(99 + life) is Status.EOK
            assert await bookie.delete_ledger(80 + life) is Status.EOK
            await trio.sleep(0.05)  # the journal says of its last group that it was durable
            if life == lives - 1:
                shutil.copytree(path, base, ignore=shutil.ignore_patterns("LOCK"))
    return stored


def files_of(path: str) -> list[str]:
    found = (os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
    return sorted(file for file in found if os.path.getsize(file))


def damage(path: str, kind: str, rng: random.Random) -> str:
    """Damages the file in one place and makes the kernel forget its pages; says what it did."""
    if kind == "remove":
        os.remove(path)
        return "removed"
    size = os.path.getsize(path)
    offset = rng.randrange(size)
    with open(path, "r+b") as file:
        if kind == "truncate":
            file.truncate(offset)
        else:
            length = 1
            if kind == "zero":
                offset -= offset % SECTOR_SIZE_BYTES
                length = min(SECTOR_SIZE_BYTES, size - offset)
            file.seek(offset)
            before = file.read(length)
            file.seek(offset)
            file.write(bytes(length) if kind == "zero" else bytes([before[0] ^ rng.choice(MASKS)]))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return f"{kind} at {offset}"


MASKS = (1, 2, 4, 8, 16, 32, 64, 128, 255)


def file_class(path: str) -> str:
    """What kind of file of a bookie it is."""
    folder, name = os.path.split(path)
    if os.path.basename(folder) in ("locations", "ledgers") and name != "VERSION":
        database = os.path.basename(folder)
        if name.endswith((".sst", ".log")):
            return f"{database}: {name.rpartition('.')[2]}"
        return f"{database}: {name.partition('-')[0].partition('.')[0]}"
    if name.endswith(".log"):
        return "entry log"
    if name.endswith(".txn"):
        return "journal"
    return name.partition("-")[0]


@dataclass(slots=True)
class Outcome:
    cases: int = 0
    #: Everything was read as it was written.
    intact: int = 0
    #: Some entries were answered EIO.
    unreadable: int = 0
    refused: int = 0
    lost: int = 0
    invented: int = 0
    #: What the cases with lost or invented entries were, and refusals that name no file.
    stories: list[str] = field(default_factory=list)


async def read_all(bookie: Bookie, stored: Entries, outcome: Outcome, story: str) -> None:
    unreadable = lost = invented = 0
    for ledger_id in {ledger_id for ledger_id, _ in stored if FENCED <= ledger_id < FENCED + 9}:
        # A fence that is forgotten is as bad as an entry that is.
        answers: list[Status] = []
        late = make_entry(ledger_id, 1, b"late")
        bookie.add_entry(ledger_id, 1, KEY, [late], 0, answers.append)
        lost += answers != [Status.EFENCED]
    for (ledger_id, entry_id), entry in stored.items():
        status, found = await bookie.read_entry(ledger_id, entry_id)
        if status is Status.EOK:
            invented += bytes(found) != entry
        elif status in (Status.EIO, Status.EUNKNOWNLEDGERSTATE):
            unreadable += 1
        else:
            lost += 1
    if lost or invented:
        outcome.stories.append(f"{story}: lost={lost} invented={invented}")
    outcome.lost += bool(lost)
    outcome.invented += bool(invented)
    if not lost and not invented:
        outcome.unreadable += bool(unreadable)
        outcome.intact += not unreadable


def prepare(path: str) -> None:
    """Makes a copy a bookie's own, and the kernel forget its pages."""
    # The cookie has the paths that it was made with.
    for cookie in Path(path).rglob("VERSION"):
        words = cookie.read_bytes()
        cookie.write_bytes(words.replace(LIVE.encode(), os.path.basename(path).encode()))
    for file in files_of(path):
        with open(file, "rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


async def one_case(
    base: str, path: str, file: str, kind: str, rng: random.Random, stored: Entries, out: Outcome
) -> None:
    """`base` is copied to `path`, `file` (relative) damaged, and the bookie started there."""
    out.cases += 1
    shutil.copytree(base, path)
    try:
        story = f"{file}: {damage(os.path.join(path, file), kind, rng)}"
        prepare(path)
        try:
            async with serving(make_config(path)) as bookie:
                await read_all(bookie, stored, out, story)
        except* BookieStartError as group:
            out.refused += 1
            words = str(group.exceptions[0])
            if path not in words:
                out.stories.append(f"{story}: refused without naming a file: {words}")
        except* OSError as group:
            out.refused += 1
            words = str(group.exceptions[0])
            if path not in words:
                out.stories.append(f"{story}: ended without naming a file: {words}")
    finally:
        shutil.rmtree(path)


async def damage_everywhere(
    directory: str,
    cases: int,
    seed: int,
    kinds: tuple[str, ...] = KINDS,
    without: tuple[str, ...] = UNREAD,
) -> dict[tuple[str, str], Outcome]:
    """Outcomes by (kind of damage, kind of file)."""
    rng = random.Random(seed)
    base = os.path.join(directory, "base")
    stored = await fill(os.path.join(directory, LIVE), base, rng)
    classes: dict[str, list[str]] = {}
    for file in files_of(base):
        if file_class(file) not in without:
            classes.setdefault(file_class(file), []).append(file.removeprefix(f"{base}/"))
    outcomes: dict[tuple[str, str], Outcome] = {}
    for number in range(cases):
        kind = kinds[number % len(kinds)]
        name = rng.choice(sorted(classes))
        out = outcomes.setdefault((kind, name), Outcome())
        path = os.path.join(directory, f"case{number}")
        await one_case(base, path, rng.choice(classes[name]), kind, rng, stored, out)
    return outcomes


async def bookie_figures(directory: str, cases: int, seed: int) -> list[str]:
    """The table, as lines."""
    lines = [
        "",
        f"{'whole bookie':34s} {'cases':>6s} {'intact':>7s} {'some EIO':>9s} {'refused':>8s} "
        f"{'lost':>5s} {'invented':>9s}",
    ]
    stories = []
    outcomes = await damage_everywhere(directory, cases, seed)
    for (kind, name), out in sorted(outcomes.items()):
        lines.append(
            f"{kind + ' ' + name:34s} {out.cases:6d} {out.intact:7d} {out.unreadable:9d} "
            f"{out.refused:8d} {out.lost:5d} {out.invented:9d}"
        )
        stories += out.stories
    return lines + stories
