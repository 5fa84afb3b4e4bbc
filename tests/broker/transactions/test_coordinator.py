"""The coordinator on logs in memory, its markers written to partitions in memory."""

from __future__ import annotations

import pytest
import trio

from broker.transactions import shard
from broker.transactions.markers import PARTITION_UNITS, PARTITIONS_PER_REQUEST
from broker.transactions.records import txn_record
from broker.transactions.types import TV1, TV2
from runtime.turn import SPENT_UNITS
from tests.broker.transactions.world import ME, OTHER, S, World
from wire.kafka.errors import ErrorCode as E


@pytest.fixture
async def make_world(nursery):
    return lambda **config: World(nursery, **config)


@pytest.fixture
async def world(make_world):
    world = make_world()
    await world.start()
    return world


# --- a transaction


async def test_commit_is_atomic_over_partitions(world, autojump_clock):
    world.leaders["u", 1] = OTHER
    producer_id, epoch = await world.begin()
    result = await world.ask(world.end((producer_id, epoch), True))
    assert (result.error, result.producer_id, result.epoch) == (E.NONE, producer_id, epoch + 1)
    assert sorted(world.partitions.written) == [
        (ME, "t", 0, producer_id, epoch + 1, True, TV2, 7),
        (OTHER, "u", 1, producer_id, epoch + 1, True, TV2, 7),
    ]
    assert world.log.states() == [S.EMPTY, S.ONGOING, S.PREPARE_COMMIT, S.COMPLETE_COMMIT]


async def test_the_topic_is_made_when_it_is_needed(make_world, autojump_clock):
    world = make_world()
    await world.start(topic=False)
    assert (await world.ask(world.init())).error is E.NOT_COORDINATOR
    await world.coordinator.ensure_ready("id")
    assert (await world.ask(world.init())).producer_id == 1001


async def test_what_is_refused_before_anybody_is_asked(world, autojump_clock):
    for error, answers in (
        (E.INVALID_REQUEST, world.init(name="")),
        (E.INVALID_REQUEST, world.init(5, -1)),
        (E.INVALID_REQUEST, world.init(-1, 5)),
        (E.INVALID_TRANSACTION_TIMEOUT, world.init(timeout_ms=0)),
        (E.INVALID_TRANSACTION_TIMEOUT, world.init(timeout_ms=900_001)),
        (E.INVALID_REQUEST, world.add((5, 5), name="")),
        (E.INVALID_REQUEST, world.verify((5, 5), name="")),
        (E.INVALID_REQUEST, world.end((5, 5), True, name="")),
    ):
        assert [each.error for each in answers] == [error]
    assert world.log.batches == []


async def test_nothing_is_answered_and_no_marker_leaves_before_the_ack(world, autojump_clock):
    producer = await world.begin()
    world.log.auto_ack = False
    ended = world.end(producer, True)
    await world.settle()
    assert (ended, world.partitions.counts) == ([], [])
    world.log.ack()
    await world.settle()
    assert ended
    assert world.partitions.counts == [(ME, 1)]
    assert S.COMPLETE_COMMIT not in world.log.states()


async def test_markers_of_one_turn_for_one_broker_are_one_request(world, autojump_clock):
    producers = {name: await world.begin(name=name) for name in ("a", "b", "c")}
    world.leaders["u", 1] = OTHER
    for name, producer in producers.items():
        world.end(producer, True, name=name)
    await world.settle()
    assert sorted(world.partitions.counts) == [(ME, 3), (OTHER, 3)]


# --- the barrier


async def test_markers_of_very_many_partitions_leave_in_several_turns(world, autojump_clock):
    world.catalog.add("many", 4_000)
    names = {("many", number) for number in range(4_000)}
    for number in range(0, 4_000, 3):
        world.leaders["many", number] = OTHER
    world.leaders["many", 1] = None
    spent, sizes, take = [], [], world.partitions.take

    def counted(node, request, done):
        spent.append(world.turn.spent_units)
        (marker,) = request.markers
        sizes.append(len(marker.topics[0].partition_indexes))
        take(node, request, done)

    world.partitions.take = counted
    result = await world.ask(world.init())
    producer = result.producer_id, result.epoch
    assert (await world.ask(world.add(producer, names))).error is E.NONE
    result = await world.ask(world.end(producer, True))
    assert result.error is E.NONE
    assert max(sizes) <= PARTITIONS_PER_REQUEST
    assert max(spent) <= SPENT_UNITS + PARTITION_UNITS * PARTITIONS_PER_REQUEST
    assert world.txn.unmarked == {("many", 1)}
    del world.leaders["many", 1]
    world.coordinator.markers.wake()
    await world.settle()
    assert world.log.states()[-1] is S.COMPLETE_COMMIT
    assert sorted(each[1:3] for each in world.partitions.written) == sorted(names)


