"""Offsets in transactions, by messages, on a log in memory whose producers' state and gate are the
real ones; the transaction's coordinator is its word."""

import pytest
import trio

from broker.coordinator.units import Marker
from broker.groups.coordinator import OFFSETS_TOPIC
from broker.groups.offsets import offsets_core
from broker.groups.offsets.offsets_core import CommittedOffset
from broker.groups.records import StoredOffset
from broker.groups.transactional import told
from runtime.turn import Turn
from tests.broker.groups.test_coordinator import (
    commit_request,
    fetch_request,
    fetched,
    join_request,
    stable_member,
)
from wire.kafka.errors import ErrorCode as E
from wire.kafka.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from wire.kafka.messages.groups import DeleteGroupsRequest, ListGroupsRequest
from wire.kafka.messages.offsets import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequestTopics,
)
from wire.kafka.messages.streams_groups import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatRequestSubtopology,
    StreamsGroupHeartbeatRequestTopology,
)
from wire.kafka.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from wire.kafka.records.batch import parse_header
from wire.kafka.records.control import EndTransactionMarker

P = 7  # the producer


def txn_request(group="g", offset=5, partitions=(0,), topic="t", version=5, pid=P, **kwargs):
    return version, TxnOffsetCommitRequest(
        transactional_id=kwargs.pop("transactional_id", "id"),
        group_id=group,
        producer_id=pid,
        producer_epoch=kwargs.pop("epoch", 0),
        generation_id=kwargs.pop("generation", -1),
        member_id=kwargs.pop("member", ""),
        group_instance_id=kwargs.pop("instance", None),
        topics=[
            TxnOffsetCommitRequestTopic(
                topic,
                [
                    TxnOffsetCommitRequestPartition(
                        number, offset, committed_metadata=kwargs.get("metadata", "m")
                    )
                    for number in partitions
                ],
            )
        ],
    )


def errors_of(response):
    return [p.error_code for t in response.topics for p in t.partitions]


async def commit(world, *args, **kwargs):
    return errors_of(await world.ask(*txn_request(*args, **kwargs)))


def marker_request(world, committed=True, *, pid=P, epoch=0, group="g", version=1):
    """WriteTxnMarkers of a transaction of version 1, unless told otherwise."""
    number = world.coordinator.topic.partition_for(group)
    return 2, WriteTxnMarkersRequest(
        markers=[
            WritableTxnMarker(
                producer_id=pid,
                producer_epoch=epoch,
                transaction_result=committed,
                topics=[WritableTxnMarkerTopic(OFFSETS_TOPIC, [number])],
                coordinator_epoch=1,
                transaction_version=version,
            )
        ]
    )


def marker_error(response):
    ((partition,),) = [topic.partitions for topic in response.markers[0].topics]
    return partition.error_code


async def end(world, *args, **kwargs):
    return marker_error(await world.ask(*marker_request(world, *args, **kwargs)))


def stable_request(*partitions, topic="t", group="g"):
    asked = [OffsetFetchRequestTopics(topic, partition_indexes=list(partitions))]
    return fetch_request(group, topics=asked, require_stable=True)


def offsets_in(response):
    return [(p.error_code, p.committed_offset) for p in response.groups[0].topics[0].partitions]


async def stable(world, *partitions, **kwargs):
    """(error, offset) of those partitions, for one who requires stable offsets."""
    return offsets_in(await world.ask(*stable_request(*partitions, **kwargs)))


@pytest.fixture
async def ready(world):
    world.catalog.add("t", 400)
    world.catalog.add("u", 2)
    return world


def consumer_heartbeat(epoch):
    return 0, ConsumerGroupHeartbeatRequest(
        "g", "m", epoch, rebalance_timeout_ms=30_000, subscribed_topic_names=["t"],
        topic_partitions=[],
    )  # fmt: skip


def streams_heartbeat(epoch):
    part = StreamsGroupHeartbeatRequestSubtopology("0", ["t"], [], [], [], [], [])
    topology = StreamsGroupHeartbeatRequestTopology(0, [part])
    return 0, StreamsGroupHeartbeatRequest(
        "g", "m", epoch, rebalance_timeout_ms=30_000, process_id="p", active_tasks=[],
        standby_tasks=[], warmup_tasks=[],
        topology=None if epoch else topology,
    )  # fmt: skip


