"""Consumer groups in a coordinator: what is answered when, what is stored and loaded, what times
out, and how a group changes its protocol."""

from __future__ import annotations

import pytest
import trio

from broker.api import ConnectionInfo
from broker.groups.consumer.settings import ConsumerSettings
from broker.groups.consumer.types import GroupTimes
from broker.regex import Pattern
from broker.rights import Rights
from broker.security.principal import Principal
from tests.broker.rules import Rules
from wire.kafka.errors import ErrorCode as E
from wire.kafka.errors import WireError
from wire.kafka.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
)
from wire.kafka.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from wire.kafka.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from wire.kafka.records.consumer_group import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    ConsumerProtocolTopicPartition,
)
from wire.kafka.records.coordinator import decode_assignment, encode_protocol


class Client:
    """A consumer of the new protocol, as far as the coordinator sees it."""

    def __init__(self, world, member_id, *topics, group="g", **given):
        self.world, self.member_id, self.group = world, member_id, group
        self.epoch = 0
        self.owned = {}
        self.given = {"subscribed_topic_names": list(topics) or None, **given}

    def request(self, *, full=False, **given):
        message = ConsumerGroupHeartbeatRequest(self.group, self.member_id, self.epoch)
        if self.epoch == 0 or full:
            given = {"rebalance_timeout_ms": 10_000, **self.given, **given}
            message.topic_partitions = self.partitions()
        elif given.pop("tell", True):
            message.topic_partitions = self.partitions()
        for name, value in given.items():
            setattr(message, name, value)
        return 1, message

    def partitions(self):
        return [
            ConsumerGroupHeartbeatRequestTopicPartitions(topic_id, sorted(partitions))
            for topic_id, partitions in self.owned.items()
        ]

    def take(self, answer):
        if answer.error_code in (E.FENCED_MEMBER_EPOCH, E.UNKNOWN_MEMBER_ID):
            self.epoch, self.owned = 0, {}
        if not answer.error_code:
            self.epoch = answer.member_epoch
            if answer.assignment is not None:
                self.owned = {
                    t.topic_id: set(t.partitions) for t in answer.assignment.topic_partitions
                }
        return E(answer.error_code)

    async def beat(self, **given):
        return self.take(await self.world.ask(*self.request(**given)))

    @property
    def count(self):
        return sum(map(len, self.owned.values()))


class OldClient:
    """A consumer of the classic protocol with a cooperative assignor."""

    def __init__(self, world, *topics, group="g", instance=None, metadata=None):
        self.world, self.topics, self.group = world, topics, group
        self.instance, self.metadata = instance, metadata
        self.member_id, self.generation, self.owned = "", -1, {}

    def subscription(self):
        if self.metadata is not None:
            return self.metadata
        owned = [ConsumerProtocolTopicPartition(t, sorted(p)) for t, p in self.owned.items()]
        return encode_protocol(
            ConsumerProtocolSubscription(list(self.topics), None, owned, self.generation), 3
        )

    def join_request(self):
        return 9, JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=20_000,
            member_id=self.member_id,
            group_instance_id=self.instance,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol("cooperative", self.subscription())],
        )

    async def join(self):
        """JoinGroup, as often as it takes; the last answer."""
        while True:
            answers = self.world.send(*self.join_request())
            await trio.sleep(0.01)
            (answer,) = answers
            self.member_id = answer.member_id or self.member_id
            if answer.error_code != E.MEMBER_ID_REQUIRED:
                break
        self.generation = answer.generation_id
        return answer

    async def sync(self, assignments=()):
        answer = await self.world.ask(
            5,
            SyncGroupRequest(
                self.group, self.generation, self.member_id, self.instance,
                "consumer", "cooperative", list(assignments),
            ),
        )  # fmt: skip
        if not answer.error_code:
            self.owned = {}
            if answer.assignment:
                for each in decode_assignment(answer.assignment).assigned_partitions:
                    self.owned[each.topic] = set(each.partitions)
        return E(answer.error_code)

    async def lead(self, **partitions):
        """The leader gives itself these partitions of topics."""
        given = encode_protocol(
            ConsumerProtocolAssignment(
                [ConsumerProtocolTopicPartition(t, list(p)) for t, p in partitions.items()]
            ),
            3,
        )
        return await self.sync([SyncGroupRequestAssignment(self.member_id, given)])

    async def heartbeat(self):
        answer = await self.world.ask(
            4, HeartbeatRequest(self.group, self.generation, self.member_id, self.instance)
        )
        return E(answer.error_code)

    async def again(self):
        assert (await self.join()).error_code == E.NONE
        assert await self.sync() is E.NONE

    @property
    def count(self):
        return sum(map(len, self.owned.values()))


@pytest.fixture
async def world(make_world):
    made = make_world(consumer=ConsumerSettings(times=GroupTimes(assignment_interval_ms=0)))
    await made.start()
    made.catalog.add("t", 4)
    return made


