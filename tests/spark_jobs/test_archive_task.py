"""One file of an archive, when its task is run twice at the same time: Spark does that if it
speculates, if it has lost sight of an executor, and if a killed run's executors outlive it."""

import os
from contextlib import suppress

import pyarrow as pa
import pytest

from pyspark_quire.plan_core import Part
from pyspark_quire.splits import Split
from spark_jobs import archive_task
from spark_jobs.archive_task import ArchivePiece, VerifyPiece, archive_piece, verify_piece
from tests.pyspark_quire.simulated import options


def rows(start, end, given):
    return pa.RecordBatch.from_pydict(
        {
            "key": [None] * (end - start),
            "value": [b"v%d" % n for n in range(start, end)],
            "topic": ["t"] * (end - start),
            "partition": [0] * (end - start),
            "offset": list(range(start, end)),
            "timestamp": [0] * (end - start),
            "timestampType": [0] * (end - start),
            "headers": [None] * (end - start),
        },
        schema=given.columns.arrow,
    )


def test_two_attempts_leave_a_file_that_is_what_was_told(tmp_path, monkeypatch):
    given = options(includeHeaders="true")
    split = Split("t", "id", 0, 0, 6000, (Part(1, 0, 6000),), {}, {})
    piece = ArchivePiece(split, 1, given, str(tmp_path / "0"))
    told = []

    def quick(_split, _given):
        yield rows(0, 6000, given)

    def slow(_split, _given):
        """In other batches: this attempt had to plan anew on its way."""
        yield rows(0, 1000, given)
        monkeypatch.setattr(archive_task, "read_split", quick)
        told.append(archive_piece(piece))
        yield rows(1000, 6000, given)

    monkeypatch.setattr(archive_task, "read_split", slow)
    with suppress(OSError):  # the attempt that nobody waits for may fail
        told.append(archive_piece(piece))
    # The manifest has what one of them told: of each, its file is there, and is that.
    for file in told:
        assert verify_piece(VerifyPiece(piece.place, file)) is None


def test_an_attempt_that_dies_takes_nothing_from_another(tmp_path, monkeypatch):
    """It opens its file when the other one has written all, and has not told of it yet."""
    given = options(includeHeaders="true")
    split = Split("t", "id", 0, 0, 6000, (Part(1, 0, 6000),), {}, {})
    piece = ArchivePiece(split, 1, given, str(tmp_path / "0"))
    hashed = archive_task._hash

    def whole(_split, _given):
        yield rows(0, 6000, given)

    def dying(_split, _given):
        yield rows(0, 1000, given)
        raise KeyboardInterrupt

    def meanwhile(path):
        monkeypatch.setattr(archive_task, "_hash", hashed)
        monkeypatch.setattr(archive_task, "read_split", dying)
        with pytest.raises(KeyboardInterrupt):
            archive_piece(piece)
        return hashed(path)

    monkeypatch.setattr(archive_task, "read_split", whole)
    monkeypatch.setattr(archive_task, "_hash", meanwhile)
    file = archive_piece(piece)
    assert file.rows == 6000
    assert verify_piece(VerifyPiece(piece.place, file)) is None


def test_a_file_is_synced_before_it_has_its_name(tmp_path, monkeypatch):
    given = options(includeHeaders="true")
    piece = ArchivePiece(
        Split("t", "id", 0, 0, 10, (Part(1, 0, 10),), {}, {}), 1, given, str(tmp_path / "0")
    )
    done = []
    fsync, publish = os.fsync, archive_task.publish

    def synced(handle):
        done.append(os.path.basename(os.readlink(f"/proc/self/fd/{handle}")))
        fsync(handle)

    def published(fresh, path):
        done.append((fresh.name, path.name))
        publish(fresh, path)

    monkeypatch.setattr(archive_task, "read_split", lambda *_: iter([rows(0, 10, given)]))
    monkeypatch.setattr(archive_task.os, "fsync", synced)
    monkeypatch.setattr(archive_task, "publish", published)
    file = archive_piece(piece)
    at = next(n for n, each in enumerate(done) if isinstance(each, tuple))
    hidden, name = done[at]
    assert done[at - 1] == hidden
    assert (name, file.rows) == (file.name, 10)
    assert [path.name for path in (tmp_path / "0").iterdir()] == [name]


def test_offsets_of_another_range_are_no_archive(tmp_path, monkeypatch):
    """Though the file's bytes are those that the manifest tells of."""
    given = options(includeHeaders="true")
    piece = ArchivePiece(
        Split("t", "id", 0, 0, 10, (Part(1, 0, 10),), {}, {}), 1, given, str(tmp_path / "0")
    )
    monkeypatch.setattr(archive_task, "read_split", lambda *_: iter([rows(5, 15, given)]))
    file = archive_piece(piece)
    assert "offsets" in verify_piece(VerifyPiece(piece.place, file))
