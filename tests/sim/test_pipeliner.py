"""Producers with several requests in flight (sim/pipeliner.py), above all while the metadata are
away past all sessions and come back: bookies and brokers register again one after the other, so
that for a moment there are none, then two, then all."""

import random
import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from broker.log import partition as partitions
from broker.log.life import keeper as keepers
from sim.plan import Fault
from sim.runner import Outcome, run_seed
from sim.shape import Shape

#: A clock that is not wrong: the heal comes a second later.
LATER = Fault(99, 17.0, "clock", 0.0, 0.5, 0.1)
SEEDS = range(1, 9)


def run(seed):
    """The metadata are away twice; of everything that could matter some differs in each seed."""
    rng = random.Random(seed)
    plan = [
        Fault(0, 3 + rng.random(), "metadata-away", 0.5, rng.random(), 2 * rng.random()),
        Fault(1, 10 + rng.random(), "metadata-away", 0.5, rng.random(), 2 * rng.random()),
        LATER,
    ]
    shape = Shape(
        bookies=3,
        brokers=1 + rng.randrange(3),
        cluster=1,
        partitions=4,
        idempotent_producers=0,
        plain_producers=0,
        pipeliners=2,
        admins=0,
        witness=0,
        short_ledgers=rng.randrange(2),
        short_queues=rng.randrange(2),
    )
    return run_seed(seed, plan=plan, shape=shape)


def test_everything_is_answered_once_metadata_are_back():
    counts = Counter()
    for seed in SEEDS:
        result = run(seed)
        assert result.outcome is Outcome.FINE, f"seed {seed}: {result.story}"
        counts.update(result.counts)
    # Nothing is wrong with the network, so that a request that had no answer in time is the
    # broker's fault, though its client got over it by a new connection.
    assert not counts["pipelines timed out"]
    # The scenario is what it is meant to be: bookies were missed, and batches came behind others
    # that had been refused. They are refused alike and come again, so that no epoch is bumped.
    assert counts["sessions lost"] > 0
    assert counts["pipelined NOT_ENOUGH_REPLICAS"] > 0
    assert counts["pipelined batches behind a failed one"] > 0
    assert not counts["producer epochs bumped"]


def test_a_seed_is_a_seed():
    assert run(1).digest == run(1).digest


async def _drops_them(log, _store, _path, _version):
    """What is in doubt is answered by nobody."""
    log.take_doubted()


def test_doubts_that_nobody_settles_are_found(monkeypatch):
    monkeypatch.setattr(keepers, "settle_doubts", _drops_them)
    # One seed in forty comes to it: of these 53 is the first.
    assert any(run(seed).counts["pipelines timed out"] for seed in range(41, 241))


@pytest.mark.parametrize("missed", ["metadata_changed", "bookies_changed"])
def test_news_that_a_keeper_misses_cost_nobody_an_answer(monkeypatch, missed):
    """They make things better, and nothing waits for them alone."""
    monkeypatch.setattr(keepers.Keeper, missed, lambda _self: None)
    for seed in SEEDS[:3]:
        result = run(seed)
        assert result.outcome is Outcome.FINE, f"seed {seed}: {result.story}"


def test_a_keeper_that_is_not_called_is_found(monkeypatch):
    monkeypatch.setattr(partitions.PartitionLog, "call_keeper", lambda _self: None)
    results = (run(seed) for seed in SEEDS)
    assert any(
        one.outcome is not Outcome.FINE or one.counts["pipelines timed out"] for one in results
    )
