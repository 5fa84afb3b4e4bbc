"""What is found whole in one step costs the turn what it does when it is checked in several, and
the limits are the same to a millisecond."""

import struct
from dataclasses import replace

import pytest
from crc32c import crc32c

from broker.log.append import checking
from broker.log.append.checking import BatchChecks
from broker.log.append.validation import checked_whole
from runtime.env import real_env
from tests.broker.log.append.test_validation import HOUR_MS, NOW_MS, Config
from tests.broker.log.append.test_validation_whole import batch_of, whole_of
from wire.kafka.records.walk import whole_batch

pytestmark = pytest.mark.skipif(whole_batch is None, reason="installed where there was no compiler")


ANY_TIME = replace(
    Config(), message_timestamp_before_max_ms=2**63 - 1, message_timestamp_after_max_ms=2**63 - 1
)


def left_after(records, limits, monkeypatch, *, is_whole, internal=False):
    monkeypatch.setattr(checking, "whole_batch", whole_batch if is_whole else None)
    checks = BatchChecks(real_env())
    before = checks._left_ns
    checks.check_now(records, limits, internal=internal)
    return before - checks._left_ns, checks._is_reset_deferred


@pytest.mark.parametrize("count", [1, 7, 400])
async def test_a_whole_batch_costs_the_turn_what_another_does(monkeypatch, count):
    records = memoryview(batch_of([(0, b"k", b"v", [])] * count))
    limits = ANY_TIME
    short = left_after(records, limits, monkeypatch, is_whole=True)
    assert short == left_after(records, limits, monkeypatch, is_whole=False)
    assert short[0] > 0
    assert short[1]


async def test_no_more_records_are_walked_at_once_than_fit_into_the_turn(monkeypatch):
    monkeypatch.setattr(checking, "TURN_NS_MAX", 10_000)
    monkeypatch.setattr(checking, "RECORD_NS", 1_000)
    checks = BatchChecks(real_env())
    checks._left_ns = 10_000
    records = memoryview(batch_of([(0, b"k", b"v", [])] * 100))
    assert checks.check_now(records, ANY_TIME, internal=False) is None
    assert checks._left_ns == 10_000


@pytest.mark.parametrize(("age_ms", "is_taken"), [(HOUR_MS, True), (HOUR_MS + 1, False)])
def test_the_oldest_timestamp_that_is_allowed(age_ms, is_taken):
    batch = batch_of([(0, b"k", b"v", [])], NOW_MS - age_ms)
    limits = replace(Config(), message_timestamp_before_max_ms=HOUR_MS)
    checked = checked_whole(whole_of(batch), memoryview(batch), limits, NOW_MS)
    assert (checked is not None) == is_taken


@pytest.mark.parametrize("bit", range(6))
def test_each_attribute_is_unusual(bit):
    batch = batch_of([(0, b"k", b"v", [])], producer_id=1, producer_epoch=0, base_sequence=0)
    struct.pack_into(">h", batch, 21, 1 << bit)
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    assert whole_of(batch) is None
