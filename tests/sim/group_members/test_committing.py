"""What a commit's answer says of where the group is, however late it comes."""

from collections import Counter, defaultdict
from types import SimpleNamespace

import pytest
import trio

from sim.group_members.consumer import ConsumerMember
from sim.group_members.owners import Owners
from sim.history import History, Violation
from wire.kafka.messages import OffsetCommitResponse, OffsetFetchResponse
from wire.kafka.messages.offsets import (
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)

P = ("log", 0)


class Member(ConsumerMember):
    """The coordinator's answers are `group_is_at`; before a commit's others do what `meanwhile`
    says."""

    group = "g"

    def __init__(self, seconds):
        self.counted = Counter()
        self._world = SimpleNamespace(
            history=History(),
            owners=defaultdict(Owners),
            trace=SimpleNamespace(count=lambda what: self.counted.update([what])),
        )
        self.name = self._id = "m"
        self._epoch, self.instance = 3, None
        self.seconds, self.group_is_at, self.meanwhile = seconds, 16, 28
        now = trio.current_time()
        owners = self._world.owners["g"]
        owners.told("m", 3, [P], ("b", 1), now=now, safe_until=now + 2)

    async def _ask(self, body, answer, version=None):
        if answer is OffsetFetchResponse:
            found = OffsetFetchResponsePartitions(
                partition_index=0, committed_offset=self.group_is_at
            )
            topics = [OffsetFetchResponseTopics(name="log", partitions=[found])]
            return answer(groups=[OffsetFetchResponseGroup(group_id="g", topics=topics)])
        assert answer is OffsetCommitResponse
        await trio.sleep(self.seconds)
        self._world.history.commit("g", P, self.meanwhile)
        done = OffsetCommitResponsePartition(partition_index=0)
        return answer(topics=[OffsetCommitResponseTopic(name="log", partitions=[done])])


async def test_an_answer_in_time_that_is_behind_another_is_a_step_back(autojump_clock):
    member = Member(seconds=1.9)
    with pytest.raises(Violation, match=r"committed 16 of .* after 28"):
        await member._commit({P: 16})


async def test_one_that_comes_late_may_be_of_before_and_the_group_is_asked(autojump_clock):
    member = Member(seconds=2.1)
    member.group_is_at = 28
    await member._commit({P: 16})
    assert member._world.history.committed("g", P) == 28
    assert member.counted["commits answered late"] == 1


async def test_one_that_comes_late_and_went_back_behind_another_is_found(autojump_clock):
    member = Member(seconds=2.1)
    with pytest.raises(Violation, match=r"is at 16 of .* and had committed 28"):
        await member._commit({P: 16})


async def test_late_or_not_it_does_not_go_back_behind_what_was_before_it_was_asked(autojump_clock):
    member = Member(seconds=2.1)
    member._world.history.commit("g", P, 20)
    member.group_is_at = 28
    with pytest.raises(Violation, match=r"committed 16 of .* after 20"):
        await member._commit({P: 16})