async def test_deposed_coordinator_verify_waits_for_barrier(world, autojump_clock):
    """It does not know that it was deposed; its memory says yes, the log says nothing."""
    producer = await world.begin()
    world.log.auto_ack = False
    asked = [
        world.verify(producer),
        world.add(producer, [("t", 0)]),
        world.verify((producer[0], producer[1] + 1)),
        world.end((producer[0], producer[1] + 1), True, TV1),
        world.verify((5, 5), name="unknown"),
    ]
    await world.settle()
    assert asked == [[]] * 5
    assert len(world.log._waiting) == 1, "one append for all of the turn"
    world.log.go_offline()
    await world.settle()
    assert [answers[0].error for answers in asked] == [E.NOT_COORDINATOR] * 5


async def test_the_barrier_is_sent_after_the_question(world, autojump_clock):
    """An append that was on its way says nothing: we may have been deposed since then."""
    producer = await world.begin()
    world.log.auto_ack = False
    world.add(producer, [("t", 2)])
    await world.settle()
    verified = world.verify(producer)
    await world.settle()
    first, second = world.log._waiting
    world.log._waiting = [first]
    world.log.ack()
    await world.settle()
    assert verified == []
    world.log._waiting = [second]
    world.log.ack()
    await world.settle()
    assert [each.error for each in verified] == [E.NONE]


async def test_questions_of_one_turn_have_one_barrier(world, autojump_clock, monkeypatch):
    """Its record is not even made for the others: it has all partitions of the transaction."""
    producer = await world.begin()
    made = []

    def counted(snapshot):
        made.append(snapshot)
        return txn_record(snapshot)

    monkeypatch.setattr(shard, "txn_record", counted)
    stored = len(world.log.values())
    answers = [world.verify(producer) for _ in range(20)]
    assert [(await world.ask(each)).error for each in answers] == [E.NONE] * 20
    assert len(made) == len(world.log.values()) - stored == 1


async def test_the_barrier_changes_nothing(world, autojump_clock):
    producer = await world.begin()
    before = world.txn.snapshot()
    assert (await world.ask(world.verify(producer))).missing == frozenset()
    assert (await world.ask(world.verify((5, 5), name="no"))).error
    assert world.log.values()[-2].snapshot == before
    assert world.log.values()[-1].transactional_id == "no"
    await world.move()
    assert world.txn.snapshot() == before
    assert world.coordinator.describe("no")[0] is E.TRANSACTIONAL_ID_NOT_FOUND


# --- producer ids


async def test_without_producer_ids_a_new_id_is_told_to_come_again(world, autojump_clock):
    world.ids.is_away = True
    assert (await world.ask(world.init())).error is E.COORDINATOR_NOT_AVAILABLE
    assert world.coordinator.describe("id")[0] is E.TRANSACTIONAL_ID_NOT_FOUND
    world.ids.is_away = False
    assert (await world.ask(world.init())).producer_id == 1001


async def test_metadata_away_commits_go_on(world, autojump_clock):
    """Only a new producer id needs metadata."""
    producer = await world.begin()
    world.ids.is_away = world.catalog.is_away = True
    result = await world.ask(world.end(producer, True))
    assert not result.error
    assert world.txn.state is S.COMPLETE_COMMIT
    assert not (await world.ask(world.init())).error


async def test_two_that_want_the_same_new_id(world, autojump_clock):
    first, second = world.init(), world.init()
    await world.settle()
    assert (first[0].producer_id, first[0].epoch) == (1001, 0)
    # The later one comes before the first is stored, or fences it.
    told = second[0].error, second[0].producer_id, second[0].epoch
    assert told in ((E.CONCURRENT_TRANSACTIONS, -1, -1), (E.NONE, 1001, 1))


async def test_a_timeout_that_needs_a_producer_id_waits_for_it(world, autojump_clock):
    producer = await world.begin(timeout_ms=1_000)
    world.txn.epoch = 32_766
    world.ids.is_away = True
    await trio.sleep(3)
    assert world.txn.state is S.ONGOING
    world.ids.is_away = False
    await trio.sleep(2)
    assert (world.txn.producer_id, world.txn.epoch) == (producer[0] + 1, 0)
    assert world.txn.state is S.COMPLETE_ABORT


