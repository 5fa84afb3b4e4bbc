"""The world's parts: clusters of brokers, processes that stand still, rot, groups, time, repair;
and that its judges find what is broken on purpose."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from broker.cluster.assignment import ASSIGNMENTS_PATH, Assignment
from broker.groups.shard import GroupShard
from sim.faults import Faults
from sim.plan import Fault
from sim.runner import Outcome, run_seed
from sim.shape import Shape, draw_shape
from wire.bookkeeper.entry import Digest

#: A clock that is not wrong: the heal comes a second after the last fault.
LATER = Fault(99, 11.0, "clock", 0.0, 0.5, 0.1)
CLUSTER = Shape(bookies=3, brokers=2, idempotent_producers=1, plain_producers=0, admins=0)


def fine(result):
    assert result.outcome is Outcome.FINE, result.story
    return result.counts


def test_a_cluster_hands_its_partitions_over_in_a_rolling_restart():
    plan = [Fault(1, 2.0, "rolling-restart", 0.9, 0.1, 1.0), LATER]
    counts = fine(run_seed(1, plan=plan, shape=CLUSTER))
    assert counts["clean stops"] >= 2
    assert counts["take-overs"] >= 3
    # Handed over, not taken: what is released is closed.
    assert not counts["recoveries"]


def test_a_broker_that_stood_still_is_deposed_and_goes_on(tmp_path):
    """It is frozen for longer than its session lives."""
    plan = [Fault(1, 3.0, "pause", 0.2, 0.5, 4.0), LATER]
    path = tmp_path / "trace"
    with path.open("w") as file:
        counts = fine(run_seed(2, plan=plan, shape=CLUSTER, file=file))
    assert counts["sessions lost"] == 1
    assert counts["recoveries"] > 0, "the other one took its partitions"
    lines = [line.split(maxsplit=3) for line in path.read_text().splitlines()]
    events = [(float(line[0]), line[1], line[2]) for line in lines if len(line) > 2]
    frozen = CLUSTER_NAMES[int(0.2 * 2 * 3)]
    # What the network brings is seen to arrive; nothing is done about it.
    done = [e for t, node, e in events if node == frozen and 3.001 < t < 9 and e != "receive"]
    assert [event for event in done if event not in ("accept", "log", "reset")] == []
    assert any(node == frozen and t > 9.0 and e.startswith("meta") for t, node, e in events)


def test_nothing_is_judged_while_two_own_everything():
    """The one that has not heard of the other shows an older end. (Seed 20001510 of a world of
    tellers and one producer.)"""
    shape = Shape(bookies=3, idempotent_producers=1, plain_producers=0, consumers=0, admins=0)
    counts = fine(run_seed(1, plan=[Fault(0, 1.0, "rival", 0.0, 0.3, 4.0)], shape=shape))
    # The heal came long before: the old one was killed, and the other started anew.
    assert counts["broker crashes: killed"] + counts["broker crashes: power"] == 1
    assert counts["clean stops"] == 1
    assert counts["broker lives"] == 3


CLUSTER_NAMES = ("broker-1", "broker-2", "broker-3")
ROT = [Fault(n, 3.0 + n, "bit-rot", 0.3 * n % 1, 0.95, 1.0) for n in range(1, 7)]
#: Nothing is in memory, so all reads are from the disk.
ROTTEN = Shape(bookies=4, idempotent_producers=0, plain_producers=2, consumers=2, admins=0,
               small_caches=1, witness=0)  # fmt: skip


def test_what_rots_on_one_disk_is_read_from_another():
    counts = fine(run_seed(1, plan=ROT, shape=ROTTEN))
    assert counts["bits rotten"] > 10


def test_a_group_goes_on_where_it_was():
    shape = Shape(bookies=3, brokers=2, members=3, plain_producers=0, admins=1)
    plan = [Fault(1, 2.5, "crash-broker", 0.1, 0.9, 1.0), Fault(2, 5.5, "stop", 0.7, 0.9, 1.0)]
    counts = fine(run_seed(3, plan=plan, shape=shape))
    assert counts["group generations"] > 5
    assert counts["offsets committed"] > 20


@pytest.mark.parametrize(
    ("forgotten", "kind"), [("apply", "two owners"), ("apply_offset", "backwards")]
)
def test_a_coordinator_that_forgets_is_found(monkeypatch, forgotten, kind):
    """What it loads after a move knows of nothing, so that generations begin anew; or of no
    commit."""
    monkeypatch.setattr(GroupShard, forgotten, lambda *_: None)
    shape = Shape(bookies=3, members=2, plain_producers=0, admins=0)
    plan = [Fault(1, 6.0, "crash-broker", 0.1, 0.9, 0.5)]
    # Every seed is judged wrong; which of the two contradictions comes first is the seed's.
    result = run_seed(4, plan=plan, shape=shape)
    assert result.outcome is Outcome.CORRECTNESS, result.story
    assert result.error.kind == kind


def test_a_digest_that_nobody_checks_is_found(monkeypatch):
    """Bits that changed reach clients, or are missed in the bookies' storage."""

    def unchecked(self, entry, ledger_id, entry_id):
        return memoryview(entry)[self.overhead_size :]

    def unchecked_run(self, entries, ledger_id, first_entry_id):
        return [unchecked(self, entry, ledger_id, 0) for entry in entries]

    monkeypatch.setattr(Digest, "open", unchecked)
    monkeypatch.setattr(Digest, "open_run", unchecked_run)
    # Two seeds of three come to an entry that somebody reads.
    assert run_seed(3, plan=ROT, shape=ROTTEN).outcome is not Outcome.FINE


