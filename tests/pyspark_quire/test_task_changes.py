"""A log that is another one by the time that a task, or a stream, reads it: what is not there any
more is an error (task.py, streaming.py, partitions.py)."""

import json
from contextlib import asynccontextmanager

import pytest

from broker.cluster.topic import TOPICS_PATH
from broker.log.life.chain import Chain, ChainDocument, ChainFormatError
from broker.log.life.ledger_info import LedgerInfo
from ledger.errors import LedgerReadError
from pyspark_quire import task
from pyspark_quire.choose_core import DataLossError
from pyspark_quire.options_core import parse_options
from pyspark_quire.partitions import PartitionView, read_topics
from pyspark_quire.plan_core import Part
from pyspark_quire.planning import Look, borders
from pyspark_quire.reading import MissingRecordsError
from pyspark_quire.splits import Split
from pyspark_quire.stream_core import part_key
from pyspark_quire.streaming import StreamLooks
from pyspark_quire.task import SplitReading, read_split
from tests.pyspark_quire.in_memory import Cluster, batch, closed, entry, topic

OPTIONS = {"metadata": "quire+unix:///none", "subscribe": "t", "columns": "offset"}


def read_with(monkeypatch, cluster, end):
    """A split of offsets 0 to `end`, whose plan does not hold any more."""

    async def by_plan(_self):
        raise LedgerReadError(1, "it is gone")

    @asynccontextmanager
    async def connected(_where):
        await cluster.add(topic(), closed(1, 0, 60))
        yield cluster

    monkeypatch.setattr(SplitReading, "_by_plan", by_plan)
    monkeypatch.setattr(task, "connected", connected)
    split = Split("t", str(topic().id), 0, 0, end, (Part(1, 0, end),), {}, {})
    found = read_split(split, parse_options(OPTIONS))
    return [n for each in found for n in each.column("offset").to_pylist()]


def test_a_new_plan_that_has_all_is_followed(monkeypatch):
    cluster = Cluster({1: [entry(0, 60, batch(0, 60))]})
    assert read_with(monkeypatch, cluster, 60) == list(range(60))


def test_a_log_that_ends_before_the_split_does_is_an_error(monkeypatch):
    """The chain that took the plan's place has 60 of the 100 offsets."""
    cluster = Cluster({1: [entry(0, 60, batch(0, 60))]})
    with pytest.raises((DataLossError, MissingRecordsError), match="60"):
        read_with(monkeypatch, cluster, 100)


async def test_a_streams_end_that_the_log_has_not_is_an_error():
    """All of the log is closed at 60; the checkpoint says that the batch ends at 100. What is not
    read now is never read."""
    cluster, key = Cluster(), part_key(topic().id, 0)
    await cluster.add(topic(), closed(1, 0, 60))
    looks = StreamLooks(parse_options(OPTIONS, is_stream=True))
    with pytest.raises(DataLossError, match="60"):
        await looks._splits({key: 0}, {key: 100}, cluster)


async def test_a_stream_that_begins_at_the_end_loses_nothing():
    """Bookies know the end as 45 when all before 50 is deleted. «latest» lies at 50 then, and the
    first batch from there on is no data loss."""
    made = topic()
    chain = Chain(0, 50, (LedgerInfo(1, 0, 0, 0),))
    look = Look(PartitionView(made, 0, chain, 45), None, 45)
    options = parse_options(OPTIONS, is_stream=True)
    found = await borders(Cluster(), options, [look], is_start=True)
    assert found == {("t", 0): 50}


async def test_one_topics_damaged_document_is_named():
    """It stops every query of every other topic otherwise, with «KeyError: 'format'»."""
    cluster = Cluster()
    await cluster.add(topic("good"), closed(1, 0, 60))
    await cluster.store.create(f"{TOPICS_PATH}/bad", b"{}")
    words, found = "", {}
    try:
        found = await read_topics(cluster.store)
    except (ValueError, KeyError) as error:
        words = str(error)
    assert "good" in found or "bad" in words, words


@pytest.mark.parametrize(
    "change", [{"size": "much"}, {"size": None}, {"created_ms": "now"}, {"last": -7}, {"id": "x"}],
    ids=str,
)  # fmt: skip
def test_a_chain_whose_numbers_are_none_is_damaged(change):
    """Else it fails where it is used, in words that name no partition."""
    document = json.loads(Chain(0, 0, (closed(1, 0, 60),)).to_bytes())
    document["ledgers"][0] |= change
    with pytest.raises(ChainFormatError):
        ChainDocument(json.dumps(document).encode()).chain()
