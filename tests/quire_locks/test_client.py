"""The client: conflicts are decided anew, lost answers are found out by reading back, and positions
move with the data."""

import dataclasses
import math
import random
import sqlite3
import struct
import threading
import time

import pytest

from quire_locks import (
    Answer,
    Client,
    DeadlineError,
    Draft,
    HistoryGoneError,
    LocksError,
    LogRecord,
    NotTakenError,
    OtherLogError,
    Outcome,
    Settings,
    SqliteStore,
    TooBusyError,
    TransactionContext,
)
from quire_locks import client as client_module
from quire_locks.progress import Pending, Progress
from quire_locks.transport import Fetched
from tests.quire_locks.conftest import (
    ACCOUNTS,
    START,
    MemoryLog,
    MemoryTransport,
    Transfer,
    apply,
    look,
)

QUICK = Settings(poll_seconds=0.01, deadline_seconds=20)


@pytest.fixture
def log():
    return MemoryLog()


@pytest.fixture
def connect(log, bank):
    """connect(path, on_send) -> a client of the bank, closed at the end."""
    clients = []

    def make(path=None, on_send=lambda times: None, function=apply, settings=QUICK):
        transport = MemoryTransport(log, on_send)
        store = SqliteStore(bank() if path is None else path)
        clients.append(Client(transport, store, function, settings=settings))
        return clients[-1]

    yield make
    for one in clients:
        one.close()


def test_a_transaction_is_applied_before_it_is_over(connect, bank, log):
    path = bank()
    context = Transfer(0, 1, 30)
    done = connect(path).submit(context).result(20)
    assert (done.is_done, done.offset, done.attempts) == (True, 0, 1)
    assert context.told == [done]
    assert dict(look(path))[0] == START - 30
    assert len(log.records) == 1


def test_who_has_nothing_to_do_writes_nothing(connect, log):
    done = connect().submit(Transfer(0, 1, START + 1)).result(20)
    assert not done.is_done
    assert log.records == []


def test_what_was_decided_by_an_old_state_is_decided_anew(connect, bank, log):
    """Two transfers of 80 from an account with 100: one of them finds too little in the end."""
    one, two = connect(bank("one")), connect(bank("two"))
    contexts = [Transfer(0, 1, 80), Transfer(0, 2, 80)]
    futures = [client.submit(context) for client, context in zip((one, two), contexts, strict=True)]
    results = sorted(future.result(20).is_done for future in futures)
    assert results == [False, True]
    assert len(log.records) == 1


def test_a_bank_of_two_programs_never_has_too_little(connect, bank, log):
    paths = [bank("one"), bank("two")]
    clients = [connect(path) for path in paths]
    rng = random.Random(1)
    futures = []
    for n in range(120):
        source, target = rng.sample(range(ACCOUNTS), 2)
        futures.append(clients[n % 2].submit(Transfer(source, target, rng.randrange(1, 90))))
    done = [future.result(60) for future in futures]
    for client in clients:
        client.wait_applied(0)
    states = [dict(look(path)) for path in paths]
    assert states[0] == states[1]
    assert sum(states[0].values()) == ACCOUNTS * START
    assert min(states[0].values()) >= 0
    ids = [record.txn_id for record in log.records]
    assert len(set(ids)) == len(ids) == sum(one.is_done for one in done)
    assert sorted(one.offset for one in done if one.is_done) == list(range(len(ids)))


@pytest.mark.parametrize("lost", ["before", "after"])
def test_scenario_9_a_lost_answer_is_found_out(connect, log, lost):
    """Written or not: it is in the log once, and the program is told that it is."""
    client = connect(on_send=lambda times: lost if times == 1 else None)
    done = client.submit(Transfer(0, 1, 30)).result(20)
    assert (done.is_done, done.offset) == (True, 0)
    assert len(log.records) == 1


def test_without_a_write_lock_it_is_written_once_too(connect, log):
    class Deposit(TransactionContext):
        def execute(self, draft, db):
            draft.append_lock(b"sum")
            draft.value = bytes(12)
            return True

    client = connect(on_send=lambda times: "after" if times < 4 else None)
    assert client.submit(Deposit()).result(20).is_done
    assert len(log.records) == 1