# --- time


@pytest.mark.parametrize("version", [TV1, TV2])
async def test_timeout_aborts(world, autojump_clock, version):
    world.server_version = version
    producer_id, epoch = await world.begin(timeout_ms=5_000)
    await trio.sleep(4.9)
    assert world.txn.state is S.ONGOING
    await trio.sleep(0.2)
    assert world.txn.state is S.COMPLETE_ABORT
    assert {each[3:7] for each in world.partitions.written} == {
        (producer_id, epoch + 1, False, version)
    }


async def test_timeout_goes_on_after_a_move(world, autojump_clock):
    await world.begin(timeout_ms=5_000)
    await trio.sleep(3)
    await world.move()
    await trio.sleep(1.9)
    assert world.txn.state is S.ONGOING
    await trio.sleep(0.2)
    assert world.txn.state is S.COMPLETE_ABORT


async def test_a_transaction_that_ended_is_not_aborted_later(world, autojump_clock):
    producer = await world.begin(timeout_ms=5_000)
    await world.ask(world.end(producer, True))
    await trio.sleep(4)
    producer = producer[0], producer[1] + 1
    await world.ask(world.add(producer))
    await trio.sleep(3)
    assert world.txn.state is S.ONGOING, "its own time has only begun"
    await trio.sleep(2.1)
    assert world.txn.state is S.COMPLETE_ABORT


# --- the end of one transaction, and the next


async def test_the_next_transaction_waits_for_the_end_of_the_last(world, autojump_clock):
    producer = await world.begin()
    world.partitions.is_mute = True
    result = await world.ask(world.end(producer, True))
    after = result.producer_id, result.epoch
    assert (await world.ask(world.add(after))).error is E.CONCURRENT_TRANSACTIONS
    waiting = world.add(after, may_wait=True)
    await trio.sleep(0.09)
    assert waiting == []
    world.partitions.answer()
    assert not (await world.ask(waiting)).error
    assert world.txn.state is S.ONGOING
    await trio.sleep(0.2)
    assert len(waiting) == 1


async def test_what_waited_travels_with_the_end_of_the_last(world, autojump_clock):
    producer = await world.begin()
    world.partitions.is_mute = True
    result = await world.ask(world.end(producer, True))
    waiting = world.add((result.producer_id, result.epoch), may_wait=True)
    world.log.auto_ack = False
    world.partitions.answer()
    await world.settle()
    assert len(world.log._waiting) == 1, "both records in one batch"
    assert waiting == []
    world.log.ack()
    assert not (await world.ask(waiting)).error
    assert world.log.states()[-2:] == [S.COMPLETE_COMMIT, S.ONGOING]


async def test_it_waits_only_for_a_moment(world, autojump_clock):
    producer = await world.begin()
    world.partitions.is_mute = True
    result = await world.ask(world.end(producer, True))
    after = result.producer_id, result.epoch
    waiting = [world.add(after, may_wait=True) for _ in range(120)]
    await world.settle()
    assert sum(map(len, waiting)) == 20, "so many wait, and no more"
    await trio.sleep(0.11)
    assert {answers[0].error for answers in waiting} == {E.CONCURRENT_TRANSACTIONS}
    assert not world.coordinator.base.shards()[0]._waiting, "nothing is kept of them"
    waiting = world.add(after, may_wait=True)
    await world.settle()
    world.log.go_offline()
    assert [each.error for each in waiting] == [E.NOT_COORDINATOR]


# --- markers


async def test_markers_are_sent_again_at_a_pace(world, autojump_clock):
    producer = await world.begin()
    world.partitions.errors["t", 0] = [E.NOT_LEADER_OR_FOLLOWER] * 6
    started = trio.current_time()
    await world.ask(world.end(producer, True))
    while world.txn.is_ending:
        await trio.sleep(0.01)
    # 100, 200, 400, 800, 1000, 1000
    assert trio.current_time() - started == pytest.approx(3.5, abs=0.1)
    assert len(world.partitions.counts) == 7
    assert len(world.partitions.written) == 2, "the other partition heard it once"


