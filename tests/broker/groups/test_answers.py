"""Many members who waited for one thing are answered in several turns, in order, each once."""

import pytest
import trio

from broker.groups.answers import ANSWER_UNITS, Answers
from broker.groups.consumer.settings import ConsumerSettings
from broker.groups.consumer.types import GroupTimes
from broker.groups.in_units import RECORDS_MAX
from broker.groups.shard import MEMBER_UNITS
from runtime.turn import SPENT_UNITS, Turn
from tests.broker.groups.test_coordinator import join_request
from wire.kafka.errors import ErrorCode as E
from wire.kafka.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from wire.kafka.messages.groups import SyncGroupRequest, SyncGroupRequestAssignment
from wire.kafka.records.batch import parse_header

#: Of a turn in which nothing else was done: the one that finds it not spent yet is the last.
ANSWERS_MAX = SPENT_UNITS // ANSWER_UNITS + 1
MEMBERS = 2 * ANSWERS_MAX


def test_who_waited_is_answered_when_there_is_room():
    turn, told = Turn(), []
    answers = Answers(turn)
    waiting = [answers.to(lambda *result: told.append(result)) for _ in range(MEMBERS)]
    for each in waiting:
        each.waits = True
    for number, each in enumerate(waiting):
        each(E.NONE, number)
    assert told == [(E.NONE, number) for number in range(ANSWERS_MAX)]
    answers.to(lambda: told.append("at once"))()
    assert told[-1] == "at once", "it did not wait"


@pytest.fixture
async def world(make_world):
    made = make_world(
        group_initial_rebalance_delay_ms=100,
        consumer=ConsumerSettings(times=GroupTimes(assignment_interval_ms=0)),
    )
    await made.start()
    made.catalog.add("t", 4)
    return made


def acknowledge(world, log, answers):
    """How many are answered in that turn."""
    before = sum(map(len, answers))
    world.turn.spent_units = 0
    log.ack()
    return sum(map(len, answers)) - before


def beat(member, epoch):
    message = ConsumerGroupHeartbeatRequest("g", member, epoch)
    if not epoch:
        message.rebalance_timeout_ms, message.subscribed_topic_names = 60_000, ["t"]
        message.topic_partitions = []
    return 1, message


async def test_heartbeats_that_waited_for_one_write(world):
    first = await world.ask(*beat("one", 0))
    log = world.log_of("g")
    log.auto_ack = False
    world.send(*beat("two", 0))
    beats = [world.send(*beat("one", first.member_epoch)) for _ in range(MEMBERS)]
    await world.settle()
    writes = 0
    while not all(beats):
        assert acknowledge(world, log, beats) <= ANSWERS_MAX
        await world.settle()
        writes += 1
        assert writes < 10, "they wait for the same"
    assert {E(answer.error_code) for (answer,) in beats} == {E.NONE}


async def test_members_that_join_together_are_written_together_but_not_all(world):
    """Each is of a few records, and those of a batch are bounded."""
    log = world.log_of("g")
    log.auto_ack = False
    joins = [world.send(*beat(f"m{number}", 0)) for number in range(MEMBERS)]
    await world.settle()
    most = writes = 0
    while not all(joins):
        before = len(log.batches)
        acknowledge(world, log, joins)
        await world.settle()
        most = max([most, *(parse_header(each).record_count for _, each in log.batches[before:])])
        writes += 1
        assert writes < MEMBERS
    assert 2 < most <= RECORDS_MAX


async def test_members_whose_assignment_is_stored(world, autojump_clock):
    joins = [world.send(*join_request(version=3, member="")) for _ in range(MEMBERS)]
    await trio.sleep(1)
    joined = [answer for (answer,) in joins]
    assert {(E(each.error_code), each.generation_id) for each in joined} == {(E.NONE, 1)}
    joined.sort(key=lambda each: each.member_id == each.leader)
    log = world.log_of("g")
    log.auto_ack = False
    given = [SyncGroupRequestAssignment(each.member_id, b"x") for each in joined]
    syncs = [
        world.send(3, SyncGroupRequest(
            "g", 1, each.member_id, None, None, None,
            given if each.member_id == each.leader else [],
        ))
        for each in joined
    ]  # fmt: skip
    await world.settle()
    assert 0 < acknowledge(world, log, syncs) <= ANSWERS_MAX
    await world.settle()
    assert {(E(a.error_code), bytes(a.assignment)) for (a,) in syncs} == {(E.NONE, b"x")}


async def test_a_member_that_asks_again_costs_the_turn_what_all_members_do(world, autojump_clock):
    """The whole group is written: a burst of such requests is spent after a few of them."""
    joins = [world.send(*join_request(version=3, member="")) for _ in range(MEMBERS)]
    await trio.sleep(1)
    joined = sorted((each for (each,) in joins), key=lambda each: each.member_id == each.leader)

    def sync(each):
        return world.send(3, SyncGroupRequest("g", 1, each.member_id, None, None, None, []))

    for each in joined:
        sync(each)
    await world.settle()
    world.turn.spent_units = asked = 0
    again = []
    while not world.turn.is_spent:
        again.append(sync(joined[asked]))
        asked += 1
        assert asked * MEMBERS * MEMBER_UNITS <= SPENT_UNITS + MEMBERS * MEMBER_UNITS
    await world.settle()
    assert {E(answer.error_code) for (answer,) in again} == {E.NONE}
