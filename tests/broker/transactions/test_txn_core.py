"""Scenarios of one transactional id, by Kafka's rules; the tables of EndTxn are in test_end_txn,
those of states in test_transitions, crashes in test_txn_core_crashes."""

from __future__ import annotations

import pytest

from broker.transactions import txn_core
from broker.transactions.types import (
    EPOCH_EXHAUSTED,
    TV1,
    TV2,
    MarkerPace,
    Transaction,
    TxnState,
)
from tests.broker.transactions.conftest import T0, P, TxnDriver, in_state
from wire.kafka.errors import ErrorCode as E

S = TxnState
RESTING = (S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT)
ENDING = (S.PREPARE_COMMIT, S.PREPARE_ABORT)


def ids(result):
    return result.producer_id, result.epoch


def started(driver, version=TV2):
    """A producer with an open transaction; its id and epoch."""
    producer = ids(driver.init())
    assert driver.add(*producer, version=version).error is E.NONE
    return producer


# --- InitProducerId


def test_a_new_id_gets_a_producer_id_and_epoch_0():
    driver = TxnDriver()
    assert ids(driver.init(timeout_ms=7_000)) == (1000, 0)
    (stored,) = driver.stored
    assert (stored.state, stored.partitions, stored.started_ms) == (S.EMPTY, frozenset(), -1)
    assert (stored.timeout_ms, stored.updated_ms) == (7_000, T0)


def test_a_new_id_takes_whoever_names_another_producer_id():
    """A producer whose id was forgotten goes on (its id and epoch vouch for nothing)."""
    assert ids(TxnDriver().init(55, 3)) == (1000, 0)


@pytest.mark.parametrize("state", RESTING)
def test_init_while_nothing_is_open(state):
    driver = in_state(state)
    driver.auto_store = True
    assert ids(driver.init()) == (7, 6)
    assert driver.txn.state is S.EMPTY
    assert driver.stored[-1].partitions == frozenset()
    # Who named nobody is not told the same again: it asked for itself.
    assert driver.init(7, 5).error is E.PRODUCER_FENCED


@pytest.mark.parametrize("state", RESTING)
def test_init_of_a_producer_that_goes_on_and_its_retry(state):
    driver = in_state(state)
    driver.auto_store = True
    assert ids(driver.init(7, 5)) == (7, 6)
    assert ids(driver.init(7, 5)) == (7, 6)
    assert ids(driver.init(7, 6)) == (7, 7)
    assert driver.init(7, 5).error is E.PRODUCER_FENCED
    # What the retry is known by is not stored.
    assert driver.reload().init(7, 6).error is E.PRODUCER_FENCED
    assert ids(driver.reload().init(7, 7)) == (7, 8)


@pytest.mark.parametrize("state", [*RESTING, S.ONGOING])
@pytest.mark.parametrize("who", [(8, 5), (7, 4), (7, 6), (7, 3), (8, 0)])
def test_init_of_somebody_else_is_fenced(state, who):
    driver = in_state(state)
    before = driver.txn.snapshot()
    assert driver.init(*who).error is E.PRODUCER_FENCED
    assert driver.last[1], "a final answer from memory"
    assert driver.txn.snapshot() == before, "and nobody's transaction is aborted for it"


def test_init_that_comes_late_aborts_nobodys_transaction():
    """The producer asked twice, and went on with the first answer it heard."""
    driver = TxnDriver()
    producer_id, epoch = ids(driver.init())
    later = ids(driver.init(producer_id, epoch))
    driver.add(*later)
    assert driver.init(producer_id, epoch).error is E.PRODUCER_FENCED
    assert driver.txn.state is S.ONGOING
    assert driver.end(*later, True).error is E.NONE


@pytest.mark.parametrize("state", ENDING)
def test_init_while_a_transaction_ends_waits(state):
    for who in ((-1, -1), (7, 5), (8, 3)):
        driver = in_state(state)
        assert driver.init(*who).error is E.CONCURRENT_TRANSACTIONS
        assert driver.last == (driver.last[0], False)


