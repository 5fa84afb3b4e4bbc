"""What can become of an operation on a ledger (invariants E). The broker maps these to Kafka's.

Whatever the kind: an append that failed may or may not be in the ledger (fenced = outcome unknown,
like a timeout); only the ledger's end after its close or recovery tells.
"""

from __future__ import annotations


class LedgerError(Exception):
    """Root of all that ledger/ raises; names the ledger."""

    def __init__(self, ledger_id: int, detail: str) -> None:
        super().__init__(f"ledger {ledger_id}: {detail}")
        self.ledger_id = ledger_id


class LedgerFencedError(LedgerError):
    """Somebody recovers or has recovered this ledger: the writer stops for good."""


class LedgerClosedError(LedgerError):
    """The ledger is closed, or this handle is."""


class LedgerBusyError(LedgerError):
    """The window of appends in flight is full; nothing was appended. Wait for `has_room`."""


class DuplicateEntryError(LedgerError):
    """An entry of that id was added before; nothing was added now."""


class LedgerExistsError(LedgerError):
    """There is a ledger of that id."""


class AddTimeoutError(LedgerError):
    """An entry did not reach its ack quorum in time: the writer stops."""


class LedgerForceError(LedgerError):
    """Not every bookie of the ensemble has synced; what was forced before stays so."""


class NotEnoughBookiesError(LedgerError):
    """There are too few bookies that work, for a new ensemble or to answer for the old one."""


class NoSuchEntryError(LedgerError):
    """The entry is beyond the last one that is confirmed (or negative)."""


class NoSuchLedgerError(LedgerError):
    """The ledger is not in the metadata: it never was, or was deleted."""


class LedgerReadError(LedgerError):
    """No replica gave the entry; the detail says what each answered."""


class DigestMismatchError(LedgerReadError):
    """Every replica that answered gave bytes whose digest is wrong."""


class UnauthorizedError(LedgerError):
    """The password, or the master key made from it, is not the ledger's."""


class LedgerMetadataError(LedgerError):
    """The metadata store failed, or holds no valid metadata for this ledger."""


class MetadataConflictError(LedgerMetadataError):
    """The metadata was changed by somebody in a way that this handle cannot go on from."""
