"""Consumer groups whose coordinator moves, whose protocol is switched off, or that do not fit."""

from __future__ import annotations

import pytest
import trio

from broker.groups.consumer.service import UNIT_BYTES_MAX
from broker.groups.consumer.settings import ConsumerSettings
from broker.groups.consumer.types import GroupTimes
from tests.broker.groups.consumer.test_service import (
    Client,
    committed,
    described,
    fetched,
    group_of,
    settle,
    stable_classic,
)
from wire.kafka.errors import ErrorCode as E
from wire.kafka.messages.groups import DeleteGroupsRequest, ListGroupsRequest
from wire.kafka.records.consumer_group import ConsumerProtocolSubscription
from wire.kafka.records.coordinator import encode_protocol

MANY = 2000


@pytest.fixture
async def world(make_world):
    made = make_world(consumer=ConsumerSettings(times=GroupTimes(assignment_interval_ms=0)))
    await made.start()
    made.catalog.add("t", 4)
    return made


async def restarted(world):
    """Another coordinator, on what the logs have acknowledged."""
    await world.restart()
    with trio.fail_after(60):
        while (await described(world)).error_code == E.COORDINATOR_LOAD_IN_PROGRESS:
            await trio.sleep(0.01)


@pytest.mark.parametrize("survives", [False, True])
async def test_deposed_between_write_and_ack(world, autojump_clock, survives):
    """Whether the join's records outlived the coordinator that wrote them or not, the client that
    was sent elsewhere is one member there, and has what there is to have."""
    one = Client(world, "a", "t")
    log = world.log_of("g")
    log.auto_ack = False
    joining = world.send(*one.request())
    await world.settle()
    assert joining == []
    assert log._waiting
    written = [(base, records) for base, records, _done, _append in log._waiting]
    log.go_offline()
    await world.settle()
    assert [one.take(answer) for answer in joining] == [E.NOT_COORDINATOR]
    if survives:
        log.batches += written
        log.high_watermark = log._next
    await restarted(world)
    found = await described(world)
    assert [member.member_id for member in found.members] == (["a"] if survives else [])
    assert await one.beat() is E.NONE
    assert one.count == 4
    assert [member.member_id for member in (await described(world)).members] == ["a"]
    await settle(one)
    assert (await described(world)).group_state == "Stable"


async def test_coordinator_move_under_2000_members(world, autojump_clock):
    """Nobody is fenced, and nobody's partitions move: the members beat at the new coordinator when
    they come to it, up to a whole session later."""
    world.catalog.add("large", MANY)
    clients = [Client(world, f"m{number:04}", "large") for number in range(MANY)]
    for client in clients:
        world.send(*client.request())
    await world.settle()
    for _ in range(20):
        for client in clients:
            for answer in world.send(*client.request()):
                assert client.take(answer) in (E.NONE, E.FENCED_MEMBER_EPOCH)
        await world.settle()
        if all(client.count == 1 for client in clients):
            break
    assert {client.count for client in clients} == {1}
    before = group_of(world).stored
    await restarted(world)
    after = group_of(world).stored
    assert (after.members, after.current, after.epoch) == (
        before.members, before.current, before.epoch,
    )  # fmt: skip
    for late in range(0, MANY, 500):
        for client in clients[late : late + 500]:
            [answer] = world.send(*client.request())
            assert client.take(answer) is E.NONE
        await trio.sleep(11)  # the last of them after 33 s, of 45
    assert len(group_of(world).applied.members) == MANY
    assert group_of(world).applied.epoch == before.epoch
    assert {client.count for client in clients} == {1}


async def test_upgrade_batch_too_large(world, autojump_clock):
    """An upgrade that no batch can hold is refused, and the classic group is as it was."""
    large = encode_protocol(
        ConsumerProtocolSubscription(["t"], b"x" * (UNIT_BYTES_MAX + 1), [], -1), 3
    )
    (old,) = await stable_classic(world, metadata=large)
    batches = len(world.log_of("g").batches)
    new = Client(world, "a", "t")
    assert await new.beat() is E.GROUP_ID_NOT_FOUND
    assert len(world.log_of("g").batches) == batches
    assert await old.heartbeat() is E.NONE
    assert old.count == 4
    await world.restart()
    assert await old.heartbeat() is E.NONE
    listed = (await world.ask(5, ListGroupsRequest())).groups
    assert [(g.group_id, g.group_type, g.group_state) for g in listed] == [
        ("g", "classic", "Stable")
    ]