def test_init_while_something_is_on_its_way_waits():
    for state in S:
        driver = in_state(state)
        driver.txn.pending = 1
        assert driver.init(8, 3).error is E.CONCURRENT_TRANSACTIONS


@pytest.mark.parametrize("server_version", [TV1, TV2])
def test_init_pid_while_ongoing_51_then_single_bump(server_version):
    driver = in_state(S.ONGOING)
    driver.server_version = server_version
    assert driver.init() is None, "not before the abort is stored"
    driver.store()
    assert driver.last[0].error is E.CONCURRENT_TRANSACTIONS
    assert (driver.txn.state, driver.txn.epoch) == (S.PREPARE_ABORT, 6)
    (markers,) = driver.marks
    assert (markers.epoch, markers.is_commit, markers.version) == (6, False, server_version)
    assert driver.init().error is E.CONCURRENT_TRANSACTIONS
    driver.mark()
    driver.store()
    driver.init()
    driver.store()
    assert ids(driver.last[0]) == (7, 7)


def test_two_producers_one_id_older_fenced_90_and_47():
    driver = TxnDriver()
    old = started(driver)
    assert driver.init().error is E.CONCURRENT_TRANSACTIONS
    new = ids(driver.init())
    assert new == (old[0], old[1] + 2)
    assert driver.marks[-1].epoch == old[1] + 1, "its partitions refuse it as well"
    for answer in (
        driver.add(*old),
        driver.verify(*old),
        driver.end(*old, True),
        driver.end(*old, False, TV1),
        driver.init(*old),
    ):
        assert answer.error is E.PRODUCER_FENCED
    assert driver.add(*new).error is E.NONE
    assert driver.init(*old).error is E.PRODUCER_FENCED


# --- AddPartitionsToTxn, AddOffsetsToTxn


@pytest.mark.parametrize("state", RESTING)
@pytest.mark.parametrize("version", [TV1, TV2])
def test_the_first_partitions_begin_a_transaction(state, version):
    driver = in_state(state, started_ms=-1)
    driver.now_ms += 10
    assert driver.add(7, 5, version=version) is None
    assert driver.timer_ms == T0 + 10 + 60_000 + 1
    driver.store()
    assert driver.last == (driver.last[0], False)
    stored = driver.stored[-1]
    assert (stored.state, stored.partitions, stored.version) == (S.ONGOING, P, version)
    assert stored.started_ms == stored.updated_ms == T0 + 10


def test_later_partitions_do_not_begin_it_anew():
    driver = in_state(S.ONGOING)
    driver.now_ms += 10
    driver.add(7, 5, {("v", 1)}, version=TV1)
    assert driver.timer_ms is None
    driver.store()
    stored = driver.stored[-1]
    assert stored.partitions == P | {("v", 1)}
    assert (stored.started_ms, stored.updated_ms, stored.version) == (T0, T0 + 10, TV1)


def test_what_is_in_already_needs_no_record_but_the_barrier():
    driver = in_state(S.ONGOING)
    assert driver.add(7, 5, {("t", 0)}).error is E.NONE
    assert driver.last[1]
    assert not driver.unstored


@pytest.mark.parametrize("version", [TV1, TV2])
def test_partitions_may_be_added_while_others_are_on_their_way(version):
    driver = in_state(S.EMPTY)
    driver.add(7, 5, {("t", 0)}, version=version)
    driver.add(7, 5, {("t", 1)}, version=version)
    assert not driver.answers
    assert driver.end(7, 5, True, version).error is E.CONCURRENT_TRANSACTIONS
    driver.store()
    assert driver.answers.keys() == {1, 3}
    driver.store()
    assert driver.answers.keys() == {1, 2, 3}
    assert driver.stored[-1].partitions == {("t", 0), ("t", 1)}


def test_the_next_transaction_begins_while_complete_is_on_its_way():
    driver = in_state(S.PREPARE_COMMIT)
    driver.start()
    driver.mark()
    assert driver.txn.state is S.COMPLETE_COMMIT
    assert driver.end(7, 4, True).error is E.CONCURRENT_TRANSACTIONS
    assert driver.add(7, 5, {("n", 0)}) is None
    driver.store()
    driver.store()
    assert [each.state for each in driver.stored[-2:]] == [S.COMPLETE_COMMIT, S.ONGOING]
    assert driver.stored[-1].partitions == {("n", 0)}


