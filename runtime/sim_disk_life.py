"""DiskLife: what one life of a simulated node sees of its disk (runtime.disk.Disk).

After the disk's next crash every call fails with EBADF, so that what is left of a crashed node
cannot touch the disk of the next life. Changes are told to the disk's `observe` before they are
made; it may crash the disk just there.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from runtime.disk import T
    from runtime.sim_disk import SimDisk, SimFile
    from wire.buffers import Buffer


class DiskLife:
    __slots__ = ("_disk", "_generation")

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk
        self._generation = disk.generation

    def _alive(self, path: str) -> SimDisk:
        if self._generation != self._disk.generation:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), path)
        return self._disk

    def _change(self, event: str, path: str) -> SimDisk:
        self._alive(path).observe(event, path)
        return self._alive(path)

    def open(self, path: str, *, create: bool = False, exclusive: bool = False) -> SimFile:
        return self._change("open", path).open(path, create=create, exclusive=exclusive)

    def list(self, directory: str) -> list[str]:
        return self._alive(directory).list(directory)

    def exists(self, path: str) -> bool:
        return self._alive(path).exists(path)

    def make_directory(self, path: str) -> None:
        self._change("make directory", path).make_directory(path)

    def remove(self, path: str) -> None:
        self._change("remove", path).remove(path)

    def rename(self, source: str, target: str) -> None:
        self._change("rename", source).rename(source, target)

    def link(self, source: str, target: str) -> None:
        self._change("link", target).link(source, target)

    def link_count(self, path: str) -> int:
        return self._alive(path).link_count(path)

    def sync_directory(self, path: str) -> None:
        self._change("sync directory", path).sync_directory(path)

    def write_file(self, path: str, data: Buffer) -> None:
        self._change("write file", path).write_file(path, data)

    def usage(self, path: str) -> tuple[int, int]:
        return self._alive(path).usage(path)

    def lock(self, path: str) -> Callable[[], None]:
        return self._alive(path).lock(path)

    async def run(self, function: Callable[..., T], *args: object) -> T:
        result = await self._alive("").run(function, *args)
        self._alive("")
        return result