async def listed_groups(world):
    """(id, kind) of each."""
    answer = await world.ask(5, ListGroupsRequest())
    return [(each.group_id, each.group_type) for each in answer.groups]


# --- the scenarios


async def test_txn_offset_commit_then_plain_commit_keeps_later_record(autojump_clock, ready):
    assert await commit(ready, offset=10, partitions=(0, 1)) == [0, 0]
    await ready.ask(*commit_request(ready, offset=3))
    assert await end(ready) == 0
    found = await fetched(ready)
    assert {key: value[0] for key, value in found.items()} == {("t", 0): 3, ("t", 1): 10}
    await ready.restart()
    assert await fetched(ready) == found, "a load finds the same"


async def test_require_stable_88_until_marker_then_offset(autojump_clock, ready):
    await ready.ask(*commit_request(ready, offset=1, partitions=(0, 1)))
    assert await commit(ready, offset=10, partitions=(0, 2)) == [0, 0]
    log = ready.log_of("g")
    unstable = (E.UNSTABLE_OFFSET_COMMIT, -1)
    assert await stable(ready, 0, 1, 2, 3) == [unstable, (0, 2), unstable, (0, -1)]
    assert {at: each[0] for at, each in (await fetched(ready)).items()} == {
        ("t", 0): 1, ("t", 1): 2,
    }  # fmt: skip
    log.auto_ack = False
    ended = ready.send(*marker_request(ready))
    asked = ready.send(*stable_request(0, 1))
    await ready.settle()
    assert asked == ended == [], "until the marker is acknowledged"
    assert (await fetched(ready))[("t", 0)][0] == 1
    log.auto_ack = True
    log.ack()
    await ready.settle()
    assert offsets_in(asked[0]) == [(0, 10), (0, 2)]
    assert await stable(ready, 0, 1, 2) == [(0, 10), (0, 2), (0, 10)]
    assert marker_error(ended[0]) == 0


async def test_the_table_changes_before_the_marker_is_answered(autojump_clock, ready):
    """KAFKA-17507."""
    await commit(ready, offset=10)
    found = []
    marker = Marker(P, 0, EndTransactionMarker(True, 1), 1)
    index = ready.coordinator.topic.partition_for("g")

    def told(error):
        _, entry = ready.coordinator.describe("g")
        found.append((error, entry.offsets.get("t", 0).offset, dict(entry.offsets.unstable)))

    ready.coordinator.transactions.end(index, marker, told)
    await ready.settle()
    assert found == [(0, 10, {})]


async def test_group_with_pending_offsets_not_expired_nor_deleted(autojump_clock, ready):
    week_ms = ready.config.offsets_retention_ms
    await ready.ask(*commit_request(ready, offset=1, partitions=(0, 1)))
    await commit(ready, offset=10, partitions=(0,))
    await commit(ready, "lonely", offset=10, partitions=(0,))
    await trio.sleep(week_ms / 1000 + 1)
    await ready.coordinator.expire()
    await ready.settle()
    assert set(await fetched(ready)) == {("t", 0)}, "what nobody has pending expired"
    names = {entry.group.group_id for entry in ready.coordinator.list_groups()[1]}
    assert names == {"g", "lonely"}, "as long as the transaction is open the groups stay"
    assert await end(ready) == 0
    assert await end(ready, group="lonely") == 0
    # As Kafka: the age is that of the commit, which the transaction took a week to confirm.
    await ready.coordinator.expire()
    await ready.settle()
    assert ready.coordinator.list_groups()[1] == []
    await ready.restart()
    assert ready.coordinator.list_groups()[1] == []


async def test_txn_pending_blocks_delete(autojump_clock, ready):
    """A consumer group that nobody is in does not expire while a transaction has offsets for it
    (KAFKA-19163), and does when that is over."""
    body = ConsumerGroupHeartbeatRequest(
        "g", "m", 0, rebalance_timeout_ms=1000, subscribed_topic_names=["t"], topic_partitions=[]
    )
    assert (await ready.ask(1, body)).error_code == 0
    assert (await ready.ask(1, ConsumerGroupHeartbeatRequest("g", "m", -1))).error_code == 0
    await commit(ready, offset=10, partitions=(0,))
    await trio.sleep(ready.config.offsets_retention_ms / 1000 + 1)

    def kinds():
        return [entry.group.kind for entry in ready.coordinator.list_groups()[1]]

    for _ in range(2):
        await ready.coordinator.expire()
        await ready.settle()
        assert kinds() == ["consumer"]
        await ready.restart()
    assert await end(ready) == 0
    await ready.coordinator.expire()
    await ready.settle()
    assert kinds() == []


