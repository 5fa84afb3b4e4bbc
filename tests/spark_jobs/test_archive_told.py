"""What retention is told by an archive (`quire.archive.required`): only what is in it, of this very
partition. With metadata in memory, and pieces that a list answers."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
import trio
from click.testing import CliRunner

from broker.log.life.archived import read_archived
from pyspark_quire.connection import Where
from pyspark_quire.partitions import document_path
from spark_jobs import archive as module
from spark_jobs.archive import ArchiveOptions, make_archive
from spark_jobs.command import main
from spark_jobs.manifest import (
    ArchivedFile,
    Manifest,
    ManifestError,
    folder,
    make_folder,
    write_manifest,
)
from spark_jobs.options import _raise
from tests.pyspark_quire.in_memory import Cluster, closed, topic

T = topic(quire_archive_required="true")
REFUSED = (click.ClickException, ManifestError)


@pytest.fixture
def cluster(monkeypatch):
    one = Cluster()
    monkeypatch.setattr(
        module, "run_within", lambda _where, _seconds, work: trio.run(partial(work, one))
    )
    return one


def archived(piece):
    split = piece.split
    make_folder(Path(piece.place))
    name = f"{split.start:020}-{split.end:020}.parquet"
    (Path(piece.place) / name).write_bytes(b"x")
    return ArchivedFile(piece.ledger, split.start, split.end, name, split.end - split.start, 1, "")


def run(_work, pieces):
    for piece in pieces:
        yield piece, archived(piece)


def make(place, topics=("t",), **options):
    options = ArchiveOptions(tuple(topics), place, **options)
    return make_archive(Where("quire+unix:///none"), run, options, lambda _: lambda _: None)


def told(cluster):
    return trio.run(read_archived, cluster.store, document_path(T, 0))


def fill(cluster, *ledgers, **more):
    trio.run(partial(cluster.add, T, *ledgers, **more))


def write(place, *files, made=T, partition=0, **change):
    manifest = Manifest(made.name, str(made.id), partition, "read_uncommitted", 0, 0)
    for start, end, name in files:
        manifest = manifest.with_file(ArchivedFile(1, start, end, name, end - start, 1, "ab"))
    there = folder(place, T.name, str(T.id), 0)
    make_folder(there)
    write_manifest(there, replace(manifest, **change))
    return there


def test_what_is_archived_is_told(cluster, tmp_path):
    fill(cluster, closed(1, 0, 60), closed(2, 60, 100))
    made = make(tmp_path)
    assert (made.ledgers, made.rows) == (2, 100)
    assert told(cluster) == 100
    assert make(tmp_path).ledgers == 0


def test_a_manifest_of_another_topic_tells_nothing(cluster, tmp_path):
    """Copied there with its folder. Else retention drops what was never archived."""
    fill(cluster, closed(1, 0, 60), closed(2, 60, 100))
    write(tmp_path, (0, 90, "x.parquet"), made=topic("other", 2))
    with pytest.raises(REFUSED):
        make(tmp_path)
    assert told(cluster) == 0


def test_a_manifest_that_is_ahead_of_the_log_tells_nothing(cluster, tmp_path):
    """The cluster was restored from a backup, or the manifest edited: what is written from now on
    would count as archived."""
    fill(cluster, closed(1, 0, 60))
    (write(tmp_path, (0, 1000, "x.parquet")) / "x.parquet").write_bytes(b"x")
    with pytest.raises(REFUSED, match="ends at 60"):
        make(tmp_path)
    assert told(cluster) == 0


def test_a_manifest_whose_files_are_gone_tells_nothing(cluster, tmp_path):
    """A look at names and sizes costs nothing, before the only other copy may be dropped."""
    fill(cluster, closed(1, 0, 60), closed(2, 60, 100))
    write(tmp_path, (0, 60, "x.parquet"))
    with pytest.raises(REFUSED, match="No such file"):
        make(tmp_path)
    assert told(cluster) == 0


def test_what_an_attempt_left_half_written_is_removed(cluster, tmp_path):
    """By the next run, which has the lock. Whole files that no manifest names stay."""
    fill(cluster, closed(1, 0, 60))
    there = write(tmp_path)
    for name in (".0-60.0.new", "0-60-abc.parquet"):
        (there / name).write_bytes(b"x")
    make(tmp_path)
    assert not (there / ".0-60.0.new").exists()
    assert (there / "0-60-abc.parquet").exists()


def test_ledgers_that_were_compacted_are_refused(cluster, tmp_path):
    """By the broker's own log.cleanup.policy: the topic has no setting that says so."""
    fill(cluster, closed(1, 0, 60, generation=1))
    with pytest.raises(click.ClickException, match="compacted"):
        make(tmp_path)


