"""Options and offsets of a careless or hostile hand: what cannot be is a ValueError that names the
option, and nothing is taken for something else."""

import subprocess
import sys

import pytest

from pyspark_quire.options_core import parse_options
from pyspark_quire.plan_core import SPLITS_MAX, Part, SplitRules, split_counts
from pyspark_quire.stream_core import from_offset, rows_for_bytes

LEAST = {"metadata": "zk://h/ledgers", "subscribe": "a"}
LONG = "1" * 5000

CASES = {
    "deep offsets": ("startingOffsets", "[" * 100_000),
    "deep assign": ("assign", '{"a":' * 100_000),
    "a pattern of a huge repetition": ("subscribePattern", "a{99999999999}"),
    "a deep pattern": ("subscribePattern", "(" * 20_000),
    "a long number": ("minPartitions", LONG),
    "a long time": ("maxTriggerDelay", LONG),
    "a long partition": ("startingOffsets", f'{{"a":{{"{LONG}":5}}}}'),
    "a partition twice": ("startingOffsets", '{"a":{"0":5,"00":7}}'),
    "a key twice": ("startingOffsets", '{"a":{"0":5,"0":7}}'),
    "a topic twice": ("startingOffsets", '{"a":{"0":5},"a":{"0":7}}'),
    "an offset beyond 64 bits": ("startingOffsets", '{"a":{"0":100000000000000000000}}'),
    "a time beyond 64 bits": ("minTimestamp", "1" * 30),
    "more partitions than Spark has": ("minPartitions", "1" + "0" * 400),
    "a timeout that no float has": ("metadataTimeoutMs", "1" + "0" * 400),
    "more bytes than a float has": ("maxBytesPerTrigger", "1" + "0" * 400),
}


@pytest.mark.parametrize(("name", "text"), CASES.values(), ids=CASES)
def test_what_cannot_be_is_named(name, text):
    given = {**LEAST, name: text}
    if name in ("assign", "subscribePattern"):
        del given["subscribe"]
    with pytest.raises(ValueError, match=name):
        parse_options(given, is_stream=name.endswith(("Trigger", "Delay")))


def test_a_number_that_no_float_has_stops_no_plan():
    part = Part(1, 0, 100, size_bytes=10)
    assert split_counts([[part]], SplitRules(min_partitions=10**400)) == [100]
    assert rows_for_bytes(10**400, 1.0) >= 1


def test_kafkas_names_have_no_case():
    given = {**LEAST, "kafka.Isolation.Level": "read_committed", "Kafka.Bootstrap.Servers": "h:1"}
    found = parse_options(given)
    assert found.read_committed
    assert "bootstrap.servers" in found.kafka


PATTERN = """
import sys
from uuid import UUID
from broker.cluster.topic import Topic
from pyspark_quire.choose_core import chosen
from pyspark_quire.options_core import Which
name = "a" * 40 + "!"
topics = {name: Topic(UUID(int=1), name, 1, {}, internal=False)}
try:
    chosen(topics, Which(pattern="(a+)+b"))
except Exception as error:
    sys.exit(0)
"""


def test_a_pattern_does_not_hold_the_planner():
    """Somebody else's topic has the name; metadataTimeoutMs does not end a search."""
    try:
        done = subprocess.run([sys.executable, "-c", PATTERN], timeout=4)
    except subprocess.TimeoutExpired:
        pytest.fail("the planner is held by a pattern, and no deadline ends it")
    assert done.returncode == 0


@pytest.mark.parametrize(
    "parts",
    [
        {"a-0": None},
        {"a-0": [1]},
        {"a-0": 12.7},
        {"a-0": "12"},
        {"a-0": True},
        {"a-0": -5},
        {"a": 5},
        {"a-x": 5},
    ],
    ids=str,
)
def test_a_checkpoint_that_was_edited_is_refused_in_words(parts):
    with pytest.raises(ValueError, match="is no offset of this source"):
        from_offset({"v": 1, "parts": parts})


def test_metadata_that_tell_of_exabytes_make_no_endless_plan():
    part = Part(1, 0, 2**40, size_bytes=2**62)
    assert split_counts([[part]], SplitRules()) == [SPLITS_MAX]
