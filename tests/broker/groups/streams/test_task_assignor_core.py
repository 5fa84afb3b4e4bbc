"""Who is to have which tasks: tables, and what holds of any group."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from broker.groups.streams.task_assignor_core import (
    AssignorInput,
    AssignorMember,
    SubtopologyTasks,
    assign,
)
from broker.groups.streams.types import Target

STATEFUL, STATELESS = True, False


def targets(members, subtopologies, standbys=0):
    """members: id -> (process, target)."""
    steps = assign(
        AssignorInput(
            {each: AssignorMember(*known) for each, known in members.items()},
            {each: SubtopologyTasks(*known) for each, known in subtopologies.items()},
            standbys,
        )
    )
    try:
        while True:
            assert next(steps) > 0
    except StopIteration as end:
        return end.value


def tasks(part):
    return {(each, number) for each, numbers in part.items() for number in numbers}


def fresh(**processes):
    return {each: (process, Target()) for each, process in processes.items()}


def again(members, found):
    return {each: (members[each][0], found[each]) for each in members}


def test_a_new_group_has_some_of_each_subtopology_everywhere():
    found = targets(fresh(a="A", b="B"), {"0": (4, STATEFUL), "1": (4, STATELESS)})
    assert {each: {s: len(n) for s, n in t.active.items()} for each, t in found.items()} == {
        "a": {"0": 2, "1": 2},
        "b": {"0": 2, "1": 2},
    }


def test_without_tasks():
    assert targets(fresh(a="A"), {}) == {"a": Target()}


def test_a_newcomer_takes_no_more_than_its_part():
    members = fresh(a="A", b="B")
    before = targets(members, {"0": (6, STATEFUL)})
    more = {**again(members, before), "c": ("C", Target())}
    after = targets(more, {"0": (6, STATEFUL)})
    moved = [task for each in "ab" for task in tasks(before[each].active)
             if task not in tasks(after[each].active)]  # fmt: skip
    assert sorted(moved) == sorted(tasks(after["c"].active))
    assert len(moved) == 2


def test_who_has_the_state_takes_over():
    members = fresh(a="A", b="B", c="C")
    before = targets(members, {"0": (3, STATEFUL)}, 1)
    left = {each: (members[each][0], before[each]) for each in "ab"}
    after = targets(left, {"0": (3, STATEFUL)}, 1)
    for task in tasks(before["c"].active):
        [standby] = [each for each in members if task in tasks(before[each].standby)]
        assert task in tasks(after[standby].active)


def test_load_is_counted_by_members_of_a_process():
    found = targets(fresh(a1="A", a2="A", a3="A", b="B"), {"0": (8, STATELESS)})
    assert sorted(len(tasks(each.active)) for each in found.values()) == [2, 2, 2, 2]


def test_nothing_moves_without_a_reason():
    members = fresh(a="A", b="B", c="B")
    topology = {"0": (5, STATEFUL), "1": (3, STATELESS)}
    before = targets(members, topology, 1)
    assert targets(again(members, before), topology, 1) == before


MEMBERS = st.dictionaries(
    st.sampled_from([f"m{n}" for n in range(7)]), st.sampled_from("ABCD"), min_size=1
)
TOPOLOGIES = st.dictionaries(
    st.sampled_from("0123"), st.tuples(st.integers(1, 9), st.booleans()), min_size=1
)


@given(st.lists(MEMBERS, min_size=1, max_size=4), TOPOLOGIES, st.integers(0, 3))
def test_of_any_group(histories, topology, standbys):
    known = {}
    for processes in histories:
        members = {
            each: (process, known.get(each, Target())) for each, process in processes.items()
        }
        found = targets(members, topology, standbys)
        assert found == targets(dict(reversed(members.items())), topology, standbys)
        check(members, found, topology, standbys)
        known = found


def check(members, found, topology, standbys):
    wanted = {(each, n) for each, (count, _) in topology.items() for n in range(count)}
    active = Counter(task for each in found.values() for task in tasks(each.active))
    assert active == Counter(wanted), "each is active once"
    processes = {process for process, _ in members.values()}
    copies = min(standbys, len(processes) - 1)
    standby = Counter(task for each in found.values() for task in tasks(each.standby))
    assert standby == Counter(
        {task: copies for task in wanted if copies and topology[task[0]][1]}
    ), "as many copies as there can be"
    on_process = Counter(
        (members[each][0], task)
        for each, target in found.items()
        for task in (*tasks(target.active), *tasks(target.standby))
    )
    assert not on_process or max(on_process.values()) == 1, "a process has a task once"
    if len(processes) == len(members):
        counts = [len(tasks(each.active)) for each in found.values()]
        assert max(counts) - min(counts) <= 1, "even, where every process has one member"
