"""Checkpoints: up to where the journal is not needed any more (feature 11).

Two small files in the ledger directory, each replaced as a whole. `checkpoint` is ours: the mark,
the number of the last group before it, and what the entry log being written holds up to there.
`lastMark` is BookKeeper's, 16 bytes, written after it: journal id and offset.

The mark never goes back (bk#4105): one task writes it, and it is asserted.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from crc32c import crc32c

from bookie.errors import CorruptionError
from bookie.journal.journal_format import UNKNOWN_SEQUENCE, Position
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from runtime.disk import Disk

LAST_MARK_NAME = "lastMark"
CHECKPOINT_NAME = "checkpoint"
MAGIC = b"QKCP"
#: With adopted journals. One that has none is written as version 2, which older ones of us read.
VERSION = 3
PLAIN_VERSION = 2
#: Without the index's stamps.
OLD_VERSION = 1
_LAST_MARK = struct.Struct(">qq")
_FIXED = struct.Struct(">4sIqqqqqI")
_STAMPS = struct.Struct(">qq")
_LEDGER = struct.Struct(">qq")
_COUNT = struct.Struct(">I")
_ADOPTED = struct.Struct(">qqqI")
_CRC = struct.Struct(">I")


#: Nobody knows what of an adopted journal is referred to: no checkpoint named it before.
END_UNKNOWN = 0


@dataclass(frozen=True, slots=True)
class AdoptedJournal:
    """A journal that is to be an entry log (adopted.py), as of the checkpoint."""

    journal_id: int
    log_id: int
    #: Of the last record in it that the index pointed at, or END_UNKNOWN, and the bytes of those by
    #: ledger.
    end: int
    ledgers: dict[int, int]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    #: Everything journaled before it is in entry logs and in the index.
    mark: Position
    #: The entry log being written then (-1: none), where its records ended, and its bytes by
    #: ledger. All of it was durable, and nothing else in the index points behind it.
    log_id: int
    log_end: int
    ledgers: dict[int, int]
    #: The index's, as of then (`EntryIndex.stamps`): one that has lower ones has lost something.
    index_stamps: tuple[int, int] = (0, 0)
    adopted: tuple[AdoptedJournal, ...] = ()

    @property
    def log_ids(self) -> set[int]:
        """Of all logs that it names."""
        return {self.log_id, *(each.log_id for each in self.adopted)}


NO_CHECKPOINT = Checkpoint(Position(0, 0, 0), -1, 0, {})


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    mark = checkpoint.mark
    parts = [
        _FIXED.pack(
            MAGIC,
            VERSION if checkpoint.adopted else PLAIN_VERSION,
            mark.journal_id,
            mark.offset,
            mark.sequence,
            checkpoint.log_id,
            checkpoint.log_end,
            len(checkpoint.ledgers),
        )
    ]
    parts.extend(_LEDGER.pack(*item) for item in sorted(checkpoint.ledgers.items()))
    parts.append(_STAMPS.pack(*checkpoint.index_stamps))
    if checkpoint.adopted:
        parts.append(_COUNT.pack(len(checkpoint.adopted)))
    for each in checkpoint.adopted:
        parts.append(_ADOPTED.pack(each.journal_id, each.log_id, each.end, len(each.ledgers)))
        parts.extend(_LEDGER.pack(*item) for item in sorted(each.ledgers.items()))
    data = b"".join(parts)
    return data + _CRC.pack(crc32c(data))


def decode_checkpoint(path: str, data: bytes) -> Checkpoint:
    """CorruptionError names `path`."""
    if len(data) < _FIXED.size + _CRC.size or data[:4] != MAGIC:
        raise CorruptionError(path, 0, "not a checkpoint")
    body, (crc,) = data[: -_CRC.size], _CRC.unpack(data[-_CRC.size :])
    if crc32c(body) != crc:
        raise CorruptionError(path, len(body), "the checksum does not match")
    _, version, journal_id, offset, sequence, log_id, log_end, count = _FIXED.unpack_from(body)
    if version not in (OLD_VERSION, PLAIN_VERSION, VERSION):
        raise CorruptionError(path, 4, f"checkpoint version {version}, known is {VERSION}")
    end = _FIXED.size + count * _LEDGER.size
    stamps_end = end + (_STAMPS.size if version != OLD_VERSION else 0)
    if len(body) < stamps_end or (len(body) != stamps_end and version != VERSION):
        raise CorruptionError(path, _FIXED.size, f"{len(body)} bytes for {count} ledgers")
    ledgers = dict(_LEDGER.iter_unpack(body[_FIXED.size : end]))
    stamps = _STAMPS.unpack_from(body, end) if version != OLD_VERSION else (0, 0)
    mark = Position(journal_id, offset, sequence)
    adopted = _decode_adopted(path, body, stamps_end) if version == VERSION else ()
    return Checkpoint(mark, log_id, log_end, ledgers, stamps, adopted)


def _decode_adopted(path: str, body: bytes, at: int) -> tuple[AdoptedJournal, ...]:
    try:
        (count,) = _COUNT.unpack_from(body, at)
        at += _COUNT.size
        found: list[AdoptedJournal] = []
        for _ in range(count):
            journal_id, log_id, end, ledgers = _ADOPTED.unpack_from(body, at)
            at += _ADOPTED.size
            last = at + ledgers * _LEDGER.size
            sizes = dict(_LEDGER.iter_unpack(body[at:last]))
            found.append(AdoptedJournal(journal_id, log_id, end, sizes))
            at = last
    except struct.error as error:
        raise CorruptionError(path, at, f"an adopted journal is cut off: {error}") from error
    if at != len(body):
        raise CorruptionError(path, at, f"{len(body) - at} bytes behind the adopted journals")
    return tuple(found)


def read_checkpoint(disk: Disk, directory: str) -> Checkpoint:
    """The newest, NO_CHECKPOINT if there is none. CorruptionError.

    We write `lastMark` last, so it is never ahead unless it is damaged, or Apache BookKeeper ran
    here since: following it could skip what only the journal has. Without a `checkpoint` it counts.
    """
    checkpoint = NO_CHECKPOINT
    if (data := _read(disk, path := f"{directory}/{CHECKPOINT_NAME}")) is not None:
        checkpoint = decode_checkpoint(path, data)
    if (data := _read(disk, path := f"{directory}/{LAST_MARK_NAME}")) is not None:
        if len(data) != _LAST_MARK.size:
            raise CorruptionError(path, 0, f"{len(data)} bytes instead of {_LAST_MARK.size}")
        journal_id, offset = _LAST_MARK.unpack(data)
        if (journal_id, offset) > checkpoint.mark[:2]:
            if checkpoint is not NO_CHECKPOINT:
                raise CorruptionError(
                    path,
                    0,
                    f"journal {journal_id:x} offset {offset} is ahead of the checkpoint's mark, "
                    f"journal {checkpoint.mark.journal_id:x} offset {checkpoint.mark.offset}: it "
                    "is damaged and may be removed; or Apache BookKeeper ran here since, and then "
                    f"{directory}/{CHECKPOINT_NAME} may be",
                )
            checkpoint = Checkpoint(Position(journal_id, offset, UNKNOWN_SEQUENCE), -1, 0, {})
    return checkpoint


def write_checkpoint(disk: Disk, directory: str, checkpoint: Checkpoint) -> None:
    """Durable on return; blocks. OSError."""
    disk.write_file(f"{directory}/{CHECKPOINT_NAME}", encode_checkpoint(checkpoint))
    mark = checkpoint.mark
    disk.write_file(f"{directory}/{LAST_MARK_NAME}", _LAST_MARK.pack(mark.journal_id, mark.offset))


def _read(disk: Disk, path: str) -> bytes | None:
    if not disk.exists(path):
        return None
    file = disk.open(path)
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()
