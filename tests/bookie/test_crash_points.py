"""Crashes at every operation of a bookie on its disk and index: nothing lost, nothing resurrected.

What is done and checked is in checks/crash_points.py, which does more of it (`python -m
checks.crash_points`). Here also: that the enumeration finds an order of steps that is wrong, and a
sync that was forgotten.
"""

import logging
import sys
from pathlib import Path

import pytest
import trio

sys.path.insert(0, str(Path(__file__).parents[2]))

from bookie.journal.journal import Journal
from bookie.journal.journal_format import LEDGER_DELETED
from bookie.space.compactor import EntryLogCompactor
from bookie.start import ReplayTarget
from bookie.storage import checkpointer, map_walk
from bookie.storage.checkpointer import Checkpointer
from checks.crash_disk import CrashIndex, call_names
from checks.crash_points import Enumeration, Table, crash_everywhere, make_deterministic, record
from checks.crash_scenario import SCENARIOS
from checks.crash_steps import OTHER, REQUIRED, REQUIRED_AT_START, REQUIRED_OF_ADOPTED

SHORT, LONG, SLOW, TWO_DIRECTORIES, ADOPTED = SCENARIOS
#: Without one of these syncs something is lost, comes back, does not start or stays for ever. Of
#: the others the next sync of the same file or directory does their work too, or what they bring
#: to an end (an unlinked log, a recycled journal) may come back without harm.
NEEDED_SYNCS = (
    (LONG, "journal: group: sync"),
    (LONG, "journal: new file: sync"),
    (LONG, "journal: preparation: sync"),
    (LONG, "journal: preparation: directory sync"),
    (LONG, "flush: log: sync"),
    (LONG, "flush: index: index sync, locations"),
    (LONG, "log roll: new log: sync"),
    (TWO_DIRECTORIES, "log roll: new log: directory sync"),
    (LONG, "checkpoint: checkpoint: sync"),
    (LONG, "checkpoint: lastMark: sync"),
    (LONG, "checkpoint: ledgers: index sync, ledgers"),
    (LONG, "checkpoint: ledgers: index sync, locations"),
    (LONG, "compaction: new log: sync"),
    (LONG, "compaction: new log: directory sync"),
    (LONG, "compaction: map: sync"),
    (LONG, "compaction: re-point: index sync, locations"),
    (SHORT, "start: cookie: sync"),
    (SHORT, "start: journal: preparation: directory sync"),
    (SHORT, "start: log roll: new log: sync"),
    (SHORT, "start: flush: log: sync"),
    (SHORT, "start: flush: index: index sync, locations"),
    (SHORT, "start: checkpoint: ledgers: index sync, ledgers"),
    (SHORT, "start: checkpoint: ledgers: index sync, locations"),
    (SHORT, "start: checkpoint: checkpoint: sync"),
)


@pytest.fixture(autouse=True)
def same_order_each_time():
    """Of trio's tasks; and no lines of log, of which thousands of bookies have many."""
    state = trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING, trio._core._run._r.getstate()
    make_deterministic()
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
    trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING = state[0]
    trio._core._run._r.setstate(state[1])


def check_table(table, scenario):
    """Nothing was lost, and all that is to be reached was."""
    print("\n".join(table.lines()))
    assert table.stories == []
    assert not any(table.total().violations.values())
    assert min(table.crashes.get(name, 0) for name in ("lost", "kept", "torn", "reordered")) > 0
    assert [step for step in table.rows if OTHER in step] == []
    required = {SHORT: REQUIRED_AT_START, ADOPTED: REQUIRED_OF_ADOPTED}.get(scenario, REQUIRED)
    assert [step for step in required if step not in table.rows] == []


@pytest.mark.parametrize("scenario", [SHORT, LONG], ids=lambda each: each.name)
async def test_a_crash_at_every_operation(scenario, autojump_clock):
    """The others: below, where all may survive that can."""
    table = await crash_everywhere(scenario, thorough=False)
    check_table(table, scenario)
    make_deterministic()  # as it was for the first record of all
    points, _ = await record(scenario)
    assert table.total().points >= len(points) > 100


