"""OpenLedger: the metadata of a ledger that is being written, and what its writer changes there.

Owner of: the newest version of the metadata that this writer knows, and the names of the bookies
that it went on without. A change is a compare-and-set while the ledger is OPEN; the ledger's reader
is told of each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.errors import LedgerClosedError, LedgerFencedError, MetadataConflictError
from wire.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState

if TYPE_CHECKING:
    from collections.abc import Collection

    from ledger.client_parts import ClientParts
    from ledger.metadata import Versioned
    from ledger.reader import LedgerReader
    from ledger.writer_core import ChangeRequest


class OpenLedger:
    """The writer's `ledger.pipeline.Ensembles`."""

    __slots__ = ("_left_out", "_manager", "_missing", "_told", "_versioned", "ledger_id", "reader")

    def __init__(
        self, ledger_id: int, versioned: Versioned, reader: LedgerReader, parts: ClientParts
    ) -> None:
        self.ledger_id = ledger_id
        self.reader = reader
        self._versioned = versioned
        self._manager = parts.manager
        self._missing = parts.missing
        #: All that the ledger ever went on without: they lack entries that are confirmed.
        self._left_out: set[str] = set()
        #: Those of them that are not told again: since the mark was made for one it was not sent
        #: all entries, or it is in the ensemble no more.
        self._told: set[str] = set()

    @property
    def metadata(self) -> LedgerMetadata:
        return self._versioned.metadata

    async def store_ensemble(self, request: ChangeRequest, ensemble: tuple[str, ...]) -> None:
        """Compare-and-set while the ledger is OPEN and the failed bookies are where they were
        (invariant W4): a new ensemble is used only once it is durable (bk#1591).

        LedgerFencedError, LedgerClosedError, MetadataConflictError, LedgerMetadataError."""

        def transform(metadata: LedgerMetadata) -> LedgerMetadata | None:
            self._check_open(metadata)
            first_entry_id, bookies = metadata.last_segment
            if (first_entry_id, bookies) == (request.first_entry_id, ensemble):
                return None  # an earlier try whose reply was lost
            if bookies != request.ensemble or first_entry_id > request.first_entry_id:
                raise MetadataConflictError(
                    self.ledger_id,
                    f"the last segment is {bookies} from entry {first_entry_id}, this writer's is "
                    f"{request.ensemble}, to change from entry {request.first_entry_id}",
                )
            return metadata.with_segment(request.first_entry_id, ensemble)

        self._versioned = await self._manager.update(self.ledger_id, self._versioned, transform)
        # One that comes (back) into the ensemble is told anew when it lacks something.
        self._told.difference_update(set(ensemble).difference(request.ensemble))
        if not self._left_out.isdisjoint(ensemble) and self._is_whole():
            self._missing.take_back(self.ledger_id, self._is_whole)
        self.reader.set_metadata(self._versioned)

    def leave_out(self, bookies: Collection[str]) -> None:
        """These lack entries that are confirmed or will be: the ledger is to be marked for them."""
        self._left_out.update(bookies)
        new = set(bookies) - self._told
        self._told.update(new)
        if new:
            self._missing.tell(self.ledger_id, new, self._is_whole)

    def take_in(self, bookie: str) -> None:
        """This one is sent all entries from now on, and told anew when it lacks one: if what it
        lacked until now was given to it, nothing is left of the mark."""
        self._told.discard(bookie)
        if self._is_whole():
            self._missing.take_back(self.ledger_id, self._is_whole)

    def _is_whole(self) -> bool:
        """Whether all of the last ensemble are sent all entries, so that a mark may go once they
        have the earlier ones."""
        _, ensemble = self.metadata.last_segment
        return self._told.isdisjoint(ensemble)

    async def close(self, last_entry_id: int, length: int) -> None:
        """Makes this the ledger's end, unless it has the same end already; the reader is not told
        yet (`tell_reader`). Errors as `store_ensemble`."""

        def transform(metadata: LedgerMetadata) -> LedgerMetadata | None:
            if metadata.is_closed and (metadata.last_entry_id, metadata.length) == (
                last_entry_id,
                length,
            ):
                return None
            self._check_open(metadata)
            return metadata.closed_at(last_entry_id, length)

        self._versioned = await self._manager.update(self.ledger_id, self._versioned, transform)

    async def mark_left_out(self) -> None:
        """Once more, of the closed ledger: a worker of BookKeeper's takes an open ledger's mark for
        done."""
        if self._left_out and not await self._manager.mark_under_replicated(
            self.ledger_id, self._left_out
        ):
            self._missing.tell(self.ledger_id, self._left_out, self._is_whole)

    def tell_reader(self) -> None:
        self.reader.set_metadata(self._versioned)

    def _check_open(self, metadata: LedgerMetadata) -> None:
        if metadata.state is LedgerState.IN_RECOVERY:
            raise LedgerFencedError(self.ledger_id, "somebody is recovering it")
        if metadata.is_closed:
            raise LedgerClosedError(
                self.ledger_id, f"somebody closed it at entry {metadata.last_entry_id}"
            )
