"""The chain: a partition's ledgers, in offset order, as one JSON document in metadata.

Pure values. The broker that holds the partition changes the document by compare-and-set only, so
that of two brokers which both believe they own it only one can (ledgers.md 2.4). What a request may
ask about old data (log start, leader epochs, which ledger holds an offset or a timestamp) is
answered from here without a read.

    {"format": 1, "leader_epoch": 3, "log_start_offset": 0, "deleting": [4],
     "owner": {"broker": 1, "incarnation": "<32 hex digits>"},
     "ledgers": [{"id": 7, "base": 0, "epoch": 2, "created_ms": ..., "last": 99, "entries": 12,
                  "size": ..., "max_ts": ..., "max_ts_offset": ..., "index": 10, "snapshot": 11}]}

`last` is null while the ledger is open, and only the last ledger may be open. `deleting` lists
ledgers that are no longer part of the partition but not yet known to be deleted: first the
document, then the ledgers, so a crash leaks nothing.

`owner` is who wrote the document last and goes on to: the incarnation that took the partition over;
null once it has released it (a hand-over: everything is closed, the next may start at once), in a
partition that nobody held yet, and in documents older than the field.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from dataclasses import dataclass, replace

from broker.cluster.ownership import Incarnation

FORMAT = 1
NO_TIMESTAMP = -1


class ChainFormatError(ValueError):
    """The stored document is not a chain; names what is wrong."""


@dataclass(slots=True, frozen=True)
class LedgerInfo:
    """One ledger of the chain. Offsets are Kafka's, times milliseconds, sizes payload bytes."""

    ledger_id: int
    base_offset: int
    leader_epoch: int
    created_ms: int
    last_offset: int | None = None  # None while open
    entry_count: int = 0
    size_bytes: int = 0
    max_timestamp: int = NO_TIMESTAMP
    max_timestamp_offset: int = -1
    index_entry: int | None = None
    snapshot_entry: int | None = None  # the newest; set while open, too

    @property
    def is_open(self) -> bool:
        return self.last_offset is None

    @property
    def end_offset(self) -> int:
        """One past the last offset; only for a closed ledger."""
        assert self.last_offset is not None
        return self.last_offset + 1


@dataclass(slots=True, frozen=True)
class Chain:
    leader_epoch: int = -1
    log_start_offset: int = 0
    ledgers: tuple[LedgerInfo, ...] = ()
    deleting: tuple[int, ...] = ()
    owner: Incarnation | None = None

    @property
    def closed_end_offset(self) -> int:
        """The end of what is final: where the open ledger starts, or the log's end without one."""
        if not self.ledgers:
            return self.log_start_offset
        last = self.ledgers[-1]
        return last.base_offset if last.is_open else max(last.end_offset, self.log_start_offset)

    def position_of(self, offset: int) -> int:
        """Index of the ledger that holds `offset`; -1 if it is before the first."""
        return bisect_right(self.ledgers, offset, key=_base_offset) - 1

    def with_epoch(self, leader_epoch: int, owner: Incarnation | None = None) -> Chain:
        assert leader_epoch > self.leader_epoch, "an epoch only rises"
        return replace(self, leader_epoch=leader_epoch, owner=owner)

    def released(self) -> Chain:
        """Its owner writes it no more, and says so."""
        assert not self.ledgers or not self.ledgers[-1].is_open, "what is released is closed"
        return replace(self, owner=None)

    def with_ledger(self, info: LedgerInfo) -> Chain:
        """Appends a ledger; the one before it must be final."""
        assert not self.ledgers or not self.ledgers[-1].is_open, (
            "the predecessor's end is not final"
        )
        assert info.base_offset == self.closed_end_offset, "offsets are dense"
        return replace(self, ledgers=(*self.ledgers, info))

    def with_last(self, info: LedgerInfo) -> Chain:
        """Replaces the last ledger's facts (closed, or a newer snapshot)."""
        assert self.ledgers[-1].ledger_id == info.ledger_id
        return replace(self, ledgers=(*self.ledgers[:-1], info))

    def without_last(self) -> Chain:
        """Drops the last ledger, which holds no records."""
        return replace(
            self, ledgers=self.ledgers[:-1], deleting=(*self.deleting, self.ledgers[-1].ledger_id)
        )

    def with_log_start(self, offset: int) -> Chain:
        """Raises the log start; closed ledgers wholly before it go to `deleting`."""
        assert offset >= self.log_start_offset
        kept = [item for item in self.ledgers if item.is_open or item.end_offset > offset]
        gone = self.ledgers[: len(self.ledgers) - len(kept)]
        return replace(
            self,
            log_start_offset=offset,
            ledgers=tuple(kept),
            deleting=(*self.deleting, *(item.ledger_id for item in gone)),
        )

    def with_deleted(self, ledger_ids: frozenset[int]) -> Chain:
        """Those ledgers are really gone."""
        return replace(self, deleting=tuple(i for i in self.deleting if i not in ledger_ids))

    def to_bytes(self) -> bytes:
        document = {
            "format": FORMAT,
            "leader_epoch": self.leader_epoch,
            "log_start_offset": self.log_start_offset,
            "deleting": self.deleting,
            "owner": self.owner and {"broker": self.owner.node_id, "incarnation": self.owner.token},
            "ledgers": [
                {name: getattr(info, field) for name, field in _LEDGER_FIELDS.items()}
                for info in self.ledgers
            ],
        }
        return json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Chain:
        """ChainFormatError unless it is a chain of a format that we know, in order."""
        try:
            document = json.loads(data)
            if document["format"] != FORMAT:
                raise ChainFormatError(f"partition document of unknown format {document['format']}")
            chain = cls(
                leader_epoch=_integer(document["leader_epoch"]),
                log_start_offset=_integer(document["log_start_offset"]),
                deleting=tuple(_integer(value) for value in document["deleting"]),
                owner=_owner(document.get("owner")),
                ledgers=tuple(
                    LedgerInfo(**{field: item[name] for name, field in _LEDGER_FIELDS.items()})
                    for item in document["ledgers"]
                ),
            )
            _check_order(chain)
        except ChainFormatError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ChainFormatError(f"partition document is damaged: {error!r}") from error
        return chain


_LEDGER_FIELDS = {
    "id": "ledger_id",
    "base": "base_offset",
    "epoch": "leader_epoch",
    "created_ms": "created_ms",
    "last": "last_offset",
    "entries": "entry_count",
    "size": "size_bytes",
    "max_ts": "max_timestamp",
    "max_ts_offset": "max_timestamp_offset",
    "index": "index_entry",
    "snapshot": "snapshot_entry",
}


def _base_offset(info: LedgerInfo) -> int:
    return info.base_offset


def _integer(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ChainFormatError(f"partition document is damaged: {value!r} is no integer")
    return value


def _owner(value: dict[str, object] | None) -> Incarnation | None:
    if value is None:
        return None
    token = value["incarnation"]
    if not isinstance(token, str):
        raise ChainFormatError(f"partition document is damaged: incarnation {token!r}")
    return Incarnation(_integer(value["broker"]), token)


def _check_order(chain: Chain) -> None:
    for before, after in zip(chain.ledgers, chain.ledgers[1:], strict=False):
        if before.is_open or before.end_offset != after.base_offset:
            raise ChainFormatError(
                f"partition document is damaged: ledger {after.ledger_id} does not follow"
                f" ledger {before.ledger_id}"
            )


def new_document() -> bytes:
    """The document of a partition that was just created."""
    return Chain().to_bytes()