def test_the_archive_that_is_to_be_verified_must_be_there(tmp_path):
    """A name that was mistyped is no whole archive; nor is a topic that is not in it."""
    words = ["archive", "--metadata", "zk+null://z:1/l", "--verify", "--to"]
    result = CliRunner().invoke(main, [*words, str(tmp_path / "archvie")])
    assert result.exit_code != 0, result.output
    result = CliRunner().invoke(main, [*words, str(tmp_path), "--topic", "odrers"])
    assert result.exit_code != 0, result.output


def test_a_topic_without_a_name_is_a_wrong_option(cluster, tmp_path):
    def told_of():
        try:
            make(tmp_path, topics=(",",))
        except ValueError as error:
            _raise(error)

    with pytest.raises(click.ClickException):
        told_of()


def foreseen():
    from broker.log.append.entry_format import EntryFormatError
    from broker.log.life.archived import ArchivedFormatError
    from broker.log.read.offset_index import IndexFormatError
    from wire.bookkeeper.ledger_metadata import MetadataFormatError

    return [EntryFormatError, ArchivedFormatError, IndexFormatError, MetadataFormatError]


@pytest.mark.parametrize("kind", foreseen(), ids=lambda kind: kind.__name__)
def test_damage_ends_a_job_with_a_line(kind):
    with pytest.raises(click.ClickException, match="what is damaged"):
        _raise(kind("what is damaged"))


def test_a_number_that_is_damaged_in_the_metadata_names_its_node(cluster, tmp_path):
    """Of how far the archive goes: which partition's?"""

    async def damage():
        path = document_path(T, 0).replace("/partitions/", "/archived/")
        await cluster.store.create(path, b"{}", make_parents=True)

    fill(cluster, closed(1, 0, 60))
    trio.run(damage)
    with pytest.raises(ValueError, match=f"{T.id}|t-0"):
        make(tmp_path)


def test_the_cluster_is_told_after_the_manifest(cluster, tmp_path, monkeypatch):
    """Killed between the two, retention waits; the other way round it would drop what no manifest
    names. The next run tells again."""
    fill(cluster, closed(1, 0, 60))

    class KilledError(BaseException):
        pass

    def killed(*_):
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_manifest", killed)
        with pytest.raises(KilledError):
            make(tmp_path)
    assert told(cluster) == 0
    with monkeypatch.context() as patch:
        patch.setattr(module, "tell_archived", killed)
        with pytest.raises(KilledError):
            make(tmp_path)
    assert told(cluster) == 0
    assert make(tmp_path).ledgers == 0
    assert told(cluster) == 60


def test_a_second_run_is_refused(cluster, tmp_path):
    fill(cluster, closed(1, 0, 60))
    with module._locked(tmp_path), pytest.raises(click.ClickException, match="another run"):
        make(tmp_path)
    assert make(tmp_path).ledgers == 1


def test_a_ledger_waits_until_its_transactions_are_decided():
    look = SimpleNamespace(
        view=SimpleNamespace(
            log_start_offset=0, chain=SimpleNamespace(ledgers=(closed(1, 0, 60), closed(2, 60, 90)))
        ),
        end_offset=75,
    )
    assert [(each.start, each.end) for each in module._ranges(look, 0)] == [(0, 60)]
    look.end_offset = 59
    assert module._ranges(look, 0) == []
