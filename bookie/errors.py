"""What a bookie raises. Answers to clients are statuses (wire/bookkeeper/status.py), not these."""

from __future__ import annotations

import errno


class BookieStartError(Exception):
    """The bookie refuses to start: its directories are not what they should be. The message says
    which file, and what an operator can do."""


class CorruptionError(BookieStartError):
    """Bytes on disk that are not what was written (invariants E). At replay it refuses the start:
    only a torn tail, of which nothing was acknowledged, is ever cut."""

    def __init__(self, file: str, offset: int, reason: str) -> None:
        super().__init__(f"{file}: offset {offset}: {reason}")
        self.file = file
        self.offset = offset
        self.reason = reason


class DamagedRecordError(Exception):
    """A record of an entry log that cannot be the entry it should be; answered EIO, never
    ENOENTRY, so that the reader asks another replica (invariant B4)."""

    def __init__(self, path: str, offset: int, reason: str) -> None:
        """`offset`: of the record in the file, its length included."""
        super().__init__(f"{path}: offset {offset}: {reason}")
        self.path = path
        self.offset = offset
        self.reason = reason


class IndexReadError(OSError):
    """Part of the index cannot be read: EIO. Nothing was written, nor is anything lost by it that
    was not lost before, so who serves goes on."""

    def __init__(self, reason: str) -> None:
        super().__init__(errno.EIO, reason)
