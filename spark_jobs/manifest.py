"""What an archive holds of a partition, as one JSON document beside its files.

    <archive>/<topic>/<topic id>/<partition>/manifest.json
    .../<partition>/<first offset>-<offset behind the last>-<digest>.parquet

    {"format": 1, "topic": "t", "topic_id": "...", "partition": 0, "isolation": "read_uncommitted",
     "first": 0, "next_base": 300, "gaps": [],
     "files": [{"ledger": 7, "start": 0, "end": 100, "name": "...parquet", "rows": 100,
                "bytes": 1234, "sha256": "..."}, ...]}

Files are of consecutive offsets, from `first` to `next_base`; `gaps` are the offsets that were
deleted before they were archived, if somebody has said that this is to be. `name` is null where a
range holds no record that is to be seen (control batches, aborted transactions). A file that the
manifest does not name is not part of the archive: a run that was killed left it, or an attempt that
nobody waited for.

A manifest is replaced whole, by rename, after the files that it names are on the disk.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

FORMAT = 1
NAME = "manifest.json"
#: How hidden files end that are not whole yet.
NEW = ".new"


class ManifestError(ValueError):
    """The stored document is no manifest, or not of what was asked for; says which and why."""


@dataclass(slots=True, frozen=True)
class ArchivedFile:
    """Offsets `start` to `end`, the latter excluded."""

    ledger: int
    start: int
    end: int
    name: str | None
    rows: int
    bytes: int
    sha256: str


@dataclass(slots=True, frozen=True)
class Manifest:
    topic: str
    topic_id: str
    partition: int
    isolation: str
    first: int
    next_base: int
    files: tuple[ArchivedFile, ...] = ()
    gaps: tuple[tuple[int, int], ...] = ()

    @property
    def title(self) -> str:
        return f"{self.topic}-{self.partition}"

    def with_file(self, file: ArchivedFile) -> Manifest:
        """The next one. What lies between it and the one before was deleted."""
        assert self.next_base <= file.start < file.end, "offsets only grow"
        gaps = self.gaps
        if file.start > self.next_base:
            gaps = (*gaps, (self.next_base, file.start))
        return replace(self, files=(*self.files, file), next_base=file.end, gaps=gaps)

    def to_bytes(self) -> bytes:
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """ManifestError, also if its files leave offsets out or have some twice."""
        try:
            document: dict[str, Any] = json.loads(data)
            form = document.pop("format")
            if form != FORMAT:
                raise ManifestError(f"a manifest of the unknown format {form!r}")
            files = tuple(ArchivedFile(**each) for each in document.pop("files"))
            gaps = tuple((int(start), int(end)) for start, end in document.pop("gaps"))
            manifest = cls(**document, files=files, gaps=gaps)
            manifest._check()
        except ManifestError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ManifestError(f"a manifest is damaged: {error!r}") from error
        return manifest

    def _check(self) -> None:
        position, gaps = self.first, set(self.gaps)
        for file in self.files:
            if file.start != position and (position, file.start) not in gaps:
                raise ManifestError(
                    f"{self.title}: the archive goes on at {file.start} instead of {position}"
                )
            position = file.end
        if position != self.next_base:
            raise ManifestError(
                f"{self.title}: the archive's files end at {position} instead of {self.next_base}"
            )


def folder(archive: Path, topic: str, topic_id: str, partition: int) -> Path:
    """Of one partition's files."""
    return archive / topic / topic_id / str(partition)


def read_manifest(place: Path) -> Manifest | None:
    """None if there is none yet. ManifestError, OSError."""
    try:
        data = (place / NAME).read_bytes()
    except FileNotFoundError:
        return None
    try:
        return Manifest.from_bytes(data)
    except ManifestError as error:
        raise ManifestError(f"{place / NAME}: {error}") from None


def write_manifest(place: Path, manifest: Manifest) -> None:
    """Durable when it returns. OSError."""
    write_durably(place, NAME, manifest.to_bytes())


def write_durably(place: Path, name: str, data: bytes) -> None:
    fresh = place / f".{name}{NEW}"
    with fresh.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    publish(fresh, place / name)


def publish(fresh: Path, path: Path) -> None:
    """`fresh`, whose content is on the disk, in the place of `path`; so is the name, then."""
    os.replace(fresh, path)
    handle = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_unfinished(place: Path) -> None:
    """Hidden files of attempts that were killed. Whoever is at work at one still, for a run that is
    no more, fails by it."""
    for path in place.glob(f".*{NEW}"):
        path.unlink(missing_ok=True)


def make_folder(place: Path) -> None:
    """With those above; the names are durable."""
    missing = [each for each in (place, *place.parents) if not each.exists()]
    place.mkdir(parents=True, exist_ok=True)
    for each in reversed(missing):
        handle = os.open(each.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
