"""Manifests that somebody edited, copied or damaged: what an archive says of itself is checked
before the cluster, or a reader, believes it."""

import json
import shutil
from dataclasses import replace

import pytest

from spark_jobs.history import _files, history, manifests_of
from spark_jobs.manifest import (
    ArchivedFile,
    Manifest,
    ManifestError,
    folder,
    make_folder,
    read_manifest,
    write_manifest,
)


def file(start, end, name=None):
    return ArchivedFile(1, start, end, name or f"{start}.parquet", max(end - start, 0), 5, "ab")


TWO = (
    Manifest("t", "id", 0, "read_uncommitted", 10, 10)
    .with_file(file(10, 20))
    .with_file(file(20, 30))
)


LIES = {
    "a file that goes back": {"files": (file(10, 20), file(20, 15), file(15, 30))},
    "an empty file": {"files": (file(10, 20), file(20, 20), file(20, 30))},
    "a gap that goes back": {"gaps": ((20, 12),), "files": (file(10, 20), file(12, 30))},
    "a name that leads out": {"files": (file(10, 20, "../../1/x.parquet"), file(20, 30))},
    "an absolute name": {"files": (file(10, 20, "/etc/passwd"), file(20, 30))},
    "two ranges in one file": {"files": (file(10, 20, "a"), file(20, 30, "a"))},
    "a negative offset": {"first": -5, "next_base": -5, "files": ()},
    "an offset that is text": {"first": "10", "next_base": "10", "files": ()},
    "an offset with a fraction": {"next_base": 30.0},
    "an isolation that is none": {"isolation": "chaos"},
}


@pytest.mark.parametrize("change", LIES.values(), ids=LIES)
def test_what_cannot_be_is_refused(change):
    with pytest.raises(ManifestError):
        Manifest.from_bytes(replace(TWO, **change).to_bytes())


def test_a_document_that_is_too_deep_is_damaged(tmp_path):
    (tmp_path / "manifest.json").write_bytes(b"[" * 100_000)
    with pytest.raises(ManifestError, match=r"manifest.json"):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    "change", [{"topic": "other"}, {"topic_id": "other"}, {"partition": 5}], ids=str
)
def test_a_manifest_of_something_else_is_refused(tmp_path, change):
    """It was copied there: as a recreated topic's, or a neighbour's. ManifestError says «not of
    what was asked for»."""
    place = folder(tmp_path, "t", "id", 0)
    make_folder(place)
    write_manifest(place, replace(TWO, **change))
    with pytest.raises(ManifestError):
        manifests_of(tmp_path, "t", "id")


def test_a_copy_of_a_folder_is_no_second_partition(tmp_path):
    """`cp -r 0 0.bak`: each record would be in the history twice."""
    place = folder(tmp_path, "t", "id", 0)
    make_folder(place)
    write_manifest(place, TWO)
    shutil.copytree(place, place.parent / "0.bak")
    try:
        files = _files(tmp_path, manifests_of(tmp_path, "t", "id"))
    except ManifestError:
        return
    assert len(files) == len(set(files)) == 2


class Spark:
    """As much of a session as `history` uses."""

    def __init__(self):
        self.options = {}
        self.read = self

    def format(self, _name):
        return self

    def option(self, name, text):
        self.options[name.lower()] = text
        return self

    def load(self):
        self.columns = ["offset"]
        return self

    def parquet(self, *_files):
        return self

    def select(self, *_columns):
        return self

    def unionByName(self, _other):
        return self


@pytest.mark.parametrize(
    "option",
    [
        {"startingOffsets": "earliest"},
        {"startingTimestamp": "0"},
        {"isolation.level": "read_committed"},
        {"subscribe": "other"},
    ],
    ids=str,
)
def test_options_do_not_move_the_border(tmp_path, monkeypatch, option):
    """«Nothing is there twice»: what says where to start is the archive's to say."""
    from spark_jobs import history as module
    from tests.pyspark_quire.in_memory import topic

    monkeypatch.setattr(module, "_topic", lambda *_: topic("t"))
    place = folder(tmp_path, "t", str(topic("t").id), 0)
    make_folder(place)
    write_manifest(place, replace(TWO, topic_id=str(topic("t").id)))
    spark = Spark()
    try:
        history(spark, "t", archive=str(tmp_path), metadata="m", options=option)
    except ValueError:
        return  # refused
    assert json.loads(spark.options["startingoffsets"]) == {"t": {"0": 30}}
    assert "startingtimestamp" not in spark.options
    assert spark.options["subscribe"] == "t"
    assert spark.options["isolation.level"] == "read_uncommitted"
