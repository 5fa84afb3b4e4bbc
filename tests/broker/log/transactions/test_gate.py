"""The first batch of a transaction in a partition: asked about, parked, and let pass or refused."""

import pytest

from broker.log.transactions.gate import (
    PARKED_BYTES_MAX,
    PARKED_COUNT_MAX,
    CoordinatorAppend,
    produce_error,
)
from broker.log.transactions.origin import Origin
from tests.broker.log.transactions.conftest import make_batch
from wire.kafka.errors import ErrorCode


async def test_the_coordinator_is_asked_once_for_a_transaction(world, autojump_clock):
    for sequence in range(3):
        world.send(sequence)
    await world.settle()
    world.end(commit=True, epoch=1, version=2)
    world.send(0, epoch=1)
    await world.settle()
    assert world.verifier.asked == [
        ("id", 7, 0, (("t", 0),), True),
        ("id", 7, 1, (("t", 0),), True),
    ]
    assert world.log.last_stable_offset == 4
    assert world.shared.parking.bytes == 0


async def test_what_does_not_add_is_verified(world, autojump_clock):
    world.send(5, version=11)
    assert world.verifier.asked == [("id", 7, 0, (("t", 0),), False)]


async def test_second_batch_does_not_overtake_parked_first(world, autojump_clock):
    world.verifier.answer = None
    appends = [world.send(sequence) for sequence in range(3)]
    other = world.send(0, pid=8, transactional=False)
    await world.settle()
    assert other.base_offset == 0, "others pass"
    assert world.log.producers.transaction_start(7) == -1
    assert len(world.verifier.asked) == 1
    world.verifier.tell()
    await world.settle()
    assert [(each.error, each.base_offset) for each in appends] == [(0, 1), (0, 2), (0, 3)]
    assert [each.finished_count for each in appends] == [1, 1, 1]
    assert world.shared.parking.bytes == 0