@pytest.mark.parametrize("ask", ["add", "verify"])
def test_who_may_not_add(ask):
    for state in (*RESTING, S.ONGOING):
        for who, error in (
            ((8, 5), E.INVALID_PRODUCER_ID_MAPPING),
            ((7, 4), E.PRODUCER_FENCED),
            ((7, 6), E.PRODUCER_FENCED),
        ):
            driver = in_state(state)
            assert getattr(driver, ask)(*who).error is error
            assert driver.last[1]
    for state in ENDING:
        for who in ((7, 5), (7, 4), (8, 0)):
            driver = in_state(state)
            assert getattr(driver, ask)(*who).error is E.CONCURRENT_TRANSACTIONS
            assert not driver.last[1]
    unknown = TxnDriver()
    assert getattr(unknown, ask)(7, 5).error is E.INVALID_PRODUCER_ID_MAPPING
    assert unknown.last[1]


def test_verify():
    driver = in_state(S.ONGOING)
    driver.txn.pending = 1  # makes nobody wait
    assert driver.verify(7, 5).missing == frozenset()
    assert driver.verify(7, 5, {("t", 0), ("t", 9)}).missing == {("t", 9)}
    assert driver.last[1]
    for state in RESTING:
        assert in_state(state).verify(7, 5).missing == P
    assert not driver.unstored


# --- EndTxn


@pytest.mark.parametrize("version", [TV1, TV2])
@pytest.mark.parametrize("is_commit", [True, False])
def test_a_transaction(version, is_commit):
    driver = TxnDriver()
    producer_id, epoch = started(driver, version)
    after = ids(driver.end(producer_id, epoch, is_commit, version))
    assert after == (producer_id, epoch + (version == TV2))
    (markers,) = driver.marks
    assert (markers.producer_id, markers.epoch) == after
    assert (markers.is_commit, markers.partitions, markers.version) == (is_commit, P, version)
    prepare, complete = driver.stored[-2:]
    assert prepare.state is (S.PREPARE_COMMIT if is_commit else S.PREPARE_ABORT)
    assert prepare.partitions == P
    assert complete.state is (S.COMPLETE_COMMIT if is_commit else S.COMPLETE_ABORT)
    assert complete.partitions == frozenset()
    assert complete.started_ms == prepare.started_ms == T0
    assert driver.add(*after, version=version).error is E.NONE


def test_markers_leave_only_when_the_decision_is_stored():
    driver = in_state(S.ONGOING)
    driver.end(7, 5, True)
    assert (driver.marks, driver.answers) == ([], {})
    driver.store()
    assert driver.marks
    assert driver.answers
    assert not driver.unstored, "and the end is not stored before the markers are written"


def test_endtxn_v5_retry_returns_same_epoch():
    driver = in_state(S.ONGOING)
    driver.end(7, 5, True)
    assert driver.end(7, 5, True).error is E.CONCURRENT_TRANSACTIONS
    driver.store()
    assert driver.end(7, 5, True).error is E.CONCURRENT_TRANSACTIONS
    driver.mark()
    assert driver.end(7, 5, True).error is E.CONCURRENT_TRANSACTIONS
    driver.store()
    assert ids(driver.end(7, 5, True)) == (7, 6)
    assert driver.last[1], "a decision of long ago, from memory"
    again = driver.reload()
    assert ids(again.end(7, 5, True)) == (7, 6)


def test_endtxn_v5_abort_retry_after_commit_is_48():
    driver = TxnDriver()
    producer_id, epoch = started(driver)
    driver.end(producer_id, epoch, True)
    assert driver.end(producer_id, epoch, False).error is E.INVALID_TXN_STATE
    assert driver.end(producer_id, epoch + 1, True).error is E.INVALID_TXN_STATE


