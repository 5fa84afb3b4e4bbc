"""Worlds in which transactions are all that is written: producers of both versions, a twin, deaths,
delays; and that the judges find what is broken on purpose."""

import pytest

from broker.handlers import fetch, fetch_cold
from broker.transactions import coordinator, end_txn, transitions, txn_core, types
from broker.transactions.shard import TxnShard
from sim.plan import Fault
from sim.runner import Outcome, run_seed
from sim.shape import Shape, draw_shape
from sim.transactions import producer

#: A clock that is not wrong: the heal comes a second later.
LATER = Fault(99, 9.0, "clock", 0.0, 0.5, 0.1)
SHAPE = Shape(
    bookies=3, brokers=2, partitions=1, idempotent_producers=0, plain_producers=1, consumers=0,
    admins=0, transactional=2, twins=1, keyed=1, witness=0,
)  # fmt: skip


def fine(result):
    assert result.outcome is Outcome.FINE, result.story
    return result.counts


def broken(result, *kinds):
    assert result.outcome is Outcome.CORRECTNESS, result.story
    assert result.error.kind in kinds, result.story


def test_nothing_goes_wrong_where_nothing_is_wrong():
    counts = fine(run_seed(2, plan=[LATER], shape=SHAPE))
    assert counts["transactions committed"] > 10
    assert counts["transactions aborted"] > 3
    assert counts["records in transactions"] > 50
    assert counts["ends that came late"] > 0
    assert counts["batches that came late"] > 0
    assert counts["transactional produce INVALID_PRODUCER_EPOCH"] > 0, "the twins fence each other"


def test_coordinators_and_owners_that_die():
    plan = [Fault(n, 1.5 * n, "crash-broker", 0.3 * n % 1, 0.9, 0.6) for n in range(1, 6)]
    counts = fine(run_seed(2, plan=[*plan, LATER], shape=SHAPE))
    assert counts["transactions committed"] > 5
    assert counts["recoveries"] > 5


def test_coordinators_and_owners_that_are_deposed_and_do_not_know_it():
    """They stand still for longer than their sessions live, and go on."""
    plan = [Fault(n, 3.0 * n, "pause", 0.11 * n, 0.4, 3.0) for n in range(1, 4)]
    counts = fine(run_seed(6, plan=[*plan, LATER], shape=SHAPE))
    assert counts["sessions lost"] > 1
    assert counts["transactions committed"] > 5


def test_epochs_that_run_out(monkeypatch):
    """An id has only so many epochs: each few transactions its producer gets another id."""
    for module in (types, end_txn):
        monkeypatch.setattr(module, "EPOCH_EXHAUSTED", 5)
    for module in (types, transitions):
        monkeypatch.setattr(module, "EPOCH_MAX", 6)
    taken = []
    want_id = coordinator.TransactionCoordinator.want_id

    def counted(self, call):
        taken.append(call)
        want_id(self, call)

    monkeypatch.setattr(coordinator.TransactionCoordinator, "want_id", counted)
    plan = [Fault(n, 2.0 * n, "crash-broker", 0.3 * n % 1, 0.9, 0.6) for n in range(1, 4)]
    counts = fine(run_seed(3, plan=[*plan, LATER], shape=SHAPE))
    assert counts["transactions committed"] > 5
    assert len(taken) > 5


def test_readers_that_are_not_told_what_is_aborted(monkeypatch):
    for room in (fetch, fetch_cold):
        monkeypatch.setattr(room, "listed", lambda _aborted: [])
    broken(run_seed(1, plan=[LATER], shape=SHAPE), "dirty", "shown")


def test_time_that_is_up_for_nobody(monkeypatch):
    """As long as its producer comes back, that one's fence ends what it left open."""
    monkeypatch.setattr(txn_core, "tick", lambda *_, **__: [])
    monkeypatch.setattr(producer, "LEFT_SHARE", 1.0)
    broken(run_seed(1, plan=[LATER], shape=SHAPE), "open")


def test_markers_that_nobody_sends_again(monkeypatch):
    """A coordinator that takes over knows of no decision."""
    apply = TxnShard.apply

    def forgets(self, key, value):
        apply(self, key, value)
        self._unfinished.clear()

    monkeypatch.setattr(TxnShard, "apply", forgets)
    plan = [Fault(n, 1.5 * n, "crash-broker", 0.3 * n % 1, 0.9, 0.6) for n in range(1, 6)]
    results = [run_seed(seed, plan=[*plan, LATER], shape=SHAPE) for seed in (2, 4, 5)]
    assert any(result.outcome is not Outcome.FINE for result in results)


def test_every_drawn_world_has_transactions():
    shapes = [draw_shape(seed) for seed in range(200)]
    assert {shape.transactional for shape in shapes} == {1, 2}
    assert {shape.twins for shape in shapes} == {0, 1}


@pytest.mark.parametrize("versions", [1, 2])
def test_one_version_alone(monkeypatch, versions):
    """Each id's client of the same version; a cluster that serves only the older one."""
    init = producer.TxnProducer.__init__

    def same(self, world, name, transactional_id, version, *, is_twin):
        init(self, world, name, transactional_id, versions, is_twin=is_twin)

    monkeypatch.setattr(producer.TxnProducer, "__init__", same)
    counts = fine(run_seed(4, plan=[LATER], shape=SHAPE))
    assert counts["transactions committed"] > 5
    assert bool(counts["ends that came late"]) == (versions == 2)
