"""A piece of an archive: the records of one ledger, as one Parquet file.

The file has the columns of `format("quire")` with headers, in the order of offsets. It is written
under a hidden name, and has its own when all of it is on the disk.

Two attempts may be at one piece at the same time: Spark speculates, loses sight of an executor, or
was killed and its executors live on. So a hidden name is of one attempt alone, and a file's own
name has its digest in it: what one attempt told of is there, whatever another one leaves.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from pyspark_quire.task import read_split
from spark_jobs.manifest import NEW, ArchivedFile, make_folder, publish

if TYPE_CHECKING:
    from pyspark_quire.options_core import ReadOptions
    from pyspark_quire.splits import Split

HASH_BYTES = 1 << 20
#: Of a file's digest, in its name.
DIGEST_CHARACTERS = 16


@dataclass(slots=True, frozen=True)
class ArchivePiece:
    """`split`: all of one ledger that is to be archived. `place`: its partition's folder."""

    split: Split
    ledger: int
    options: ReadOptions
    place: str


@dataclass(slots=True, frozen=True)
class VerifyPiece:
    place: str
    file: ArchivedFile


def archive_piece(piece: ArchivePiece) -> ArchivedFile:
    """The errors of `read_split`; OSError."""
    split, place = piece.split, Path(piece.place)
    make_folder(place)
    offsets = f"{split.start:020}-{split.end:020}"
    fresh = _fresh(place, offsets)
    try:
        rows = _write(piece, fresh)
        if not rows:
            return ArchivedFile(piece.ledger, split.start, split.end, None, 0, 0, "")
        digest, size = _hash(fresh)
        name = f"{offsets}-{digest[:DIGEST_CHARACTERS]}.parquet"
        publish(fresh, place / name)
        return ArchivedFile(piece.ledger, split.start, split.end, name, rows, size, digest)
    finally:
        fresh.unlink(missing_ok=True)


def _fresh(place: Path, offsets: str) -> Path:
    """A hidden file that nobody else has, on whatever machine. OSError."""
    for number in count():
        path = place / f".{offsets}.{number}{NEW}"
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
            return path
    raise AssertionError("there is always another number")


def _write(piece: ArchivePiece, path: Path) -> int:
    """How many records; they are on the disk then."""
    rows = 0
    schema = piece.options.columns.arrow
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for batch in read_split(piece.split, piece.options):
            writer.write_batch(batch)
            rows += batch.num_rows
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return rows


def _hash(path: Path) -> tuple[str, int]:
    """Hexadecimal SHA-256, and how many bytes."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(HASH_BYTES):
            digest.update(chunk)
            size += len(chunk)
    return digest.hexdigest(), size


def verify_piece(piece: VerifyPiece) -> str | None:
    """What is wrong with a file that a manifest names; None if it is what was written."""
    file = piece.file
    if file.name is None:
        return None
    path = Path(piece.place) / file.name
    try:
        digest, size = _hash(path)
    except OSError as error:
        return f"{path}: {error.strerror}"
    if (digest, size) != (file.sha256, file.bytes):
        return f"{path}: its bytes are not those that were written"
    offsets = pq.read_table(path, columns=["offset"]).column("offset").to_numpy()
    if len(offsets) != file.rows:
        return f"{path}: {len(offsets)} records instead of {file.rows}"
    if offsets[0] < file.start or offsets[-1] >= file.end or (offsets[1:] <= offsets[:-1]).any():
        return f"{path}: its offsets are not those of {file.start} to {file.end}"
    return None