async def settle(*clients):
    for _ in range(5):
        for client in clients:
            if isinstance(client, Client):
                await client.beat()
            elif await client.heartbeat() is E.REBALANCE_IN_PROGRESS:
                await client.again()


async def described(world, group="g"):
    (answer,) = (await world.ask(1, ConsumerGroupDescribeRequest([group]))).groups
    return answer


def group_of(world, group="g"):
    shard, error = world.coordinator.base.find(group)
    assert not error
    return shard.groups[group].group


def offset(world, number, *, member="", epoch=-1, version=9, partition=0):
    topic = world.catalog.get("t")
    return version, OffsetCommitRequest(
        group_id="g",
        generation_id_or_member_epoch=epoch,
        member_id=member,
        topics=[
            OffsetCommitRequestTopic(
                "t", topic.id, [OffsetCommitRequestPartition(partition, number)]
            )
        ],
    )


async def committed(world, *request, **given):
    answer = await world.ask(*offset(world, *request, **given))
    return E(answer.topics[0].partitions[0].error_code)


async def fetched(world, member_id=None, epoch=-1):
    (group,) = (
        await world.ask(
            9,
            OffsetFetchRequest(
                groups=[
                    OffsetFetchRequestGroup(
                        "g", topics=None, member_id=member_id, member_epoch=epoch
                    )
                ]
            ),
        )
    ).groups
    found = {p.partition_index: p.committed_offset for t in group.topics for p in t.partitions}
    return E(group.error_code), found


async def test_two_members_share(world, autojump_clock):
    one, two = Client(world, "a", "t"), Client(world, "b", "t")
    assert await one.beat() is E.NONE
    assert (one.epoch, one.count) == (2, 4)
    assert await two.beat() is E.NONE
    await settle(one, two)
    assert (one.count, two.count) == (2, 2)
    answer = await described(world)
    assert (answer.group_state, answer.group_epoch, answer.assignment_epoch) == ("Stable", 3, 3)
    listed = (await world.ask(5, ListGroupsRequest(types_filter=["Consumer"]))).groups
    assert [(g.group_id, g.group_state, g.group_type) for g in listed] == [
        ("g", "Stable", "consumer")
    ]
    assert (await world.ask(5, ListGroupsRequest(types_filter=["classic"]))).groups == []
    old = (await world.ask(6, DescribeGroupsRequest(groups=["g"]))).groups[0]
    assert old.error_code == E.GROUP_ID_NOT_FOUND
    old = (await world.ask(5, DescribeGroupsRequest(groups=["g"]))).groups[0]
    assert (old.error_code, old.group_state) == (E.NONE, "Dead")


async def test_a_steady_group_writes_nothing(world, autojump_clock):
    one = Client(world, "a", "t")
    await one.beat()
    live = group_of(world)
    batches = world.coordinator.statistics()["batches"]
    for _ in range(10):
        answers = world.send(*one.request(tell=False))
        assert answers, "it is answered at once"
        assert answers[0].assignment is None
        await trio.sleep(5)
    assert world.coordinator.statistics()["batches"] == batches
    assert not live.pending


async def test_nothing_is_told_before_it_is_stored(world, autojump_clock):
    one = Client(world, "a", "t")
    await one.beat()
    for log in world.logs.logs.values():
        log.auto_ack = False
    two = Client(world, "b", "t")
    joining = world.send(*two.request())
    await world.settle()
    assert joining == []
    assert (await described(world)).members[0].member_id == "a"
    assert len((await described(world)).members) == 1
    behind = world.send(*two.request())  # changes nothing, and is behind what does
    await world.settle()
    assert behind == []
    for log in world.logs.logs.values():
        log.auto_ack = True
        log.ack()
    await world.settle()
    assert [E(each.error_code) for each in (*joining, *behind)] == [E.NONE, E.NONE]
    assert len((await described(world)).members) == 2


async def test_append_fails_midway(world, autojump_clock):
    """Memory equals the log, and clients are told to try again."""
    one = Client(world, "a", "t")
    await one.beat()
    for log in world.logs.logs.values():
        log.fail_with = E.NOT_ENOUGH_REPLICAS
    two = Client(world, "b", "t")
    assert await two.beat() is E.COORDINATOR_NOT_AVAILABLE
    assert list(group_of(world).applied.members) == ["a"]
    three = Client(world, "c", "t", group="other")
    assert await three.beat() is E.COORDINATOR_NOT_AVAILABLE
    shard, _ = world.coordinator.base.find("other")
    assert "other" not in shard.groups
    for log in world.logs.logs.values():
        log.fail_with = None
    assert await two.beat() is E.NONE
    await settle(one, two)
    assert (one.count, two.count) == (2, 2)


async def test_who_could_not_be_removed_is_removed_later(world, autojump_clock):
    """The simulation's seed 10 with three members: nobody was late any more, and a partition was
    nobody's for ever."""
    await Client(world, "silent", "t").beat()
    log = world.log_of("g")
    log.fail_with = E.NOT_ENOUGH_REPLICAS
    await trio.sleep(50)
    log.fail_with = None
    assert list(group_of(world).stored.members) == ["silent"]
    await trio.sleep(50)
    assert not group_of(world).stored.members