async def test_offsets_only_transaction(autojump_clock, ready):
    """Of version 1: AddOffsetsToTxn, TxnOffsetCommit, the end; no partition has data."""
    assert await commit(ready, offset=10, version=4) == [0]
    assert await commit(ready, offset=11, version=4) == [0]
    assert ready.logs.verifier.asked == [("id", P, 0, (OFFSETS_TOPIC, 0), False)], "once"
    headers = [parse_header(each) for _, each in ready.log_of("g").batches]
    assert [(h.producer_id, h.producer_epoch, h.base_sequence) for h in headers] == [(P, 0, -1)] * 2
    assert all(header.is_transactional and not header.is_control for header in headers)
    assert await end(ready) == 0
    assert (await fetched(ready))["t", 0][0] == 11
    # The next transaction, of the same epoch.
    assert await commit(ready, offset=12, version=4) == [0]
    assert len(ready.logs.verifier.asked) == 2
    assert await end(ready, committed=False) == 0
    assert (await fetched(ready))["t", 0][0] == 11


# --- which batches there are


async def test_transactions_and_others_in_one_turn_keep_their_order(autojump_clock, ready):
    sent = [
        ready.send(*commit_request(ready, offset=1)),
        ready.send(*txn_request(offset=2)),
        ready.send(*txn_request(offset=3, pid=8)),
        ready.send(*commit_request(ready, offset=4, partitions=(1,))),
        ready.send(*commit_request(ready, offset=5, partitions=(2,))),
        ready.send(*marker_request(ready, committed=True, pid=P)),
        ready.send(*marker_request(ready, committed=False, pid=8)),
    ]
    await ready.settle()
    assert all(len(answers) == 1 for answers in sent)
    log = ready.log_of("g")
    headers = [parse_header(each) for _, each in log.batches]
    assert [(h.producer_id, h.record_count, h.is_control) for h in headers] == [
        (-1, 1, False), (P, 1, False), (8, 1, False), (-1, 2, False), (P, 1, True), (8, 1, True),
    ]  # fmt: skip
    assert {key: each[0] for key, each in (await fetched(ready)).items()} == {
        ("t", 0): 2, ("t", 1): 4 + 1, ("t", 2): 5 + 2,
    }  # fmt: skip


async def test_a_large_commit_is_several_batches_of_one_transaction(autojump_clock, ready):
    assert await commit(ready, offset=9, partitions=range(400)) == [0] * 400
    assert len(ready.logs.verifier.asked) == 1
    assert await fetched(ready) == {}
    assert await end(ready) == 0
    assert len(await fetched(ready)) == 400


async def test_what_takes_long_to_settle_is_unstable_meanwhile(autojump_clock, ready, monkeypatch):
    monkeypatch.setattr(offsets_core, "SETTLED_PER_STEP", 100)
    await commit(ready, offset=9, partitions=range(400))
    _, entry = ready.coordinator.describe("g")
    marker = Marker(P, 0, EndTransactionMarker(True, 1), 1)
    log, seen, answers = ready.log_of("g"), [], []
    log.auto_ack = False
    ready.coordinator.transactions.end(
        ready.coordinator.topic.partition_for("g"), marker, answers.append
    )
    await ready.settle()
    later = Turn.later

    def watched(turn, function):
        seen.append((len(entry.offsets), len(entry.offsets.unstable), list(answers)))
        if len(seen) == 2:
            # A tombstone of what is not settled yet, and of what is.
            for number in (1, 399):
                entry.offsets.apply("t", number, None)
        later(turn, function)

    monkeypatch.setattr(Turn, "later", watched)
    log.ack()
    await ready.settle()
    # After two steps of a hundred both tombstones come; the last of four hundred is gone then.
    assert seen == [(100, 300, []), (200, 200, []), (299, 99, []), (398, 0, [])]
    assert answers == [E.NONE]
    assert entry.offsets.get("t", 399) is None
    assert not entry.offsets.unstable