async def test_a_marker_goes_to_the_leader_of_now(world, autojump_clock):
    producer = await world.begin()
    world.leaders["t", 0] = None
    await world.ask(world.end(producer, True))
    await trio.sleep(5)
    assert world.txn.state is S.PREPARE_COMMIT
    assert world.coordinator.statistics()["markers_parked"] == 1
    world.leaders["t", 0] = OTHER
    world.coordinator.markers.wake()
    await world.settle()
    assert world.txn.state is S.COMPLETE_COMMIT
    assert [each[:2] for each in world.partitions.written] == [(ME, "u"), (OTHER, "t")]
    assert world.coordinator.statistics()["markers_parked"] == 0


async def test_a_leader_is_looked_for_every_second(world, autojump_clock):
    producer = await world.begin()
    world.leaders["t", 0] = None
    await world.ask(world.end(producer, True))
    await trio.sleep(10)
    world.leaders["t", 0] = OTHER
    await trio.sleep(1.01)
    assert world.txn.state is S.COMPLETE_COMMIT


async def test_marker_retry_same_epoch_after_lost_reply(world, autojump_clock):
    world.leaders["t", 0] = OTHER
    producer = await world.begin()
    world.partitions.is_mute = True
    await world.ask(world.end(producer, True))
    world.partitions.break_off()
    world.partitions.is_mute = False
    await trio.sleep(0.2)
    assert world.txn.state is S.COMPLETE_COMMIT
    assert {each[3:] for each in world.partitions.written} == {
        (producer[0], producer[1] + 1, True, TV2, 7)
    }


async def test_zombie_coordinator_marker_52(world, autojump_clock):
    """It is refused as one that was deposed, asks the log, and hears that it was."""
    producer = await world.begin()
    world.partitions.errors["t", 0] = [E.TRANSACTION_COORDINATOR_FENCED] * 2
    world.log.auto_ack = False
    world.end(producer, True)
    await world.settle()
    world.log.ack()
    await world.settle()
    assert len(world.log._waiting) == 1, "the barrier"
    world.logs.elsewhere.add(0)
    world.log.go_offline()
    await trio.sleep(5)
    assert len(world.partitions.counts) == 1


async def test_a_coordinator_that_was_not_deposed_goes_on(world, autojump_clock):
    producer = await world.begin()
    world.partitions.errors["t", 0] = [E.TRANSACTION_COORDINATOR_FENCED] * 2
    await world.ask(world.end(producer, True))
    await trio.sleep(2.5)
    assert world.txn.state is S.COMPLETE_COMMIT


async def test_a_partition_that_knows_a_higher_epoch_needs_no_marker(world, autojump_clock):
    """Whoever may write to a partition may have used the producer's id: the transactional id goes
    on, once it is certain that no other coordinator did that."""
    producer = await world.begin()
    world.partitions.errors["t", 0] = [E.INVALID_PRODUCER_EPOCH] * 100
    world.log.auto_ack = False
    answers = world.end(producer, True)
    await world.settle()
    world.log.ack()
    result = await world.ask(answers)
    await trio.sleep(5)
    assert world.txn.state is S.PREPARE_COMMIT, "not before the log took something"
    world.log.auto_ack = True
    world.log.ack()
    await trio.sleep(1.2)
    assert world.txn.state is S.COMPLETE_COMMIT
    after = result.producer_id, result.epoch
    assert (await world.ask(world.add(after, may_wait=True))).error is E.NONE


async def test_a_higher_coordinator_epoch_is_no_end(world, autojump_clock):
    """What is open in that partition is open still."""
    producer = await world.begin()
    world.partitions.errors["t", 0] = [E.TRANSACTION_COORDINATOR_FENCED] * 100
    await world.ask(world.end(producer, True))
    await trio.sleep(10)
    assert world.txn.state is S.PREPARE_COMMIT


async def test_a_doubted_marker_is_sent_again_though_the_log_takes_nothing_now(
    world, autojump_clock
):
    """The barrier before it comes to nothing, and the tenure goes on: it is not the last try."""
    producer = await world.begin()
    world.partitions.errors["t", 0] = [E.TRANSACTION_COORDINATOR_FENCED]
    world.log.auto_ack = False
    world.end(producer, True)
    await world.settle()
    world.log.fail_with = E.NOT_ENOUGH_REPLICAS  # no bookies for what comes next
    world.log.ack()
    await trio.sleep(0.5)
    assert [each[1] for each in world.partitions.written] == ["u"], "before its pause is over"
    world.log.fail_with, world.log.auto_ack = None, True
    await trio.sleep(1)
    assert sorted(each[1] for each in world.partitions.written) == ["t", "u"]
    assert world.txn.state is S.COMPLETE_COMMIT