@pytest.mark.slow
@pytest.mark.parametrize("scenario", [LONG, ADOPTED], ids=lambda each: each.name)
async def test_a_crash_while_deleted_ledgers_wait_for_a_walk(scenario, monkeypatch, autojump_clock):
    """As with thousands of logs: a dead one goes with the collector's round, not the checkpoint.
    And as with very many deletions: they come in portions."""
    monkeypatch.setattr(map_walk, "AT_ONCE_UNITS", 0)
    monkeypatch.setattr(map_walk, "PART_COUNT", 1)
    monkeypatch.setattr(checkpointer, "DELETIONS_TOGETHER_MAX", 1)
    table = await crash_everywhere(scenario, thorough=False)
    assert table.stories == []
    assert table.total().points > 100
    assert [step for step in table.rows if OTHER in step] == []


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS[1:], ids=lambda each: each.name)
async def test_all_that_may_survive(scenario, autojump_clock):
    table = Table()
    points, story = await record(scenario)
    await Enumeration(table, scenario.config, thorough=True).run(points, story, 0)
    check_table(table, scenario)
    assert table.total().points == len(points) > 100


async def test_crashes_again_and_again_while_a_log_gets_its_map(autojump_clock):
    """What a compaction left gets a map; a torn one must not be damage in the middle of the log."""
    table = Table()
    points, story = await record(SHORT)
    compaction = [point for point in points if point.step.startswith("compaction: ")]
    enumeration = Enumeration(table, SHORT.config, thorough=True, nested_steps="gc: examined log")
    await enumeration.run(compaction, story, 3)
    print("\n".join(table.lines()))
    assert table.stories == []
    assert table.row("gc: examined log: write").points > 50


async def test_the_operations_are_the_same_each_time(autojump_clock):
    make_deterministic()
    first, _ = await record(SLOW)
    make_deterministic()
    again, _ = await record(SLOW)
    assert [point.step for point in first] == [point.step for point in again]


def first_difference(steps, others):
    """Where a life differs from another that it begins like; the start, if only in its answers."""
    pairs = enumerate(zip(steps, others, strict=False))
    return next((number for number, (one, other) in pairs if one != other), 0)


async def violations_of(scenario, *, forgotten=None, right_steps=None):
    """Up to the first. What is done before the life differs from a right one, whose `right_steps`
    they are, is crashed by the tests above."""
    points, story = await record(scenario, forgotten)
    steps, begin = [point.step for point in points], 0
    if right_steps is not None:
        begin = first_difference(steps, right_steps)
    elif forgotten in steps:
        begin = steps.index(forgotten)
    table = Table()
    depth = scenario.quick_depth
    enumeration = Enumeration(
        table, scenario.config, thorough=not depth, is_first_enough=True, forgotten=forgotten
    )
    await enumeration.run(points[begin:], story, depth)
    return table.stories


@pytest.mark.slow
@pytest.mark.parametrize(("scenario", "step"), NEEDED_SYNCS, ids=[step for _, step in NEEDED_SYNCS])
async def test_a_forgotten_sync_is_found(scenario, step, autojump_clock):
    stories = await violations_of(scenario, forgotten=step)
    print(stories)
    assert stories


# Wrong orders, each as one who does not know better might write it.


def the_old_log_goes_before_the_index_is_synced(monkeypatch):
    switch = EntryLogCompactor._switch

    async def mutant(self, target):
        await self._remove_copied()
        await switch(self, target)

    monkeypatch.setattr(EntryLogCompactor, "_switch", mutant)


def the_index_is_told_before_the_copies_are_synced(monkeypatch):
    async def mutant(self):
        target, self._target = self._target, None
        if target is not None:
            await self._write(target)
            target.log.ledgers = await self._ledgers_of(target.moves)
            moved = await self._repoint(target)
            await self._disk.run(self._index.sync)
            await self._logs.write_map(target.log)
            await self._logs.publish(target.log)
            target.log.ledgers, target.log.is_written = moved, False
        await self._remove_copied()

    monkeypatch.setattr(EntryLogCompactor, "_finish", mutant)