async def test_a_unit_is_written_when_the_one_before_it_is_stored(world, autojump_clock):
    """What builds upon something that is not stored is never in the log."""
    one = Client(world, "a", "t")
    await one.beat()
    log = world.log_of("g")
    log.auto_ack = False
    two = world.send(*Client(world, "b", "t").request())
    three = world.send(*Client(world, "c", "t").request())
    await world.settle()
    batches = len(log.batches)
    log.fail_with = E.NOT_ENOUGH_REPLICAS
    log.ack()
    await world.settle()
    assert len(log.batches) == batches + 1
    assert [E(each.error_code) for each in (*two, *three)] == [
        E.NONE, E.COORDINATOR_NOT_AVAILABLE,
    ]  # fmt: skip
    live = group_of(world)
    assert list(live.applied.members) == list(live.stored.members) == ["a", "b"]


async def test_load_then_silence(world, autojump_clock):
    """Members expire after one whole session from the load on, not before."""
    one, two = Client(world, "a", "t"), Client(world, "b", "t")
    await one.beat()
    await settle(one, two)
    await trio.sleep(40)
    await settle(one, two)
    epoch = one.epoch
    await world.restart()
    await trio.sleep(44)
    assert await one.beat() is E.NONE
    assert one.epoch == epoch
    await trio.sleep(2)
    answer = await described(world)
    assert [member.member_id for member in answer.members] == ["a"]
    await settle(one)
    assert one.count == 4
    assert await two.beat() is E.UNKNOWN_MEMBER_ID


async def test_revoke_timeout(world, autojump_clock):
    one, two = Client(world, "a", "t"), Client(world, "b", "t")
    await one.beat()
    await two.beat()
    await one.beat(tell=False)
    for _ in range(3):
        await trio.sleep(3)
        await one.beat(tell=False)
    await trio.sleep(2)
    assert await one.beat() is E.UNKNOWN_MEMBER_ID
    await settle(two)
    assert two.count == 4
    assert await one.beat() is E.NONE
    await settle(one, two)
    await trio.sleep(20)
    assert await one.beat() is E.NONE, "the timer of an older epoch does nothing"


async def test_commits_with_epochs(world, autojump_clock):
    one, two = Client(world, "a", "t"), Client(world, "b", "t")
    await one.beat()
    old = one.epoch
    assert await committed(world, 5, member="a", epoch=old) is E.NONE
    assert await committed(world, 5, member="a", epoch=old, version=8) is E.UNSUPPORTED_VERSION
    assert await committed(world, 5, member="x", epoch=old) is E.UNKNOWN_MEMBER_ID
    assert await committed(world, 5) is E.UNKNOWN_MEMBER_ID
    assert await committed(world, 5, member="a", epoch=old + 1) is E.STALE_MEMBER_EPOCH
    await settle(one, two)
    assert one.epoch > old
    topic = world.catalog.get("t").id
    for number in range(4):  # KIP-1251
        expected = E.NONE if number in one.owned[topic] else E.STALE_MEMBER_EPOCH
        given = {"member": "a", "epoch": old, "partition": number}
        assert await committed(world, 7, **given) is expected
    error, offsets = await fetched(world, "a", one.epoch)
    assert (error, offsets[min(one.owned[topic])]) == (E.NONE, 7)
    assert (await fetched(world, "a", old))[0] is E.STALE_MEMBER_EPOCH
    assert (await fetched(world, "x", old))[0] is E.UNKNOWN_MEMBER_ID
    assert (await fetched(world))[0] is E.NONE


async def test_delete(world, autojump_clock):
    one = Client(world, "a", "t")
    await one.beat()
    await committed(world, 5, member="a", epoch=one.epoch)
    result = (await world.ask(2, DeleteGroupsRequest(["g"]))).results[0]
    assert result.error_code == E.NON_EMPTY_GROUP
    one.epoch = -1
    assert await one.beat() is E.NONE
    assert (await described(world)).group_state == "Empty"
    assert (await world.ask(2, DeleteGroupsRequest(["g"]))).results[0].error_code == E.NONE
    assert (await described(world)).error_code == E.GROUP_ID_NOT_FOUND
    await world.restart()
    assert (await described(world)).error_code == E.GROUP_ID_NOT_FOUND
    assert await fetched(world) == (E.NONE, {})


async def test_regex_new_topic(world, autojump_clock):
    one = Client(world, "a", subscribed_topic_regex="t.*")
    assert await one.beat() is E.NONE
    await world.settle()
    await one.beat()
    assert one.count == 4
    world.catalog.add("t2", 3)
    world.catalog.add("other", 3)
    waited = 0
    while one.count < 7:
        await trio.sleep(5)
        waited += 5
        await one.beat()
        await world.settle()
        await one.beat()
    assert waited <= 10


