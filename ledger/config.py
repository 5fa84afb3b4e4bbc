"""Configuration of the ledger client."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class LedgerClientConfig:
    """All sizes in bytes of payload."""

    #: Where BookKeeper's tree is in the metadata store.
    ledgers_root: str = "/ledgers"
    #: Appends in flight per ledger; beyond, `append_nowait` raises LedgerBusyError.
    window_entries_max: int = 10_000
    window_bytes_max: int = 64 * 1024 * 1024
    #: Entries that recovery asks for at a time (BookKeeper: recoveryReadBatchSize).
    recovery_read_batch: int = 8
    #: Entries of a striped ledger (E > Qw) that one read asks for at a time.
    striped_read_batch: int = 16

    def __post_init__(self) -> None:
        for name in (
            "window_entries_max",
            "window_bytes_max",
            "recovery_read_batch",
            "striped_read_batch",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, is {getattr(self, name)}")
