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

Compaction puts ledgers in the place of others (broker/log/life/swap.py). What is new of such ones,
or of the chain, makes it format 3, of the document or of the archive that has it:

    {"format": 3, ..., "cleaned_to": 100, "ledgers": [{..., "compacted": 1,
     "epochs": [[2, 0], [5, 60]], "min_horizon": ..., "aborted": 13, "aborted_count": 2}]}
    {"format": 3, "ledgers": [[id, ..., snapshot, {"compacted": 1}], ...]}

Each of these names is left out where it says nothing, and a chain that needs none of them is
written in format 1 or 2, which older brokers read. `min_ts` is left out like them, but is of every
format: a broker that does not know it passes it by, and what it writes has it no more, which reads
as «not known». An archive has those of all its ledgers beside these:

    {"format": 2, "ledgers": [...], "min_ts": [1767225600000, -1, ...]}

If sources are in an archive, it is made anew
under another number; so numbers are unique, but not in order.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from dataclasses import fields, replace
from itertools import accumulate, pairwise, takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

from broker.cluster.ownership import Incarnation
from broker.log.life.ledger_info import NO_TIMESTAMP, LedgerInfo
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

FORMAT = 1
ARCHIVED_FORMAT = 2
COMPACTED_FORMAT = 3
#: Those that this broker reads.
FORMATS = (FORMAT, ARCHIVED_FORMAT, COMPACTED_FORMAT)
NEWEST_FORMAT = COMPACTED_FORMAT
#: Of an archive that is not written yet.
UNWRITTEN = -1


