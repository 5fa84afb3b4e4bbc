"""Ledgers on too few racks: marked by the auditor, moved by a worker, only as far as it helps."""

import pytest
import trio

from ledger.autorecovery.config import AUTORECOVERY_CONFIGS, autorecovery_config
from ledger.autorecovery.placement_check import crowded, spread_of
from ledger.distribution import Schedule

RACKS = {"a": "/1", "b": "/1", "c": "/1", "d": "/2", "e": "/2", "f": "/3"}
WANTED = {"placement_check_interval_s": 1000, "repairs_placement": True}


@pytest.mark.parametrize(
    ("ensemble", "sizes", "min_racks", "expected", "spread"),
    [
        ("abc", (3, 3, 2), 2, ["a", "b", "c"], 3),
        ("abd", (3, 3, 2), 2, [], 6),
        ("abd", (3, 3, 2), 3, ["a", "b"], 6),
        ("adf", (3, 3, 2), 9, [], 9),
        ("abde", (4, 2, 2), 2, ["a", "b", "d", "e"], 6),
        ("adbe", (4, 2, 2), 2, [], 8),
        ("a", (1, 1, 1), 2, [], 1),
        ("axy", (3, 3, 2), 2, [], 6),  # who is not known is in the default rack
    ],
)
def test_who_could_be_elsewhere(ensemble, sizes, min_racks, expected, spread):
    schedule = Schedule(*sizes)
    assert crowded(ensemble, schedule, RACKS, min_racks) == expected
    assert spread_of(ensemble, schedule, RACKS, min_racks) == spread
    # One rack is all there is: nothing is better elsewhere.
    one = dict.fromkeys(RACKS, "/1")
    if set(ensemble) <= set(one):
        assert crowded(ensemble, schedule, one, min_racks) == []


def test_the_setting():
    name = "repairedPlacementPolicyNotAdheringBookieEnabled"
    assert not autorecovery_config({}).repairs_placement
    assert autorecovery_config(AUTORECOVERY_CONFIGS.parse({name: "true"})).repairs_placement


async def crowded_ledger(cluster, sizes=(3, 3, 2), **options):
    """On a, b and c only, which turn out to be in one rack."""
    cluster.world.names[:] = "abc"
    writer = await cluster.write(sizes=sizes, **options)
    cluster.world.names[:] = "abcdef"
    return writer.ledger_id


async def test_it_is_moved_to_another_rack(cluster, autojump_clock):
    for bookie in "abcdef":
        cluster.racks[bookie] = "/x/1" if bookie in "abc" else "/x/2"
    ledger_id = await crowded_ledger(cluster)
    service = await cluster.start(**WANTED)
    with trio.fail_after(60):
        while service.work_statistics.ledgers_repaired == 0:
            await trio.sleep(0.1)
    (ensemble,) = await cluster.ensembles(ledger_id)
    assert len(ensemble & set("abc")) == 2, "one bookie is enough"
    await cluster.check_copies(ledger_id)
    assert await cluster.marked() == []
    assert service.audit_statistics.ledgers_not_adhering == 1
    assert service.work_statistics.entries_written == 10
    # Looked at again, all is well.
    await trio.sleep(1100)
    assert service.audit_statistics.ledgers_not_adhering == 0
    assert await cluster.marked() == []
    assert service.work_statistics.entries_written == 10


async def test_a_striped_ledger_is_moved_as_often_as_it_needs(cluster, autojump_clock):
    for bookie in "abcdef":
        cluster.racks[bookie] = "/x/1" if bookie in "abc" else "/x/2"
    ledger_id = await crowded_ledger(cluster, sizes=(3, 2, 2))
    service = await cluster.start(**WANTED)
    with trio.fail_after(60):
        while service.work_statistics.ledgers_repaired == 0:
            await trio.sleep(0.1)
    await trio.sleep(1100)
    assert service.audit_statistics.ledgers_not_adhering == 1, "3 write sets of 2 need 3 racks"
    await cluster.check_copies(ledger_id)
    written = service.work_statistics.entries_written
    await trio.sleep(1100)
    assert service.work_statistics.entries_written == written, "what does not help is not done"
    assert await cluster.marked() == []


async def test_it_stays_unless_it_is_wanted(cluster, autojump_clock):
    for bookie in "abcdef":
        cluster.racks[bookie] = "/x/1" if bookie in "abc" else "/x/2"
    ledger_id = await crowded_ledger(cluster)
    service = await cluster.start(placement_check_interval_s=1000)
    await trio.sleep(50)
    assert service.audit_statistics.ledgers_not_adhering == 1
    assert await cluster.marked() == []
    assert await cluster.ensembles(ledger_id) == [set("abc")]


async def test_lost_copies_come_first(cluster, autojump_clock):
    """A bookie of the crowded ledger is lost, too."""
    for bookie in "abcdef":
        cluster.racks[bookie] = "/x/1" if bookie in "abc" else "/x/2"
    ledger_id = await crowded_ledger(cluster)
    await cluster.lose("a")
    service = await cluster.start(**WANTED)
    with trio.fail_after(120):
        while service.work_statistics.ledgers_repaired == 0:
            await trio.sleep(0.1)
    await cluster.wait_whole()
    (ensemble,) = await cluster.ensembles(ledger_id)
    assert "a" not in ensemble
    assert ensemble & set("def")
    await cluster.check_copies(ledger_id)