async def test_a_downgrade_is_gone_on_with_by_the_next_coordinator(world, autojump_clock):
    """What the last member of the newer protocol had is somebody's again, though the coordinator
    that made the classic group died before that one's first rebalance was over."""
    (old,) = await stable_classic(world)
    new = Client(world, "a", "t")
    await new.beat()
    await settle(old, new)
    assert (old.count, new.count) == (2, 2)
    new.epoch = -1
    await new.beat()
    await world.restart()
    assert await old.heartbeat() is E.REBALANCE_IN_PROGRESS
    joined = await old.join()
    assert (joined.error_code, joined.leader) == (E.NONE, old.member_id)
    assert await old.lead(t=range(4)) is E.NONE
    assert old.count == 4
    await world.restart()
    assert await old.heartbeat() is E.NONE


async def test_group_version_is_lowered_under_members(world, autojump_clock):
    """As in Kafka: heartbeats and descriptions are refused at once, which ends clients of the
    protocol; what they have they may still commit; their sessions end, and then the group is there
    for classic members. Raised again in time, nobody notices."""
    one, two = Client(world, "a", "t"), Client(world, "b", "t")
    await settle(one, two)
    await settle(one, two)
    world.is_on = False
    assert await one.beat() is E.UNSUPPORTED_VERSION
    assert (await described(world)).error_code == E.UNSUPPORTED_VERSION
    listed = (await world.ask(5, ListGroupsRequest())).groups
    assert [(g.group_id, g.group_type) for g in listed] == [("g", "consumer")]
    world.is_on = True
    await settle(one, two)
    assert (one.count, two.count) == (2, 2), "it was for a moment"
    world.is_on = False
    partition = min(next(iter(one.owned.values())))
    given = {"member": "a", "epoch": one.epoch, "partition": partition}
    assert await committed(world, 7, **given) is E.NONE
    result = (await world.ask(2, DeleteGroupsRequest(["g"]))).results[0]
    assert result.error_code == E.NON_EMPTY_GROUP
    await trio.sleep(46)
    assert await committed(world, 8, **given) is E.UNKNOWN_MEMBER_ID
    (old,) = await stable_classic(world)
    assert old.count == 4
    assert (await fetched(world))[1] == {partition: 7}
    listed = (await world.ask(5, ListGroupsRequest())).groups
    assert [(g.group_id, g.group_type) for g in listed] == [("g", "classic")]


async def test_group_version_is_lowered_under_both_kinds_of_members(world, autojump_clock):
    """Classic members of a mixed group stay, and have everything once the others are gone."""
    (old,) = await stable_classic(world)
    new = Client(world, "a", "t")
    await settle(new, old)
    await settle(new, old)
    assert (old.count, new.count) == (2, 2)
    world.is_on = False
    assert await new.beat() is E.UNSUPPORTED_VERSION
    for _ in range(12):
        await trio.sleep(5)
        if await old.heartbeat() is E.REBALANCE_IN_PROGRESS:
            await old.join()
            await old.lead(t=range(4))
    assert old.count == 4
    listed = (await world.ask(5, ListGroupsRequest())).groups
    assert [(g.group_type, g.group_state) for g in listed] == [("classic", "Stable")]


async def test_what_began_the_last_rebalance_is_known(world, autojump_clock):
    one, two = Client(world, "a", "t"), Client(world, "b", "t")
    await one.beat()
    live = group_of(world)
    assert live.rebalance[0] == "a joined"
    await settle(one, two)
    assert live.rebalance[0] == "b joined"
    two.given["subscribed_topic_names"] = []
    await two.beat(full=True)
    assert live.rebalance[0] == "b subscribed anew"
    world.catalog.add("t", 8)
    await settle(one, two)
    assert live.rebalance[0].startswith("topics that members are subscribed to")
    two.epoch = -1
    await two.beat()
    assert live.rebalance[0] == "b left"
    await trio.sleep(50)
    await world.settle()
    assert live.rebalance[0] == "a was not heard of within its session timeout"
    await world.restart()
    assert group_of(world).rebalance is None