#: `json.dumps` makes an encoder for each call that wants other separators than its own.
_to_json = json.JSONEncoder(separators=(",", ":")).encode


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

    @property
    def _producers_from(self) -> int:
        """Number of the ledger from which on the state of the producers can be made: the last one
        with a snapshot of them; without any the first."""
        count = len(self.ledgers)
        while count and self.ledgers[count - 1].snapshot_entry is None:
            count -= 1
        return max(count - 1, 0)

    def has_superfluous(self, *, keeps_producers: bool) -> bool:
        """Whether `with_log_start` of the log start that is would give up ledgers, which were kept
        for what is told of by a newer snapshot now."""
        if not self.ledgers or not _count_before(self.ledgers[:1], self.log_start_offset):
            return False
        return not keeps_producers or self._producers_from > 0

    def with_log_start(self, offset: int, *, keeps_producers: bool = False) -> Chain:
        """Raises the log start; closed ledgers wholly before it go to `deleting`. With
        `keeps_producers` those stay that a take-over would need for the state of the producers:
        the newest with a snapshot, and all behind it. Else an open transaction, and every epoch and
        sequence number, would be lost with the records."""
        assert offset >= self.log_start_offset
        count = _count_before(self.ledgers, offset)
        if keeps_producers:
            # What is in an archive is not part of the partition if it lies before the log start.
            count = max(min(count, self._producers_from), min(count, self.archived_count))
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
        if not ledger_ids:
            return self
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
        if self.log_start_offset <= self.cleaned_to <= self.closed_end_offset:
            return self.cleaned_to
        return self.log_start_offset

    def with_cleaned_to(self, offset: int) -> Chain:
        """All before `offset` was looked at by a pass that is finished."""
        assert 0 <= offset <= self.closed_end_offset, "what is open is not cleaned"
        return replace(self, cleaned_to=offset)

    def with_compacted(self, source_ids: Sequence[int], infos: Sequence[LedgerInfo]) -> Chain:
        """`infos` in the place of their sources, which go to `deleting`. The log start stays, and
        may be within; of `infos` what is wholly before it goes, too.
        SourcesGoneError unless the sources are in the chain, one after the other."""
        assert source_ids
        assert infos
        assert all(info.is_compacted and not info.is_open for info in infos)
        assert all(map(_follows, infos[1:], infos)), "as `_check_order` wants it"
        start = bisect_left(self.ledgers, infos[0].base_offset, key=_base_offset)
        stop = start + len(source_ids)
        sources = self.ledgers[start:stop]
        if tuple(info.ledger_id for info in sources) != tuple(source_ids):
            raise SourcesGoneError(
                f"ledgers {source_ids[0]}..{source_ids[-1]} are not in the chain"
            )
        assert not sources[-1].is_open, "the open ledger is never replaced"
        assert sources[0].base_offset == infos[0].base_offset, "no record changes its place"
        assert sources[-1].end_offset == infos[-1].end_offset, "no record changes its place"
        chain = replace(
            self,
            ledgers=(*self.ledgers[:start], *infos, *self.ledgers[stop:]),
            deleting=(*self.deleting, *source_ids),
        )
        if start < self.archived_count:
            archived_stop = min(stop, self.archived_count)
            chain = chain._with_changed_archives(self, start, archived_stop, len(infos))
        if not start and infos[0].end_offset <= self.log_start_offset < sources[0].end_offset:
            # Of a source that the start is in. What stands in for a ledger that is kept for the
            # producers, and what is behind it, stays as long as that (`has_superfluous`).
            chain = chain.with_log_start(self.log_start_offset)
        return chain

    def _with_changed_archives(self, before: Chain, start: int, stop: int, count: int) -> Chain:
        """`self` has `count` other ledgers where `before` had [start, stop) of those that are in
        archives: the archives that they were in are one now, unwritten, with the others that were
        in there."""
        dead = before.dropped + len(before.archived_deleting)
        ends = list(accumulate(archive.ledger_count for archive in before.archives))
        first, last = bisect_right(ends, dead + start), bisect_left(ends, dead + stop)
        begin = ends[first - 1] if first else 0
        fresh = Archive(UNWRITTEN, ends[last] - begin - (stop - start) + count)
        return replace(
            self,
            archives=(*before.archives[:first], fresh, *before.archives[last + 1 :]),
            archived_count=before.archived_count - (stop - start) + count,
        )

    def _without_dead_unwritten(self) -> Chain:
        """What is not part of the partition any more is in no unwritten archive, nor in one before
        such a one: it is in `deleting`."""
        dead = self.dropped + len(self.archived_deleting)
        ends = list(accumulate(archive.ledger_count for archive in self.archives))
        changed = [
            number
            for number, archive in enumerate(self.archives)
            if archive.number == UNWRITTEN and ends[number] - archive.ledger_count < dead
        ]
        if not changed:
            return self
        last = changed[-1]
        cut = min(ends[last], dead)
        gone_count = max(cut - self.dropped, 0)
        left = (Archive(UNWRITTEN, ends[last] - cut),) if ends[last] > cut else ()
        return replace(
            self,
            archives=(*left, *self.archives[last + 1 :]),
            dropped=max(self.dropped - cut, 0),
            archived_deleting=self.archived_deleting[gone_count:],
            deleting=(*self.archived_deleting[:gone_count], *self.deleting),
        )

    def with_fitted_archives(self, ledger_count_max: int) -> Chain:
        """Unwritten archives have so many ledgers at most, and neighbours of theirs that fit in
        are in them: else those of a long chain that compaction made short would have few each."""
        if not self.archives:
            return self
        chain = self._without_dead_unwritten()
        fitted: list[Archive] = []
        end, dead = 0, chain.dropped + len(chain.archived_deleting)
        may_grow = False  # the one before holds none but the partition's
        for archive in chain.archives:
            is_alive, end = end >= dead, end + archive.ledger_count
            count = archive.ledger_count
            if may_grow and UNWRITTEN in (fitted[-1].number, archive.number):
                joined = fitted[-1].ledger_count + count
                if joined <= ledger_count_max:
                    fitted[-1] = Archive(UNWRITTEN, joined)
                    continue
            while archive.number == UNWRITTEN and count > ledger_count_max:
                fitted.append(Archive(UNWRITTEN, ledger_count_max))
                count -= ledger_count_max
            fitted.append(Archive(archive.number, count))
            may_grow = is_alive
        return replace(chain, archives=tuple(fitted))

    def with_written_archives(self, number: int) -> tuple[Chain, list[tuple[int, bytes]]]:
        """Each unwritten archive has a number, from `number` on; and (number, bytes) of each."""
        if not self.archives:
            return self, []
        numbered: list[Archive] = []
        written: list[tuple[int, bytes]] = []
        position = -self.dropped - len(self.archived_deleting)
        for archive in self.archives:
            end = position + archive.ledger_count
            if archive.number == UNWRITTEN:
                assert position >= 0, "of what is not part of the partition nothing is written"
                archive = Archive(number + len(written), archive.ledger_count)
                written.append((archive.number, archive_bytes(self.ledgers[position:end])))
            numbered.append(archive)
            position = end
        return replace(self, archives=tuple(numbered)), written

    def to_bytes(self) -> bytes:
        """The document; archives are written by themselves (`archive_bytes`)."""
        newest = self.newest
        assert all(map(_follows, newest[1:], newest)), "as `_check_order` wants it"
        in_archives = self.dropped + len(self.archived_deleting) + self.archived_count
        assert in_archives == sum(archive.ledger_count for archive in self.archives)
        assert all(archive.number != UNWRITTEN for archive in self.archives)
        ledgers = [_ledger_document(info) for info in newest]
        number = ARCHIVED_FORMAT if self.archives else FORMAT
        if self.cleaned_to or any(map(_compacted_document, newest)):
            number = COMPACTED_FORMAT
        document: dict[str, Any] = {
            "format": number,
            "leader_epoch": self.leader_epoch,
            "log_start_offset": self.log_start_offset,
            "deleting": self.deleting,
            "owner": self.owner and {"broker": self.owner.node_id, "incarnation": self.owner.token},
            "ledgers": ledgers,
        }
        if self.archives:
            document |= {"archives": self.archives, "dropped": self.dropped}
        if self.cleaned_to:
            document["cleaned_to"] = self.cleaned_to
        return _to_json(document).encode()

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
            if document["format"] not in FORMATS:
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
                cleaned_to=_integer(document.get("cleaned_to", 0)),
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
    rows = [_archive_row(info) for info in ledgers]
    is_compacted = any(len(row) > len(_LEDGER_FIELDS) for row in rows)
    document = {"format": COMPACTED_FORMAT if is_compacted else ARCHIVED_FORMAT, "ledgers": rows}
    minima = [info.min_timestamp for info in ledgers]
    if any(minimum != NO_TIMESTAMP for minimum in minima):
        document[_MINIMUM] = minima
    return _to_json(document).encode()