def test_empty_abort_bumps_then_commit_48():
    driver = TxnDriver()
    producer_id, epoch = ids(driver.init())
    driver.now_ms += 10
    for _ in range(3):
        assert ids(driver.end(producer_id, epoch, False)) == (producer_id, epoch + 1)
        assert not driver.marks
        prepare, complete = driver.stored[-2:]
        assert (prepare.state, complete.state) == (S.PREPARE_ABORT, S.COMPLETE_ABORT)
        assert prepare.partitions == frozenset()
        assert prepare.started_ms == T0 + 10
        epoch += 1
        assert driver.end(producer_id, epoch, True).error is E.INVALID_TXN_STATE
    assert driver.end(producer_id, epoch, False, TV1).error is E.NONE  # done: aborted already


# --- epochs run out


def exhausted(version=TV2):
    driver = in_state(S.ONGOING, epoch=EPOCH_EXHAUSTED)
    driver.auto_store = driver.auto_mark = True
    driver.server_version = version
    return driver


@pytest.mark.parametrize("is_commit", [True, False])
def test_epoch_overflow_rotates_pid_commit_abort_fence_timeout(is_commit):
    driver = exhausted()
    assert ids(driver.end(7, EPOCH_EXHAUSTED, is_commit)) == (1000, 0)
    (markers,) = driver.marks
    assert (markers.producer_id, markers.epoch) == (7, 32_767)
    prepare, complete = driver.stored[-2:]
    assert (prepare.producer_id, prepare.next_producer_id, prepare.epoch) == (7, 1000, 32_767)
    assert (complete.producer_id, complete.epoch, complete.previous_producer_id) == (1000, 0, 7)
    assert complete.next_producer_id == -1
    assert ids(driver.end(7, EPOCH_EXHAUSTED, is_commit)) == (1000, 0)
    assert ids(driver.init(7, EPOCH_EXHAUSTED)) == (1000, 0)
    assert driver.add(1000, 0).error is E.NONE


@pytest.mark.parametrize("version", [TV1, TV2])
@pytest.mark.parametrize("how", ["fenced", "took too long"])
def test_epoch_overflow_of_a_fence(version, how):
    driver = exhausted(version)
    if how == "fenced":
        assert driver.init().error is E.CONCURRENT_TRANSACTIONS
    else:
        driver.tick(60_001)
    (markers,) = driver.marks
    assert (markers.producer_id, markers.epoch, markers.version) == (7, 32_767, version)
    again = driver.init()
    assert ids(again) == ((1000, 1) if version == TV2 else (1000, 0))
    assert again.epoch != 32_767


def test_epoch_overflow_of_init():
    for who, retry in (((-1, -1), E.PRODUCER_FENCED), ((7, EPOCH_EXHAUSTED), E.NONE)):
        driver = in_state(S.EMPTY, epoch=EPOCH_EXHAUSTED)
        driver.auto_store = True
        assert ids(driver.init(*who)) == (1000, 0)
        assert driver.txn.previous_producer_id == 7
        assert driver.init(7, EPOCH_EXHAUSTED).error is retry
        assert driver.init(7, EPOCH_EXHAUSTED - 1).error is E.PRODUCER_FENCED
    driver = in_state(S.EMPTY, epoch=EPOCH_EXHAUSTED)
    assert driver.init(7, 3).error is E.PRODUCER_FENCED
    driver = in_state(S.EMPTY, epoch=EPOCH_EXHAUSTED - 1)
    driver.auto_store = True
    assert ids(driver.init()) == (7, EPOCH_EXHAUSTED), "the last one that is given out"


def test_overflow_then_coordinator_moves_before_complete():
    driver = exhausted()
    driver.auto_mark = False
    assert ids(driver.end(7, EPOCH_EXHAUSTED, True)) == (1000, 0)
    other = driver.reload()
    other.auto_mark = False
    other.start()
    assert other.end(1000, 0, False).error is E.CONCURRENT_TRANSACTIONS
    assert other.end(7, EPOCH_EXHAUSTED, True).error is E.CONCURRENT_TRANSACTIONS
    assert other.add(1000, 0).error is E.CONCURRENT_TRANSACTIONS
    other.mark()
    third = other.reload()
    assert ids(third.end(7, EPOCH_EXHAUSTED, True)) == (1000, 0)
    assert third.add(1000, 0).error is E.NONE