async def test_what_is_committed_anew_while_the_last_is_settled(autojump_clock, ready, monkeypatch):
    """An administrator's marker leaves the producer free to go on at once: what it commits then is
    pending, and not part of what the marker ended."""
    monkeypatch.setattr(offsets_core, "SETTLED_PER_STEP", 100)
    await commit(ready, offset=9, partitions=range(400))
    _, entry = ready.coordinator.describe("g")
    later, steps = Turn.later, []

    def watched(turn, function):
        steps.append(len(entry.offsets))
        if len(steps) == 1:
            anew = StoredOffset("g", "t", 399, CommittedOffset(20, -1, "", 0))
            entry.shard.apply_offset(anew, 10_000, P)
        later(turn, function)

    monkeypatch.setattr(Turn, "later", watched)
    assert await end(ready) == 0
    assert steps == [100]
    assert entry.offsets.get("t", 399).offset == 9
    assert entry.offsets.unstable == {("t", 399): {P}}
    for _ in entry.shard.end_transaction(P, committed=True):
        pass
    assert entry.offsets.get("t", 399).offset == 20
    assert not entry.offsets.unstable


# --- deletions


async def test_a_tombstone_clears_what_is_pending(autojump_clock, ready):
    await commit(ready, offset=10, partitions=(0, 1))
    asked = OffsetDeleteRequestTopic("t", [OffsetDeleteRequestPartition(0)])
    response = await ready.ask(0, OffsetDeleteRequest("g", [asked]))
    assert response.topics[0].partitions[0].error_code == 0
    assert await stable(ready, 0, 1) == [(0, -1), (E.UNSTABLE_OFFSET_COMMIT, -1)]
    await end(ready)
    assert set(await fetched(ready)) == {("t", 1)}
    await ready.restart()
    assert set(await fetched(ready)) == {("t", 1)}


async def test_a_group_is_deleted_with_what_is_pending(autojump_clock, ready):
    """As in Kafka: somebody wants the group gone, and the transaction cannot bring it back."""
    await commit(ready, offset=10, partitions=(0, 1))
    response = await ready.ask(2, DeleteGroupsRequest(["g"]))
    assert response.results[0].error_code == 0
    assert await end(ready) == 0
    for _ in range(2):
        assert ready.coordinator.list_groups()[1] == []
        assert await fetched(ready) == {}
        await ready.restart()


async def test_a_deleted_topics_pending_offsets_go_with_it(autojump_clock, ready):
    await commit(ready, offset=10, topic="t")
    await commit(ready, offset=10, topic="u")
    ready.catalog.remove("t")
    await ready.settle()
    await end(ready)
    assert set(await fetched(ready)) == {("u", 0)}


async def test_what_is_pending_for_the_new_topic_outlives_the_old_one(autojump_clock, ready):
    await ready.ask(*commit_request(ready, offset=1))
    old = ready.catalog.topics.pop("t")
    ready.catalog.add("t", 2)
    await commit(ready, offset=10)
    ready.coordinator.topic_deleted(old)
    await ready.settle()
    await end(ready)
    assert (await fetched(ready))["t", 0][0] == 10


# --- who may


@pytest.mark.parametrize("version", range(6))
async def test_every_version(autojump_clock, ready, version):
    assert await commit(ready, offset=5, version=version) == [0]
    adds = version >= 5
    assert ready.logs.verifier.asked == [("id", P, 0, (OFFSETS_TOPIC, 0), adds)]
    await end(ready, epoch=1 if adds else 0, version=2 if adds else 1)
    assert (await fetched(ready))["t", 0][0] == 5


async def test_partitions_and_metadata_are_looked_at_first(autojump_clock, ready):
    assert await commit(ready, topic="nowhere") == [E.UNKNOWN_TOPIC_OR_PARTITION]
    assert await commit(ready, topic="u", partitions=(0, 2, -1)) == [0, 3, 3]
    large = "x" * (ready.config.offset_metadata_max_bytes + 1)
    assert await commit(ready, metadata=large) == [E.OFFSET_METADATA_TOO_LARGE]
    assert await commit(ready, "") == [E.INVALID_GROUP_ID]
    assert await commit(ready, pid=-1) == [E.INVALID_PRODUCER_ID_MAPPING]
    assert await commit(ready, pid=9, epoch=-1) == [E.INVALID_PRODUCER_ID_MAPPING]
    assert len(ready.logs.verifier.asked) == 1