def test_scenario_14_a_topic_that_was_made_anew_is_another(bank, log):
    path = bank()
    with Client(MemoryTransport(log), SqliteStore(path), apply, settings=QUICK) as client:
        client.submit(Transfer(0, 1, 1)).result(20)
    with pytest.raises(OtherLogError, match="id one"):
        Client(MemoryTransport(MemoryLog("two")), SqliteStore(path), apply)
    with pytest.raises(OtherLogError, match="is at 1, the log ends at 0"):
        Client(MemoryTransport(MemoryLog("one")), SqliteStore(path), apply)


def test_what_is_deleted_cannot_be_applied(bank, log):
    log.first = 3
    with pytest.raises(HistoryGoneError):
        Client(MemoryTransport(log), SqliteStore(bank()), apply)


def test_a_topic_without_locks_is_refused(bank, log):
    log.facts = log.facts.__class__("bank", "one", 1, "off", 64)
    with pytest.raises(LocksError, match=r"quire\.locks=off"):
        Client(MemoryTransport(log), SqliteStore(bank()), apply)


def test_scenario_22_two_programs_on_one_database(connect, bank, log):
    path = bank()
    clients = [connect(path), connect(path)]
    rng = random.Random(2)
    futures = [
        clients[n % 2].submit(Transfer(*rng.sample(range(ACCOUNTS), 2), rng.randrange(1, 60)))
        for n in range(60)
    ]
    done = [future.result(60).is_done for future in futures]
    assert sum(balance for _, balance in look(path)) == ACCOUNTS * START
    applied = look(path, "SELECT offset FROM done ORDER BY offset")
    assert applied == [(n,) for n in range(sum(done))] == [(n,) for n in range(len(log.records))]


def test_scenario_23_a_crash_applies_nothing_twice_and_loses_nothing(bank, log):
    """The program ends in the middle of the third record of a batch; what it had applied of it is
    rolled back with the position."""
    path = bank()
    with Client(MemoryTransport(log), SqliteStore(bank("other")), apply) as client:
        for n in range(4):
            client.submit(Transfer(n, n + 1, 10)).result(20)
    broken = []

    def breaks(db, record):
        if record.offset == 2 and not broken:
            broken.append(record)
            raise RuntimeError("ends here")
        apply(db, record)

    first = Client(MemoryTransport(log), SqliteStore(path), breaks, settings=QUICK)
    with pytest.raises(LocksError) as caught:
        first.wait_applied(0)
    assert "ends here" in str(caught.value.__cause__)
    first.close()
    assert look(path, "SELECT next_offset FROM quire_position") == [(0,)]
    with Client(MemoryTransport(log), SqliteStore(path), breaks, settings=QUICK) as second:
        second.wait_applied(0)
    assert len(look(path, "SELECT * FROM done")) == 4
    assert look(path) == look(bank("other"))


def test_a_deadline_tells_whether_it_may_be_written(connect, log):
    settings = Settings(poll_seconds=0.01, deadline_seconds=0.3)
    unheard = connect(on_send=lambda times: "before", settings=settings)
    with pytest.raises(DeadlineError) as caught:
        unheard.submit(Transfer(0, 1, 1)).result(20)
    assert caught.value.is_unknown


def test_who_lives_in_conflict_ends_at_his_deadline(connect, bank, log, monkeypatch):
    """Somebody writes the lock between each snapshot and send."""

    class Late(Transfer):
        def execute(self, draft, db):
            made = super().execute(draft, db)
            headers = draft.headers(len(log.records), b"rival")
            log.append(0, None, draft.value, headers)
            return made

    client = connect(settings=Settings(poll_seconds=0.01, deadline_seconds=0.5))
    with pytest.raises(DeadlineError) as caught:
        client.submit(Late(0, 1, 0)).result(20)
    assert not caught.value.is_unknown


def test_a_position_that_nobody_can_have_ends_it(connect, bank, log, monkeypatch):
    """The log lost its end while the program ran."""
    monkeypatch.setattr(client_module, "OLD_SECONDS", 0.1)
    client = connect()
    client.submit(Transfer(0, 1, 1)).result(20)
    with log.lock:
        log.records.clear()
    with pytest.raises(OtherLogError):
        client.submit(Transfer(0, 1, 1)).result(20)