async def test_doubted_and_passing_refusals_of_one_transaction_are_both_sent_again(
    world, autojump_clock
):
    """Each at its pace: what passes after 100 ms, who was refused for good after a second."""
    producer = await world.begin()
    world.partitions.errors["t", 0] = [E.NOT_LEADER_OR_FOLLOWER]
    world.partitions.errors["u", 1] = [E.TRANSACTION_COORDINATOR_FENCED]
    await world.ask(world.end(producer, True))
    await trio.sleep(0.15)
    assert [each[1] for each in world.partitions.written] == ["t"]
    assert world.txn.state is S.PREPARE_COMMIT
    await trio.sleep(1)
    assert [each[1] for each in world.partitions.written] == ["t", "u"]
    assert world.txn.state is S.COMPLETE_COMMIT


async def test_delete_topic_while_prepare_commit(world, autojump_clock):
    producer = await world.begin()
    world.leaders["t", 0] = None
    await world.ask(world.end(producer, True))
    await trio.sleep(3)
    assert world.txn.state is S.PREPARE_COMMIT
    world.catalog.remove("t")
    await trio.sleep(1.1)
    assert world.txn.state is S.COMPLETE_COMMIT


async def test_load_meets_prepare_of_missing_topic(world, autojump_clock):
    """A topic that this broker has not heard of yet is no topic that is gone."""
    producer = await world.begin()
    world.leaders["t", 0] = None
    await world.ask(world.end(producer, True))
    world.catalog.really["t"] = world.catalog.topics.pop("t")
    world.catalog.is_away = True
    world.partitions.written.clear()
    await world.move()
    await trio.sleep(3)
    assert world.txn.state is S.PREPARE_COMMIT, "nobody can tell"
    world.catalog.is_away = False
    await trio.sleep(3)
    assert world.txn.state is S.PREPARE_COMMIT, "it is there, and has no leader"
    world.leaders.clear()
    await trio.sleep(1.1)
    assert world.txn.state is S.COMPLETE_COMMIT
    assert {each[1] for each in world.partitions.written} == {"t", "u"}


# --- records that are refused, and coordinators that move


@pytest.mark.parametrize("what", ["init", "add", "end"])
async def test_a_refused_record_is_as_if_it_had_not_been(world, autojump_clock, what):
    producer = await world.begin()
    before = world.txn.snapshot()
    world.log.fail_with = E.NOT_ENOUGH_REPLICAS
    ask = {
        "init": world.init,
        "add": lambda: world.add(producer, [("t", 2)]),
        "end": lambda: world.end(producer, True),
    }[what]
    assert (await world.ask(ask())).error is E.COORDINATOR_NOT_AVAILABLE
    assert world.txn.snapshot() == before
    assert world.partitions.counts == []
    world.log.fail_with = None
    assert not (await world.ask(world.end(producer, True))).error
    assert world.txn.state is S.COMPLETE_COMMIT


async def test_what_is_on_its_way_is_waited_for_before_it_is_loaded_anew(world, autojump_clock):
    a, b = await world.begin(name="a"), await world.begin(name="b")
    world.log.auto_ack = False
    ended = world.end(a, True, name="a")
    await world.settle()
    world.log.fail_with = E.NOT_ENOUGH_REPLICAS
    refused = world.end(b, True, name="b")
    await world.settle()
    assert (ended, refused) == ([], [])
    world.log.fail_with, world.log.auto_ack = None, True
    world.log.ack()
    await world.settle()
    assert not ended[0].error
    assert refused[0].error is E.COORDINATOR_NOT_AVAILABLE
    assert world.coordinator.describe("a")[1].state is S.COMPLETE_COMMIT
    assert world.coordinator.describe("b")[1].state is S.ONGOING
    assert not (await world.ask(world.end(b, True, name="b"))).error


