"""What Spark's `kafka` source refuses and takes (KafkaSourceProvider), and this one does, too."""

import pytest

from pyspark_quire.options_core import parse_options

LEAST = {"metadata": "zk://h/ledgers", "subscribe": "a"}


@pytest.mark.parametrize(
    "change",
    [
        {"endingOffsets": "latest"},
        {"minOffsetsPerTrigger": "10", "maxOffsetsPerTrigger": "5"},
        {"subscribe": None, "subscribePattern": "  "},
        {"kafka.auto.offset.reset": "earliest"},
        {"kafka.enable.auto.commit": "true"},
        {"kafka.key.deserializer": "x"},
        {"kafka.value.deserializer": "x"},
        {"kafka.interceptor.classes": "x"},
    ],
    ids=str,
)
def test_what_the_kafka_source_refuses_in_a_stream(change):
    given = {name: text for name, text in {**LEAST, **change}.items() if text is not None}
    with pytest.raises(ValueError, match=r"\w"):
        parse_options(given, is_stream=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1d", 86_400_000), ("15M", 900_000), ("2min", 120_000), ("5000", 5000), ("1000000us", 1000)],
)
def test_delays_are_those_of_java_utils(text, expected):
    found = parse_options({**LEAST, "maxTriggerDelay": text}, is_stream=True)
    assert found.max_trigger_delay_ms == expected


def test_a_pattern_is_trimmed():
    found = parse_options({"metadata": "zk://h/ledgers", "subscribePattern": " t.* "})
    assert found.which.pattern == "t.*"