# --- transactions that take too long


def test_timeout_aborts_tv1_fatal_tv2_recovers():
    """What the producer is told depends on the server's version, whatever its own."""
    answers = {}
    for server_version in (TV1, TV2):
        driver = TxnDriver(server_version=server_version)
        producer_id, epoch = started(driver)
        driver.tick(60_000)
        assert driver.txn.state is S.ONGOING, "not longer than it may"
        driver.tick(1)
        assert (driver.txn.state, driver.txn.epoch) == (S.COMPLETE_ABORT, epoch + 1)
        assert driver.marks[-1].version == driver.stored[-1].version == server_version
        assert driver.marks[-1].epoch == epoch + 1
        assert driver.add(producer_id, epoch).error is E.PRODUCER_FENCED
        assert driver.end(producer_id, epoch, False, TV1).error is E.PRODUCER_FENCED
        answers[server_version] = [
            driver.end(producer_id, epoch, False),
            driver.end(producer_id, epoch, True),
            driver.init(producer_id, epoch),
        ]
    assert [each.error for each in answers[TV1]] == [E.PRODUCER_FENCED] * 3
    assert [each.error for each in answers[TV2]] == [E.NONE, E.INVALID_TXN_STATE, E.NONE]
    assert ids(answers[TV2][0]) == ids(answers[TV2][2]) == (1000, 1)


def test_a_timer_that_comes_early_or_late_does_no_harm():
    for state in (*RESTING, *ENDING):
        driver = in_state(state, started_ms=0)
        driver.tick(10**9)
        assert (driver.unstored, driver.timer_ms) == ([], None)
    driver = in_state(S.ONGOING)
    driver.tick()
    assert driver.timer_ms == T0 + 60_001
    driver.txn.pending = 1
    driver.tick(60_001)
    assert driver.timer_ms == driver.now_ms + txn_core.BUSY_MS
    assert not driver.unstored


# --- records that are not stored


@pytest.mark.parametrize("what", ["init", "add", "end", "fence", "timeout", "complete"])
def test_a_record_that_is_refused_lets_everything_be_loaded_anew(what):
    driver = in_state({"init": S.EMPTY, "complete": S.PREPARE_COMMIT}.get(what, S.ONGOING))
    match what:
        case "init" | "fence":
            driver.init()
        case "add":
            driver.add(7, 5, {("new", 0)})
        case "end":
            driver.end(7, 5, True)
        case "timeout":
            driver.tick(60_001)
        case "complete":
            driver.start()
            driver.mark()
    before = driver.stored[-1]
    sent = len(driver.marks)
    driver.store(E.COORDINATOR_NOT_AVAILABLE)
    assert driver.forgotten == 1
    if what in ("timeout", "complete"):
        assert not driver.answers
    else:
        assert driver.last[0].error is E.COORDINATOR_NOT_AVAILABLE
    assert len(driver.marks) == sent, "no marker for what is not decided"
    assert driver.reload().txn.snapshot() == before
    assert driver.txn.pending == 0


# --- markers


def test_markers_are_counted_by_partition_not_by_answer():
    driver = in_state(S.PREPARE_COMMIT)
    driver.start()
    (markers,) = driver.unmarked
    for _ in range(3):
        driver.apply(txn_core.marked(driver.txn, markers.round_id, {("t", 0): E.NONE}, T0))
    driver.apply(txn_core.marked(driver.txn, markers.round_id, {("else", 0): E.NONE}, T0))
    assert driver.txn.state is S.PREPARE_COMMIT
    driver.apply(txn_core.marked(driver.txn, markers.round_id, {("u", 3): E.NONE}, T0))
    driver.apply(txn_core.marked(driver.txn, markers.round_id, {("u", 3): E.NONE}, T0))
    assert driver.txn.state is S.COMPLETE_COMMIT
    assert len(driver.unstored) == 1, "and it is complete once"


