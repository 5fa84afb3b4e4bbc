"""Patterns of members: what one may cost is known before."""

import time

import pytest

from broker.groups.consumer.patterns import LENGTH_MAX, pattern_of
from wire.kafka.errors import ErrorCode, KafkaError

NAMES = ["a" * 249, "ab" * 124, "topic-" + "n" * 40, "x"]


@pytest.mark.parametrize(
    "text",
    [
        *("topic-.*", "(a?b?){1000}", "((a|b)*c?){1000}", "(.?){900}", "([a-z]?[b-z]?){500}"),
        *("(a|b)*a(a|b){400}", "(.*a.*){20}b", "x" * 8192),
    ],
)
def test_it_takes_no_longer_than_it_says(text):
    """With room for a machine that is busy, and the best of some. The number of a pattern's
    characters says nothing of it."""
    pattern = pattern_of(text)
    for name in NAMES:
        took = []
        for _ in range(5):
            began = time.thread_time()
            pattern.matches(name)
            took.append((time.thread_time() - began) * 1e6)
        assert min(took) < 3 * pattern.units(name) + 500


def test_characters_are_counted_not_bytes():
    text = "ä" * (LENGTH_MAX // 2 + 100)
    assert pattern_of(text).matches(text)
    with pytest.raises(KafkaError) as caught:
        pattern_of("x" * (LENGTH_MAX + 1))
    assert caught.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
