"""The chain: a partition's ledgers, in offset order, as one JSON document in metadata.

Pure values. The broker that holds the partition changes the document by compare-and-set only, so
that of two brokers which both believe they own it only one can (invariants L). What a request may
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

A long chain would outgrow what metadata take in one node, and each roll would write all of it. So
the oldest ledgers of a long one move to *archives*: nodes beside the document, made in the same
multi as the document that names them, never changed, and deleted in the same multi as their names.

    {"format": 2, ..., "archives": [[<number>, <how many ledgers>], ...], "dropped": 3}
    <document's path>-ledgers-<number>
    {"format": 2, "ledgers": [[id, base, epoch, created_ms, last, entries, size, max_ts,
                               max_ts_offset, index, snapshot], ...]}

Of an archive's ledgers those that end at or before the log start are no longer part of the
partition; the first `dropped` are known to be deleted. A chain without archives is written in
format 1; a broker that does not know of archives refuses format 2.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

from broker.cluster.ownership import Incarnation
from broker.log.life.ledger_info import LedgerInfo

if TYPE_CHECKING:
    from collections.abc import Sequence

FORMAT = 1
ARCHIVED_FORMAT = 2


class ChainFormatError(ValueError):
    """The stored document is not a chain; names what is wrong."""


class SourcesGoneError(Exception):
    """Ledgers that were to be replaced are not in the chain any more, one after the other."""


class Archive(NamedTuple):
    number: int
    ledger_count: int


@dataclass(slots=True, frozen=True)
class Chain:
    """`ledgers` are all that hold records of the partition, those in archives included."""

    leader_epoch: int = -1
    log_start_offset: int = 0
    ledgers: tuple[LedgerInfo, ...] = ()
    deleting: tuple[int, ...] = ()
    owner: Incarnation | None = None
    #: Every record before it was looked at by a pass of the cleaner that came to its end. Mostly a
    #: ledger's base; within one where a pass's map of keys was full.
    cleaned_to: int = 0
    archives: tuple[Archive, ...] = ()
    #: What the archives hold, in order: `dropped` ledgers that are known to be deleted, these that
    #: are to be, and the first `archived_count` of `ledgers`.
    dropped: int = 0
    archived_deleting: tuple[int, ...] = ()
    archived_count: int = 0

    @property
    def all_deleting(self) -> tuple[int, ...]:
        """Ledgers that are no longer part of the partition, but perhaps not deleted."""
        return (*self.archived_deleting, *self.deleting)

    @property
    def closed_end_offset(self) -> int:
        """The end of what is final: where the open ledger starts, or the log's end without one."""
        if not self.ledgers:
            return self.log_start_offset
        last = self.ledgers[-1]
        return last.base_offset if last.is_open else max(last.end_offset, self.log_start_offset)

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
        assert info.leader_epoch <= self.leader_epoch, "who makes it has taken the partition over"
        return replace(self, ledgers=(*self.ledgers, info))

    def with_last(self, info: LedgerInfo) -> Chain:
        """Replaces the last ledger's facts (closed, or a newer snapshot)."""
        last = self.ledgers[-1]
        assert last.ledger_id == info.ledger_id
        assert last.base_offset == info.base_offset
        assert info.is_open or info.end_offset >= info.base_offset
        assert self.archived_count < len(self.ledgers), "what is in an archive stays as it is"
        return replace(self, ledgers=(*self.ledgers[:-1], info))

    def without_last(self) -> Chain:
        """Drops the last ledger, which holds no records."""
        last = self.ledgers[-1]
        assert last.is_open or last.end_offset == last.base_offset
        assert self.archived_count < len(self.ledgers), "what is in an archive stays as it is"
        return replace(
            self, ledgers=self.ledgers[:-1], deleting=(*self.deleting, self.ledgers[-1].ledger_id)
        )

    def with_log_start(self, offset: int) -> Chain:
        """Raises the log start; closed ledgers wholly before it go to `deleting`."""
        assert offset >= self.log_start_offset
        count = _count_before(self.ledgers, offset)
        gone = [item.ledger_id for item in self.ledgers[:count]]
        archived = min(count, self.archived_count)
        assert not count or not self.ledgers[count - 1].is_open, "an open ledger is never given up"
        return replace(
            self,
            log_start_offset=offset,
            ledgers=self.ledgers[count:],
            deleting=(*self.deleting, *gone[archived:]),
            archived_deleting=(*self.archived_deleting, *gone[:archived]),
            archived_count=self.archived_count - archived,
        )

    def with_deleted(self, ledger_ids: frozenset[int]) -> Chain:
        """Those ledgers are really gone. Archives that hold no others are not named any more."""
        count = len(list(takewhile(ledger_ids.__contains__, self.archived_deleting)))
        archives, dropped = self.archives, self.dropped + count
        while archives and archives[0].ledger_count <= dropped:
            dropped -= archives[0].ledger_count
            archives = archives[1:]
        assert archives or not dropped, "what was dropped is of an archive"
        return replace(
            self,
            deleting=tuple(i for i in self.deleting if i not in ledger_ids),
            archived_deleting=self.archived_deleting[count:],
            archives=archives,
            dropped=dropped,
        )

    def with_archive(self, number: int, count: int) -> Chain:
        """The next `count` ledgers, which are closed, are in archive `number` from now on."""
        assert all(archive.number < number for archive in self.archives)
        assert not any(item.is_open for item in self.newest[:count])
        assert 0 < count <= len(self.newest)
        return replace(
            self,
            archives=(*self.archives, Archive(number, count)),
            archived_count=self.archived_count + count,
        )

    @property
    def newest(self) -> tuple[LedgerInfo, ...]:
        """The ledgers that are in the document itself."""
        assert 0 <= self.archived_count <= len(self.ledgers)
        return self.ledgers[self.archived_count :]

    @property
    def first_dirty(self) -> int:
        """From here on the closed ledgers hold what no pass has looked at: `cleaned_to`, but never
        below the log start; the log start if `cleaned_to` is behind the end of what is closed."""
        raise NotImplementedError

    def with_compacted(self, source_ids: Sequence[int], infos: Sequence[LedgerInfo]) -> Chain:
        """`infos` in the place of their sources, which go to `deleting`. The log start stays, and
        may be within. SourcesGoneError unless the sources are in the chain, one after the other.
        """
        raise NotImplementedError

    def with_cleaned_to(self, offset: int) -> Chain:
        """All before `offset` was looked at by a pass that is finished."""
        raise NotImplementedError

    def to_bytes(self) -> bytes:
        """The document; archives are written by themselves (`archive_bytes`)."""
        newest = self.newest
        assert all(map(_follows, newest[1:], newest)), "as `_check_order` wants it"
        in_archives = self.dropped + len(self.archived_deleting) + self.archived_count
        assert in_archives == sum(archive.ledger_count for archive in self.archives)
        document: dict[str, Any] = {
            "format": ARCHIVED_FORMAT if self.archives else FORMAT,
            "leader_epoch": self.leader_epoch,
            "log_start_offset": self.log_start_offset,
            "deleting": self.deleting,
            "owner": self.owner and {"broker": self.owner.node_id, "incarnation": self.owner.token},
            "ledgers": [
                {name: getattr(info, field) for name, field in _LEDGER_FIELDS.items()}
                for info in newest
            ],
        }
        if self.archives:
            document |= {"archives": self.archives, "dropped": self.dropped}
        return json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Chain:
        """Of a document without archives. ChainFormatError unless it is a chain of a format that we
        know, in order."""
        document = ChainDocument(data)
        if document.archives:
            raise ChainFormatError("the partition document is not whole without its archives")
        return document.chain()