def test_a_partition_that_has_its_marker_is_not_told_again():
    driver = in_state(S.PREPARE_COMMIT)
    driver.start()
    markers = driver.unmarked.pop()
    for error in (E.NONE, E.NETWORK_EXCEPTION):
        driver.apply(txn_core.marked(driver.txn, markers.round_id, {("t", 0): error}, T0))
    assert driver.unmarked == []


def test_answers_to_markers_of_another_transaction_do_not_count():
    driver = in_state(S.PREPARE_ABORT)
    driver.auto_store = True
    driver.start()
    old = driver.unmarked[0]
    driver.mark()
    driver.add(7, 5)
    driver.end(7, 5, True)
    driver.apply(txn_core.marked(driver.txn, old.round_id, dict.fromkeys(P, E.NONE), T0))
    assert driver.txn.state is S.PREPARE_COMMIT


@pytest.mark.parametrize(
    "error",
    [
        E.UNKNOWN_TOPIC_OR_PARTITION, E.NOT_LEADER_OR_FOLLOWER, E.REQUEST_TIMED_OUT,
        E.NOT_ENOUGH_REPLICAS, E.NOT_ENOUGH_REPLICAS_AFTER_APPEND, E.KAFKA_STORAGE_ERROR,
        E.NETWORK_EXCEPTION,
    ],
)  # fmt: skip
def test_what_passes_is_tried_again_there_and_only_there(error):
    driver = in_state(S.PREPARE_COMMIT)
    driver.start()
    first = driver.unmarked.pop()
    results = {("t", 0): error, ("u", 3): E.NONE}
    driver.apply(txn_core.marked(driver.txn, first.round_id, results, T0))
    (again,) = driver.unmarked
    assert again.partitions == {("t", 0)}
    assert (again.pace, again.round_id) == (MarkerPace.AGAIN, first.round_id)
    assert (again.epoch, again.is_commit) == (first.epoch, first.is_commit)
    driver.mark()
    assert driver.txn.state is S.COMPLETE_COMMIT


@pytest.mark.parametrize("error", [E.INVALID_PRODUCER_EPOCH, E.TRANSACTION_COORDINATOR_FENCED])
def test_zombie_coordinator_marker_52(error):
    """Somebody newer decides, unless it is shown that there is none."""
    driver = in_state(S.PREPARE_COMMIT)
    driver.start()
    driver.mark(error)
    (again,) = driver.unmarked
    assert again.pace is MarkerPace.DOUBTED
    assert driver.txn.state is S.PREPARE_COMMIT


def test_a_partition_that_takes_no_markers_has_none_to_take():
    driver = in_state(S.PREPARE_COMMIT)
    driver.start()
    driver.mark(E.UNSUPPORTED_FOR_MESSAGE_FORMAT)
    assert driver.txn.state is S.COMPLETE_COMMIT


# --- loads, expiry


@pytest.mark.parametrize("version", [TV1, TV2])
@pytest.mark.parametrize("state", ENDING)
def test_what_was_decided_is_told_again_after_a_load(state, version):
    driver = in_state(state, version=version)
    driver.auto_store = driver.auto_mark = True
    driver.now_ms += 5
    driver.start()
    (markers,) = driver.marks
    assert markers.is_commit == (state is S.PREPARE_COMMIT)
    assert (markers.producer_id, markers.epoch, markers.version) == (7, 5, version)
    assert markers.partitions == P
    assert driver.txn.state in RESTING
    assert driver.stored[-1].updated_ms == T0 + 5


def test_what_is_open_has_its_time_after_a_load():
    assert in_state(S.ONGOING, started_ms=T0 - 9).start().timer_ms == T0 - 9 + 60_001
    for state in RESTING:
        driver = in_state(state).start()
        assert (driver.timer_ms, driver.marks, driver.unstored) == (None, [], [])


def test_an_empty_abort_is_completed_after_a_load():
    driver = in_state(S.PREPARE_ABORT, partitions=frozenset()).start()
    assert driver.txn.state is S.COMPLETE_ABORT
    assert driver.unstored


