"""Manifests: no offset twice, none left out, and a replacement is whole or not there."""

import json
import os
from dataclasses import replace

import pytest

from spark_jobs import manifest as module
from spark_jobs.manifest import (
    ArchivedFile,
    Manifest,
    ManifestError,
    make_folder,
    read_manifest,
    write_manifest,
)


def file(start, end, ledger=1):
    return ArchivedFile(ledger, start, end, f"{start}.parquet", end - start, 5, "ab")


EMPTY = Manifest("t", "id", 0, "read_uncommitted", 10, 10)
TWO = EMPTY.with_file(file(10, 20)).with_file(file(20, 30, 2))


def test_a_round_trip(tmp_path):
    assert read_manifest(tmp_path) is None
    for each in (EMPTY, TWO, TWO.with_file(file(35, 40, 3))):
        write_manifest(tmp_path, each)
        assert read_manifest(tmp_path) == each
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


def test_a_gap_is_told():
    assert TWO.gaps == ()
    assert TWO.next_base == 30
    assert TWO.with_file(file(35, 40)).gaps == ((30, 35),)
    with pytest.raises(AssertionError):
        TWO.with_file(file(29, 40))


@pytest.mark.parametrize("files", [
    (file(10, 20), file(21, 30)), (file(10, 20), file(19, 30)), (file(11, 30),), (file(10, 29),),
    (file(10, 31),), (file(20, 30), file(10, 20)), (),
])  # fmt: skip
def test_files_that_do_not_follow_each_other_are_refused(tmp_path, files):
    write_manifest(tmp_path, replace(TWO, files=files))
    with pytest.raises(ManifestError, match=r"manifest.json.*t-0"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("change", [{"format": 2}, {"files": 3}, {"files": [{}]}, {"more": 1}])
def test_what_is_no_manifest_is_named(tmp_path, change):
    document = json.loads(TWO.to_bytes()) | change
    (tmp_path / "manifest.json").write_text(json.dumps(document))
    with pytest.raises(ManifestError, match=r"manifest.json"):
        read_manifest(tmp_path)


def test_a_replacement_that_ends_early_leaves_the_old_one(tmp_path, monkeypatch):
    write_manifest(tmp_path, EMPTY)

    def killed(*_):
        raise KeyboardInterrupt

    for name in ("publish",):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, killed)
            with pytest.raises(KeyboardInterrupt):
                write_manifest(tmp_path, TWO)
        assert read_manifest(tmp_path) == EMPTY
    write_manifest(tmp_path, TWO)
    assert read_manifest(tmp_path) == TWO


def test_folders_may_be_there(tmp_path):
    for _ in range(2):
        make_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()


def test_content_and_names_are_synced_in_their_order(tmp_path, monkeypatch):
    """A name that outlives a power cut names what was written, and the name itself outlives it."""
    done = []
    fsync, replace_file = os.fsync, os.replace

    def synced(handle):
        done.append(("sync", os.path.basename(os.readlink(f"/proc/self/fd/{handle}"))))
        fsync(handle)

    def replaced(fresh, path):
        done.append(("replace", os.path.basename(fresh), os.path.basename(path)))
        replace_file(fresh, path)

    monkeypatch.setattr(module.os, "fsync", synced)
    monkeypatch.setattr(module.os, "replace", replaced)
    make_folder(tmp_path / "a" / "b")
    assert done == [("sync", tmp_path.name), ("sync", "a")]
    done.clear()
    write_manifest(tmp_path / "a" / "b", TWO)
    fresh = ".manifest.json.new"
    assert done == [("sync", fresh), ("replace", fresh, "manifest.json"), ("sync", "b")]
