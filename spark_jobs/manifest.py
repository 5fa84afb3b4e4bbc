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
import re
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

FORMAT = 1
ISOLATIONS = ("read_uncommitted", "read_committed")
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
        """ManifestError, also if its files leave offsets out, or have some twice, or are none."""
        try:
            document: dict[str, Any] = json.loads(data)
            form = document.pop("format")
            if form != FORMAT:
                raise ManifestError(f"a manifest of the unknown format {form!r}")
            files = tuple(ArchivedFile(**each) for each in document.pop("files"))
            gaps = tuple((start, end) for start, end in document.pop("gaps"))
            manifest = cls(**document, files=files, gaps=gaps)
        except ManifestError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ManifestError(f"a manifest is damaged: {error!r}") from error
        manifest._check()
        return manifest

    def _check(self) -> None:
        _check_kinds(self)
        position, gaps = self.first, set(self.gaps)
        if any(start >= end for start, end in gaps):
            raise ManifestError(f"{self.title}: a gap that ends before it begins")
        names = [file.name for file in self.files if file.name is not None]
        if len(set(names)) < len(names):
            raise ManifestError(f"{self.title}: a file that is named twice")
        for file in self.files:
            if file.start != position and (position, file.start) not in gaps:
                raise ManifestError(
                    f"{self.title}: the archive goes on at {file.start} instead of {position}"
                )
            if file.start >= file.end:
                raise ManifestError(f"{self.title}: a file of {file.start} to {file.end}")
            position = file.end
        if position != self.next_base:
            raise ManifestError(
                f"{self.title}: the archive's files end at {position} instead of {self.next_base}"
            )


def _check_kinds(manifest: Manifest) -> None:
    """Python reads whatever JSON has. ManifestError."""
    numbers = [manifest.partition, manifest.first, manifest.next_base]
    numbers += [number for gap in manifest.gaps for number in gap]
    texts = [manifest.topic, manifest.topic_id, manifest.isolation]
    for file in manifest.files:
        numbers += [file.ledger, file.start, file.end, file.rows, file.bytes]
        texts.append(file.sha256)
        if file.name is not None:
            texts.append(file.name)
            if not isinstance(file.name, str) or file.name != os.path.basename(file.name):
                raise ManifestError(f"{manifest.title}: {file.name!r} is no file of its folder")
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise ManifestError(f"{manifest.title}: a number that is none, or below 0")
    if not all(isinstance(text, str) for text in texts) or manifest.isolation not in ISOLATIONS:
        raise ManifestError(f"{manifest.title}: a text that is none, or an unknown isolation")


def folder(archive: Path, topic: str, topic_id: str, partition: int) -> Path:
    """Of one partition's files."""
    return archive / topic / topic_id / str(partition)


def manifest_of(archive: Path, topic: str, topic_id: str, partition: int) -> Manifest | None:
    """None if there is none yet. ManifestError, also for another partition's, which somebody has
    copied there; OSError."""
    place = folder(archive, topic, topic_id, partition)
    manifest = read_manifest(place)
    wanted = topic, topic_id, partition
    if manifest is not None and wanted != (manifest.topic, manifest.topic_id, manifest.partition):
        raise ManifestError(
            f"{place / NAME}: is of {manifest.title} (topic id {manifest.topic_id}), and not of"
            f" {topic}-{partition} (topic id {topic_id})"
        )
    return manifest


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


def check_files(place: Path, manifest: Manifest) -> None:
    """Whether the files that it names are there, as large as they were. ManifestError."""
    for file in manifest.files:
        if file.name is None:
            continue
        try:
            size = (place / file.name).stat().st_size
        except OSError as error:
            raise ManifestError(f"{place / file.name}: {error.strerror}") from None
        if size != file.bytes:
            raise ManifestError(f"{place / file.name}: {size} bytes instead of {file.bytes}")


def lives(archive: Path, topic: str = "*", topic_id: str = "*") -> list[tuple[str, str, int]]:
    """(topic, topic id, partition) of all that have a manifest; a folder with another name than a
    number, as of a copy, is none."""
    found = []
    for path in archive.glob(f"{topic}/{topic_id}/*/{NAME}"):
        name, life, number = path.parts[-4:-1]
        if re.fullmatch(r"0|[1-9]\d*", number, re.ASCII):
            found.append((name, life, int(number)))
    return sorted(found)


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