class InATurn(trio.abc.Instrument):
    """The most calls while nobody else ran."""

    def __init__(self, function):
        self.most = self._count = 0
        self._function = function

    def before_task_step(self, task):
        self._count = 0

    def __call__(self, *arguments):
        self._count += 1
        self.most = max(self.most, self._count)
        return self._function(*arguments)


async def test_costly_patterns_leave_the_loop_to_others(world, autojump_clock, monkeypatch):
    """One of 19 characters took 5 ms for each name, and was said to take 2 us: a member held the
    loop for 436 ms."""
    for number in range(6):
        world.catalog.add("t" * (200 + number), 1)
    matches, compiled = InATurn(Pattern.matches), InATurn(Pattern.__init__)
    monkeypatch.setattr(Pattern, "matches", lambda *given: matches(*given))
    monkeypatch.setattr(Pattern, "__init__", lambda *given: compiled(*given))
    for turns in (matches, compiled):
        trio.lowlevel.add_instrument(turns)
    clients = [
        Client(world, f"m{number}", subscribed_topic_regex="([a-z]?[b-z]?){500}" + "9?" * number)
        for number in range(3)
    ]
    for client in clients:
        assert await client.beat() is E.NONE
    await world.settle()
    live = group_of(world)
    assert [len(each.topics) for each in live.applied.regexes.values()] == [7, 7, 7]
    # One that is cheap, the topic «t», may come before one that is not.
    assert (matches.most, compiled.most) == (2, 1)
    for turns in (matches, compiled):
        trio.lowlevel.remove_instrument(turns)


async def test_a_burst_of_patterns_is_spent(world, autojump_clock):
    """To compile one may take 3 ms: others come in between."""
    turn = world.coordinator.env.turn
    turn.spent_units = 0
    for number in range(3):
        client = Client(world, f"m{number}", subscribed_topic_regex="a" * (number + 1))
        world.send(*client.request())
    assert turn.is_spent


async def test_a_large_group_is_assigned_beside_requests(world, autojump_clock):
    world.catalog.add("large", 3000)
    one, two = Client(world, "a", "large"), Client(world, "b", "large")
    await one.beat()
    assert one.count == 0
    await world.settle()
    await settle(one, two)
    await world.settle()
    await settle(one, two)
    assert (one.count, two.count) == (1500, 1500)


# --- both protocols


async def stable_classic(world, count=1, **given):
    """Classic members in a stable group; the first has all partitions."""
    clients = [OldClient(world, "t", **given) for _ in range(count)]
    for client in clients:
        world.send(*client.join_request())
    joined = await clients[0].join()
    assert joined.error_code == E.NONE
    assert await clients[0].lead(t=range(4)) is E.NONE
    return clients


async def comes_for(old, **left):
    """A second member, in a generation that leaves the first one these, and gives it nothing."""
    world, other = old.world, OldClient(old.world, "t")
    told = world.send(*other.join_request())
    await world.settle()
    other.member_id = told[0].member_id
    joined = [(each, world.send(*each.join_request())) for each in (other, old)]
    while not all(answers for _, answers in joined):
        await trio.sleep(0.1)
    for each, answers in joined:
        assert answers[0].error_code == E.NONE
        each.generation = answers[0].generation_id
    assert await old.lead(**left) is E.NONE
    assert await other.sync() is E.NONE
    return other


async def test_rolling_up_and_down(world, autojump_clock):
    """No offset goes back, and no partition is without somebody for long."""
    (old,) = await stable_classic(world)
    assert old.count == 4
    assert await committed(world, 10, member=old.member_id, epoch=old.generation) is E.NONE
    new = Client(world, "a", "t")
    assert await new.beat() is E.NONE
    assert (await described(world)).group_state == "Reconciling"
    types = {m.member_id: m.member_type for m in (await described(world)).members}
    assert types == {"a": 1, old.member_id: 0}
    await settle(old, new)
    assert (old.count, new.count) == (2, 2)
    assert await committed(world, 11, member=old.member_id, epoch=old.generation) is E.NONE
    left = await world.ask(5, LeaveGroupRequest("g", members=[MemberIdentity(old.member_id)]))
    assert left.members[0].error_code == E.NONE
    await settle(new)
    assert new.count == 4
    assert (await fetched(world))[1] == {0: 11}
    # And back.
    back = OldClient(world, "t")
    assert (await back.join()).error_code == E.NONE
    assert await back.sync() is E.NONE
    await settle(new, back)
    assert (back.count, new.count) == (2, 2)
    new.epoch = -1
    await new.beat()
    listed = (await world.ask(5, ListGroupsRequest())).groups
    assert [(g.group_id, g.group_type) for g in listed] == [("g", "classic")]
    assert await back.heartbeat() is E.REBALANCE_IN_PROGRESS
    joined = await back.join()
    assert (joined.error_code, joined.leader) == (E.NONE, back.member_id)
    assert await back.lead(t=range(4)) is E.NONE
    assert back.count == 4
    assert (await fetched(world))[1] == {0: 11}
    await world.restart()
    assert await back.heartbeat() is E.NONE
    assert (await fetched(world))[1] == {0: 11}