class ChainDocument:
    """What a stored document says by itself: all but what is in its archives."""

    __slots__ = ("_document", "archives", "leader_epoch", "owner")

    def __init__(self, data: bytes) -> None:
        """ChainFormatError."""
        try:
            document = json.loads(data)
            if document["format"] not in (FORMAT, ARCHIVED_FORMAT):
                raise ChainFormatError(f"partition document of unknown format {document['format']}")
            self._document: dict[str, Any] = document
            self.owner = _owner(document.get("owner"))
            self.leader_epoch = _integer(document["leader_epoch"])
            self.archives = tuple(
                Archive(_integer(number), _integer(count))
                for number, count in document.get("archives", ())
            )
        except ChainFormatError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ChainFormatError(f"partition document is damaged: {error!r}") from error

    def chain(self, archived: Sequence[Sequence[LedgerInfo]] = ()) -> Chain:
        """`archived`: the ledgers of each archive. ChainFormatError."""
        if tuple(map(len, archived)) != tuple(archive.ledger_count for archive in self.archives):
            raise ChainFormatError("partition document is damaged: its archives are others")
        document = self._document
        try:
            dropped = _integer(document.get("dropped", 0))
            log_start_offset = _integer(document["log_start_offset"])
            if not 0 <= dropped <= sum(archive.ledger_count for archive in self.archives):
                raise ChainFormatError(f"partition document is damaged: {dropped} dropped")
            before = [info for ledgers in archived for info in ledgers][dropped:]
            gone_count = _count_before(before, log_start_offset)
            chain = Chain(
                leader_epoch=self.leader_epoch,
                log_start_offset=log_start_offset,
                deleting=tuple(_integer(value) for value in document["deleting"]),
                owner=self.owner,
                ledgers=(*before[gone_count:], *map(_ledger, document["ledgers"])),
                archives=self.archives,
                dropped=dropped,
                archived_deleting=tuple(info.ledger_id for info in before[:gone_count]),
                archived_count=len(before) - gone_count,
            )
            _check_order(chain)
        except ChainFormatError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ChainFormatError(f"partition document is damaged: {error!r}") from error
        return chain

    def ledger_ids(self) -> tuple[int, ...]:
        """All that the document itself names. ChainFormatError."""
        try:
            deleting = [_integer(value) for value in self._document["deleting"]]
            return (*(_integer(item["id"]) for item in self._document["ledgers"]), *deleting)
        except (KeyError, TypeError) as error:
            raise ChainFormatError(f"partition document is damaged: {error!r}") from error


