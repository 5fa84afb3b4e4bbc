"""What the commands of `quire dump` can be told. Light: it is loaded with every command."""

from __future__ import annotations

from dataclasses import field

from wire.dataclass import dataclass

VALUE_SIZE_MAX_DEFAULT = 200
#: What `--digest` may be.
DIGESTS = ("auto", "crc32c", "crc32", "hmac", "dummy", "none")


@dataclass(slots=True, frozen=True)
class OutputOptions:
    json: bool = False
    #: Of bytes in JSON: "hex" or "base64".
    bytes_as: str = "hex"
    #: Bytes and texts are cut there, except in JSON; 0: not at all.
    value_size_max: int = VALUE_SIZE_MAX_DEFAULT


@dataclass(slots=True, frozen=True)
class BatchOptions:
    #: Records too, not only the batches' heads.
    records: bool = False
    #: "offsets" (of __consumer_offsets), "transactions" (of __transaction_state) or "share"
    #: (of __share_group_state).
    decoder: str | None = None


@dataclass(slots=True, frozen=True)
class EntryOptions:
    """Which entries are shown, and how much of each."""

    ledger: int | None = None
    entry: int | None = None
    #: LAC, length and digest.
    decoded: bool = False
    #: What quire put into it.
    payload: bool = False
    #: Only payloads of these kinds.
    payload_kinds: frozenset[int] = frozenset()
    #: Totals only.
    summary: bool = False
    digest: str = "auto"
    password: bytes = b""
    show_secrets: bool = False
    batches: BatchOptions = field(default_factory=BatchOptions)

    def wants(self, ledger_id: int, entry_id: int) -> bool:
        if self.ledger is not None and ledger_id != self.ledger:
            return False
        return self.entry is None or entry_id == self.entry