async def test_a_classic_member_gives_back_what_it_does_not_say_it_has(world, autojump_clock):
    """It joins with what it has, is told what is left to it, and has given up the rest when it
    joins once more."""
    (old,) = await stable_classic(world)
    new = Client(world, "a", "t")
    await new.beat()
    assert await old.heartbeat() is E.REBALANCE_IN_PROGRESS
    assert (await old.join()).error_code == E.NONE
    await new.beat()
    assert new.count == 0
    assert await old.sync() is E.NONE
    await new.beat()
    assert (old.count, new.count) == (2, 0)
    await old.again()
    await new.beat()
    assert (old.count, new.count) == (2, 2)


async def test_what_is_not_given_back_stays_its_own_down_and_up_again(world, autojump_clock):
    """The only member of the newer protocol leaves, and another one comes, while a classic member
    goes on with what it was told to give up."""
    (old,) = await stable_classic(world)
    new = Client(world, "a", "t")
    await new.beat()
    assert await old.heartbeat() is E.REBALANCE_IN_PROGRESS
    assert (await old.join()).error_code == E.NONE
    assert await old.sync() is E.NONE
    assert (old.count, new.count) == (2, 0)
    new.epoch = -1
    await new.beat()
    listed = (await world.ask(5, ListGroupsRequest())).groups
    assert [(g.group_id, g.group_type) for g in listed] == [("g", "classic")]
    other = Client(world, "b", "t")
    await other.beat()
    await other.beat()
    assert other.count == 0
    await settle(old, other)
    assert (old.count, other.count) == (2, 2)


async def test_what_a_cooperative_member_still_has_is_nobody_elses_after_the_upgrade(
    world, autojump_clock
):
    """Its generation has taken it from the member and gives it to nobody, as KIP-429's assignors
    do; the member is about to commit and to give it up when the group changes its protocol."""
    (old,) = await stable_classic(world)
    other = await comes_for(old, t=[0, 1])
    new = Client(world, "a", "t")
    await new.beat()
    await new.beat()
    assert (old.owned, new.count) == ({"t": {0, 1}}, 0)
    assert await committed(world, 10, member=old.member_id, epoch=old.generation, partition=3) == 0
    await old.again()
    await settle(old, other, new)
    assert sorted((old.count, other.count, new.count)) == [1, 1, 2]


async def classic_pair(world, left_to_first, left_to_second, *, topics=(("t",), ("t",))):
    """Two static members of a stable classic group, with these partitions of t."""
    one, two = (OldClient(world, *t, instance=i) for t, i in zip(topics, "ab", strict=True))
    await one.join()
    await one.lead(t=range(4))
    joined = [(each, world.send(*each.join_request())) for each in (two, one)]
    await world.settle()
    for each, answers in joined:
        assert answers[0].error_code == E.NONE
        each.member_id, each.generation = answers[0].member_id, answers[0].generation_id
    given = [
        SyncGroupRequestAssignment(each.member_id, assignment_to(t=some))
        for each, some in ((one, left_to_first), (two, left_to_second))
    ]
    assert await one.sync(given) is E.NONE
    assert await two.sync() is E.NONE
    return one, two


def assignment_to(**given):
    parts = [ConsumerProtocolTopicPartition(topic, list(some)) for topic, some in given.items()]
    return encode_protocol(ConsumerProtocolAssignment(parts), 3)


async def settle_for_long(*clients):
    for _ in range(10):
        await settle(*clients)
        await trio.sleep(3)


async def test_what_the_generation_owes_is_given_though_no_epoch_is_raised(world, autojump_clock):
    """A static member takes its place with the other protocol, while another one has still to give
    up what it is to get."""
    one, _ = await classic_pair(world, [0, 1], [])
    new = Client(world, "B", "t", instance_id="b")
    await new.beat()
    await settle_for_long(one, new)
    assert (one.count, new.count) == (2, 2)


async def test_a_rebalance_under_way_is_not_forgotten(world, autojump_clock):
    """A member has joined, and the one whom all wait for comes back with the other protocol."""
    one, _ = await classic_pair(world, [0, 1], [2, 3])
    third = OldClient(world, "t", instance="c")
    waiting = world.send(*third.join_request())
    await world.settle()
    new = Client(world, "B", "t", instance_id="b")
    await new.beat()
    assert waiting[0].error_code == E.REBALANCE_IN_PROGRESS
    await third.again()
    await settle_for_long(one, third, new)
    assert sorted((one.count, third.count, new.count)) == [1, 1, 2]


