"""The audit rule, and against the broker's own table: what that accepts is never told."""

from hypothesis import given
from hypothesis import strategies as st

from broker.log.locks.lock_headers_core import BatchLocks, RecordLocks, lock_of
from broker.log.locks.lock_table_core import LockTable
from quire.tools.locks.audit_core import APPEND, POSITION, READ, WRITE, Audit

NAMES = (READ, WRITE, APPEND)


def headers(position, *locks):
    return [(POSITION, b"%d" % position), *locks]


def test_what_was_written_since_the_position_is_told():
    audit = Audit()
    assert audit.look(0, headers(0, (WRITE, b"x"))) == []
    assert audit.look(1, headers(0, (READ, b"y"), (APPEND, b"x"))) == []
    assert audit.look(2, headers(2, (WRITE, b"x"))) == []
    (wrong,) = audit.look(5, headers(2, (READ, b"x"), (READ, b"y")))
    assert (wrong.offset, wrong.position, wrong.lock, wrong.written) == (5, 2, "x", 2)
    assert audit.look(6, [("other", b"v")]) == []
    assert (audit.records, audit.locked) == (5, 4)


def test_a_read_lock_is_no_write():
    audit = Audit()
    assert audit.look(0, headers(0, (READ, b"x"))) == []
    assert audit.look(1, headers(0, (WRITE, b"x"))) == []


def test_headers_that_cannot_be_are_told():
    assert Audit().look(3, [(READ, b"x")])[0].position == -1
    assert "beyond" in Audit().look(3, headers(4, (READ, b"x")))[0].reason


@given(
    st.lists(
        st.tuples(
            st.integers(0, 6),
            st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from([b"a", b"b", b"c"]))),
        )
    )
)
def test_what_the_table_accepts_is_never_told(sent):
    table, audit, offset = LockTable(30_000, -1), Audit(), 0
    for lag, locks in sent:
        position = max(0, offset - lag)
        tested = tuple(lock_of(lock) for name, lock in locks if name != APPEND)
        marked = tuple(lock_of(lock) for name, lock in locks if name != READ)
        batch = BatchLocks((RecordLocks(0, position, tested, marked),), 0)
        if not table.conflicts(batch, offset):
            table.mark_batch(batch, offset)
            assert audit.look(offset, headers(position, *locks)) == []
            offset += 1
        else:
            other = Audit(_written=dict(audit._written))
            assert other.look(offset, headers(position, *locks)), "a false conflict of three ids"


def test_a_position_of_very_many_digits_is_told():
    """Such a header may stand in what was written while the topic had no locks."""
    (wrong,) = Audit().look(3, [(POSITION, b"1" * 5_000), (READ, b"x")])
    assert (wrong.offset, wrong.position) == (3, -1)
