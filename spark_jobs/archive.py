"""`quire-spark archive`: closed ledgers as Parquet files, each once, with a manifest.

Order of what is made durable, for each partition: the files of some ledgers; the manifest that
names them; and in the cluster's metadata how far the archive goes now, which is what retention
waits for on a topic with `quire.archive.required` (broker/log/life/archived.py). A run that is
killed anywhere between leaves an archive that is whole as far as its manifests go; the next one
begins there, and tells the metadata again.

What is a border is an offset and not a ledger's number: a ledger may be replaced by another.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from broker.log.life.archived import ArchivedFormatError, tell_archived
from pyspark_quire.connection import run_within
from pyspark_quire.options_core import parse_options
from pyspark_quire.partitions import document_path
from pyspark_quire.planning import OffsetRange, choose, look_at, plan
from spark_jobs.archive_task import ArchivePiece, VerifyPiece, archive_piece, verify_piece
from spark_jobs.manifest import (
    Manifest,
    check_files,
    folder,
    lives,
    make_folder,
    manifest_of,
    remove_unfinished,
    write_manifest,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark_quire.connection import Connection, Where
    from pyspark_quire.options_core import ReadOptions
    from pyspark_quire.planning import Look
    from spark_jobs.runner import Run

PLAN_SECONDS = 600.0
#: Ledgers after which manifests are written: what a kill costs, and what a large archive does.
FLUSH_LEDGERS = 32
#: Of one split: a ledger is never cut.
NO_LIMIT = str(1 << 62)


@dataclass(slots=True, frozen=True)
class ArchiveOptions:
    topics: tuple[str, ...]
    archive: Path
    read_committed: bool = False
    #: Go on where records were deleted before they were archived.
    accepts_gaps: bool = False

    @property
    def isolation(self) -> str:
        return "read_committed" if self.read_committed else "read_uncommitted"


@dataclass(slots=True)
class Archive:
    """What a run works with. `manifests`, by partition, are as they are on the disk or newer."""

    pieces: list[ArchivePiece] = field(default_factory=list)
    manifests: dict[str, Manifest] = field(default_factory=dict)
    #: Document's path of each partition that the metadata are told of.
    documents: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class ArchiveReport:
    ledgers: int = 0
    rows: int = 0
    bytes: int = 0
    partitions: list[dict[str, Any]] = field(default_factory=list)


def make_archive(
    where: Where, run: Run, options: ArchiveOptions, start: Callable[[int], Callable[[int], None]]
) -> ArchiveReport:
    """ClickException for what must not go on; LedgerError, MetadataError, ManifestError,
    UnreachableError, OSError."""
    make_folder(options.archive)
    with _locked(options.archive):
        found = run_within(where, PLAN_SECONDS, lambda c: _plan(c, where, options))
        for place, manifest in found.manifests.items():
            check_files(Path(place), manifest)
            remove_unfinished(Path(place))
        _tell(where, found, list(found.manifests))
        report, changed = ArchiveReport(), dict[str, None]()
        step = start(len(found.pieces))
        for number, (piece, file) in enumerate(run(archive_piece, found.pieces), 1):
            manifest = found.manifests[piece.place].with_file(file)
            found.manifests[piece.place] = manifest
            changed[piece.place] = None
            report.ledgers += 1
            report.rows += file.rows
            report.bytes += file.bytes
            step(1)
            if number % FLUSH_LEDGERS == 0:
                _flush(where, found, changed)
        _flush(where, found, changed)
    report.partitions = [_row(each) for each in found.manifests.values()]
    return report


def _flush(where: Where, found: Archive, changed: dict[str, None]) -> None:
    """First the manifests, then the metadata."""
    for place in changed:
        write_manifest(Path(place), found.manifests[place])
    _tell(where, found, list(changed))
    changed.clear()


def _tell(where: Where, found: Archive, places: Sequence[str]) -> None:
    wanted = [place for place in places if found.manifests[place].files]
    if not wanted:
        return

    async def work(connection: Connection) -> None:
        for place in wanted:
            manifest = found.manifests[place]
            try:
                await tell_archived(connection.store, found.documents[place], manifest.next_base)
            except ArchivedFormatError as error:
                raise ArchivedFormatError(f"{manifest.title}: {error}") from None

    run_within(where, PLAN_SECONDS, work)


@contextmanager
def _locked(archive: Path) -> Iterator[None]:
    """One run at a time: two would write one manifest."""
    handle = os.open(archive / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise click.ClickException(f"another run is at work in {archive}") from None
        yield
    finally:
        os.close(handle)


def read_options(where: Where, options: ArchiveOptions) -> ReadOptions:
    """ClickException for a topic's name that is none."""
    given = {
        "metadata": where.metadata,
        "subscribe": ",".join(options.topics),
        "includeHeaders": "true",
        "isolation.level": options.isolation,
        "maxBytesPerPartition": NO_LIMIT,
        **{f"bookkeeper.{name}": text for name, text in where.settings.items()},
    }
    try:
        return parse_options(given)
    except ValueError as error:
        raise click.ClickException(f"--topic: {error}") from None