def test_too_many_locks_are_told_at_once(connect, log):
    class Wide(TransactionContext):
        def execute(self, draft, db):
            for n in range(65):
                draft.read_lock(b"%d" % n)
            return True

    with pytest.raises(NotTakenError, match=r"max\.per\.record=64"):
        connect().submit(Wide()).result(20)


def test_back_pressure(connect, log):
    """Room is for what is submitted and not over."""

    class Slow(Transfer):
        def execute(self, draft, db):
            time.sleep(0.3)
            return False

    settings = Settings(poll_seconds=0.01, waiting_max=2)
    client = connect(settings=settings)
    futures = [client.submit(Slow(0, 1, 1)) for _ in range(2)]
    with pytest.raises(TooBusyError):
        client.submit(Slow(0, 1, 1), wait_seconds=0.01)
    assert client.submit(Slow(0, 1, 1), wait_seconds=10).result(20)
    assert [future.result(20).is_done for future in futures] == [False, False]


def test_what_execute_raises_is_the_callers(connect):
    class Bad(TransactionContext):
        def execute(self, draft, db):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        connect().submit(Bad()).result(20)


def test_a_partition_that_is_not_followed_is_refused(connect):
    context = Transfer(0, 1, 1)
    context.partition = 7
    with pytest.raises(LocksError, match="7"):
        connect().submit(context)


def test_nothing_is_submitted_to_a_closed_client(bank, log):
    client = Client(MemoryTransport(log), SqliteStore(bank()), apply, settings=QUICK)
    client.close()
    with pytest.raises(LocksError, match="closed"):
        client.submit(Transfer(0, 1, 1))


def test_a_database_that_went_back_is_followed_again(connect, bank, log):
    """As after a restore from a copy while the program runs."""
    path = bank()
    client = connect(path)
    for _ in range(2):
        client.submit(Transfer(0, 1, 1)).result(20)
    db = sqlite3.connect(path)
    with db:
        db.execute("UPDATE quire_position SET next_offset = 0")
        db.execute("UPDATE account SET balance = ?", (START,))
        db.execute("DELETE FROM done")
    db.close()
    assert client.submit(Transfer(2, 3, 1)).result(20).offset == 2
    assert [balance for _, balance in look(path)[:4]] == [
        START - 2,
        START + 2,
        START - 1,
        START + 1,
    ]
    assert len(look(path, "SELECT * FROM done")) == 3


class Scripted(MemoryTransport):
    """`answers`: functions of (log's append, the arguments of send), one for each send; none are
    left: the log's own answer. Nothing is read while `can_read` is not set."""

    def __init__(self, log, *answers):
        super().__init__(log)
        self.answers = list(answers)
        self.can_read = threading.Event()
        self.can_read.set()
        self.is_closed = False

    def poll(self, records_max, timeout_s):
        if not self.can_read.wait(timeout_s):
            return Fetched()
        return super().poll(records_max, timeout_s)

    def send(self, partition, key, value, headers, done):
        def append():
            return self.log.append(partition, key, value, headers)

        done(self.answers.pop(0)(append) if self.answers else append())

    def close(self):
        self.is_closed = True


def test_a_try_that_may_be_written_is_not_told_as_not_taken(bank, log):
    """The answer of the first is lost; the topic's max.message.bytes, or somebody's right to write,
    is less by the second. The record is in the log, and everybody applies it."""

    def lost(append):
        transport.can_read.clear()
        append()
        return Answer(Outcome.UNKNOWN)

    def too_large(_):
        transport.can_read.set()
        return Answer(Outcome.FAILED, text="MSG_SIZE_TOO_LARGE")

    transport = Scripted(log, lost, too_large)
    with Client(transport, SqliteStore(bank()), apply, settings=QUICK) as client:
        try:
            is_told = client.submit(Transfer(0, 1, 30)).result(20).is_done
        except DeadlineError as error:
            is_told = error.is_unknown
    assert len(log.records) == 1
    assert is_told