async def test_members_are_checked_as_by_offset_commit(autojump_clock, ready):
    assert await commit(ready, generation=3, member="m") == [E.ILLEGAL_GENERATION], "no such group"
    assert ready.coordinator.list_groups()[1] == []
    member = await stable_member(ready)
    assert await commit(ready, generation=1, member=member) == [0]
    assert await commit(ready, generation=0, member=member) == [E.ILLEGAL_GENERATION]
    assert await commit(ready, generation=1, member="who") == [E.UNKNOWN_MEMBER_ID]
    assert await commit(ready, generation=1, member=member, instance="i") == [E.UNKNOWN_MEMBER_ID]
    assert await commit(ready, member=member) == [E.ILLEGAL_GENERATION], "half a member"
    assert await commit(ready, version=2) == [0], "older producers do not know their member"
    plain = await ready.ask(*commit_request(ready))
    assert errors_of(plain) == [E.UNKNOWN_MEMBER_ID], "OffsetCommit wants one"


async def test_a_rebalance_that_completes_holds_nobody_up(autojump_clock, ready):
    first = await ready.ask(*join_request())
    ready.send(*join_request(member=first.member_id))
    await trio.sleep(0.01)
    of = {"member": first.member_id, "generation": 1}
    plain = await ready.ask(*commit_request(ready, **of))
    assert errors_of(plain) == [E.REBALANCE_IN_PROGRESS]
    assert await commit(ready, **of) == [0]


async def test_the_group_is_checked_after_the_answer(autojump_clock, ready):
    """KAFKA-15784."""
    member = await stable_member(ready)
    ready.logs.verifier.answer = None
    answers = ready.send(*txn_request(generation=1, member=member))
    _, entry = ready.coordinator.describe("g")
    entry.group.generation_id = 2
    ready.logs.verifier.tell()
    await ready.settle()
    assert errors_of(answers[0]) == [E.ILLEGAL_GENERATION]
    log = ready.log_of("g")
    assert not any(parse_header(each).is_transactional for _, each in log.batches)
    # The question was given back: the next one is asked again.
    ready.logs.verifier.answer = E.NONE
    assert await commit(ready, generation=2, member=member) == [0]
    assert len(ready.logs.verifier.asked) == 2


async def test_the_epoch_is_checked_when_the_batch_is_numbered(autojump_clock, ready):
    assert await commit(ready, epoch=1) == [0]
    assert await end(ready, epoch=1) == 0
    assert await commit(ready, epoch=0) == [E.INVALID_PRODUCER_EPOCH]


async def test_abort_between_the_answer_and_the_batch(autojump_clock, ready):
    """KAFKA-14884: what was verified is void with the marker."""
    ready.logs.verifier.answer = None
    answers = ready.send(*txn_request(version=4))
    assert await end(ready, committed=False) == 0
    await ready.settle()
    assert errors_of(answers[0]) == [E.INVALID_TXN_STATE]
    # In one turn: the marker is queued first, the batch behind it.
    ready.logs.verifier.answer = E.NONE
    assert await commit(ready, version=4) == [0]
    marker = ready.send(*marker_request(ready, committed=False))
    late = ready.send(*txn_request(version=4))
    await ready.settle()
    assert (marker_error(marker[0]), errors_of(late[0])) == (0, [E.INVALID_TXN_STATE])
    assert await fetched(ready) == {}
    assert not ready.coordinator.describe("g")[1].offsets.unstable, "nobody would ever end it"


async def test_two_commits_wait_for_one_answer(autojump_clock, ready):
    ready.logs.verifier.answer = None
    sent = [ready.send(*txn_request(group, offset=9)) for group in ("g", "g")]
    sent.append(ready.send(*txn_request(epoch=1)))
    await ready.settle()
    assert [errors_of(answers[0]) for answers in sent[:2]] == [[E.INVALID_PRODUCER_EPOCH]] * 2
    ready.logs.verifier.tell()  # of the old epoch: nobody waits for it any more
    await ready.settle()
    assert not sent[2]
    more = ready.send(*txn_request(epoch=1, partitions=(1,)))
    old = ready.send(*txn_request(epoch=0))
    ready.logs.verifier.tell()
    await ready.settle()
    assert [errors_of(answers[0]) for answers in (sent[2], more)] == [[0], [0]]
    assert errors_of(old[0]) == [E.INVALID_PRODUCER_EPOCH]
    assert len(ready.logs.verifier.asked) == 2


# --- errors


