"""A bookie's machine loses power: of what was not synced, some is there afterwards and some not.

While the bookie is stopped its files are copied, and from then on no sync returns (harness/
failsync.py), also none that was under way: what a sync was answered for is in the copies, and
nothing more is acknowledged. The bookie goes on for a moment and is killed. What differs from the
copies was not synced: of each file it is taken back, cut, or kept in some of the sectors and not
in others.

Names are left alone: what was made, renamed or removed since then stays so. A file that was made
since then loses a part of its bytes, too.
"""

import os
import random
import shutil
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from .nemeses import OurBookieNemesis

SECTOR_BYTES = 512
UNSYNCED_S, BETWEEN_S = (0.1, 0.5), (0.0, 0.3)
#: Until something was written that is not synced: a journal writes nothing while it waits for one.
TRIES = 6


class LosePower(OurBookieNemesis):
    name = "bookie loses power"
    weight = 3

    def victims(self) -> list[object]:
        return [each for each in super().victims() if each.process is not None]

    def strike(self) -> None:
        bookie = self.victim
        kept = bookie.directory / "durable"
        held = ExitStack()
        try:
            for _ in range(TRIES):
                bookie.flag.unlink(missing_ok=True)
                time.sleep(self.rng.uniform(*BETWEEN_S))
                durable = self._forbid_syncs(kept, held)
                time.sleep(self.rng.uniform(*UNSYNCED_S))
                if any(_differs(path, durable) for path in _files(bookie.data_directories)):
                    break
            bookie.kill()
            for path in _files(bookie.data_directories):
                lost = tear(path, durable.get(path.stat().st_ino), self.rng)
                if lost:
                    self.world.sectors_lost[path.suffix or path.name] += lost
        finally:
            held.close()
            bookie.kill()
            bookie.flag.unlink(missing_ok=True)
            shutil.rmtree(kept, ignore_errors=True)

    def _forbid_syncs(self, kept: Path, held: ExitStack) -> dict[int, Path]:
        """Copies of all files, by inode, as they are when no sync returns any more. `held` keeps
        the inodes from being used for other files."""
        bookie = self.victim
        # Written aside, as the bookie may look at any moment; «!/»: of any file.
        aside = bookie.flag.with_suffix(".new")
        aside.write_text("!/")
        bookie.freeze()
        try:
            aside.rename(bookie.flag)
            held.close()
            durable = {}
            for path in _files(bookie.data_directories):
                number = os.fstat(held.enter_context(path.open("rb")).fileno()).st_ino
                durable[number] = _copy(path, kept / str(number))
            return durable
        finally:
            bookie.thaw()

    def mend(self) -> None:
        self.launch()


def _files(directories: list[Path]) -> list[Path]:
    return sorted(
        path for directory in directories for path in directory.rglob("*") if path.is_file()
    )


def _copy(path: Path, to: Path) -> Path:
    to.parent.mkdir(exist_ok=True)
    return Path(shutil.copyfile(path, to))


def _differs(path: Path, durable: dict[int, Path]) -> bool:
    with suppress(FileNotFoundError):  # the bookie goes on
        copy = durable.get(path.stat().st_ino)
        before = b"" if copy is None else copy.read_bytes()
        return path.read_bytes() != before
    return False


def tear(path: Path, durable: Path | None, rng: random.Random) -> int:
    """Takes back some of what is in `path` and not in `durable`; how many sectors."""
    before = durable.read_bytes() if durable is not None else b""
    after = path.read_bytes()
    if after == before:
        return 0
    longest = max(len(before), len(after))
    changed = [
        at
        for at in range(0, longest, SECTOR_BYTES)
        if before[at : at + SECTOR_BYTES] != after[at : at + SECTOR_BYTES]
    ]
    lost = _lost(changed, rng)
    lost_count = len(lost)
    size_bytes = len(after)
    # A file's new size is written as other things are: nothing that is kept needs what comes after.
    while size_bytes > len(before) and lost and lost[-1] + SECTOR_BYTES >= size_bytes:
        size_bytes = max(lost.pop(), len(before))
    file = os.open(path, os.O_RDWR)
    try:
        os.ftruncate(file, size_bytes)
        for at in lost:
            part = after[at : min(at + SECTOR_BYTES, size_bytes)]
            # Where there was nothing are zeros.
            old = before[at : at + len(part)]
            os.pwrite(file, old + bytes(len(part) - len(old)), at)
    finally:
        os.close(file)
    return lost_count


def _lost(changed: list[int], rng: random.Random) -> list[int]:
    """At least one, in ascending order: SIGKILL alone keeps all."""
    match rng.randrange(3):
        case 0:
            return list(changed)
        case 1:
            return changed[rng.randrange(len(changed)) :]
        case _:
            return sorted(rng.sample(changed, rng.randint(1, len(changed))))