async def test_a_load_that_is_made_anew_sees_what_was_appended_behind_the_refused(
    world, autojump_clock
):
    """A decision that is on its way then is one, and stays the only one."""
    a, b, c = [await world.begin(name=name, timeout_ms=5_000) for name in "abc"]
    world.log.auto_ack = False
    world.end(a, True, name="a")
    await world.settle()
    world.log.fail_with = E.NOT_ENOUGH_REPLICAS
    refused = world.end(b, True, name="b")
    await world.settle()
    world.log.fail_with = None
    ended = world.end(c, True, name="c")
    await world.settle()
    first, second = world.log._waiting
    world.log._waiting = [first]
    world.log.ack()
    await world.settle()
    assert refused[0].error is E.COORDINATOR_NOT_AVAILABLE
    asked = await world.ask(world.verify(a, name="a"))
    assert asked.error is E.COORDINATOR_LOAD_IN_PROGRESS
    world.log._waiting, world.log.auto_ack = [second], True
    world.log.ack()
    assert not (await world.ask(ended)).error
    await trio.sleep(10)
    assert world.log.states("c")[-2:] == [S.PREPARE_COMMIT, S.COMPLETE_COMMIT]
    assert world.log.states("b")[-2:] == [S.PREPARE_ABORT, S.COMPLETE_ABORT]


async def test_complete_that_is_refused_is_decided_all_the_same(world, autojump_clock):
    producer = await world.begin()
    world.partitions.is_mute = True
    await world.ask(world.end(producer, True))
    world.log.fail_with = E.NOT_ENOUGH_REPLICAS
    world.partitions.is_mute = False
    world.partitions.answer()
    await world.settle()
    count = len(world.partitions.counts)
    await trio.sleep(10)
    assert 8 <= len(world.partitions.counts) - count <= 12, "once a second, while it is refused"
    world.log.fail_with = None
    await trio.sleep(1.1)
    assert world.txn.state is S.COMPLETE_COMMIT
    assert world.log.states()[-1] is S.COMPLETE_COMMIT
    assert {each[5] for each in world.partitions.written} == {True}


@pytest.mark.parametrize("is_stored", [True, False])
@pytest.mark.parametrize("is_commit", [True, False])
async def test_coordinator_lost_while_the_decision_is_on_its_way(
    world, autojump_clock, is_commit, is_stored
):
    producer = await world.begin()
    world.log.auto_ack = False
    ended = world.end(producer, is_commit)
    await world.settle()
    if is_stored:  # and nobody heard of it
        ((base, records, _, _),) = world.log._waiting
        world.log.batches.append((base, records))
        world.log.high_watermark = base + 1
    await world.move()
    assert ended[0].error is E.NOT_COORDINATOR
    again = await world.ask(world.end(producer, is_commit))
    assert (again.error, again.epoch) == (E.NONE, producer[1] + 1)
    assert {each[5:] for each in world.partitions.written} == {(is_commit, TV2, 8)}


async def test_a_partition_that_is_lost_tells_everybody(world, autojump_clock):
    producer = await world.begin()
    world.log.auto_ack = False
    asked = [world.verify(producer), world.add(producer, [("t", 2)]), world.init(name="new")]
    await world.settle()
    world.logs.elsewhere.add(0)
    world.log.go_offline()
    await world.settle()
    assert [answers[0].error for answers in asked] == [E.NOT_COORDINATOR] * 3
    assert (await world.ask(world.init())).error is E.NOT_COORDINATOR


async def test_nobody_waits_for_a_coordinator_that_is_stopped(world, autojump_clock):
    world.log.auto_ack = False
    asked = world.init()
    world.ids.is_away = True
    world.scope.cancel()
    await world.settle()
    assert len(asked) == 1
    assert asked[0].error in (E.NOT_COORDINATOR, E.COORDINATOR_NOT_AVAILABLE)


async def test_too_much_on_its_way(make_world, autojump_clock):
    world = make_world(pending_bytes_max=100)
    await world.start()
    producer = await world.begin()
    world.log.auto_ack = False
    for number in range(3):
        answers = world.add(producer, [("t", number)] if number else [("t", 2)])
    assert answers[0].error is E.COORDINATOR_NOT_AVAILABLE
    world.log.auto_ack = True
    world.log.ack()
    await world.settle()
    assert not (await world.ask(world.end(producer, True))).error


# --- expiry