@pytest.mark.parametrize(
    ("answered", "version", "expected"),
    [
        (E.NETWORK_EXCEPTION, 2, E.COORDINATOR_LOAD_IN_PROGRESS),
        (E.NETWORK_EXCEPTION, 1, E.COORDINATOR_NOT_AVAILABLE),
        (E.COORDINATOR_LOAD_IN_PROGRESS, 5, E.COORDINATOR_LOAD_IN_PROGRESS),
        (E.COORDINATOR_LOAD_IN_PROGRESS, 1, E.COORDINATOR_NOT_AVAILABLE),
        (E.COORDINATOR_NOT_AVAILABLE, 5, E.COORDINATOR_NOT_AVAILABLE),
        (E.NOT_COORDINATOR, 5, E.NOT_COORDINATOR),
        (E.UNKNOWN_TOPIC_OR_PARTITION, 5, E.COORDINATOR_NOT_AVAILABLE),
        (E.NOT_ENOUGH_REPLICAS, 5, E.COORDINATOR_NOT_AVAILABLE),
        (E.REQUEST_TIMED_OUT, 5, E.COORDINATOR_NOT_AVAILABLE),
        (E.NOT_LEADER_OR_FOLLOWER, 5, E.NOT_COORDINATOR),
        (E.KAFKA_STORAGE_ERROR, 5, E.NOT_COORDINATOR),
        (E.PRODUCER_FENCED, 5, E.INVALID_PRODUCER_EPOCH),
        (E.INVALID_PRODUCER_EPOCH, 0, E.INVALID_PRODUCER_EPOCH),
        (E.TRANSACTION_ABORTABLE, 4, E.TRANSACTION_ABORTABLE),
        (E.TRANSACTION_ABORTABLE, 3, E.INVALID_TXN_STATE),
        (E.INVALID_TXN_STATE, 5, E.INVALID_TXN_STATE),
        (E.INVALID_PRODUCER_ID_MAPPING, 5, E.INVALID_PRODUCER_ID_MAPPING),
        (E.CONCURRENT_TRANSACTIONS, 5, E.CONCURRENT_TRANSACTIONS),
        (E.CONCURRENT_TRANSACTIONS, 4, E.CONCURRENT_TRANSACTIONS),
        (E.MESSAGE_TOO_LARGE, 5, E.UNKNOWN_SERVER_ERROR),
    ],
)
async def test_what_a_client_is_told(autojump_clock, ready, answered, version, expected):
    assert told(answered, version) is expected
    ready.logs.verifier.answer = answered
    assert await commit(ready, version=version) == [expected]
    assert ready.log_of("g").batches == []
    assert ready.coordinator.list_groups()[1] == [], "nor was a group made"


async def test_append_errors(autojump_clock, ready):
    await commit(ready, "other")  # the partition's log is there
    log = ready.log_of("g")
    log.fail_with = E.NOT_ENOUGH_REPLICAS
    assert await commit(ready) == [E.COORDINATOR_NOT_AVAILABLE]
    assert ready.coordinator.describe("g")[0] is E.GROUP_ID_NOT_FOUND
    assert await end(ready) == E.NOT_ENOUGH_REPLICAS, "a marker's error is the log's own"
    log.fail_with = None
    assert await commit(ready) == [0]


@pytest.mark.parametrize("state", ["loading", "elsewhere", "closed"])
async def test_a_marker_is_for_whoever_coordinates_the_group(autojump_clock, ready, state):
    """14, 15 and 16 are nothing that a coordinator of transactions knows of a partition."""
    await commit(ready, offset=10)
    log = ready.log_of("g")
    if state == "loading":
        ready.scope.cancel()
        await ready.settle()
        again = log.successor()
        again.reads_allowed = trio.Event()
        ready.logs.logs[ready.coordinator.topic.partition_for("g")] = again
        await ready.start()
    elif state == "closed":
        ready.scope.cancel()
        await ready.settle()
    else:
        log.go_offline()
        ready.logs.elsewhere.add(ready.coordinator.topic.partition_for("g"))
    marker = Marker(P, 0, EndTransactionMarker(True, 1), 1)
    answers = []
    index = ready.coordinator.topic.partition_for("g")
    ready.coordinator.transactions.end(index, marker, answers.append)
    assert answers == [E.NOT_LEADER_OR_FOLLOWER]


