"""Files of keys and certificates: read whole, and not if others could read a key."""

from __future__ import annotations

import os
import stat

from wire.dataclass import dataclass

FILE_BYTES_MAX = 4 << 20


@dataclass(slots=True, frozen=True)
class FileMark:
    """By which a changed file is known: another time, size, inode (a link that was moved), or mode
    (a key that everybody could read)."""

    modified_ns: int
    size: int
    inode: int
    mode: int


def mark_of(path: str) -> FileMark | None:
    """Of what the path leads to; None if that is nothing."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return FileMark(found.st_mtime_ns, found.st_size, found.st_ino, found.st_mode)


def read_key_file(path: str, *, is_secret: bool) -> bytes:
    """OSError; PermissionError if it `is_secret` and not only its owner and group may read it."""
    with open(path, "rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if not stat.S_ISREG(mode):
            raise OSError(f"{path} is no file")
        if is_secret and mode & stat.S_IROTH:
            raise PermissionError(
                f"{path} has a private key and everybody may read it (mode {mode & 0o7777:04o}):"
                f" chmod 640 or 600"
            )
        data = file.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise OSError(f"{path}: larger than {FILE_BYTES_MAX} bytes")
    return data