@pytest.mark.parametrize("state", S)
def test_transactional_id_expires(state):
    txn = in_state(state).txn
    assert not txn_core.is_expired(txn, T0 + 999, 1_000)
    assert txn_core.is_expired(txn, T0 + 1_000, 1_000) == (state in RESTING)
    txn.pending = 1
    assert not txn_core.is_expired(txn, T0 + 1_000, 1_000)


def test_an_id_that_never_was_given_an_epoch_expires_too():
    txn = Transaction("id", updated_ms=T0)
    assert txn_core.is_expired(txn, T0 + 1_000, 1_000)


# --- clients of both versions, and what comes late


def test_mixed_tv1_and_tv2_clients_on_one_id():
    driver = TxnDriver()
    old = started(driver, TV1)
    assert ids(driver.end(*old, True, TV1)) == old
    assert driver.marks[-1].epoch == old[1]
    # The same producer, upgraded between transactions.
    driver.add(*old, version=TV2)
    new = ids(driver.end(*old, True, TV2))
    assert new == (old[0], old[1] + 1)
    assert driver.add(*old, version=TV1).error is E.PRODUCER_FENCED
    # And back.
    driver.add(*new, version=TV1)
    assert ids(driver.end(*new, False, TV1)) == new
    assert driver.end(*old, False).error is E.PRODUCER_FENCED
    # Added by one, ended by the other.
    driver.add(*new, version=TV1)
    newer = ids(driver.end(*new, False, TV2))
    assert newer == (new[0], new[1] + 1)
    assert driver.marks[-1].version == TV2


def test_delayed_endtxn_jepsen():
    """An EndTxn is held up, the next transaction begins, then it comes. Version 1 cannot tell; with
    version 2 it is refused."""
    driver = TxnDriver()
    producer_id, epoch = started(driver)
    driver.end(producer_id, epoch, True)
    driver.add(producer_id, epoch + 1)
    for is_commit in (True, False):
        assert driver.end(producer_id, epoch, is_commit).error is E.PRODUCER_FENCED
    assert driver.txn.state is S.ONGOING
    # Aborted by the server meanwhile: a late commit does not come through as one.
    driver.tick(60_001)
    assert driver.end(producer_id, epoch + 1, True).error is E.INVALID_TXN_STATE


def test_sequence_zero_after_every_tv2_transaction():
    """A partition starts at sequence 0 with each epoch: so none may come twice."""
    driver = TxnDriver()
    producer = ids(driver.init())
    seen = {producer}
    for turn in range(200):
        if turn % 3:
            driver.add(*producer)
        producer = ids(driver.end(*producer, is_commit=turn % 3 == 1))
        assert producer not in seen
        seen.add(producer)


def test_a_start_that_comes_late_tells_nothing_twice():
    """Of very many that were loaded; meanwhile requests were served."""
    driver = in_state(S.ONGOING)
    driver.end(7, 5, True)
    assert txn_core.start(driver.txn, driver.now_ms) == []
    driver.store()
    assert len(driver.marks) == 1
    assert txn_core.start(driver.txn, driver.now_ms) == []


@pytest.mark.parametrize("how", ["add", "end"])
def test_the_last_epoch_is_for_markers_alone(how):
    """Of a fence by a server of version 1, after which the epoch stays until somebody begins."""
    driver = exhausted(TV1)
    driver.tick(60_001)
    assert (driver.txn.state, driver.txn.epoch) == (S.COMPLETE_ABORT, 32_767)
    driver.server_version = TV2
    if how == "add":
        assert driver.add(7, 32_767).error is E.PRODUCER_FENCED
        driver.tick(60_001)
    else:
        assert driver.end(7, 32_767, False).error is E.PRODUCER_FENCED
    assert ids(driver.init()) == (1000, 0)


def test_a_transaction_of_the_future_has_its_time():
    """Its coordinator's clock was an hour ahead."""
    driver = in_state(S.ONGOING, started_ms=T0 + 3_600_000)
    driver.auto_store = driver.auto_mark = True
    driver.start()
    assert driver.timer_ms == T0 + 60_001
    driver.tick(60_001)
    assert driver.txn.state is S.COMPLETE_ABORT