def test_other_locks_in_a_second_try_do_not_write_it_twice(bank, log):
    """The first is with the new owner, its answer lost; the second is refused by the old one, who
    does not know yet that he was deposed; what is decided anew locks something else."""

    class Elsewhere(TransactionContext):
        tries = 0

        def execute(self, draft, db):
            self.tries += 1
            draft.write_lock(b"acct/%d" % self.tries)
            draft.value = struct.pack(">iii", 0, 1, 30)
            return True

    held = []

    def lost(append):
        held.append(append)
        return Answer(Outcome.UNKNOWN)

    def written_behind_it(append):
        held[0]()
        return append()

    transport = Scripted(log, lost, lambda _: Answer(Outcome.REFUSED), written_behind_it)
    with Client(transport, SqliteStore(bank()), apply, settings=QUICK) as client:
        client.submit(Elsewhere()).result(20)
    ids = [record.txn_id for record in log.records]
    assert len(ids) == len(set(ids)) == 1


def fails(db, record):
    raise KeyError("apply")


def test_who_applies_no_more_writes_no_more(connect, log):
    """Its program is told of a failure each time, and tries once more, and once more."""
    client = connect(function=fails)
    with pytest.raises(LocksError):
        client.submit(Transfer(0, 1, 1)).result(20)
    for account in range(2, 6):
        with pytest.raises(LocksError):
            client.submit(Transfer(account, account + 1, 1)).result(20)
    assert len(log.records) == 1


def test_a_record_that_is_in_the_log_is_told_of_as_unknown_at_least(connect, log):
    """It was acknowledged; nobody here reads it back any more."""
    with pytest.raises(LocksError) as caught:
        connect(function=fails).submit(Transfer(0, 1, 1)).result(20)
    assert len(log.records) == 1
    assert getattr(caught.value, "is_unknown", False)


def test_a_failure_hides_no_record_that_was_applied_before_it():
    """As that of another partition's records."""
    progress = Progress()
    pending = Pending(b"id", time.monotonic() + 10)
    record = LogRecord(0, 5, None, None, (("quire.txn.id", b"id"),))
    progress.begin(pending)
    progress.applied(0, 6, [record])
    progress.fail(KeyError("another partition's"))
    assert progress.wait(pending, 0, None) == record


@pytest.mark.parametrize("callback", ["on_application", "on_completion"])
def test_what_a_callback_raises_is_not_the_transactions_end(connect, log, callback):
    """It is in the log and applied: who hears KeyError takes it for not done."""
    context = Transfer(0, 1, 1)

    def mine(_):
        raise KeyError(callback)

    setattr(context, callback, mine)
    done = connect().submit(context).result(20)
    assert (done.is_done, done.offset) == (True, 0)
    assert len(log.records) == 1


def test_a_deadline_that_never_comes(connect, log):
    done = connect().submit(Transfer(0, 1, 1), deadline_seconds=math.inf).result(20)
    assert (done.is_done, len(log.records)) == (True, 1)


def test_its_place_is_free_when_it_is_told_that_it_is_over(connect):
    """As a program that submits the next one there."""
    client = connect(settings=dataclasses.replace(QUICK, waiting_max=1))
    told = []

    class Chained(Transfer):
        def on_completion(self, completion):
            try:
                told.append(client.submit(Transfer(2, 3, 1), wait_seconds=2))
            except TooBusyError as error:
                told.append(error)

    client.submit(Chained(0, 1, 1)).result(20)
    assert not isinstance(told[0], TooBusyError)
    assert told[0].result(20).is_done


def test_who_cannot_begin_closes_what_it_was_given(bank, log):
    """`with Client(Transport(...), ...)` leaves nobody else to do it."""
    transport = Scripted(log)
    log.first = 3
    with pytest.raises(HistoryGoneError):
        Client(transport, SqliteStore(bank()), apply, settings=QUICK)
    assert transport.is_closed


def test_a_topic_that_is_made_anew_while_it_runs_is_another_log(bank, log):
    """The new one is longer already: what it begins with was never applied."""
    path = bank()
    transport = Scripted(log)
    new = MemoryLog("two")
    with Client(transport, SqliteStore(path), apply, settings=QUICK) as client:
        client.submit(Transfer(0, 1, 1)).result(20)
        other = Client(MemoryTransport(new), SqliteStore(bank("other")), apply, settings=QUICK)
        with other:
            for _ in range(3):
                other.submit(Transfer(2, 3, 1)).result(20)
        transport.log = new
        with pytest.raises(LocksError):
            client.submit(Transfer(4, 5, 1), deadline_seconds=5).result(20)
    assert sum(balance for _, balance in look(path)[2:4]) == 2 * START
    assert dict(look(path))[2] == START, "half of another log was applied"


