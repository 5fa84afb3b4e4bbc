"""A broker that is cut off from the bookies while a marker is on its way, and then dies: what its
readers were told is not more than what the next owner knows."""

from broker.log.partition import PartitionLog
from sim.plan import Fault
from sim.runner import Outcome, run_seed
from sim.shape import Shape

#: The clock is not wrong: it is there so that the heal comes later than the power failure.
PLAN = [
    Fault(0, 1.5, "cut-at-marker", 0.0001, 0.2, 1.0),
    Fault(1, 5.0, "clock", 0.0, 0.5, 0.1),
]
SHAPE = Shape(
    bookies=3, brokers=2, partitions=1, idempotent_producers=0, plain_producers=1, consumers=0,
    admins=0, transactional=2, twins=1, keyed=0,
)  # fmt: skip


def forgets(self):
    """The last stable offset without what undecided markers have ended."""
    high_watermark = self.queue.high_watermark
    first = self.producers.first_open_transaction_offset
    stable = high_watermark if first is None else min(high_watermark, first)
    return max(stable, self.log_start_offset)


def test_what_readers_were_told_outlives_the_owner():
    result = run_seed(1, plan=PLAN, shape=SHAPE)
    assert result.outcome is Outcome.FINE, result.story
    assert result.counts["cut off at a marker"] == 1
    assert result.counts["broker crashes: power"] == 1
    assert result.counts["transactions committed"] > 0


def test_a_marker_that_was_lost_and_counted(monkeypatch):
    """Which world's marker is cut off at the right moment hangs on everything else in it."""
    monkeypatch.setattr(PartitionLog, "last_stable_offset", property(forgets))
    results = (run_seed(seed, plan=PLAN, shape=SHAPE) for seed in range(1, 13))
    found = next((one for one in results if one.outcome is not Outcome.FINE), None)
    assert found is not None, "no world noticed"
    assert found.outcome is Outcome.CORRECTNESS, found.story
    assert found.error.kind == "backwards", found.story
