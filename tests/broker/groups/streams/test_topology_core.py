"""What a topology comes to: partitions of internal topics, tasks, and what is wrong."""

from __future__ import annotations

import uuid
from types import SimpleNamespace

import pytest

from broker.groups.streams.topology_core import configure
from broker.groups.streams.types import (
    CopartitionGroup,
    GroupError,
    InternalTopic,
    StatusCode,
    Subtopology,
    Topology,
)
from wire.kafka.errors import ErrorCode


class Topics(dict):
    def get(self, name):
        count = super().get(name)
        if count is None:
            return None
        return SimpleNamespace(
            id=uuid.uuid5(uuid.NAMESPACE_DNS, name), name=name, partition_count=count
        )


def sub(name, sources=(), *, sinks=(), reads=(), changelog=(), groups=()):
    """`reads`: repartition topics, a name or (name, partitions)."""
    return Subtopology(
        name,
        tuple(sources),
        tuple(sinks),
        tuple(InternalTopic(*([each] if isinstance(each, str) else each)) for each in reads),
        tuple(InternalTopic(each) for each in changelog),
        tuple(CopartitionGroup(*group) for group in groups),
    )


def configured(*subtopologies, **topics):
    return configure(Topology(0, subtopologies), Topics(topics))


def missing(found):
    return {name: topic.partitions for name, topic in found.missing.items()}


def counts(found):
    return {name: each.task_count for name, each in found.subtopologies.items()}


def test_all_there():
    found = configured(sub("0", ["a", "b"], changelog=["c"]), a=3, b=5, c=5)
    assert found.is_ready
    assert counts(found) == {"0": 5}
    assert found.subtopologies["0"].read == {"a": 3, "b": 5}


def test_a_repartition_topic_is_as_wide_as_what_its_writer_reads():
    found = configured(
        sub("0", ["a", "b"], sinks=["r"]), sub("1", reads=["r"], changelog=["c"]), a=3, b=5
    )
    assert missing(found) == {"r": 5, "c": 5}
    assert counts(found) == {"0": 5, "1": 5}
    assert found.problem.code is StatusCode.MISSING_INTERNAL_TOPICS


def test_along_a_chain_in_any_order():
    chain = [
        sub("0", reads=["r2"], sinks=["r3"]),
        sub("1", reads=["r1"], sinks=["r2"]),
        sub("2", ["a"], sinks=["r1"]),
        sub("3", reads=["r3"]),
    ]
    assert missing(configured(*chain, a=7)) == {"r1": 7, "r2": 7, "r3": 7}
    assert missing(configured(*reversed(chain), a=7)) == {"r1": 7, "r2": 7, "r3": 7}


def test_with_several_writers_it_waits_for_all():
    found = configured(
        sub("0", ["small"], reads=["r1"], sinks=["r2"]),
        sub("1", ["large"], sinks=["r1"]),
        sub("2", reads=["r2"]),
        small=1, large=6,
    )  # fmt: skip
    assert missing(found) == {"r1": 6, "r2": 6}


def test_a_circle_goes_by_what_is_known():
    found = configured(
        sub("0", ["a"], reads=["r2"], sinks=["r1"]), sub("1", reads=["r1"], sinks=["r2"]), a=4
    )
    assert missing(found) == {"r1": 4, "r2": 4}


def test_who_says_how_many_has_so_many():
    found = configured(sub("0", ["a"], sinks=["r"]), sub("1", reads=[("r", 9)]), a=2)
    assert missing(found) == {"r": 9}
    assert counts(found) == {"0": 2, "1": 9}


def test_joined_with_a_source_topic():
    found = configured(
        sub("0", ["a"], sinks=["r"]), sub("1", ["b"], reads=["r"], groups=[((0,), (0,))]), a=2, b=6
    )
    assert missing(found) == {"r": 6}