def test_a_partition_that_is_not_followed_is_not_waited_for(connect):
    with pytest.raises(LocksError, match="not followed"):
        connect().wait_applied(7, seconds=1)


def test_a_database_in_memory_is_refused_or_works(log):
    """Each thread would have one of its own."""

    class Note(TransactionContext):
        def execute(self, draft, db):
            draft.value = b"v"
            return True

    try:
        client = Client(
            MemoryTransport(log), SqliteStore(":memory:"), lambda *_: None, settings=QUICK
        )
    except (LocksError, ValueError):
        return
    with client:
        assert client.submit(Note()).result(20).is_done


class Once(Transfer):
    """Wants it the first time it is asked, and no more."""

    def execute(self, draft, db):
        is_wanted = not self.conflicts
        return super().execute(draft, db) and is_wanted


def test_who_gives_up_after_a_doubt_is_told_that_it_is_unknown(bank, log):
    """An owner who was deposed may have refused the second, and the new one have the first."""
    answers = [Answer(Outcome.UNKNOWN), Answer(Outcome.REFUSED)]
    transport = Scripted(log, *[lambda _, one=one: one for one in answers])
    with Client(transport, SqliteStore(bank()), apply, settings=QUICK) as client:
        with pytest.raises(DeadlineError) as caught:
            client.submit(Once(0, 1, 1)).result(20)
        assert caught.value.is_unknown
        done = client.submit(Transfer(0, 1, START + 1)).result(20)
        assert not done.is_done, "without a doubt it is no error"


@pytest.mark.parametrize("outcome", [Outcome.WRITTEN, Outcome.REFUSED])
def test_a_deadline_while_it_reads_back_tells_what_was_answered(bank, log, outcome):
    """What was written may be applied by all; what was refused will not be."""

    def answered(append):
        if outcome is Outcome.WRITTEN:
            append()
        return Answer(outcome)

    transport = Scripted(log, answered)
    with Client(transport, SqliteStore(bank()), apply, settings=QUICK) as client:
        transport.can_read.clear()
        time.sleep(0.1)
        theirs = [("quire.position", b"0"), ("quire.txn.id", b"theirs")]
        log.append(0, None, struct.pack(">iii", 4, 5, 1), theirs)
        with pytest.raises(DeadlineError) as caught:
            client.submit(Transfer(0, 1, 1), deadline_seconds=0.3).result(20)
        transport.can_read.set()
    assert caught.value.is_unknown is (outcome is Outcome.WRITTEN)


def test_what_a_context_is_told(connect, bank):
    class Told(Transfer):
        def on_application(self, record):
            self.told.append(record.offset)

        def on_conflict(self, attempts):
            self.told.append(-attempts)

    one, two = connect(bank("one")), connect(bank("two"))
    one.submit(Transfer(0, 1, 1)).result(20)
    context = Told(0, 2, 1)
    done = two.submit(context).result(20)
    conflicts = [-n for n in range(1, done.attempts)]
    assert context.told == [*conflicts, done.offset, done]


def test_a_closed_client_keeps_no_places(bank, log):
    settings = dataclasses.replace(QUICK, waiting_max=1)
    client = Client(MemoryTransport(log), SqliteStore(bank()), apply, settings=settings)
    client.close()
    for _ in range(2):
        with pytest.raises(LocksError, match="closed"):
            client.submit(Transfer(0, 1, 1), wait_seconds=0.1)


def test_what_is_in_work_is_over_before_all_is_closed(bank, log):
    transport = Scripted(log)
    transport.can_read.clear()
    client = Client(transport, SqliteStore(bank()), apply, settings=QUICK)
    futures = [client.submit(Transfer(n, n + 1, 1)) for n in (0, 2, 4)]
    threading.Timer(0.2, transport.can_read.set).start()
    client.close()
    assert transport.is_closed
    assert all(future.result(0).is_done for future in futures)


def test_the_lock_that_it_gets_counts(connect, log):
    class Reads(TransactionContext):
        def execute(self, draft, db):
            for n in range(log.facts.locks_per_record_max):
                draft.read_lock(b"%d" % n)
            return True

    with pytest.raises(NotTakenError, match="65 locks"):
        connect().submit(Reads()).result(20)


