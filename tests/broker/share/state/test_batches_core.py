"""Batches are merged as if each record were on its own."""

import itertools
import random

import pytest

from broker.share.ports import StateBatch
from broker.share.state.batches_core import are_valid, merged, normal


def by_offset(batches, start=0):
    """{offset: (count, state)}, the later of two."""
    found = {}
    for first, last, state, count in batches:
        for offset in range(max(first, start), last + 1):
            found[offset] = max(found.get(offset, (-1, -1)), (count, state))
    return found


def check_form(batches):
    for one, other in itertools.pairwise(batches):
        assert one.first_offset <= one.last_offset < other.first_offset
        is_next = one.last_offset + 1 == other.first_offset
        assert not (is_next and one[2:] == other[2:]), "neighbours in one state are one"


def some(rng, count, span):
    found = []
    for _ in range(count):
        first = rng.randrange(span)
        last = first + rng.choice((0, 0, 1, 3, span // 3))
        found.append(StateBatch(first, last, rng.choice((0, 2, 4)), rng.randrange(1, 4)))
    return found


@pytest.mark.parametrize("seed", range(100))
def test_as_a_table_of_records(seed):
    rng = random.Random(seed)
    span = rng.choice((5, 20, 100))
    start, table, stored = 0, {}, ()
    for _ in range(rng.randrange(1, 12)):
        new = some(rng, rng.randrange(8), span)
        start = max(start, rng.randrange(span) if rng.random() < 0.2 else 0)
        table = {at: rank for at, rank in table.items() if at >= start}
        for offset, rank in by_offset(new, start).items():
            table[offset] = max(table.get(offset, (-1, -1)), rank)
        stored = merged(stored, normal(new, start), start)
        check_form(stored)
        assert by_offset(stored) == table


@pytest.mark.parametrize("seed", range(40))
def test_neither_order_nor_repetition_matters(seed):
    rng = random.Random(seed)
    writes = [some(rng, rng.randrange(1, 5), 30) for _ in range(5)]
    orders = []
    for _ in range(3):
        stored = ()
        rng.shuffle(writes)
        for new in [*writes, rng.choice(writes)]:
            stored = merged(stored, normal(new, 0), 0)
        orders.append(stored)
    assert orders[0] == orders[1] == orders[2]


def test_what_is_not_touched_is_not_copied():
    stored = tuple(StateBatch(3 * at, 3 * at, 2, 1) for at in range(100))
    after = merged(stored, (StateBatch(151, 151, 2, 1),), 0)
    assert after[:50] == stored[:50]
    assert all(one is other for one, other in zip(after[:50], stored[:50], strict=True))


@pytest.mark.parametrize(
    "batch", [(5, 4, 0, 1), (-1, 4, 0, 1), (1, 4, 1, 1), (1, 4, 5, 1), (1, 4, 0, -1)]
)
def test_what_may_not_be_stored(batch):
    assert are_valid([StateBatch(1, 1, 3, 0)])
    assert not are_valid([StateBatch(1, 1, 3, 0), StateBatch(*batch)])
