"""Ledgers that were found missing from the metadata, each with the time of that.

In a table for each of the metadata's folders: one table of a million ledgers is copied whenever it
grows, in one turn of the loop, which were 60 ms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.ledger_walk import FOLDER_SIZE

if TYPE_CHECKING:
    from collections.abc import Iterator


class AbsentLedgers:
    """Times are seconds, and never before one that was added."""

    __slots__ = ("_folders", "_last")

    def __init__(self) -> None:
        #: `id // FOLDER_SIZE` -> ledger id -> when it was found missing. No table is empty.
        self._folders: dict[int, dict[int, float]] = {}
        self._last = 0.0

    def __bool__(self) -> bool:
        return bool(self._folders)

    @property
    def last(self) -> float:
        """When the last one was added, though it may be gone since."""
        return self._last

    def add(self, ledger_id: int, found_at: float) -> None:
        self._folders.setdefault(ledger_id // FOLDER_SIZE, {})[ledger_id] = found_at
        self._last = found_at

    def discard(self, ledger_id: int) -> None:
        number = ledger_id // FOLDER_SIZE
        folder = self._folders.get(number)
        if folder is not None:
            folder.pop(ledger_id, None)
            if not folder:
                del self._folders[number]

    def portions(self) -> Iterator[tuple[int, list[tuple[int, float]]]]:
        """Each folder's number and its ledgers with their times, at most FOLDER_SIZE. What is added
        or discarded meanwhile may be in a portion that comes later, or not."""
        for number in list(self._folders):
            folder = self._folders.get(number)
            if folder is not None:
                yield number, list(folder.items())
