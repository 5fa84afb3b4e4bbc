"""Options: what is taken, and that errors name the option."""

import pytest

from pyspark_quire.offsets_json import EARLIEST, LATEST
from pyspark_quire.options_core import Border, parse_options

LEAST = {"metadata": "zk://h/ledgers", "subscribe": "a, b"}


def test_defaults_are_those_of_the_kafka_source():
    found = parse_options(LEAST)
    assert found.which.subscribe == ("a", "b")
    assert found.starting == Border(offset=EARLIEST)
    assert found.ending == Border(offset=LATEST)
    assert found.fails_on_data_loss
    assert not found.read_committed
    assert "headers" not in found.columns.names
    assert parse_options(LEAST, is_stream=True).starting == Border(offset=LATEST)


def test_names_have_no_case_and_kafkas_are_handed_on():
    found = parse_options(
        {
            **LEAST,
            "STARTINGOFFSETS": '{"a":{"0":-2},"b":{"1":7}}',
            "includeheaders": "TRUE",
            "kafka.bootstrap.servers": "h:1",
            "kafka.isolation.level": "read_committed",
            "bookkeeper.readEntryTimeoutSec": "1",
            "groupIdPrefix": "x",
            "maxTriggerDelay": "2m",
        }
    )
    assert found.starting.offsets == {"a": {0: -2}, "b": {1: 7}}
    assert found.columns.names[-1] == "headers"
    assert found.kafka["bootstrap.servers"] == "h:1"
    assert found.read_committed
    assert found.bookkeeper == {"readEntryTimeoutSec": "1"}
    assert found.max_trigger_delay_ms == 120_000


def test_a_time_goes_before_times_and_these_before_offsets():
    given = {
        **LEAST,
        "startingTimestamp": "5",
        "startingOffsetsByTimestamp": '{"a":{"0":6}}',
        "startingOffsets": "earliest",
    }
    assert parse_options(given).starting == Border(timestamp=5)
    del given["startingTimestamp"]
    assert parse_options(given).starting == Border(timestamps={"a": {0: 6}})


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"metadata": None}, "metadata"),
        ({"subscribe": None}, "exactly one"),
        ({"assign": "{}"}, "exactly one"),
        ({"subscribe": " ,"}, "subscribe"),
        ({"subscribe": None, "subscribePattern": "("}, "subscribePattern"),
        ({"subscribe": None, "assign": '{"t":0}'}, "assign"),
        ({"startingOffsets": "latest"}, "starting"),
        ({"startingOffsets": '{"a":{"0":-1}}'}, "starting"),
        ({"startingOffsets": '{"a":{"0":-3}}'}, "startingOffsets"),
        ({"startingOffsets": '{"a":[0]}'}, "startingOffsets"),
        ({"startingOffsets": "soon"}, "startingOffsets"),
        ({"endingOffsets": "earliest"}, "ending"),
        ({"startingTimestamp": "-1"}, "startingTimestamp"),
        ({"minPartitions": "0"}, "minPartitions"),
        ({"failOnDataLoss": "perhaps"}, "failOnDataLoss"),
        ({"isolation.level": "serializable"}, "isolation.level"),
        ({"startingOffsetsByTimestampStrategy": "first"}, "Strategy"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay"),
        ({"columns": "keys"}, "columns"),
        ({"minPartition": "3"}, "minPartition"),
    ],
    ids=str,
)
def test_what_cannot_be_is_named(change, word):
    given = {name: text for name, text in {**LEAST, **change}.items() if text is not None}
    with pytest.raises(ValueError, match=word):
        parse_options(given)


def test_a_stream_has_no_end():
    with pytest.raises(ValueError, match="ending"):
        parse_options({**LEAST, "endingOffsets": "earliest"}, is_stream=True)