def test_joined_repartition_topics_are_as_wide_as_the_widest():
    found = configured(
        sub("0", ["a"], sinks=["r1"]),
        sub("1", ["b"], sinks=["r2"]),
        sub("2", reads=["r1", "r2"], groups=[((), (0, 1))]),
        a=2, b=6,
    )  # fmt: skip
    assert missing(found) == {"r1": 6, "r2": 6}


def test_joined_with_one_that_says_how_many():
    found = configured(
        sub("0", ["a"], sinks=["r1", "r2"]),
        sub("1", reads=["r1", ("r2", 3)], groups=[((), (0, 1))]),
        a=8,
    )
    assert missing(found) == {"r1": 3, "r2": 3}


@pytest.mark.parametrize(
    "subtopologies",
    [
        [sub("0", ["a", "b"], groups=[((0, 1), ())])],
        [sub("0", ["a"], sinks=["r"]), sub("1", ["b"], reads=[("r", 2)], groups=[((0,), (0,))])],
        [sub("0", ["a"], changelog=["b"])],
    ],
)
def test_wrong_partition_counts(subtopologies):
    found = configured(*subtopologies, a=2, b=3)
    assert found.problem.code is StatusCode.INCORRECTLY_PARTITIONED_TOPICS
    assert not found.missing


def test_missing_source_topics_are_told():
    found = configured(sub("0", ["a", "b", "c"]), b=1)
    assert found.problem.code is StatusCode.MISSING_SOURCE_TOPICS
    assert found.problem.detail == "Source topics a, c are missing."
    many = configured(sub("0", [f"t{n:02}" for n in range(12)]))
    assert many.problem.detail.endswith("t09 and 2 more are missing.")


@pytest.mark.parametrize(
    "subtopologies",
    [
        [sub("0", ["a"]), sub("1", reads=["r"])],  # nobody writes to it
        [sub("0", reads=["r1"], sinks=["r2"]), sub("1", reads=["r2"], sinks=["r1"])],
        [sub("0", changelog=["c"])],  # reads nothing
        [sub("0", ["a"], groups=[((1,), ())])],
        [sub("0", ["a"], groups=[((), (0,))])],
        [sub("0", ["a"], groups=[((-1,), ())])],
    ],
)
def test_no_topics_could_make_it_work(subtopologies):
    with pytest.raises(GroupError) as refused:
        configured(*subtopologies, a=1)
    assert refused.value.code is ErrorCode.STREAMS_INVALID_TOPOLOGY


@pytest.mark.parametrize(
    ("count", "topics", "partitions"), [(11, 1, 1_000), (2, 11, 5_000), (10, 2, 1_000)]
)
def test_a_topology_that_comes_to_too_much(count, topics, partitions):
    names = [f"t{n}" for n in range(topics)]
    found = configured(
        *(sub(str(n), names) for n in range(count)), **dict.fromkeys(names, partitions)
    )
    is_fine = (count, topics) == (10, 2)
    assert found.is_ready is is_fine
    if not is_fine:
        assert found.problem.code is StatusCode.INCORRECTLY_PARTITIONED_TOPICS
        assert f"{count * partitions} tasks" in found.problem.detail
        assert not found.missing


def test_a_sink_that_is_there_twice():
    found = configured(sub("0", ["a"], sinks=["r", "r"]), sub("1", reads=["r"]), a=3)
    assert missing(found) == {"r": 3}


def test_a_topic_that_is_read_twice():
    found = configured(
        sub("0", ["a"], sinks=["r"]),
        sub("1", reads=["r", "r"], sinks=["s"]),
        sub("2", reads=["s", "r"]),
        a=3,
    )
    assert missing(found) == {"r": 3, "s": 3}


def test_a_table_whose_changelog_is_its_source():
    found = configured(sub("0", ["a"], changelog=["a"]), a=2)
    assert found.is_ready


def test_the_hash_follows_ids_and_counts():
    one = configured(sub("0", ["a"]), a=2).metadata_hash
    assert one == configured(sub("0", ["a"]), a=2, b=7).metadata_hash
    assert one != configured(sub("0", ["a"]), a=3).metadata_hash
    assert configured(sub("0", ["a"])).metadata_hash == 0