async def _plan(connection: Connection, where: Where, options: ArchiveOptions) -> Archive:
    reading = read_options(where, options)
    partitions = await choose(connection, reading)
    found = Archive()
    ranges: list[OffsetRange] = []
    for look in await look_at(connection, reading, partitions):
        topic = look.view.topic
        if "compact" in topic.configs.get("cleanup.policy", ""):
            raise click.ClickException(
                f"topic {topic.name} is compacted: an archive of what compaction left so far would"
                " be another at each run"
            )
        life = topic.name, str(topic.id), look.view.partition
        place = folder(options.archive, *life)
        manifest = manifest_of(options.archive, *life) or _new_manifest(look, options)
        _check(manifest, look, options)
        found.manifests[str(place)] = manifest
        found.documents[str(place)] = document_path(topic, look.view.partition)
        ranges += _ranges(look, manifest.next_base)
    ledgers = {(each.look.place, each.start): _ledger_at(each) for each in ranges}
    for split in await plan(connection, reading, ranges):
        place = folder(options.archive, split.topic, split.topic_id, split.partition)
        ledger = ledgers[(split.topic, split.partition), split.start]
        found.pieces.append(ArchivePiece(split, ledger, reading, str(place)))
    return found


def _new_manifest(look: Look, options: ArchiveOptions) -> Manifest:
    topic, first = look.view.topic, look.view.log_start_offset
    return Manifest(topic.name, str(topic.id), look.view.partition, options.isolation, first, first)


def _check(manifest: Manifest, look: Look, options: ArchiveOptions) -> None:
    """ClickException."""
    if manifest.isolation != options.isolation:
        raise click.ClickException(
            f"{manifest.title}: the archive was begun with {manifest.isolation}, and goes on so"
        )
    first, chain = look.view.log_start_offset, look.view.chain
    if any(info.is_compacted for info in chain.ledgers):
        raise click.ClickException(
            f"{manifest.title}: was compacted: an archive of what compaction left so far would be"
            " another at each run"
        )
    end = max(chain.closed_end_offset, look.view.end_offset, first)
    if manifest.next_base > end:
        raise click.ClickException(
            f"{manifest.title}: the archive goes on at offset {manifest.next_base}, and the log"
            f" ends at {end}: it is not the log that was archived"
        )
    if first > manifest.next_base and not options.accepts_gaps:
        raise click.ClickException(
            f"{manifest.title}: offsets {manifest.next_base} to {first} were deleted before they"
            " were archived. --accept-gaps goes on, and the manifest tells the gap; on a topic with"
            " quire.archive.required=true it does not come to that"
        )


def _ranges(look: Look, next_base: int) -> list[OffsetRange]:
    """What is to be archived, a range for each ledger: closed ones, and with read_committed only
    as far as all transactions are decided."""
    start = max(next_base, look.view.log_start_offset)
    found = []
    for info in look.view.chain.ledgers:
        if info.is_open or info.end_offset > look.end_offset:
            break
        if info.end_offset > start:
            found.append(OffsetRange(look, max(start, info.base_offset), info.end_offset))
    return found


def _ledger_at(wanted: OffsetRange) -> int:
    return next(
        info.ledger_id
        for info in wanted.look.view.chain.ledgers
        if info.base_offset <= wanted.start < info.end_offset
    )


def _row(manifest: Manifest) -> dict[str, Any]:
    return {
        "partition": manifest.title,
        "first": manifest.first,
        "next_base": manifest.next_base,
        "files": len(manifest.files),
        "rows": sum(file.rows for file in manifest.files),
        "bytes": sum(file.bytes for file in manifest.files),
        "gaps": [list(gap) for gap in manifest.gaps],
    }


def verify_archive(archive: Path, run: Run, topics: Sequence[str]) -> tuple[int, list[str]]:
    """How many files manifests name, and what is wrong with them. ClickException if a topic, or
    anything, is not there; ManifestError, OSError."""
    found = [life for life in lives(archive) if not topics or life[0] in topics]
    missing = sorted(set(topics) - {topic for topic, _, _ in found})
    if missing or not found:
        raise click.ClickException(f"{archive}: nothing of {', '.join(missing) or 'any topic'}")
    pieces = [
        VerifyPiece(str(folder(archive, *life)), file)
        for life in found
        for manifest in [manifest_of(archive, *life)]
        if manifest is not None
        for file in manifest.files
    ]
    faults = [fault for _, fault in run(verify_piece, pieces) if fault is not None]
    return len(pieces), faults
