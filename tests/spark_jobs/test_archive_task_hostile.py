"""Two attempts at one piece: Spark's speculation, an executor that was given up and goes on, or
what is left of a run whose driver was killed."""

import hashlib
from contextlib import suppress
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq

from pyspark_quire.columns import column_set
from pyspark_quire.options_core import parse_options
from spark_jobs import archive_task
from spark_jobs.archive_task import ArchivePiece, archive_piece

OPTIONS = parse_options({"metadata": "m", "subscribe": "t", "columns": "offset"})
SPLIT = SimpleNamespace(start=0, end=2000)


def rows(first, last):
    schema = column_set("offset", include_headers=False).arrow
    return pa.RecordBatch.from_arrays([pa.array(range(first, last), pa.int64())], schema=schema)


def test_a_second_attempt_does_not_write_into_the_firsts_file(tmp_path, monkeypatch):
    """The slow one goes on after the quick one has published its file, which the manifest names."""
    piece = ArchivePiece(SPLIT, 1, OPTIONS, str(tmp_path))
    published = []

    def slow(_split, _options):
        yield rows(0, 1000)
        monkeypatch.setattr(archive_task, "read_split", quick)
        published.append(archive_piece(piece))
        yield rows(1000, 2000)

    def quick(_split, _options):
        yield rows(0, 2000)

    monkeypatch.setattr(archive_task, "read_split", slow)
    with suppress(OSError):  # it may fail, or do the same again
        published.append(archive_piece(piece))
    path = tmp_path / published[0].name
    # What a manifest may have: of whoever was last, or first.
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert digest in {each.sha256 for each in published}
    assert len(pq.read_table(path)) == 2000
