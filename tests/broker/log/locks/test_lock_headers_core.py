"""Locks in headers: what is read, what is refused and of which record, and what it may cost."""

import pytest

from broker.log.locks import lock_headers_core
from broker.log.locks.lock_headers_core import (
    ELEMENTS_MAX,
    LOCKS_MAX,
    NO_LOCKS,
    LockBudgetError,
    LockHeadersError,
    batch_locks,
    lock_of,
)
from wire.kafka.errors import ErrorCode, KafkaError
from wire.kafka.records.record import Record, encode_record
from wire.kafka.records.walk import BLAMED_MAX

P, R, W, A = "quire.position", "quire.lock.read", "quire.lock.write", "quire.lock.append"
PLENTY_NS = 1 << 60


def read(*records, required=False, transactional=False, limit=64, budget_ns=PLENTY_NS):
    """`records`: each a list of headers (name, value)."""
    data = b"".join(
        encode_record(Record(0, n, b"k", b"v" * 300, [(name, value) for name, value in headers]))
        for n, headers in enumerate(records)
    )
    return batch_locks(
        data,
        len(records),
        is_required=required,
        is_transactional=transactional,
        per_record_max=limit,
        budget_ns=budget_ns,
    )


def refused(*records, **kwargs):
    """(indexes, the first message)."""
    with pytest.raises(LockHeadersError) as caught:
        read(*records, **kwargs)
    error = caught.value
    assert error.code is ErrorCode.INVALID_RECORD
    assert len(error.record_messages) == len(error.record_indexes)
    assert error.message == error.record_messages[0]
    return list(error.record_indexes), error.message


def test_what_is_read():
    x, y, z = map(lock_of, (b"x", b"y" * 255, b"\0"))
    found = read(
        [],
        [("other", b"1"), (P, b"7"), (R, b"x"), (W, b"y" * 255), (A, b"\0"), ("z", None)],
        [(A, b"x")],
    )
    first, second = found.records
    assert (first.number, first.position, first.tested, first.marked) == (1, 7, (x, y), (y, z))
    assert (second.number, second.position, second.tested, second.marked) == (2, -1, (), (x,))


def test_a_batch_without_any_is_not_walked(monkeypatch):
    monkeypatch.setattr(lock_headers_core, "_Reader", None)
    assert read([], [("a", b"b")], [(P, b"nonsense")]) is NO_LOCKS


def test_the_words_in_a_value_are_no_lock():
    record = encode_record(Record(0, 0, None, b"about quire.lock.write", []))
    found = batch_locks(
        record,
        1,
        is_required=False,
        is_transactional=False,
        per_record_max=1,
        budget_ns=PLENTY_NS,
    )
    assert found is NO_LOCKS


BAD = {
    "65 locks": [(P, b"0"), *[(R, b"%d" % n) for n in range(65)]],
    "empty id": [(P, b"0"), (W, b"")],
    "null id": [(P, b"0"), (W, None)],
    "id of 256 bytes": [(P, b"0"), (W, b"x" * 256)],
    "two positions": [(P, b"0"), (P, b"0"), (W, b"x")],
    "text": [(P, b"ten"), (W, b"x")],
    "sign": [(P, b"-1"), (W, b"x")],
    "space": [(P, b" 1"), (W, b"x")],
    "empty position": [(P, b""), (W, b"x")],
    "null position": [(P, None), (W, b"x")],
    "beyond 63 bits": [(P, b"9223372036854775808"), (W, b"x")],
    "no position": [(W, b"x")],
    "misspelt": [(P, b"0"), ("quire.lock.wriet", b"x")],
}


@pytest.mark.parametrize("name", BAD)
def test_scenario_16_what_is_malformed_is_told_of_its_record(name):
    indexes, message = refused([(P, b"0"), (R, b"x")], BAD[name], [])
    assert indexes == [1]
    assert "record 1 " in message


def test_the_most_that_may_be():
    (record,) = read([(P, b"9223372036854775807"), *[(R, b"%d" % n) for n in range(64)]]).records
    assert record.position == 2**63 - 1
    assert len(record.tested) == 64


def test_scenario_17_required_and_transactional():
    lock = [(P, b"0"), (R, b"x")]
    assert refused([], [("a", b"b")], required=True)[0] == [0, 1]
    assert refused(lock, [], lock, required=True)[0] == [1]
    assert refused([], lock, transactional=True)[0] == [1]
    assert read([], transactional=True) is NO_LOCKS


def test_too_many_elements_or_locks_are_too_large():
    many = [[(A, b"%d" % n) for n in range(64)] for _ in range(LOCKS_MAX // 64 + 1)]
    for records in (many, [[(A, b"x"), *[("", b"")] * ELEMENTS_MAX]]):
        with pytest.raises(KafkaError) as caught:
            read(*records)
        assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_the_budget_is_kept():
    records = [[(A, b"x")]] * 100
    cost_ns = read(*records).cost_ns
    assert read(*records, budget_ns=cost_ns).cost_ns == cost_ns
    with pytest.raises(LockBudgetError):
        read(*records, budget_ns=cost_ns // 2)


def test_the_budget_is_kept_inside_of_a_record():
    """As many locks as a topic may allow are dearer than what a turn of the loop may cost."""
    record = [(A, b"%d" % n) for n in range(LOCKS_MAX)]
    assert read(record, limit=LOCKS_MAX).cost_ns > 2_000_000
    with pytest.raises(LockBudgetError):
        read(record, limit=LOCKS_MAX, budget_ns=2_000_000)


def test_what_is_behind_a_faulty_header_is_read_as_it_is():
    """The records behind it are told by their own faults, and no others."""
    bad = [("quire.lock.x", b""), ("a", b"b" * 50), (R, b"y")]
    good = [(P, b"0"), (R, b"x")]
    assert refused(good, bad, good, bad, good)[0] == [1, 3]


def test_all_records_of_a_transaction_are_told():
    lock = [(P, b"0"), (R, b"x")]
    assert refused(lock, [], lock, transactional=True)[0] == [0, 2]


def test_a_position_with_nothing_to_test_counts_for_nothing():
    assert read([(P, b"99"), (A, b"x")]).records[0].position == -1


def test_no_more_faults_are_told_than_an_answer_may_name():
    bad = [("quire.lock.x", b"")]
    assert len(refused(*[bad] * (BLAMED_MAX + 1))[0]) == BLAMED_MAX
    assert len(refused(*[[]] * (BLAMED_MAX + 1), required=True)[0]) == BLAMED_MAX


def test_locks_cost_more_than_other_headers():
    others = [("quire.lock", b"x")] * 59
    assert read([*others, (A, b"x")]).cost_ns < read([(A, b"x")] * 60).cost_ns
