"""Sessions on followers of the metadata that lag (sim/followers.py): named scenarios."""

from joined.ledger_gc import MetadataLedgers
from ledger.errors import LedgerError
from metadata.store import MetadataError
from sim.plan import Fault
from sim.runner import Outcome, run_seed
from sim.shape import Shape
from tests.ledger_ids import ledger_ids

#: The first bookie reads from a server that is up to 4.5 s behind, for as long as the run goes on;
#: a clock that is wrong by nothing keeps it going.
BEHIND = [
    Fault(0, 1.5, "lagging-follower", 0.0, 0.41045, 6.0),
    Fault(1, 15.0, "clock", 0.0, 0.5, 1.0),
]
#: Ledgers live for 0.3 s, or are deleted.
SHAPE = Shape(idempotent_producers=1, plain_producers=1, admins=0, short_ledgers=1, retention=1)


def run(seed):
    return run_seed(seed, plan=BEHIND, shape=SHAPE)


async def _gone_at_one_look(self, had):
    """As it was: what is listed is not asked how old it is, and one look is enough."""
    try:
        listed = set(await ledger_ids(self._manager))
    except (LedgerError, MetadataError):
        return []
    return [i for i in had if i not in listed and await self._is_gone(i)]


def test_collection_by_a_bookie_whose_metadata_are_behind():
    result = run(1)
    assert result.outcome is Outcome.FINE, result.story
    assert result.counts["ledgers collected"] > 10


def test_collection_that_believes_what_it_reads(monkeypatch):
    """The bookie deletes the ledgers that are being written, and what was acknowledged cannot be
    read. Most seeds fail; the first that does is enough."""
    monkeypatch.setattr(MetadataLedgers, "gone", _gone_at_one_look)
    assert any(run(seed).outcome is not Outcome.FINE for seed in range(1, 5))


def test_a_seed_with_followers_that_lag_is_a_seed():
    plan = [Fault(n, 1.0 + n, "lagging-follower", 0.3, 0.1237 + 0.0511 * n, 2.0) for n in range(5)]
    shape = Shape(brokers=2, recoverers=1, members=1)
    results = [run_seed(3, plan=plan, shape=shape) for _ in range(2)]
    assert results[0].outcome is Outcome.FINE, results[0].story
    assert results[0].digest == results[1].digest
    assert results[0].counts["stale metadata reads"] > 0
