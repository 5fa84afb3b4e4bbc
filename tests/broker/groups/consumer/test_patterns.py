"""Patterns of members; what one may cost is a test of broker/regex.py."""

import pytest

from broker.groups.consumer.patterns import LENGTH_MAX, pattern_of
from wire.kafka.errors import ErrorCode, KafkaError


def test_characters_are_counted_not_bytes():
    text = "ä" * (LENGTH_MAX // 2 + 100)
    assert pattern_of(text).matches(text)
    with pytest.raises(KafkaError) as caught:
        pattern_of("x" * (LENGTH_MAX + 1))
    assert caught.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
