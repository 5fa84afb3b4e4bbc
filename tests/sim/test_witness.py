"""The witness: each of its words is told of a world in which that rule is broken, and of no other;
and the damage of disks, which no world may lose anything to."""

import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from bookie.errors import CorruptionError
from bookie.journal.journal import Journal
from bookie.ledger_operations import LedgerOperations
from bookie.storage.entry_log_format import HEADER_SIZE, pack_header, read_ledgers_map
from ledger.distribution import Schedule
from ledger.open_ledger import OpenLedger
from ledger.recovery_core import EndCore
from ledger.writer_core import WriterCore
from runtime.sim_disk import SimDisk
from sim.plan import Fault
from sim.runner import Outcome, run_seed
from sim.shape import QUORUMS, Shape, draw_shape

pytestmark = pytest.mark.timeout(600)

SMALL = Shape(idempotent_producers=0, plain_producers=2, consumers=0, admins=0)
RIVALS = [Fault(number, 1.0 + 1.5 * number, "rival", 0.0, 0.3, 1.2) for number in range(2)]
CRASHES = [Fault(n, 1.0 + n, "crash-bookie", 0.3 * n % 1, 0.4, 0.8) for n in range(4)]


def kind_of(plan, shape=SMALL):
    """What the first seeds say; "" if all of them are fine."""
    for seed in range(1, 6):
        result = run_seed(seed, plan=plan, shape=shape)
        if result.outcome is not Outcome.FINE:
            assert result.outcome is Outcome.CORRECTNESS, result.story
            return result.error.kind
    return ""


def test_worlds_without_a_fault_of_the_code_are_fine():
    assert run_seed(1, plan=RIVALS, shape=SMALL).outcome is Outcome.FINE
    assert run_seed(1, plan=CRASHES, shape=SMALL).outcome is Outcome.FINE


def test_an_add_that_is_answered_early(monkeypatch):
    def start_sync(self):
        self._syncing, self._unsynced = self._unsynced, []
        self._sync_running = True
        self._file.sync(lambda _error: None)
        self._synced(None)
        return not self._sync_running

    monkeypatch.setattr(Journal, "_start_sync", start_sync)
    assert kind_of([]) == "early answer"


def test_a_fence_that_is_answered_early(monkeypatch):
    async def at_once(_self, _group):
        return True

    monkeypatch.setattr(LedgerOperations, "_is_made_durable", at_once)
    assert kind_of(RIVALS) == "early answer"


def test_a_lac_that_is_told_early(monkeypatch):
    original = WriterCore.__init__

    def one_is_enough(self, *arguments, **options):
        original(self, *arguments, **options)
        self._ack_quorum_size = 1

    monkeypatch.setattr(WriterCore, "__init__", one_is_enough)
    assert kind_of(CRASHES) == "thin"


def test_an_ensemble_that_is_used_early(monkeypatch):
    async def not_stored(_self, _request, _ensemble):
        """As if it were."""

    monkeypatch.setattr(OpenLedger, "store_ensemble", not_stored)
    assert kind_of(CRASHES) == "ahead of metadata"


def test_a_fence_that_does_not_cover(monkeypatch):
    monkeypatch.setattr(Schedule, "is_covered", lambda _self, known_mask: known_mask != 0)
    assert kind_of(RIVALS) == "uncovered"


def test_a_recovery_that_begins_too_early(monkeypatch):
    original = EndCore.__init__

    def forgets_the_segment(self, schedule, _last_segment_first):
        original(self, schedule, 0)

    monkeypatch.setattr(EndCore, "__init__", forgets_the_segment)
    # A bookie is killed, which the writer learns at once; and then the writer, a moment later. How
    # long that moment has to be depends on the code's own waits.
    kinds = []
    for moment in (0.05, 0.01, 0.09, 0.03):
        plan = []
        for n in range(8):
            at = 1.0 + 1.2 * n
            plan.append(Fault(2 * n, at, "crash-bookie", 0.27 * n % 1, 0.7, 0.4))
            late = at + 0.02 * n + moment
            plan.append(Fault(2 * n + 1, late, "crash-broker", 0.0, 0.7, 0.3))
        kinds.append(kind_of(plan))
        if kinds[-1]:
            break
    assert kinds[-1] == "before the segment", kinds


# Quorums and damage.


def test_seeds_draw_all_quorums_and_half_of_them_the_usual():
    shapes = [draw_shape(seed) for seed in range(400)]
    assert {shape.copies for shape in shapes} == set(QUORUMS)
    assert all(shape.bookies >= shape.copies[0] + bool(shape.quorums) for shape in shapes)
    assert 150 < sum(shape.copies == QUORUMS[0] for shape in shapes) < 300


@pytest.mark.parametrize("number", range(1, len(QUORUMS)))
def test_every_quorum_works(number):
    ensemble = QUORUMS[number][0]
    shape = Shape(quorums=number, bookies=ensemble + 1, plain_producers=0, admins=0)
    plan = [*CRASHES[:2], Fault(9, 4.0, "crash-broker", 0.0, 0.9, 0.5)]
    result = run_seed(1, plan=plan, shape=shape)
    assert result.outcome is Outcome.FINE, result.story
    assert result.counts["recoveries"] > 0


#: Each place of sim/damage.py, then the power fails (b < 0.3) or the process is killed.
ROT = [Fault(n, 2.0 + 0.7 * n, "rot-anywhere", (n + 0.5) / 9, 0.1 * n % 0.6, 1.0) for n in range(8)]
LATENT = [
    Fault(n, 2.0 + 0.7 * n, "latent-errors", (8.5 - n) / 9, 0.1 * n % 0.6, 1.0) for n in range(9)
]


@pytest.mark.parametrize("plan", [ROT, LATENT], ids=["rot", "latent"])
def test_damage_of_one_disk_loses_nothing(plan):
    reached = set()
    for seed in range(1, 3):
        result = run_seed(seed, plan=plan, shape=Shape(recoverers=1, small_caches=1))
        assert result.outcome is Outcome.FINE, result.story
        reached |= {name for name in result.counts if name.startswith("damaged: ")}
    assert len(reached) >= 4, reached


def test_no_copy_is_damaged_where_one_is_all_there_is():
    number = QUORUMS.index((3, 2, 1))
    result = run_seed(1, plan=ROT, shape=Shape(quorums=number))
    assert result.outcome is Outcome.FINE, result.story
    assert not any(name.startswith("damaged: ") for name in result.counts)


def test_reads_that_fail_for_a_while():
    plan = [Fault(n, 2.0 + n, "read-errors", 0.3 * n % 1, 0.8, 2.0) for n in range(5)]
    shape = Shape(consumers=2, small_caches=1)
    result = run_seed(2, plan=plan, shape=shape)
    assert result.outcome is Outcome.FINE, result.story
    assert result.counts["read errors"] > 0


def test_a_log_whose_map_cannot_be_read_is_damaged_and_ends_nobody(rng):
    """Collection and the scrub read it while the bookie serves."""
    disk = SimDisk(rng)
    file = disk.open("/1.log", create=True)
    file.pwrite([pack_header(0, 0)], 0)
    assert read_ledgers_map(file) is None
    disk.make_unreadable("/1.log", 0, 512)
    with pytest.raises(CorruptionError, match="cannot be read"):
        read_ledgers_map(file)
    file.pwrite([bytes(HEADER_SIZE)], 0)
    with pytest.raises(CorruptionError, match="no header"):
        read_ledgers_map(file)


@pytest.fixture
def rng():
    return random.Random(1)