async def test_what_a_member_ceased_to_subscribe_to_is_given_to_others(world, autojump_clock):
    world.catalog.add("u", 1)
    one, _ = await classic_pair(world, [0, 1], [2, 3])
    one.topics, one.owned = ("u",), {}
    waiting = world.send(*one.join_request())
    await world.settle()
    new = Client(world, "B", "t", instance_id="b")
    await new.beat()
    assert waiting[0].error_code == E.REBALANCE_IN_PROGRESS
    await one.again()
    await settle_for_long(one, new)
    assert (one.owned, new.count) == ({"u": {0}}, 4)


async def test_a_member_that_is_behind_keeps_what_it_has(world, autojump_clock):
    """Down and up again: the generation that it says is older than the one before."""
    (one,) = await stable_classic(world)
    new = Client(world, "a", "t")
    await new.beat()
    two = OldClient(world, "t")
    await two.join()
    assert await two.sync() is E.NONE
    new.epoch = -1
    await new.beat()
    joined = [(each, world.send(*each.join_request())) for each in (one, two)]
    await trio.sleep(0.1)
    behind = one.generation
    for each, answers in joined:
        each.generation = answers[0].generation_id
    assert behind < one.generation - 1
    leads = next(each for each, answers in joined if answers[0].leader == each.member_id)
    given = [SyncGroupRequestAssignment(one.member_id, assignment_to(t=[0, 1]))]
    assert await leads.sync(given) is E.NONE
    other = Client(world, "b", "t")
    await other.beat()
    await other.beat()
    assert other.count == 0


async def test_what_members_say_is_not_read_if_it_cannot_be_stored(world, autojump_clock):
    """Nobody finds that it is nonsense."""
    old = OldClient(world, "t", metadata=b"\x00\x03" + b"\xff" * 500_000)
    await old.join()
    assert await old.lead(t=range(4)) is E.NONE
    answer = await world.ask(*Client(world, "a", "t").request())
    assert answer.error_code == E.GROUP_ID_NOT_FOUND
    assert answer.error_message == "Group g is too large to be upgraded."
    assert await old.heartbeat() is E.NONE


