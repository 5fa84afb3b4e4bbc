"""Patterns as Kafka's RE2/J has them, and how long one may take."""

import contextlib
import random
import time

import pytest
import trio

from broker.regex import PATTERN_BYTES_MAX, SHORT_BYTES, Pattern, compiled
from tests.turns import check_turn
from wire.kafka.errors import ErrorCode, KafkaError


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("my-.*", "my-app", True),
        ("my-.*", "not-my-app", False),
        ("app", "app-1", False),
        ("a|ab", "ab", True),
        (r"\d+", "12", True),
        (r"^a$", "a", True),
        (r"(?i)APP", "app", True),
        (r"\pL+", "äöü", True),
        (".", "\N{GRINNING FACE}", True),
        ("", "", True),
        ("a.b", "a\nb", False),
        (r"(?s)a.b", "a\nb", True),
        (r"x*", "", True),
    ],
)
def test_whole_texts_match(pattern, text, expected):
    assert Pattern(pattern).matches(text) is expected


@pytest.mark.parametrize(
    "pattern",
    ["(", "[a", "a**", "(?=a)", r"(a)\1", "(?P<n", "a{1001}", "((a{300}){300})", r"\Z", "x" * 4097],
)
def test_what_is_no_pattern(pattern):
    with pytest.raises(KafkaError) as caught:
        Pattern(pattern)
    assert caught.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert caught.value.message


@pytest.mark.turns
@pytest.mark.parametrize(
    "pattern",
    [
        *("(a|b)*a(a|b){400}", "(a*)*b", "((a?){30}){30}a{100}", "(a|b|c|d|e|f)*[ab]{300}.{300}"),
        *("(.*a.*){20}b", "(x+x+)+y", "(a|aa)+"),
        *("(a?b?){1000}", "((a|b)*c?){1000}", "(.?){900}", "([a-z]?[b-z]?){500}"),
    ],
)
@pytest.mark.parametrize("length", [100, 3_000, 30_000])
def test_it_takes_no_longer_than_it_says(pattern, length):
    """With room for a machine that is busy, and the best of some; backtracking would take for
    ever."""
    text = "".join(random.Random(1).choice("ab") for _ in range(length))
    compiled = Pattern(pattern)
    took = []
    for _ in range(7):
        began = time.thread_time()
        compiled.matches(text)
        took.append((time.thread_time() - began) * 1e6)
    check_turn(min(took) / 1e6, (3 * compiled.units(text) + 2_000) / 1e6)


@pytest.mark.turns
def test_regex_bomb():
    """What backtracks for ever elsewhere is read in one pass: within a millisecond of a topic's
    name, which has at most 249 characters; the best of some, as others use the machine."""
    compiled = Pattern("(a+)+$")
    took = []
    for _ in range(20):
        began = time.thread_time()
        assert not compiled.matches("a" * 248 + "!")
        took.append(time.thread_time() - began)
    check_turn(min(took), 0.001)
    assert compiled.matches("a" * 249)


@pytest.mark.turns
@pytest.mark.parametrize("part", ["a", "(a|b)", r"\pL", "[a-f]?", ".*", "(", "|", "[^a]", "(?i)k"])
async def test_a_pattern_is_compiled_in_no_time_or_elsewhere(part):
    worked = []

    async def worker(function, *args):
        worked.append(args)
        return await trio.to_thread.run_sync(function, *args)

    for size in (SHORT_BYTES, PATTERN_BYTES_MAX):
        with contextlib.suppress(KafkaError):
            began = time.thread_time()
            try:
                await compiled((part * size)[:size], worker)
            finally:
                check_turn(time.thread_time() - began, 0.02)
    assert len(worked) == 1