def archive_bytes(ledgers: Sequence[LedgerInfo]) -> bytes:
    assert ledgers
    assert not ledgers[-1].is_open
    assert all(map(_follows, ledgers[1:], ledgers)), "as `_check_order` wants it"
    document = {
        "format": ARCHIVED_FORMAT,
        "ledgers": [
            [getattr(info, field) for field in _LEDGER_FIELDS.values()] for info in ledgers
        ],
    }
    return json.dumps(document, separators=(",", ":")).encode()


def archive_from_bytes(data: bytes) -> list[LedgerInfo]:
    """ChainFormatError."""
    try:
        document = json.loads(data)
        if document["format"] != ARCHIVED_FORMAT:
            raise ChainFormatError(f"archive of unknown format {document['format']}")
        return [LedgerInfo(*item) for item in document["ledgers"]]
    except ChainFormatError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise ChainFormatError(f"archive is damaged: {error!r}") from error


def archive_path(path: str, number: int) -> str:
    """`path`: the document's."""
    assert number >= 0
    return f"{path}-ledgers-{number}"


def is_archive(path: str) -> bool:
    """Or a name."""
    return _ARCHIVE_NAME.search(path) is not None


_ARCHIVE_NAME = re.compile(r"-ledgers-\d+$", re.ASCII)

#: In the order of the fields of LedgerInfo, which is the order in archives.
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


def _ledger(item: dict[str, Any]) -> LedgerInfo:
    return LedgerInfo(**{field: item[name] for name, field in _LEDGER_FIELDS.items()})


def _count_before(ledgers: Sequence[LedgerInfo], offset: int) -> int:
    """How many closed ledgers, from the first on, hold nothing from `offset` on."""
    closed = len(ledgers)
    if ledgers and ledgers[-1].is_open:
        closed -= 1
    return bisect_right(ledgers, offset, hi=closed, key=_end_offset)


def _end_offset(info: LedgerInfo) -> int:
    return info.end_offset


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


def _follows(after: LedgerInfo, before: LedgerInfo) -> bool:
    return not before.is_open and before.end_offset == after.base_offset


def _check_order(chain: Chain) -> None:
    """Of what was read, where it may be wrong; `to_bytes` asserts it of what is written."""
    for before, after in zip(chain.ledgers, chain.ledgers[1:], strict=False):
        if not _follows(after, before):
            raise ChainFormatError(
                f"partition document is damaged: ledger {after.ledger_id} does not follow"
                f" ledger {before.ledger_id}"
            )


def new_document() -> bytes:
    """The document of a partition that was just created."""
    return Chain().to_bytes()
