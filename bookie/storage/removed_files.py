"""RemovedFiles: files whose names were removed, and whose space is freed little by little.

Removing the name of a file that is open is quick: its blocks go when the last descriptor does, and
freeing many at once stalls every sync of the file system. So a removed file stays open, is cut down
in steps on a worker thread, and closed. Nothing of it goes before its name is durably gone: else a
crash could bring back a file without its end.

Who waits for space gets it at once; else the more files wait, the quicker each is freed. A file
that waits has a descriptor: whoever removes many looks at `count`.

Owner: the event loop's thread.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import trio

from runtime.disk import FREE_AT_ONCE

if TYPE_CHECKING:
    from runtime.disk import Disk, File


class RemovedFiles:
    __slots__ = (
        "_disk",
        "_freer",
        "_gone",
        "_name_syncer",
        "_removed_in",
        "_unlinked",
        "_waiting_for_space",
        "_wanted",
        "is_short_of_space",
    )

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        #: Those whose names may come back after a crash, and directories that lost a name.
        self._unlinked: list[File] = []
        self._removed_in: set[str] = set()
        #: Those whose names are durably gone. One is freed at a time, for all.
        self._gone: deque[File] = deque()
        self._name_syncer = trio.Lock()
        self._freer = trio.Lock()
        self._waiting_for_space = 0
        self._wanted = trio.Event()
        #: The disks are full, or nearly: as if somebody waited all the time.
        self.is_short_of_space = False

    @property
    def count(self) -> int:
        """How many wait; each has a descriptor."""
        return len(self._unlinked) + len(self._gone)

    def removed_in(self, directory: str) -> None:
        """A name was removed there, of a file that is added when nobody reads it any more."""
        self._removed_in.add(directory)

    def add(self, file: File) -> None:
        """The last user of a file without a name is done."""
        self._unlinked.append(file)

    async def sync_names(self) -> None:
        """What was removed before this call is durably gone when it returns. OSError."""
        # Who finds another at it waits: what that took is theirs, too.
        async with self._name_syncer:
            files, self._unlinked = self._unlinked, []
            lost, self._removed_in = self._removed_in, set()
            directories = lost | {file.path.rpartition("/")[0] for file in files}
            try:
                for directory in sorted(directories):
                    await self._disk.run(self._disk.sync_directory, directory)
            except BaseException:
                self._unlinked, self._removed_in = files + self._unlinked, lost | self._removed_in
                raise
            self._gone.extend(files)

    def free_later(self) -> None:
        """`run_once` frees what there is. For those who do not wait for the space."""
        self._wanted.set()

    async def free(self) -> None:
        """Frees what was added before this call, at once. For those who wait for it. OSError."""
        self._waiting_for_space += 1
        try:
            await self._free()
        finally:
            self._waiting_for_space -= 1

    async def run_once(self) -> None:
        """Waits for `free_later`, then frees all there is, little by little. OSError."""
        await self._wanted.wait()
        self._wanted = trio.Event()
        while self.count:
            await self._free()

    async def _free(self) -> None:
        """Not what comes meanwhile: who waits for space would wait as long as files are removed."""
        async with self._freer:
            await self.sync_names()
            for _ in range(len(self._gone)):
                file = self._gone.popleft()
                try:
                    while not await self._disk.run(file.discard, self._behind()):
                        pass
                except BaseException:
                    self._gone.appendleft(file)  # cancelled, or an error: `close` has it closed
                    raise

    def _behind(self) -> int:
        if self._waiting_for_space or self.is_short_of_space:
            return FREE_AT_ONCE
        return self.count

    def close(self) -> None:
        for file in (*self._unlinked, *self._gone):
            file.close()
        self._unlinked.clear()
        self._gone.clear()