@pytest.mark.parametrize("topics", [1, 50_000])
async def test_what_a_leader_gave_is_not_read_if_it_cannot_be_stored(world, autojump_clock, topics):
    """Only the member finds that its end is missing."""
    old = OldClient(world, "t")
    await old.join()
    parts = [ConsumerProtocolTopicPartition("", list(range(50_000 // topics)))] * topics
    data = encode_protocol(ConsumerProtocolAssignment(parts), 3)
    with pytest.raises(WireError):
        await old.sync([SyncGroupRequestAssignment(old.member_id, data[:-4])])
    answer = await world.ask(*Client(world, "a", "t").request())
    assert answer.error_code == E.GROUP_ID_NOT_FOUND
    assert answer.error_message == "Group g is too large to be upgraded."
    assert await old.heartbeat() is E.NONE


async def test_downgrade_by_fencing(world, autojump_clock):
    (old,) = await stable_classic(world)
    new = Client(world, "a", "t")
    await new.beat()
    await settle(old, new)
    for _ in range(12):
        await trio.sleep(5)
        if await old.heartbeat() is E.REBALANCE_IN_PROGRESS:
            await old.join()
            await old.lead(t=range(4))
    listed = (await world.ask(5, ListGroupsRequest())).groups
    assert [(g.group_id, g.group_type, g.group_state) for g in listed] == [
        ("g", "classic", "Stable")
    ]
    assert old.count == 4


async def test_a_mixed_group_is_loaded(world, autojump_clock):
    (old,) = await stable_classic(world)
    new = Client(world, "a", "t")
    await new.beat()
    await settle(old, new)
    before = group_of(world).stored
    await world.restart()
    after = group_of(world).stored
    assert (after.members, after.current, after.targets, after.epoch) == (
        before.members, before.current, before.targets, before.epoch,
    )  # fmt: skip
    assert await old.heartbeat() is E.NONE
    assert await new.beat() is E.NONE


async def test_a_classic_member_of_a_mixed_group_reads_offsets_of_its_generation(
    world, autojump_clock
):
    (old,) = await stable_classic(world)
    new = Client(world, "a", "t")
    assert await new.beat() is E.NONE
    await settle(old, new)
    assert await committed(world, 10, member=old.member_id, epoch=old.generation) is E.NONE
    assert await fetched(world, old.member_id, old.generation) == (E.NONE, {0: 10})
    assert await fetched(world, old.member_id, old.generation - 1) == (E.ILLEGAL_GENERATION, {})
    assert await fetched(world, "a", new.epoch + 1) == (E.STALE_MEMBER_EPOCH, {})


async def test_upgrade_mid_rebalance(world, autojump_clock):
    """Who waits for a classic rebalance is told to join again."""
    (old,) = await stable_classic(world)
    other = OldClient(world, "t")
    first = world.send(*other.join_request())
    await world.settle()
    other.member_id = first[0].member_id
    waiting = world.send(*other.join_request())
    await world.settle()
    assert waiting == []
    new = Client(world, "a", "t")
    assert await new.beat() is E.NONE
    assert waiting[0].error_code == E.REBALANCE_IN_PROGRESS
    await other.again()
    await settle(old, other, new)
    assert sorted((old.count, other.count, new.count)) == [1, 1, 2]


@pytest.mark.parametrize(
    ("given", "beyond"), [(range(4), ()), (range(3), ()), (range(3), (9,)), ((), ())]
)
async def test_what_no_classic_member_had_is_given_after_the_upgrade(
    world, autojump_clock, given, beyond
):
    """A static member comes back with the other protocol, which raises no epoch. Its group's leader
    had not known of all partitions."""
    old = OldClient(world, "t", instance="i")
    await old.join()
    assert await old.lead(t=[*given, *beyond]) is E.NONE
    new = Client(world, "a", "t", instance_id="i")
    assert await new.beat() is E.NONE
    await settle(new)
    assert new.owned == {world.catalog.get("t").id: set(range(4))}
    changed = set(given) != set(range(4))
    assert group_of(world).applied.epoch == old.generation + changed


@pytest.mark.parametrize(
    ("settings", "metadata"),
    [
        ({"may_upgrade": False}, None),
        ({"group_consumer_max_size": 0}, None),
        ({}, b"\x00"),
    ],
)
async def test_upgrade_refused(make_world, autojump_clock, settings, metadata):
    world = make_world(consumer=ConsumerSettings(**settings))
    await world.start()
    world.catalog.add("t", 4)
    (old,) = await stable_classic(world, metadata=metadata)
    new = Client(world, "a", "t")
    assert await new.beat() is E.GROUP_ID_NOT_FOUND
    assert await old.heartbeat() is E.NONE


async def test_upgrade_userdata_refused(world, autojump_clock):
    old = OldClient(world, "t")
    await old.join()
    given = encode_protocol(ConsumerProtocolAssignment([], b"mine"), 3)
    await old.sync([SyncGroupRequestAssignment(old.member_id, given)])
    assert await Client(world, "a", "t").beat() is E.GROUP_ID_NOT_FOUND
    assert await old.heartbeat() is E.NONE


async def test_an_upgrade_that_is_not_stored(world, autojump_clock):
    (old,) = await stable_classic(world)
    for log in world.logs.logs.values():
        log.fail_with = E.NOT_ENOUGH_REPLICAS
    assert await Client(world, "a", "t").beat() is E.COORDINATOR_NOT_AVAILABLE
    for log in world.logs.logs.values():
        log.fail_with = None
    assert await old.heartbeat() is E.NONE
    await trio.sleep(11)
    assert await old.heartbeat() is not E.NONE, "its session is watched again"


async def test_policy_disabled(make_world, autojump_clock):
    settings = ConsumerSettings(may_upgrade=False, may_downgrade=False)
    world = make_world(consumer=settings)
    await world.start()
    world.catalog.add("t", 4)
    new = Client(world, "a", "t")
    await new.beat()
    assert (await OldClient(world, "t").join()).error_code == E.INCONSISTENT_GROUP_PROTOCOL
    assert await new.beat() is E.NONE


async def test_classic_static_replaces_regex_member(world, autojump_clock):
    new = Client(world, "a", subscribed_topic_regex="t.*", instance_id="i")
    other = Client(world, "b", "t")
    await new.beat()
    await world.settle()
    await settle(new, other)
    old = OldClient(world, "t", instance="i")
    await old.again()
    live = group_of(world)
    assert live.applied.regexes == {}
    assert live.applied.members[old.member_id].regex == ""
    assert await new.beat(instance_id="i") is E.FENCED_INSTANCE_ID


async def test_an_empty_group_changes_its_kind(world, autojump_clock):
    new = Client(world, "a", "t")
    await new.beat()
    await committed(world, 5, member="a", epoch=new.epoch)
    new.epoch = -1
    await new.beat()
    (old,) = await stable_classic(world)
    assert (await fetched(world))[1] == {0: 5}
    await world.ask(5, LeaveGroupRequest("g", members=[MemberIdentity(old.member_id)]))
    new.epoch, new.owned = 0, {}
    assert await new.beat() is E.NONE
    assert new.count == 4
    assert (await fetched(world))[1] == {0: 5}
    await world.restart()
    assert await new.beat() is E.NONE
    assert (await fetched(world))[1] == {0: 5}


async def test_form(world, autojump_clock):
    async def refused(**given):
        message = ConsumerGroupHeartbeatRequest("g", "m", 0)
        message.rebalance_timeout_ms = 1000
        message.subscribed_topic_names = ["t"]
        message.topic_partitions = []
        version = given.pop("version", 1)
        for name, value in given.items():
            setattr(message, name, value)
        return E((await world.ask(version, message)).error_code)

    topic = world.catalog.get("t").id
    owned = [ConsumerGroupHeartbeatRequestTopicPartitions(topic, [0])]
    for given in (
        {"group_id": ""},
        {"instance_id": ""},
        {"rack_id": ""},
        {"server_assignor": ""},
        {"member_id": ""},
        {"member_id": "", "member_epoch": -1, "version": 0},
        {"member_epoch": -3},
        {"member_epoch": -2},
        {"rebalance_timeout_ms": -1},
        {"topic_partitions": None},
        {"topic_partitions": owned},
        {"subscribed_topic_names": None},
    ):
        assert await refused(**given) is E.INVALID_REQUEST, given
    assert await refused(server_assignor="sticky") is E.UNSUPPORTED_ASSIGNOR
    assert await refused(member_epoch=1) is E.GROUP_ID_NOT_FOUND
    assert await refused(member_epoch=-1) is E.GROUP_ID_NOT_FOUND
    assert await refused(version=0, member_id="") is E.NONE


async def test_very_many_names(world):
    many = [f"t{n}" for n in range(3_001)]
    assert await Client(world, "a", *many).beat() is E.INVALID_REQUEST
    one = Client(world, "a", *many[:2_000])
    assert await one.beat() is E.NONE
    assert await Client(world, "b", *many[1_999:]).beat() is E.INVALID_REQUEST, "together"
    assert await Client(world, "b", *many[1_999:3_000]).beat() is E.NONE
    assert await Client(world, "c", "another").beat() is E.INVALID_REQUEST
    assert await Client(world, "c", *many[:3_000]).beat() is E.NONE, "the same"
    assert await one.beat(subscribed_topic_names=many[:3_000]) is E.NONE
    assert await one.beat(subscribed_topic_names=[*many[:10], "another"]) is E.INVALID_REQUEST


async def test_names_in_any_order_and_twice(world):
    client = Client(world, "a", "b", "a", "b")
    assert await client.beat() is E.NONE
    epoch = client.epoch
    assert await client.beat(subscribed_topic_names=["a", "b", "a"]) is E.NONE
    assert client.epoch == epoch
    [described] = (await world.ask(0, ConsumerGroupDescribeRequest(["g"]))).groups
    assert described.members[0].subscribed_topic_names == ["a", "b"]


async def test_a_topic_that_is_owned_twice(world):
    """The lists of one topic are put together; the last one was all that counted."""
    world.catalog.add("u", 4)
    client = Client(world, "a", "u")
    while not client.owned:
        assert await client.beat() is E.NONE
    [(topic_id, partitions)] = client.owned.items()
    assert len(partitions) == 4
    owned = [
        ConsumerGroupHeartbeatRequestTopicPartitions(topic_id, [9]),
        ConsumerGroupHeartbeatRequestTopicPartitions(topic_id, sorted(partitions)),
    ]
    version, request = client.request(topic_partitions=owned)
    request.member_epoch -= 1
    assert E((await world.ask(version, request)).error_code) is E.FENCED_MEMBER_EPOCH


async def test_a_pattern_shows_nobody_what_he_may_not_see(world, autojump_clock):
    """Attack 44: a member who may see more resolves it for no other."""
    consumers = world.coordinator.consumers
    consumers.is_guarded = True
    world.catalog.add("t2", 1)
    world.rights = Rights(Rules(everything=True), world.connection, "x")
    one = Client(world, "a", subscribed_topic_regex="t.*")
    assert await one.beat() is E.NONE
    await world.settle()
    live = world.coordinator.describe("g")[1].group
    assert live.applied.regexes["t.*"].topics == {"t", "t2"}
    bob = ConnectionInfo("d", "10.0.0.8", "CLIENTS", principal=Principal("User", "bob"))
    world.rights = Rights(Rules(("DESCRIBE", "TOPIC", "t2")), bob, "x")
    two = Client(world, "b", subscribed_topic_regex="t.*")
    assert await two.beat() is E.NONE
    for _ in range(2):
        await trio.sleep(5)
        await two.beat()
        await world.settle()
    assert live.applied.regexes["t.*"].topics == {"t2"}
    # Another coordinator has heard of nobody yet: what it stood for counts.
    await world.restart()
    live = world.coordinator.describe("g")[1].group
    world.coordinator.consumers.topics_changed()
    await trio.sleep(6)
    assert live.applied.regexes["t.*"].topics == {"t2"}


async def test_nothing_is_kept_of_what_those_saw_who_left(world, autojump_clock):
    """In a group without a pattern, whose members come anew with another id each time."""
    world.rights = Rights(Rules(everything=True), world.connection, "x")
    assert await Client(world, "stays", "t").beat() is E.NONE
    for number in range(10):
        client = Client(world, f"m{number}", "t")
        assert await client.beat() is E.NONE
        if number % 2:  # others are not heard of any more
            assert (await client.beat(member_epoch=-1)) is E.NONE
    live = world.coordinator.describe("g")[1].group
    assert len(live.sights) == 6
    assert set(live.sights) == set(live.applied.members)
    await trio.sleep(200)
    assert live.sights == {} == live.applied.members
