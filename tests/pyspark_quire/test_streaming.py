"""A stream's offsets and batches on a real server, without Spark."""

import pytest

from pyspark_quire.choose_core import DataLossError
from pyspark_quire.pace import Pace
from pyspark_quire.streaming import StreamLooks
from pyspark_quire.task import read_split


def rows(looks, options, start, end):
    return sorted(
        place
        for split in looks.splits_between(start, end)
        for batch in read_split(split, options)
        for place in zip(
            batch.column("partition").to_pylist(), batch.column("offset").to_pylist(), strict=True
        )
    )


def started(served, topic, **given):
    options = served.options(is_stream=True, subscribe=topic, **given)
    return options, StreamLooks(options)


def test_batches_are_bounded_and_have_each_offset_once(served, topic):
    served.create(topic, 2)
    served.fill(topic, 90, 0)
    served.fill(topic, 10, 1)
    options, looks = started(served, topic, startingOffsets="earliest")
    pace, at = Pace(looks, options), looks.initial()
    assert sorted(at.values()) == [0, 0]
    pinned = pace.look_now()
    served.fill(topic, 5, 0)  # behind what is pinned
    found = []
    while (end := pace.next_end(at, 40, None, pinned)) != at:
        more = rows(looks, options, at, end)
        assert len(more) <= 40
        # The same two offsets give the same rows, whoever asks.
        assert rows(StreamLooks(options), options, at, end) == more
        found += more
        at = end
    assert found != sorted(found), "in several batches"
    assert sorted(found) == [(0, n) for n in range(90)] + [(1, n) for n in range(10)]
    assert rows(looks, options, at, at) == []


def test_too_few_wait(served, topic):
    served.create(topic)
    served.fill(topic, 10)
    options, looks = started(served, topic, startingOffsets="earliest", minOffsetsPerTrigger="20")
    pace, at = Pace(looks, options), looks.initial()
    assert pace.next_end(at, None, None) == at
    served.fill(topic, 10)
    pace.look_now()
    assert list(pace.next_end(at, None, None).values()) == [20]


def test_the_end_is_the_start_by_default(served, topic):
    served.create(topic)
    served.fill(topic, 10)
    _, looks = started(served, topic)
    assert list(looks.initial().values()) == [10]


def test_a_topic_made_again_is_another_one(served, topic):
    served.create(topic)
    served.fill(topic, 10)
    options, looks = started(served, topic, startingOffsets="earliest")
    at = looks.initial()
    end = Pace(looks, options).next_end(at, None, None)
    served.delete(topic)
    served.create(topic)
    served.fill(topic, 3)
    with pytest.raises(DataLossError, match="not there any more"):
        looks.ends(end)
    pace = Pace(looks, options)
    pace.look_now()  # as Trigger.AvailableNow, from no start
    with pytest.raises(DataLossError, match="not there any more"):
        pace.next_end(end, None, None)
    with pytest.raises(DataLossError, match="not there any more"):
        looks.splits_between(at, end)
    with pytest.raises(DataLossError, match="not there any more"):
        looks.splits_between(end, looks.ends({}).ends)
    options, looks = started(served, topic, failOnDataLoss="false")
    assert list(looks.ends(end).ends.values()) == [3]


def test_a_query_outlives_metadata_that_do_not_answer(served, topic):
    served.create(topic)
    options, looks = started(served, topic)
    at = looks.initial()
    away = StreamLooks(served.options(is_stream=True, subscribe=topic, metadata="quire+unix:///no"))
    assert Pace(away, options).next_end(at, None, None) == at
