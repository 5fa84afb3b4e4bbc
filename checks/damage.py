"""What damage does: journals damaged at every byte, and a whole bookie's files at random ones.

    python -m checks.damage [--cases 300] [--seed 1] [--directory DIR]

Every case damages a copy of what a bookie left behind when it was killed, starts from that, and
reads everything that was acknowledged. `kept`: all of it was there. `refused`: the start was, with
the name of a file. `cut`: acknowledged records at the end were taken for a torn write. `lost` and
`invented` (bytes that nobody wrote, or «no such entry») must be none.
"""

from __future__ import annotations

import argparse
import random
import struct
import tempfile
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import trio

from bookie.config import BookieConfig
from bookie.errors import BookieStartError, CorruptionError
from bookie.journal.journal import Journal
from bookie.journal.journal_files import JournalFiles, list_journals
from bookie.journal.journal_format import Position, file_name, first_group_offset
from bookie.journal.journal_replay import JournalReplay
from checks.damage_bookie import bookie_figures
from runtime.sim_disk import SimDisk
from runtime.turn import Turn

if TYPE_CHECKING:
    from wire.bookkeeper.status import Status

DIRECTORY = "/j"
GENESIS = Position(0, 0, 0)
ALIGNMENT = 512
SECTOR_SIZE_BYTES = 512
CONFIG = BookieConfig(
    bookie_id="bookie",
    instance_id="",
    journal_directory="/unused",
    ledger_directory="/unused",
    journal_size_bytes=6144,
    journal_alignment_bytes=ALIGNMENT,
    journal_group_size_max_bytes=1024,
    entry_size_max_bytes=1024,
    entry_log_size_limit_bytes=16 * 1024,
    write_cache_size_bytes=16 * 1024,
    write_cache_segment_size_bytes=1024,
)


@dataclass(slots=True)
class Figures:
    name: str
    cases: int = 0
    kept: int = 0
    refused: int = 0
    cut: int = 0
    lost: int = 0
    invented: int = 0

    def row(self) -> str:
        return (
            f"{self.name:44s} {self.cases:7d} {self.kept:7d} {self.refused:8d} {self.cut:6d} "
            f"{self.lost:5d} {self.invented:9d}"
        )


HEAD = (
    f"{'journal':44s} {'cases':>7s} {'kept':>7s} {'refused':>8s} {'cut':>6s} {'lost':>5s} "
    f"{'invented':>9s}"
)


@dataclass(slots=True)
class Journals:
    """What a killed bookie left: the journals by name, the records that were acknowledged, and
    those of the last groups, that no later one says were durable."""

    files: dict[str, bytes]
    acked: list[tuple[int, int, bytes]]
    unattested: int
    #: Where groups are: (file name, start, end), in order; what is outside was never written.
    groups: list[tuple[str, int, int]]


async def write_journals(*, attested: bool, groups: int = 9, seed: int = 1) -> Journals:
    """Two journals in a chain. `attested`: the bookie was idle for a moment before it was killed,
    so that the journal says of its last group that it was durable."""
    disk = SimDisk(random.Random(seed))
    disk.make_directory(DIRECTORY)
    turn = Turn()
    errors: list[OSError] = []
    files = JournalFiles(CONFIG, disk, DIRECTORY)
    journal = Journal(CONFIG, turn, files, errors.append, lambda: None)
    files.load(0)
    await files.prepare()
    journal.open(0)
    rng = random.Random(seed)
    acked: list[tuple[int, int, bytes]] = []
    spans = []
    for number in range(groups):
        await files.prepare() if files._next is None else None
        start = journal._offset
        for entry_id in range(3):
            payload = rng.randbytes(rng.randrange(150))
            record = struct.pack(">iqq", 16 + len(payload), number, entry_id) + payload
            key = (number, entry_id, payload)
            journal.append(memoryview(record), 0, len(record), partial(_acked, acked, key))
        turn.run()
        name = file_name(journal._journal_id)
        if start > journal._offset:
            start = first_group_offset(ALIGNMENT)
        spans.append((name, start, journal._offset))
    if attested:
        assert journal.attest()
        turn.run()
    assert not errors
    assert len(acked) == 3 * groups
    names = [file_name(journal_id) for journal_id in list_journals(disk, DIRECTORY)][:2]
    contents = {}
    for name in names:
        file = disk.open(f"{DIRECTORY}/{name}")
        contents[name] = file.pread(file.size(), 0)
    return Journals(contents, acked, 0 if attested else 3, spans)


def _acked(
    acked: list[tuple[int, int, bytes]], key: tuple[int, int, bytes], status: Status
) -> None:
    acked.append(key)


def _disk_with(files: dict[str, bytes]) -> SimDisk:
    disk = SimDisk(random.Random(0))
    disk.make_directory(DIRECTORY)
    for name, content in files.items():
        disk.open(f"{DIRECTORY}/{name}", create=True).pwrite([content], 0)
    return disk


def try_case(journals: Journals, name: str, content: bytes, figures: Figures) -> None:
    """Replays with one file replaced, and counts what came of it."""
    figures.cases += 1
    disk = _disk_with({**journals.files, name: content})
    try:
        replay = JournalReplay(disk, DIRECTORY, GENESIS)
        found = [(i, j, bytes(record[16:])) for i, j, record in replay.records() if j >= 0]
    except BookieStartError as error:
        if not isinstance(error, CorruptionError) or not error.file.startswith(f"{DIRECTORY}/"):
            raise AssertionError("refused without saying where") from error
        figures.refused += 1
        return
    acked = journals.acked
    if found == acked:
        figures.kept += 1
    elif found != acked[: len(found)]:
        figures.invented += 1
    elif len(acked) - len(found) <= journals.unattested:
        figures.cut += 1
    else:
        figures.lost += 1


def journal_figures(journals: Journals, what: str, masks: tuple[int, ...]) -> list[Figures]:
    """Every byte of every file truncated at, flipped with each mask; every sector zeroed."""
    truncated = Figures(f"{what}, truncated at every byte")
    flips = [Figures(f"{what}, every byte xor {mask:#04x}") for mask in masks]
    zeroed = Figures(f"{what}, every sector zeroed")
    for name, content in journals.files.items():
        for at in range(len(content)):
            try_case(journals, name, content[:at], truncated)
            for mask, figures in zip(masks, flips, strict=True):
                damaged = bytearray(content)
                damaged[at] ^= mask
                try_case(journals, name, bytes(damaged), figures)
        for at in range(0, len(content), SECTOR_SIZE_BYTES):
            rest = content[at + SECTOR_SIZE_BYTES :]
            part = content[:at] + bytes(len(content[at : at + SECTOR_SIZE_BYTES])) + rest
            try_case(journals, name, part, zeroed)
    return [truncated, *flips, zeroed]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", default=None)
    arguments = parser.parse_args()
    print(HEAD)
    for attested in (False, True):
        journals = trio.run(partial(write_journals, attested=attested))
        what = "after a moment without adds" if attested else "killed right after an ack"
        for figures in journal_figures(journals, what, (0x01, 0x80, 0xFF)):
            print(figures.row())
    with tempfile.TemporaryDirectory(dir=arguments.directory) as path:
        for line in trio.run(bookie_figures, path, arguments.cases, arguments.seed):
            print(line)


if __name__ == "__main__":
    main()