async def test_markers_are_checked_by_the_log(autojump_clock, ready):
    await commit(ready, epoch=3)
    assert await end(ready, epoch=2) == E.INVALID_PRODUCER_EPOCH
    assert await stable(ready, 0) == [(E.UNSTABLE_OFFSET_COMMIT, -1)]
    assert await end(ready, epoch=3) == 0
    assert await end(ready, epoch=3, group="nobody") == 0, "of no open transaction"


async def test_offline_while_the_answer_is_awaited(autojump_clock, ready):
    ready.logs.verifier.answer = None
    answers = ready.send(*txn_request())
    ready.log_of("g").go_offline()
    await ready.settle()
    assert errors_of(answers[0]) == [E.NOT_COORDINATOR]
    ready.logs.verifier.tell()
    await ready.settle()
    assert len(answers) == 1


async def test_loaded_anew_while_the_answer_is_awaited(autojump_clock, ready):
    """The log is the same: what was asked for a batch that never came is asked again."""
    ready.logs.verifier.answer = None
    answers = ready.send(*txn_request())
    partition = ready.coordinator.base.find("g")[0].partition
    partition.close()
    await ready.settle()
    ready.logs.verifier.tell()
    await ready.settle()
    assert errors_of(answers[0]) == [E.NOT_COORDINATOR]
    ready.logs.verifier.answer = E.INVALID_TXN_STATE
    while (errors := await commit(ready)) == [E.COORDINATOR_LOAD_IN_PROGRESS]:
        await trio.sleep(0.1)
    assert errors == [E.INVALID_TXN_STATE]


@pytest.mark.parametrize("is_transactional", [False, True])
async def test_what_is_on_its_way_does_not_expire(autojump_clock, ready, is_transactional):
    """A commit that is acknowledged later than the tombstone is written, and lies before it."""
    await ready.ask(*commit_request(ready, offset=1, partitions=(0, 1)))
    await trio.sleep(ready.config.offsets_retention_ms / 1000 - 1)
    assert len(await fetched(ready)) == 2
    log = ready.log_of("g")
    log.auto_ack = False
    if is_transactional:
        answers = ready.send(*txn_request(offset=10))
    else:
        answers = ready.send(*commit_request(ready, offset=10))
    await ready.settle()
    assert answers == []
    await trio.sleep(2)
    await ready.coordinator.expire()
    await ready.settle()
    log.auto_ack = True
    log.ack()
    await ready.settle()
    assert len(answers) == 1
    if is_transactional:
        assert await end(ready) == 0
    found = {("t", 0): 10}
    assert {key: value[0] for key, value in (await fetched(ready)).items()} == found
    await ready.restart()
    assert {key: value[0] for key, value in (await fetched(ready)).items()} == found


async def test_a_load_keeps_what_is_pending_over_the_group_that_is_stored_later(
    autojump_clock, ready
):
    assert await commit(ready, offset=10) == [0]
    await stable_member(ready)
    await ready.restart()
    assert await stable(ready, 0) == [(E.UNSTABLE_OFFSET_COMMIT, -1)]
    assert await end(ready) == 0
    assert {key: value[0] for key, value in (await fetched(ready)).items()} == {("t", 0): 10}


@pytest.mark.parametrize("keeps_offset", [False, True])
@pytest.mark.parametrize("kind", ["consumer", "streams"])
async def test_a_group_that_was_deleted_leaves_nothing_but_its_offsets(
    autojump_clock, ready, kind, keeps_offset
):
    """Of all its records a load is told of the commit in a transaction and of tombstones."""
    ask = {"consumer": consumer_heartbeat, "streams": streams_heartbeat}[kind]
    for epoch in (0, -1):
        assert (await ready.ask(*ask(epoch))).error_code == E.NONE
    assert await commit(ready, offset=10) == [0]
    assert await end(ready) == 0
    (result,) = (await ready.ask(2, DeleteGroupsRequest(["g"]))).results
    assert result.error_code == E.NONE
    if keeps_offset:
        assert await commit(ready, offset=11) == [0]
        assert await end(ready) == 0
    before = await listed_groups(ready)
    assert before == ([("g", "classic")] if keeps_offset else [])
    await ready.restart()
    assert await listed_groups(ready) == before
    assert {key: value[0] for key, value in (await fetched(ready)).items()} == (
        {("t", 0): 11} if keeps_offset else {}
    )