def the_mark_moves_before_the_flush(monkeypatch):
    flush = Checkpointer._flush

    async def mutant(self, generation):
        await self._move_mark(self._barrier.end)
        await flush(self, generation)

    monkeypatch.setattr(Checkpointer, "_flush", mutant)


def the_mark_moves_before_the_index_is_synced(monkeypatch):
    sync, move = CrashIndex.sync, Checkpointer._move_mark

    async def moved_mutant(self, mark):
        await move(self, mark)
        sync(self._index)

    def sync_mutant(self):
        if "Checkpointer._steps" not in call_names():
            sync(self)

    monkeypatch.setattr(Checkpointer, "_move_mark", moved_mutant)
    monkeypatch.setattr(CrashIndex, "sync", sync_mutant)


def the_mark_moves_before_the_states_of_ledgers_are_stored(monkeypatch):
    store, move = Checkpointer.store_ledgers, Checkpointer._move_mark
    late = set()

    async def store_mutant(self, deletions):
        late.update(*deletions)
        return True

    async def move_mutant(self, mark):
        await move(self, mark)
        await store(self, [late] if late else [])

    monkeypatch.setattr(Checkpointer, "store_ledgers", store_mutant)
    monkeypatch.setattr(Checkpointer, "_move_mark", move_mutant)


def journals_are_recycled_before_the_mark_moves(monkeypatch):
    move = Checkpointer._move_mark

    async def mutant(self, mark):
        await self._files.recycle(mark.journal_id)
        await move(self, mark)

    monkeypatch.setattr(Checkpointer, "_move_mark", mutant)


def a_deletion_is_not_journaled(monkeypatch):
    append = Journal.append_special

    def mutant(self, record):
        is_deletion = int.from_bytes(record[28:36], "big", signed=True) == LEDGER_DELETED
        return self.cut() if is_deletion else append(self, record)

    monkeypatch.setattr(Journal, "append_special", mutant)


def the_replay_passes_over_deletions(monkeypatch):
    apply = ReplayTarget.apply

    def mutant(self, ledger_id, entry_id, record):
        return entry_id == LEDGER_DELETED or apply(self, ledger_id, entry_id, record)

    monkeypatch.setattr(ReplayTarget, "apply", mutant)


def the_index_forgets_before_the_deletion_is_durable(monkeypatch):
    async def mutant(self):
        return [dict(self.deletions)] if self.deletions else []

    monkeypatch.setattr(Checkpointer, "_durable_deletions", mutant)


def adds_are_answered_before_the_sync(monkeypatch):
    def mutant(self):
        self._syncing, self._unsynced = self._unsynced, []
        self._sync_running = True
        self._synced(None)
        return True

    monkeypatch.setattr(Journal, "_start_sync", mutant)


MUTANTS = (
    (LONG, the_old_log_goes_before_the_index_is_synced),
    (LONG, the_index_is_told_before_the_copies_are_synced),
    (LONG, the_mark_moves_before_the_flush),
    (LONG, the_mark_moves_before_the_index_is_synced),
    (LONG, the_mark_moves_before_the_states_of_ledgers_are_stored),
    (LONG, journals_are_recycled_before_the_mark_moves),
    (LONG, a_deletion_is_not_journaled),
    (LONG, the_replay_passes_over_deletions),
    (SLOW, the_index_forgets_before_the_deletion_is_durable),
    (LONG, adds_are_answered_before_the_sync),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "mutant"), MUTANTS, ids=[mutant.__name__ for _, mutant in MUTANTS]
)
async def test_a_wrong_order_is_found(scenario, mutant, monkeypatch, autojump_clock):
    make_deterministic()
    right_steps = [point.step for point in (await record(scenario))[0]]
    make_deterministic()
    mutant(monkeypatch)
    stories = await violations_of(scenario, right_steps=right_steps)
    print(stories)
    assert stories
