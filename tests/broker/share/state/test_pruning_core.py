"""What of a log is redundant, against a search through all keys."""

import random
import uuid

import pytest

from broker.share.ports import ShareKey
from broker.share.state.pruning_core import Redundancy

KEYS = [ShareKey("g", uuid.UUID(int=at), 0) for at in range(1, 9)]


@pytest.mark.parametrize("seed", range(50))
def test_it_is_the_oldest_of_all_newest_snapshots(seed):
    rng = random.Random(seed)
    redundancy, newest, before = Redundancy(), {}, 0
    for offset in range(400):
        key = rng.choice(KEYS[: 1 + seed % 8])
        kind = rng.random()
        if kind < 0.3:
            redundancy.snapshot(key, offset)
            newest[key] = offset
        elif kind < 0.4:
            redundancy.tombstone(key, offset)
            newest.pop(key, None)
        else:
            redundancy.passed(offset)
        assert redundancy.redundant_offset() == min(newest.values(), default=offset + 1)
        assert redundancy.redundant_offset() >= before, "it never goes back"
        before = redundancy.redundant_offset()
        assert len(redundancy) == len(newest)


def test_the_heap_is_bounded():
    redundancy = Redundancy()
    for offset in range(10_000):
        redundancy.snapshot(KEYS[offset % 3], offset)
        assert len(redundancy._heap) <= 2 * 3 + 64


def test_prune_keeps_cold_key():
    redundancy = Redundancy()
    redundancy.snapshot(KEYS[0], 0)
    for offset in range(1, 50):
        redundancy.snapshot(KEYS[1], offset)
        assert redundancy.redundant_offset() == 0
    assert redundancy.is_mostly_superseded()
    redundancy.snapshot(KEYS[0], 50)
    assert redundancy.redundant_offset() == 49
    assert not redundancy.is_mostly_superseded()