def test_what_a_draft_does_not_take():
    draft = Draft()
    for lock in (b"", b"x" * 256):
        with pytest.raises(ValueError, match="1 to 255"):
            draft.read_lock(lock)
    with pytest.raises(ValueError, match=r"quire\."):
        draft.header("quire.position", b"9")
    draft.read_lock(b"x" * 255)


class _Gated(MemoryTransport):
    """Nothing is read while `gate` is not set. `stale` answers to `bounds` are those of a broker
    that was deposed and does not know it: (0, 0)."""

    def __init__(self, log, on_send=lambda times: None):
        super().__init__(log, on_send)
        self.gate = threading.Event()
        self.stale = 0

    def bounds(self, partition):
        if self.stale:
            self.stale -= 1
            return 0, 0
        return super().bounds(partition)

    def poll(self, records_max, timeout_s):
        if not self.gate.wait(timeout_s):
            return Fetched()
        return super().poll(records_max, timeout_s)


def test_an_end_that_is_an_old_one_makes_nobody_write_twice(bank, log):
    """The answer of the first send is lost, the second is refused for the first, and who is asked
    for the log's end was deposed. Then the record is read, and the transaction is over."""
    path = bank()
    transport = _Gated(log, lambda times: "after" if times == 1 else None)

    class Read(Transfer):
        def on_conflict(self, attempts):
            transport.gate.set()
            until = time.monotonic() + 10
            while not look(path, "SELECT * FROM done") and time.monotonic() < until:
                time.sleep(0.01)

    with Client(transport, SqliteStore(path), apply, settings=QUICK) as client:
        transport.stale = 1
        done = client.submit(Read(0, 1, 30)).result(20)
        client.wait_applied(0)
    assert len(log.records) == 1, "one transfer, one record"
    assert dict(look(path))[0] == START - 30
    assert (done.is_done, done.offset) == (True, 0)


def test_what_may_be_written_is_not_said_to_be_never_taken(bank, log):
    """A right is withdrawn, or max.message.bytes lowered, after a send whose answer was lost: the
    record is in the log, and every program applies it."""
    transport = _Gated(log, lambda times: "after" if times == 1 else None)
    send = transport.send

    def forbidden(partition, key, value, headers, done):
        if transport.sends:
            done(Answer(Outcome.FAILED, text="TOPIC_AUTHORIZATION_FAILED"))
        else:
            send(partition, key, value, headers, done)

    transport.send = forbidden
    with Client(transport, SqliteStore(bank()), apply, settings=QUICK) as client:
        future = client.submit(Transfer(0, 1, 30), deadline_seconds=2)
        error = future.exception(20)
    assert len(log.records) == 1
    assert isinstance(error, DeadlineError), error
    assert error.is_unknown


def test_what_was_read_back_is_done_whatever_fails_later(bank, log):
    """Its record was applied before another one broke the applier."""
    path = bank()
    transport = MemoryTransport(log)
    send = transport.send
    broken = threading.Event()

    def slow(partition, key, value, headers, done):
        """The answer comes when its record was applied and the one behind it was not."""
        send(partition, key, value, headers, lambda _: None)
        while not look(path, "SELECT * FROM done"):
            time.sleep(0.01)
        log.append(0, None, b"no transfer", [("quire.position", b"0")])
        assert broken.wait(10)
        client._applier._thread.join(10)
        done(Answer(Outcome.WRITTEN, 0))

    def breaks(db, record):
        if record.offset:
            broken.set()
            raise RuntimeError("ends here")
        apply(db, record)

    transport.send = slow
    with Client(transport, SqliteStore(path), breaks, settings=QUICK) as client:
        done = client.submit(Transfer(0, 1, 30)).result(20)
    assert (done.is_done, done.offset) == (True, 0)


def test_an_old_end_at_the_start_is_no_other_log(bank, log):
    """As while it runs: a broker that was deposed may be the one who is asked first."""
    path = bank()
    with Client(MemoryTransport(log), SqliteStore(path), apply, settings=QUICK) as client:
        client.submit(Transfer(0, 1, 1)).result(20)
    transport = _Gated(log)
    transport.gate.set()
    transport.stale = 1
    with Client(transport, SqliteStore(path), apply, settings=QUICK) as client:
        assert client.submit(Transfer(0, 1, 1)).result(20).offset == 1
