"""Named scenarios: bugs that BookKeeper and KoP had. Each passes, and fails without the rule that
keeps it away, which the test takes out."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from bookie.ledger_operations import LedgerOperations
from sim.plan import Fault
from sim.runner import Outcome, run_seed
from sim.shape import Shape
from wire.bookkeeper.status import Status
from wire.kafka.errors import ErrorCode, KafkaError

#: Judged by what clients see alone: the witness would tell earlier.
SHAPE = Shape(bookies=3, idempotent_producers=0, plain_producers=2, admins=0, witness=0)
#: Two brokers work on the same partitions for a while, again and again.
RIVALS = [Fault(number, 1.0 + 1.5 * number, "rival", 0.0, 0.3, 1.2) for number in range(3)]


def test_rivals_are_told_apart():
    once_more = Fault(len(RIVALS), 1.0 + 1.5 * len(RIVALS), "rival", 0.0, 0.3, 1.2)
    result = run_seed(1, plan=[*RIVALS, once_more], shape=SHAPE)
    assert result.outcome is Outcome.FINE, result.story
    assert result.counts["recoveries"] > 4
    assert result.counts["produce NOT_LEADER_OR_FOLLOWER"] > 0


def test_recovery_without_fencing(monkeypatch):
    """bk#2614: where a recovery's reads do not fence, the old writer acknowledges what the recovery
    does not see, and two brokers give one offset to two records."""
    monkeypatch.setattr("ledger.recovery.FLAG_DO_FENCING", 0)
    result = run_seed(1, plan=RIVALS, shape=SHAPE)
    assert result.outcome is Outcome.CORRECTNESS, result.story
    assert result.error.kind == "diverging"


def test_a_bookie_that_forgets_its_fence(monkeypatch):
    """The other half of it: the reads ask for the fence, and bookies answer without having made
    it (LedgerOperations.fence)."""

    async def fence(self, ledger_id, master_key):
        return Status.EOK

    monkeypatch.setattr(LedgerOperations, "fence", fence)
    result = run_seed(1, plan=RIVALS, shape=SHAPE)
    assert result.outcome is Outcome.CORRECTNESS, result.story
    assert result.error.kind == "diverging"


def test_a_fence_that_clients_take_for_a_broken_server(monkeypatch):
    """KoP's: a fenced ledger must reach the client as NOT_LEADER_OR_FOLLOWER, so that it looks for
    the new leader; anything else ends a producer."""

    class Misnamed(KafkaError):
        def __init__(self, code, *words):
            is_fence = code is ErrorCode.NOT_LEADER_OR_FOLLOWER
            super().__init__(ErrorCode.UNKNOWN_SERVER_ERROR if is_fence else code, *words)

    monkeypatch.setattr("broker.log.partition.KafkaError", Misnamed)
    result = run_seed(1, plan=RIVALS, shape=SHAPE)
    assert result.outcome is Outcome.CORRECTNESS, result.story
    assert result.error.kind == "refused"