async def test_parked_batches_bounded_and_told_on_offline(world, autojump_clock):
    world.verifier.answer = None
    appends = [world.send(sequence) for sequence in range(PARKED_COUNT_MAX + 1)]
    assert [each.error for each in appends] == [0] * PARKED_COUNT_MAX + [
        ErrorCode.NOT_ENOUGH_REPLICAS
    ]
    large = [world.send(n, pid=9, size=PARKED_BYTES_MAX // 2 - 100) for n in range(3)]
    assert [bool(each.error) for each in large] == [False, False, True]
    world.shared.parking.bytes_max = world.shared.parking.bytes
    assert world.send(0, pid=10).error is ErrorCode.NOT_ENOUGH_REPLICAS
    world.log.go_offline("test")
    waited = appends[:PARKED_COUNT_MAX] + large[:2]
    assert {each.error for each in waited} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}
    assert [each.finished_count for each in waited] == [1] * len(waited)
    assert world.shared.parking.bytes == 0
    world.verifier.tell()  # an answer that comes too late
    assert world.log.next_offset == 0


async def test_what_found_no_place_is_not_overtaken(world, autojump_clock):
    """The second batch of a producer that is not known comes before the first one's retry."""
    world.shared.parking.bytes_max = 0
    assert world.send(0, version=11).error is ErrorCode.NOT_ENOUGH_REPLICAS
    world.shared.parking.bytes_max = 1 << 20
    second = world.send(1, version=11)
    await world.settle()
    assert second.error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    first = world.send(0, version=11)
    await world.settle()
    assert (first.error, first.base_offset) == (0, 0)


@pytest.mark.parametrize("version", [11, 12])
async def test_abort_between_verify_and_append_guard(world, version, autojump_clock):
    """KAFKA-14884: the answer is about a transaction that has ended."""
    world.verifier.answer = None
    parked = world.send(0, version=version)
    world.end(commit=False, epoch=version == 12, version=2 if version == 12 else 1)
    await world.settle()
    assert parked.error in (ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_EPOCH)
    world.verifier.tell()
    await world.settle()
    assert world.log.producers.first_open_transaction_offset is None
    assert world.log.next_offset == 1


# --- a coordinator of ours, who asks before it has a batch


def ask_ahead(world, *, epoch=0, version=12):
    """Gives the origin, and a list that the answer comes to."""
    origin, answers = Origin("id", version), []
    world.log.ask_transaction(origin, 7, epoch, answers.append)
    return origin, answers


def write(world, origin, *, epoch=0):
    """As the coordinator of groups: without a sequence. Gives the append."""
    records = make_batch(1, pid=7, epoch=epoch, transactional=True)
    append = CoordinatorAppend(records, lambda _: None, origin)
    world.log.submit(append, internal=True)
    return append


async def test_what_was_given_back_is_asked_again(world, autojump_clock):
    """A word that nobody has used is not kept: the transaction may end without a marker here."""
    first, answers = ask_ahead(world)
    assert answers == [ErrorCode.NONE]
    world.log.give_back(first)
    _, answers = ask_ahead(world)
    assert answers == [ErrorCode.NONE]
    assert len(world.verifier.asked) == 2


async def test_one_word_lets_all_pass_who_wait_for_it(world, autojump_clock):
    """One of them gives it back: it holds for the other, and only then is it used up."""
    world.verifier.answer = None
    first, first_answers = ask_ahead(world)
    second, second_answers = ask_ahead(world)
    world.verifier.tell()
    assert first_answers == second_answers == [ErrorCode.NONE]
    world.log.give_back(first)
    append = write(world, second)
    await world.settle()
    assert (append.error, append.base_offset) == (0, 0)
    assert len(world.verifier.asked) == 1


async def test_a_word_is_used_up_by_the_first_batch(world, autojump_clock):
    """The transaction that it opened is ended by an administrator, whose marker has the producer's
    own epoch: who passed by the same word, and comes only now, would open one that nobody ends."""
    world.verifier.answer = None
    (first, _), (second, _) = ask_ahead(world), ask_ahead(world)
    world.verifier.tell()
    assert write(world, first).error == 0
    world.end(commit=False)
    late = write(world, second)
    await world.settle()
    assert late.error is ErrorCode.INVALID_TXN_STATE
    assert world.log.producers.first_open_transaction_offset is None


async def test_an_older_word_that_is_given_back_leaves_the_newer_question(world, autojump_clock):
    older, _ = ask_ahead(world)
    world.verifier.answer = None
    newer, answers = ask_ahead(world, epoch=1)
    world.log.give_back(older)
    world.verifier.tell()
    assert answers == [ErrorCode.NONE]
    append = write(world, newer, epoch=1)
    await world.settle()
    assert (append.error, append.base_offset) == (0, 0)


# --- what the word was about is over


async def test_next_tv2_transaction_while_last_marker_arrives_keeps_guard(world, autojump_clock):
    """KAFKA-18575: the marker has the epoch of the one that asks."""
    world.send(0)
    await world.settle()
    world.verifier.answer = None
    parked = world.send(0, epoch=1)
    world.end(commit=True, epoch=1, version=2)
    await world.settle()
    assert not parked.finished_count
    world.verifier.tell()
    await world.settle()
    assert (parked.error, parked.base_offset) == (0, 2)
    assert world.log.last_stable_offset == 2


async def test_a_guard_that_passed_is_void_after_a_marker(world, autojump_clock):
    """Verified, and then waiting for a ledger; the marker stands before it."""
    world.verifier.answer = None
    parked = world.send(0, version=11)
    limit = world.settings.segment_excess_bytes_min
    world.settings.segment_excess_bytes_min = world.settings.segment_excess_share = 0
    world.config.segment_bytes = 1
    world.put(1)  # the ledger has all that it may hold
    world.end(commit=False)
    world.verifier.tell()
    world.config.segment_bytes = 1 << 30
    world.settings.segment_excess_bytes_min = limit
    await world.settle()
    await world.settle()
    assert parked.error is ErrorCode.INVALID_TXN_STATE
    assert world.log.producers.first_open_transaction_offset is None


async def test_an_answer_at_once_while_the_ledger_is_full(world, autojump_clock):
    """It passed, and waits for the next ledger with its guard."""
    world.put(1)
    await world.settle()
    world.settings.segment_excess_bytes_min = world.settings.segment_excess_share = 0
    world.config.segment_bytes = 1
    world.log.has_room()
    appends = [world.send(0), world.send(1)]
    assert [each.base_offset for each in appends] == [-1, -1]
    await world.settle()
    world.config.segment_bytes = 1 << 30
    world.log.call_keeper()
    await world.settle()
    assert [(each.error, each.base_offset) for each in appends] == [(0, 1), (0, 2)]


async def test_late_produce_after_commit_refused_tv2(world, autojump_clock):
    world.send(0)
    await world.settle()
    world.end(commit=True, epoch=1, version=2)
    late = world.send(1)
    await world.settle()
    assert late.error is ErrorCode.INVALID_PRODUCER_EPOCH
    assert len(world.verifier.asked) == 1, "the marker alone refuses it"


@pytest.mark.parametrize(("version", "told"), [(11, 120), (9, 48)])
async def test_late_produce_tv1_fails_verification_48_or_120(world, version, told, autojump_clock):
    world.send(0, version=version)
    await world.settle()
    world.end(commit=True)
    world.verifier.answer = ErrorCode.TRANSACTION_ABORTABLE
    late = world.send(1, version=version)
    await world.settle()
    assert late.error == told


@pytest.mark.parametrize("is_committed", [True, False])
async def test_what_was_given_up_is_no_duplicate(world, is_committed, autojump_clock):
    """librdkafka (2.16) gives the numbers of what it gave up by an abort, and which is in the log
    all the same, to the next transaction's batches: as duplicates they would be committed, and be
    nowhere. Within a transaction a duplicate is one, for the next owner, too."""
    for sequence in range(3):
        world.send(sequence, version=9)
    again = world.send(1, version=9)
    await world.settle()
    assert (again.error, again.base_offset) == (0, 1)
    world.end(commit=is_committed)
    between = world.send(2, version=9)
    world.send(3, version=9)
    await world.settle()
    other = world.send(2, version=9)
    again = world.send(3, version=9)
    await world.settle()
    assert [between.error, other.error] == [ErrorCode.INVALID_TXN_STATE] * 2
    assert (again.error, again.base_offset) == (0, 4)
    await world.crash()
    other = world.send(2, version=9)
    again = world.send(3, version=9)
    await world.settle()
    assert other.error is ErrorCode.INVALID_TXN_STATE
    assert (again.error, again.base_offset) == (0, 4)


async def test_sequence_zero_after_every_tv2_transaction(world, autojump_clock):
    """Nobody known, and not the first: the question is not even asked (KAFKA-18202)."""
    odd = world.send(3)
    await world.settle()
    assert odd.error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert not world.verifier.asked
    assert world.send(0).error == 0


async def test_a_lower_epoch_is_refused_while_a_higher_one_asks(world, autojump_clock):
    world.verifier.answer = None
    older = world.send(0, epoch=1)
    newer = world.send(0, epoch=2)
    assert older.error is ErrorCode.INVALID_PRODUCER_EPOCH
    assert world.send(1, epoch=1).error is ErrorCode.INVALID_PRODUCER_EPOCH
    world.verifier.tell(ErrorCode.PRODUCER_FENCED)  # about the older one: nobody waits
    assert not newer.finished_count
    world.verifier.tell()
    await world.settle()
    assert (newer.error, newer.base_offset) == (0, 0)


async def test_who_uses_a_producers_id_under_another_name_is_refused_alone(world, autojump_clock):
    """INVALID_PRODUCER_ID_MAPPING ends a producer for good."""
    world.verifier.answer = None
    strangers = [world.send(sequence, name="stranger") for sequence in range(2)]
    asking, origin = [], Origin("id", 12)
    world.log.ask_transaction(origin, 7, 0, asking.append)
    other = world.send(0, name="another")
    own = [world.send(sequence) for sequence in range(2)]
    room = world.shared.parking
    assert room.bytes == sum(len(each.records) for each in (*strangers, other, *own))
    world.verifier.tell(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    assert [each.error for each in strangers] == [ErrorCode.INVALID_PRODUCER_ID_MAPPING] * 2
    assert room.bytes == sum(len(each.records) for each in (other, *own))
    assert [each[0] for each in world.verifier.asked] == ["stranger", "id"]
    assert not asking
    assert not any(each.finished_count for each in (other, *own))
    world.verifier.tell(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert asking == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert [each.error for each in own] == [ErrorCode.NOT_ENOUGH_REPLICAS] * 2
    assert [each[0] for each in world.verifier.asked] == ["stranger", "id", "another"]
    again = world.send(0)
    world.verifier.tell(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    assert other.error is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    world.verifier.tell()
    await world.settle()
    assert (again.error, again.base_offset) == (0, 0)
    assert room.bytes == 0


async def test_data_outside_of_the_open_transaction(world, autojump_clock):
    world.send(0)
    await world.settle()
    outside = world.send(1, transactional=False)
    await world.settle()
    assert outside.error is ErrorCode.INVALID_TXN_STATE


async def test_without_coordinators_or_without_a_name(world, autojump_clock):
    world.log.transactions.gate, gate = None, world.log.transactions.gate
    assert world.send(0).error is ErrorCode.INVALID_TXN_STATE
    world.log.transactions.gate = gate
    assert world.send(0, is_named=False).error is (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    assert world.log.next_offset == 0
    assert not world.verifier.asked


@pytest.mark.parametrize("how", ["crash", "restart"])
async def test_an_open_transaction_is_not_asked_about_again(world, how, autojump_clock):
    """By the next owner, who knows it of the snapshot and the log."""
    world.send(0)
    await world.settle()
    await getattr(world, how)()
    after = world.send(1)
    await world.settle()
    assert (after.error, after.base_offset) == (0, 1)
    assert len(world.verifier.asked) == 1


@pytest.mark.parametrize(
    ("error", "version", "told"),
    [
        *[(code, version, 19) for code in (14, 15, 16, 13) for version in (9, 12)],
        (90, 9, 47), (90, 12, 47), (120, 11, 120), (120, 10, 48),
        (51, 11, 19), (51, 12, 51), (48, 9, 48), (49, 12, 49), (3, 12, 3), (53, 12, 53),
    ],
)  # fmt: skip
def test_what_a_producer_is_told(error, version, told):
    assert produce_error(ErrorCode(error), version) == told


# --- a producer that pipelines


async def in_log(world):
    """Three batches of a transaction that is committed: the producer is known, 3 is next."""
    for sequence in range(3):
        world.send(sequence, version=9)
    await world.settle()
    world.end(commit=True)
    await world.settle()


@pytest.mark.parametrize(("error", "told"), [(90, 47), (16, 19), (120, 48)])
async def test_what_was_behind_one_that_the_coordinator_refused(world, error, told, autojump_clock):
    """As in Kafka, that asks before it looks at the sequence: all on their way hear the same, the
    one that comes after the answer, too. OUT_OF_ORDER_SEQUENCE_NUMBER would be a second fault."""
    await in_log(world)
    world.verifier.answer = None
    parked = [world.send(sequence, version=9) for sequence in (3, 4)]
    world.verifier.tell(ErrorCode(error))
    late = world.send(5, version=9)
    assert not late.finished_count
    world.verifier.tell(ErrorCode(error))
    assert [each.error for each in [*parked, late]] == [told] * 3
    world.verifier.answer = ErrorCode.NONE
    overtaking = world.send(5, version=9)
    await world.settle()
    assert overtaking.error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    again = [world.send(sequence, version=9) for sequence in (3, 4, 5)]
    await world.settle()
    assert [each.error for each in again] == [0, 0, 0]


async def test_a_void_word_is_told_before_the_sequence(world, autojump_clock):
    """Kafka's order: what is behind one that its transaction's end has made void is void, too."""
    await in_log(world)
    world.verifier.answer = None
    parked = [world.send(sequence, version=9) for sequence in (3, 4)]
    world.end(commit=False)
    late = world.send(5, version=9)
    world.verifier.tell()  # of the question that is void
    world.verifier.tell(ErrorCode.INVALID_TXN_STATE)
    await world.settle()
    assert [each.error for each in [*parked, late]] == [ErrorCode.INVALID_TXN_STATE] * 3


async def test_what_is_over_is_not_asked_about(world, autojump_clock):
    await in_log(world)
    asked = len(world.verifier.asked)
    again = world.send(1, version=9)
    world.end(commit=False, epoch=1)
    late = world.send(3, version=9)
    await world.settle()
    assert again.error is ErrorCode.INVALID_TXN_STATE
    assert late.error is ErrorCode.INVALID_PRODUCER_EPOCH
    assert len(world.verifier.asked) == asked


async def test_what_is_smaller_does_not_overtake_what_found_no_place(world, autojump_clock):
    world.verifier.answer = None
    first = world.send(0, size=PARKED_BYTES_MAX // 2)
    large = world.send(1, size=PARKED_BYTES_MAX)
    small = world.send(2)
    world.verifier.tell()
    await world.settle()
    assert (first.error, large.error, small.error) == (0, 19, 19)
    again = [world.send(1), world.send(2)]
    await world.settle()
    assert [each.error for each in again] == [0, 0]


@pytest.mark.parametrize("transactional", [True, False])
async def test_without_bookies_all_on_their_way_come_again(world, transactional, autojump_clock):
    """What is behind one that was refused so is refused so, and not as out of order."""
    world.send(0, transactional=transactional)
    await world.settle()
    await world.roll()
    world.log.is_suspended = True
    refused = [world.send(sequence, transactional=transactional) for sequence in (1, 2, 3)]
    assert [each.error for each in refused] == [ErrorCode.NOT_ENOUGH_REPLICAS] * 3
    world.log.is_suspended = False
    again = [world.send(sequence, transactional=transactional) for sequence in (1, 2, 3)]
    await world.settle()
    assert [each.error for each in again] == [0, 0, 0]
