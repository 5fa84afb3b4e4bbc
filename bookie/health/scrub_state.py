"""Where the scrub stands: the file `scrub` of the ledger directory (docs/formats.md).

A pass goes on after a restart. The list of damage (damage.py) is only in memory, and without it a
bookie would say after a restart that it has its damaged entries: auto-recovery would find nothing
to mend, and take its marks away. So the logs that have damage are remembered, too, and after a
start the scrub looks at these first. So are those in which reads are cut: of an entry that was
mended the damaged record is still there, behind the one in front of it. Nothing else that the file
says is believed: by then an entry may have been mended, or compaction may have moved it.

Owner: the event loop's thread.
"""

from __future__ import annotations

import logging
import posixpath
from typing import TYPE_CHECKING

import trio

from bookie.storage.entry_log_format import log_id_of

if TYPE_CHECKING:
    from bookie.health.damage import DamageReports
    from runtime.disk import Disk
    from runtime.env import Clock

logger = logging.getLogger(__name__)

FILE_NAME = "scrub"
#: Logs that are remembered.
SUSPECTS_MAX = 1000
#: The file, at most: a number has 20 digits.
SIZE_MAX_BYTES = 21 * (SUSPECTS_MAX + 2)
#: Damage that is found in a row is written down together.
PAUSE_SECONDS = 1.0


class ScrubState:
    def __init__(self, disk: Disk, clock: Clock, path: str, damages: DamageReports) -> None:
        self._disk = disk
        self._clock = clock
        self._path = path
        self._damages = damages
        #: Of the pass under way, or of the last one; wall clock, milliseconds.
        self.started_ms = 0
        #: The log that is next in it; -1: it is done.
        self.next_log_id = -1
        #: Logs that had damage before the start, and were not looked at since.
        self.suspects: list[int] = []
        self._one_at_a_time = trio.Lock()
        self._is_new = trio.Event()
        damages.on_damage(lambda _ledger_id: self._is_new.set())

    def load(self) -> None:
        """What the last process stored."""
        self.started_ms, self.next_log_id = self._clock.time_ms(), -1
        if not self._disk.exists(self._path):
            return
        file = self._disk.open(self._path)
        try:
            started_ms, self.next_log_id, *suspects = map(
                int, file.pread(SIZE_MAX_BYTES, 0).split()
            )
            self.started_ms = min(started_ms, self.started_ms)
            self.suspects = suspects
        except ValueError:
            logger.warning("%s is damaged: the next pass is a whole one", self._path)
            self.started_ms, self.next_log_id = 0, -1
        except OSError as error:
            logger.warning("%s cannot be read: the next pass is a whole one: %s", self._path, error)
            self.started_ms, self.next_log_id = 0, -1
        finally:
            file.close()

    async def store(self) -> None:
        """As it is now; a write that fails is only told."""
        names = {posixpath.basename(damage.path) for damage in self._damages.listed()}
        found = {log_id for name in names if (log_id := log_id_of(name)) is not None}
        suspects = sorted(found.union(self._damages.cut_logs, self.suspects))[:SUSPECTS_MAX]
        words = " ".join(map(str, (self.started_ms, self.next_log_id, *suspects)))
        async with self._one_at_a_time:
            try:
                await self._disk.run(self._disk.write_file, self._path, f"{words}\n".encode())
            except OSError as error:
                # It only costs looks that come later; a full disk is no reason to end.
                logger.warning("%s cannot be written: %s", self._path, error)

    async def run(self) -> None:
        """Stores it when damage was found; until cancelled."""
        while True:
            await self._is_new.wait()
            self._is_new = trio.Event()
            await self.store()
            await trio.sleep(PAUSE_SECONDS)