async def test_transactional_id_expires_then_same_id_again(make_world, autojump_clock):
    world = make_world(
        transactional_id_expiration_ms=10_000,
        transaction_remove_expired_transaction_cleanup_interval_ms=1_000,
    )
    await world.start()
    old = await world.begin()
    await trio.sleep(30)
    assert world.txn.state is S.ONGOING, "not while it does something"
    await world.ask(world.end(old, True))
    await trio.sleep(9)
    assert world.txn.state is S.COMPLETE_COMMIT
    await trio.sleep(2.1)
    assert world.coordinator.describe("id")[0] is E.TRANSACTIONAL_ID_NOT_FOUND
    assert world.log.states()[-1] is None
    refused = await world.ask(world.add((old[0], old[1] + 1)))
    assert refused.error is E.INVALID_PRODUCER_ID_MAPPING
    result = await world.ask(world.init())
    assert result.producer_id > old[0]
    await world.move()
    assert world.txn.producer_id == result.producer_id


async def test_expired_ids_tombstones_many_batches(make_world, autojump_clock):
    world = make_world(transactional_id_expiration_ms=1_000, batch_bytes_max=2_000)
    await world.start()
    for number in range(1_200):
        world.init(name=f"id-{number}")
    while world.ids.next < 2_200:
        await world.settle()
    await trio.sleep(1)
    before = len(world.log.batches)
    await world.coordinator.expire()
    await world.settle()
    assert world.coordinator.statistics()["transactional_ids"] == 0
    batches = world.log.batches[before:]
    assert len(batches) > 10
    assert max(len(records) for _, records in batches) <= 2_100
    assert [each.snapshot for each in world.log.values()[-1_200:]] == [None] * 1_200
    await world.move()
    assert world.coordinator.statistics()["transactional_ids"] == 0


async def test_a_tombstone_that_is_refused_is_no_tombstone(make_world, autojump_clock):
    world = make_world(transactional_id_expiration_ms=1_000)
    await world.start()
    await world.ask(world.init())
    await trio.sleep(2)
    world.log.fail_with = E.NOT_ENOUGH_REPLICAS
    await world.coordinator.expire()
    await world.settle()
    world.log.fail_with = None
    await world.settle()
    assert world.txn.producer_id == 1001


# --- administration


async def test_list_and_describe(make_world, autojump_clock):
    world = make_world(transaction_state_log_num_partitions=3)
    await world.start()
    names = [f"id-{number}" for number in range(9)]
    for name in names:
        await world.begin(name=name)
    error, listed = world.coordinator.list_transactions()
    assert not error
    assert sorted(each.transactional_id for each in listed) == names
    assert world.coordinator.describe("")[0] is E.INVALID_REQUEST
    assert world.coordinator.describe("no")[0] is E.TRANSACTIONAL_ID_NOT_FOUND
    assert world.coordinator.describe("id-3")[1].partitions == {("t", 0), ("u", 1)}
    log = world.logs.logs[0].successor()
    world.logs.elsewhere.add(0)
    world.logs.logs[0].go_offline()
    log.reads_allowed = trio.Event()
    world.logs.hold(0, log)
    await world.settle()
    assert world.coordinator.list_transactions()[0] is E.COORDINATOR_LOAD_IN_PROGRESS
    log.reads_allowed.set()
    await world.settle()
    assert len([*world.coordinator.list_transactions()[1]]) == 9
    world.scope.cancel()
    await world.settle()
    assert world.coordinator.list_transactions()[0] is E.COORDINATOR_NOT_AVAILABLE


async def test_a_partition_that_the_topic_has_no_more_is_no_reason_to_wait(world, autojump_clock):
    """The topic was deleted, and made anew with fewer partitions."""
    producer = await world.begin()  # of t-0 and u-1
    world.partitions.errors["u", 1] = [E.UNKNOWN_TOPIC_OR_PARTITION] * 100
    world.catalog.remove("u")
    world.catalog.add("u", 1)
    assert not (await world.ask(world.end(producer, False))).error
    await trio.sleep(5)
    assert world.txn.state is S.COMPLETE_ABORT


async def test_what_was_said_of_a_record_that_is_refused_is_taken_back(make_world, autojump_clock):
    """A question's barrier can be in a later batch than what the answer rests on."""
    world = make_world(batch_bytes_max=400)
    await world.start()
    a, b = await world.begin(name="a"), await world.begin(name="b")
    many = [("t", number) for number in range(300)]
    world.log.fail_on_bytes = 1_000
    added = world.add(a, many, name="a")
    world.add(b, [("t", 2)], name="b")
    asked = world.verify(a, [("t", 250)], name="a")
    again = world.add(a, [("t", 251)], name="a")
    await world.settle()
    assert added[0].error
    for answer in (*asked, *again):
        assert answer.error or answer.missing, "the log does not have that partition"
