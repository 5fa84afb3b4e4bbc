"""Damage to a bookie's disk: bits that change, and parts that cannot be read, in every structure.

In each world all lasting damage is one bookie's, so that of what was acknowledged one copy at most
is lost; and none is done where the ack quorum is one. A bookie that finds damage when it starts
refuses to, as it owes its owner; then nobody starts it again, and the world goes on without it.

What is spared, for there one copy cannot be told from none: the end of the journal behind the last
group of which a later one says that it was durable. A rotten group there looks like one that the
power failure tore, and is cut (bookie/journal/journal_replay.py).
"""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from bookie.cookie import FILE_NAME
from bookie.journal.journal_format import (
    GROUP_HEADER_SIZE,
    GROUP_MAGIC,
    OLD_GROUP_HEADER_SIZE,
    group_matches,
    parse_group_header,
)
from bookie.storage.checkpoint import CHECKPOINT_NAME, LAST_MARK_NAME
from sim import preset

if TYPE_CHECKING:
    from collections.abc import Callable

    from runtime.sim_disk import SimDisk
    from sim.nodes import BookieNode
    from sim.plan import Fault
    from sim.world import World

JOURNAL = f"{preset.JOURNAL_DIRECTORY}/current"
LEDGERS = f"{preset.LEDGER_DIRECTORY}/current"
#: What a disk loses at once.
SECTOR_BYTES = 512
#: A bookie that was damaged and refuses so often in a row is given up.
REFUSALS_MAX = 3
_MAGIC = GROUP_MAGIC.to_bytes(4, "big")

#: A place in a file: path, offset, size.
Place = tuple[str, int, int]


class Damage:
    """Of one world."""

    def __init__(self, world: World) -> None:
        self._world = world

    @property
    def _is_allowed(self) -> bool:
        shape = self._world.shape
        return shape.copies[2] > 1 and shape.bookies > shape.copies[0]

    def bookie(self) -> BookieNode | None:
        """Whose disk it is; None if there may be no damage."""
        world = self._world
        if not self._is_allowed:
            return None
        bookie = world.bookies[world.seed % len(world.bookies)]
        world.rotten = bookie.name
        return bookie

    def rot(self, fault: Fault) -> None:
        """A bit of any structure; of some the bookie learns when it starts again."""

        def flip(bookie: BookieNode, path: str, at: int) -> None:
            self._world.trace.event(bookie.name, "rots", f"{path} {at}")
            bookie.disk.flip_bit(path, at, fault.number % 8)

        self._damage(fault, flip, "")

    def latent_errors(self, fault: Fault) -> None:
        """A sector of any file cannot be read."""

        def lose(bookie: BookieNode, path: str, at: int) -> None:
            at = at // SECTOR_BYTES * SECTOR_BYTES
            self._world.trace.event(bookie.name, "loses", f"{path} {at}+{SECTOR_BYTES}")
            bookie.disk.make_unreadable(path, at, SECTOR_BYTES)

        self._damage(fault, lose, ", unreadable")

    def _damage(
        self, fault: Fault, harm: Callable[[BookieNode, str, int], None], what: str
    ) -> None:
        """Has some place of the bookie's disk harmed, and the bookie killed, or not."""
        bookie = self.bookie()
        if bookie is None:
            return
        structure, place = self._place(bookie, fault)
        if structure == "index":
            self._index(bookie, fault)
        elif place is not None:
            path, offset, size = place
            harm(bookie, path, offset + int(fault.b * 7919) % size)
        self._world.trace.count(f"damaged: {structure}{what}")
        if fault.b < 0.6:
            bookie.crash(is_silent=fault.b < 0.3)
            self._world.start_later(bookie, fault.seconds / 4)

    def _index(self, bookie: BookieNode, fault: Fault) -> None:
        """RocksDB's checksums tell of any damage: when it is opened, or when it is read."""
        self._world.trace.event(bookie.name, "rots", "index")
        bookie.index.damage(is_told_at_start=fault.b < 0.3)

    # Where.

    def _place(self, bookie: BookieNode, fault: Fault) -> tuple[str, Place | None]:
        """What is damaged, and where; None if there is none of it."""
        finders: tuple[tuple[str, Callable[[SimDisk, float], Place | None]], ...] = (
            ("journal", self._journal),
            ("journal", self._journal),
            ("journal header", lambda disk, share: self._any(disk, JOURNAL, ".txn", share, 512)),
            ("entry log", lambda disk, share: self._any(disk, LEDGERS, ".log", share, 0)),
            ("entry log header", lambda disk, share: self._any(disk, LEDGERS, ".log", share, 1024)),
            ("checkpoint", lambda disk, _share: self._whole(disk, f"{LEDGERS}/{CHECKPOINT_NAME}")),
            ("lastMark", lambda disk, _share: self._whole(disk, f"{LEDGERS}/{LAST_MARK_NAME}")),
            ("cookie", lambda disk, _share: self._whole(disk, f"{LEDGERS}/{FILE_NAME}")),
            ("index", lambda _disk, _share: None),
        )
        name, find = finders[int(fault.a * len(finders))]
        return name, find(bookie.disk, fault.a * 997 % 1)

    @staticmethod
    def _whole(disk: SimDisk, path: str) -> Place | None:
        size = len(disk.durable_content(path)) if disk.exists(path) else 0
        return (path, 0, size) if size else None

    @staticmethod
    def _files(disk: SimDisk, directory: str, suffix: str) -> list[str]:
        names = disk.list(directory) if disk.exists(directory) else []
        return [f"{directory}/{name}" for name in names if name.endswith(suffix)]

    def _any(
        self, disk: SimDisk, directory: str, suffix: str, share: float, head: int
    ) -> Place | None:
        """One of these files; of it the first `head` bytes, or all."""
        paths = self._files(disk, directory, suffix)
        if not paths:
            return None
        place = self._whole(disk, paths[int(share * len(paths))])
        return place if place is None or not head else (place[0], 0, min(head, place[2]))

    def _journal(self, disk: SimDisk, share: float) -> Place | None:
        """One of the groups that a later one says were durable."""
        groups: list[tuple[int, Place]] = []
        durable = -1
        for path in self._files(disk, JOURNAL, ".txn"):
            content = disk.durable_content(path)
            journal_id = int(posixpath.basename(path).partition(".")[0], 16)
            at = content.find(_MAGIC)
            while at >= 0:
                at -= GROUP_HEADER_SIZE - OLD_GROUP_HEADER_SIZE  # the magic is in its midst
                parsed = parse_group_header(content[at : at + GROUP_HEADER_SIZE])
                if parsed is not None:
                    crc, header = parsed
                    is_own = header.journal_id == journal_id and header.offset == at
                    size = GROUP_HEADER_SIZE + header.body_size
                    if is_own and group_matches(content[at : at + size], crc, header.body_size):
                        groups.append((header.sequence, (path, at, size)))
                        durable = max(durable, header.durable_sequence)
                at = content.find(_MAGIC, at + 1 + GROUP_HEADER_SIZE - OLD_GROUP_HEADER_SIZE)
        told = [place for sequence, place in groups if sequence <= durable]
        return told[int(share * len(told))] if told else None
