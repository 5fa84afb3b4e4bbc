"""Archives of a real server's ledgers, made in this process: each ledger once, whatever came
between two runs. Runs that are killed are in compat_tests/test_spark_jobs.py."""

import click
import pyarrow.parquet as pq
import pytest
from confluent_kafka import TopicPartition

from broker.log.life.archived import read_archived
from pyspark_quire.connection import Where, run_within
from pyspark_quire.partitions import document_path, read_topics
from spark_jobs.archive import ArchiveOptions, make_archive, verify_archive
from spark_jobs.history import manifests_of
from spark_jobs.manifest import read_manifest
from spark_jobs.runner import runner


def archive(served, topic, place, **options):
    with runner(None, "archive") as run:
        options = ArchiveOptions((topic,), place, **options)
        return make_archive(Where(served.metadata), run, options, lambda _: lambda _: None)


def place_of(place, topic):
    [found] = place.glob(f"{topic}/*/0")
    return found


def rows(place, topic):
    found = place_of(place, topic)
    return [
        (row["offset"], row["value"])
        for file in read_manifest(found).files
        if file.name is not None
        for row in pq.read_table(found / file.name).to_pylist()
    ]


def told(served, topic):
    async def look(connection):
        found = (await read_topics(connection.store))[topic]
        return await read_archived(connection.store, document_path(found, 0))

    return run_within(Where(served.metadata), 60, look)


def fill(served, topic, count):
    served.fill(topic, count)
    served.wait_rolled(topic, 0)


def test_each_ledger_is_archived_once(served, topic, tmp_path):
    served.create(topic)
    fill(served, topic, 60)
    first = archive(served, topic, tmp_path)
    assert first.rows == 60
    assert first.ledgers > 1
    again = archive(served, topic, tmp_path)
    assert (again.ledgers, again.rows) == (0, 0)
    fill(served, topic, 40)
    assert archive(served, topic, tmp_path).rows == 40
    values = [b"v%d" % n for n in [*range(60), *range(40)]]
    assert rows(tmp_path, topic) == list(enumerate(values))
    assert told(served, topic) == 100
    with runner(None, "archive") as run:
        files, faults = verify_archive(tmp_path, run, [topic])
    assert faults == []
    assert files == len(read_manifest(place_of(tmp_path, topic)).files)
    topic_id = place_of(tmp_path, topic).parent.name
    [manifest] = manifests_of(tmp_path, topic, topic_id)
    assert (manifest.first, manifest.next_base, manifest.gaps) == (0, 100, ())


def test_what_was_deleted_before_is_a_gap_that_somebody_accepts(served, topic, tmp_path):
    served.create(topic)
    fill(served, topic, 30)
    archive(served, topic, tmp_path)
    fill(served, topic, 30)
    wanted = TopicPartition(topic, 0, 40)
    served.admin.delete_records([wanted])[wanted].result(60)
    with pytest.raises(click.ClickException, match="30 to 40 were deleted"):
        archive(served, topic, tmp_path)
    assert archive(served, topic, tmp_path, accepts_gaps=True).rows == 20
    assert read_manifest(place_of(tmp_path, topic)).gaps == ((30, 40),)
    assert [offset for offset, _ in rows(tmp_path, topic)] == [*range(30), *range(40, 60)]


def test_what_must_not_go_on_is_refused(served, topic, tmp_path):
    served.create(topic)
    fill(served, topic, 10)
    archive(served, topic, tmp_path)
    with pytest.raises(click.ClickException, match="begun with read_uncommitted"):
        archive(served, topic, tmp_path, read_committed=True)
    served.create(f"{topic}-compacted", **{"cleanup.policy": "compact"})
    with pytest.raises(click.ClickException, match="compacted"):
        archive(served, f"{topic}-compacted", tmp_path)


def test_files_that_are_damaged_or_gone_are_named(served, topic, tmp_path):
    served.create(topic)
    fill(served, topic, 40)
    archive(served, topic, tmp_path)
    place = place_of(tmp_path, topic)
    first, second, *_ = read_manifest(place).files
    (place / first.name).unlink()
    data = bytearray((place / second.name).read_bytes())
    data[10] ^= 1
    (place / second.name).write_bytes(data)
    with runner(None, "archive") as run:
        _, faults = verify_archive(tmp_path, run, ())
    assert len(faults) == 2
    assert first.name in faults[0]
    assert second.name in faults[1]