def test_lost_bookies_are_repaired():
    shape = Shape(recoverers=1, plain_producers=0, admins=0)
    plan = [Fault(n, 2.0 * n, "crash-bookie", 0.3 * n % 1, 0.4, 3.5) for n in range(1, 4)]
    counts = fine(run_seed(4, plan=plan, shape=shape))
    assert counts["entries repaired"] > 0
    assert counts["entries judged"] > 100


@pytest.mark.parametrize("limit", ["short_queues", "short_ledgers", "small_caches"])
def test_tight_limits(limit):
    shape = Shape(brokers=2, members=1, lookers=1, retention=1, **{limit: 1})
    plan = [Fault(1, 2.0, "crash-bookie", 0.3, 0.4, 1.0), Fault(2, 4.0, "stop", 0.9, 0.4, 1.0)]
    counts = fine(run_seed(5, plan=plan, shape=shape))
    assert counts["times looked up"] > 10
    assert counts["acked"] > 50


def test_seeds_draw_all_kinds_of_worlds():
    shapes = [draw_shape(seed) for seed in range(200)]
    assert {shape.brokers for shape in shapes} == {1, 2, 3}
    for name in ("cluster", "recoverers", "lookers", "retention", "short_queues", "small_caches"):
        assert {getattr(shape, name) for shape in shapes} == {0, 1}, name
    assert {shape.members for shape in shapes} == {0, 1, 2, 3}


def leaders(world):
    """By topic and partition, as metadata have it."""
    table = world.tree.table
    found = {}
    for topic_id in table.children(ASSIGNMENTS_PATH):
        assignment = Assignment.from_bytes(table.find(f"{ASSIGNMENTS_PATH}/{topic_id}").data)
        for number, one in enumerate(assignment.partitions):
            found[assignment.topic, number] = one.leader
    return found


def cut_off(names):
    """A fault: these brokers reach no bookie, and no bookie them; metadata and clients they do."""

    def begin(self, fault):
        network = self._world.network
        for name in names:
            for bookie in self._world.bookies:
                network.cut(name, bookie.name)
                network.cut(bookie.name, name)

    return begin


@pytest.mark.parametrize("names", [["broker-1"], ["broker-1", "broker-2"]])
def test_a_broker_that_is_cut_off_from_the_bookies_is_deposed(monkeypatch, names):
    """Only if the other one is not."""
    seen = []
    monkeypatch.setattr(Faults, "_cut_off", cut_off(names), raising=False)
    monkeypatch.setattr(
        Faults, "_look", lambda self, fault: seen.append(leaders(self._world)), raising=False
    )
    plan = [
        Fault(1, 3.0, "look", 0.0, 0.0, 0.1),
        Fault(2, 3.1, "cut-off", 0.0, 0.0, 0.1),
        Fault(3, 60.0, "look", 0.0, 0.0, 0.1),
    ]
    fine(run_seed(1, plan=plan, shape=CLUSTER))
    before, after = seen
    assert 1 in before.values()
    if len(names) == 1:
        assert set(after.values()) == {2}
    else:
        assert {key: after[key] for key in before} == before
