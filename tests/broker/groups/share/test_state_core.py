"""Which partitions are to be begun, and that nobody looks at those that are not."""

from types import SimpleNamespace
from uuid import UUID

import pytest

from broker.groups.share import state_core
from broker.groups.share.types import TopicPartitions

ID = UUID(int=7)
COUNT = 5_000


class Partitions:
    """Numbers, and how often one was looked for."""

    def __init__(self, numbers):
        self.numbers = frozenset(numbers)
        self.looks = 0

    def __len__(self):
        return len(self.numbers)

    def __contains__(self, number):
        self.looks += 1
        return number in self.numbers


def wanting(have, taken):
    topic = SimpleNamespace(id=ID, partition_count=COUNT)
    known = {ID: TopicPartitions("t", have)} if len(have) else {}
    group = SimpleNamespace(topic_members={"t": 3}, partitions=SimpleNamespace(initialized=known))
    topics = SimpleNamespace(get={"t": topic}.get)
    found = state_core.wanting(group, topics, {ID: taken} if len(taken) else {})
    return set(found[ID].partitions) if found else set()


@pytest.mark.parametrize(("have", "taken"), [(COUNT, 0), (0, COUNT), (COUNT, 3)])
def test_none_of_a_topic_is_looked_at_if_nothing_is_wanted(have, taken):
    have, taken = Partitions(range(have)), Partitions(range(taken))
    assert wanting(have, taken) == set()
    assert have.looks == taken.looks == 0


def test_what_is_neither_there_nor_looked_after():
    """What is there may be looked after, too: it is to begin anew somewhere else."""
    everything = set(range(COUNT))
    assert wanting(Partitions(()), Partitions(())) == everything
    assert wanting(Partitions(range(10)), Partitions(range(5, 20))) == everything - set(range(20))
    assert wanting(Partitions(range(COUNT - 1)), Partitions(range(10))) == {COUNT - 1}