def archive_from_bytes(data: bytes) -> list[LedgerInfo]:
    """ChainFormatError."""
    try:
        document = json.loads(data)
        if document["format"] not in (ARCHIVED_FORMAT, COMPACTED_FORMAT):
            raise ChainFormatError(f"archive of unknown format {document['format']}")
        rows = document["ledgers"]
        minima = document.get(_MINIMUM, [NO_TIMESTAMP] * len(rows))
        return [
            replace(_of_archive_row(row), min_timestamp=_integer(minimum))
            for row, minimum in zip(rows, minima, strict=True)
        ]
    except ChainFormatError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
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
#: None while a ledger is open, or if it was not sealed.
_OPTIONAL_FIELDS = frozenset({"last_offset", "index_entry", "snapshot_entry"})


#: Those of format 3, each left out where it is as if it were not there.
_COMPACTED_FIELDS = {
    "compacted": "generation",
    "epochs": "epochs",
    "min_horizon": "min_horizon_ms",
    "aborted": "aborted_entry",
    "aborted_count": "aborted_count",
}
#: Of every format, and left out where nobody knows it.
_MINIMUM = "min_ts"
_DEFAULTS = {field.name: field.default for field in fields(LedgerInfo)}


def _compacted_document(info: LedgerInfo) -> dict[str, Any]:
    named = ((name, field, getattr(info, field)) for name, field in _COMPACTED_FIELDS.items())
    return {name: value for name, field, value in named if value != _DEFAULTS[field]}


def _ledger_document(info: LedgerInfo) -> dict[str, Any]:
    document = {name: getattr(info, field) for name, field in _LEDGER_FIELDS.items()}
    if info.min_timestamp != NO_TIMESTAMP:
        document[_MINIMUM] = info.min_timestamp
    return document | _compacted_document(info)


def _archive_row(info: LedgerInfo) -> list[Any]:
    row = [getattr(info, field) for field in _LEDGER_FIELDS.values()]
    more = _compacted_document(info)
    return [*row, more] if more else row


def _ledger(item: dict[str, Any]) -> LedgerInfo:
    """KeyError, TypeError, ValueError, ChainFormatError."""
    values = {field: item[name] for name, field in _LEDGER_FIELDS.items()}
    for field, value in values.items():
        if type(value) is not int and (value is not None or field not in _OPTIONAL_FIELDS):
            raise ChainFormatError(f"partition document is damaged: {field} is {value!r}")
    last = values["last_offset"]
    if last is not None and last < values["base_offset"] - 1:
        raise ChainFormatError(f"partition document is damaged: a ledger ends at offset {last}")
    for name, field in _COMPACTED_FIELDS.items():
        if name in item:
            values[field] = _integer(item[name]) if name != "epochs" else _epochs(item)
    if _MINIMUM in item:
        values["min_timestamp"] = _integer(item[_MINIMUM])
    return LedgerInfo(**values)


def _of_archive_row(row: list[Any]) -> LedgerInfo:
    """As `_ledger`."""
    count = len(_LEDGER_FIELDS)
    if len(row) not in (count, count + 1):
        raise ChainFormatError(f"archive is damaged: a ledger of {len(row)} values")
    more = row[count] if len(row) > count else {}
    return _ledger(dict(zip(_LEDGER_FIELDS, row, strict=False)) | more)


def _epochs(item: dict[str, Any]) -> tuple[tuple[int, int], ...]:
    epochs = tuple((_integer(epoch), _integer(offset)) for epoch, offset in item["epochs"])
    if epochs[:1] != ((item["epoch"], item["base"]),) or not all(
        before[0] < after[0] and before[1] < after[1] for before, after in pairwise(epochs)
    ):
        raise ChainFormatError(f"partition document is damaged: epochs of ledger {item['id']}")
    return epochs


def _count_before(ledgers: Sequence[LedgerInfo], offset: int) -> int:
    """How many closed ledgers, from the first on, hold nothing from `offset` on."""
    closed = len(ledgers)
    if ledgers and ledgers[-1].is_open:
        closed -= 1
    return bisect_right(ledgers, offset, hi=closed, key=_end_offset)


def _base_offset(info: LedgerInfo) -> int:
    return info.base_offset


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
