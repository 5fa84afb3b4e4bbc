"""What is judged of a compacted partition: for each word a history that is refused, and one beside
it that passes."""

import pytest

from sim.history import Violation
from sim.keyed_history import Keyed, KeyedHistory


def history(*batches):
    """Acknowledged one after the other, from offset 0 on."""
    made, offset = KeyedHistory(("keyed", 0)), 0
    for pairs in batches:
        made.send(pairs)
        made.ack(offset, pairs)
        offset += len(pairs)
    return made


def reading(made, *records, log_start=0, known_before=100, **options):
    records = [Keyed(*each) for each in records]
    for each in records:
        made.see(each)
    made.check_reading(records, log_start=log_start, known_before=known_before, **options)


FULL = ([(b"a", b"a1"), (b"b", b"b1")], [(b"a", b"a2")])


def test_full_and_compacted_logs_pass():
    reading(history(*FULL), (0, b"a", b"a1"), (1, b"b", b"b1"), (2, b"a", b"a2"))
    reading(history(*FULL), (1, b"b", b"b1"), (2, b"a", b"a2"))


@pytest.mark.parametrize(
    ("word", "records"),
    [
        ("lost", [(0, b"a", b"a1"), (1, b"b", b"b1")]),
        ("lost", [(2, b"a", b"a2")]),
        ("lost", []),
        ("diverging", [(0, b"b", b"b1")]),
        ("phantom", [(3, b"a", b"a1x")]),
        ("phantom", [(3, b"b", b"a2")]),
        ("duplicated", [(3, b"a", b"a2")]),
        ("reordered", [(2, b"a", b"a2"), (1, b"b", b"b1")]),
    ],
)
def test_what_cannot_be(word, records):
    with pytest.raises(Violation) as caught:
        reading(history(*FULL), *records)
    assert caught.value.kind == word


def test_what_is_newer_than_the_reading_need_not_be_there():
    reading(history(*FULL), (0, b"a", b"a1"), (1, b"b", b"b1"), known_before=2)


def test_what_is_below_the_log_start_may_be_gone():
    reading(history(*FULL), (2, b"a", b"a2"), log_start=2)


DELETED = ([(b"a", b"a1")], [(b"b", b"b1")], [(b"a", None)])


def test_a_tombstone_may_go_with_all_that_it_deleted():
    reading(history(*DELETED), (0, b"a", b"a1"), (1, b"b", b"b1"), (2, b"a", None))
    reading(history(*DELETED), (1, b"b", b"b1"), (2, b"a", None))
    reading(history(*DELETED), (1, b"b", b"b1"))


def test_a_key_that_was_deleted_and_written_again_while_the_reading_went_on():
    """Seed 2026112665: the tombstone was gone before the reading came to its place, and what was
    written then stood behind the reading's end."""
    made = history(*DELETED, [(b"a", b"a4")])
    reading(made, (1, b"b", b"b1"), known_before=2)
    with pytest.raises(Violation) as caught:
        reading(made, (1, b"b", b"b1"))
    assert caught.value.kind == "lost"


def test_a_deleted_key_may_not_come_back():
    with pytest.raises(Violation) as caught:
        reading(history(*DELETED), (0, b"a", b"a1"), (1, b"b", b"b1"))
    assert caught.value.kind == "resurrected"


def test_a_deletion_of_which_nothing_is_known_may_have_been_done():
    made = history(*FULL)
    made.send([(b"a", None)])
    reading(made, (1, b"b", b"b1"))
    with pytest.raises(Violation):
        reading(made, (2, b"a", b"a2"))
    made = history(*FULL)
    made.send([(b"a", None)])
    made.ack(3, [(b"a", None)])
    reading(made, (1, b"b", b"b1"))


def test_who_reads_for_longer_than_tombstones_stay_may_miss_one():
    """Seed 91006: eight seconds went by between two fetches, and a tombstone stays for two."""
    records = (0, b"a", b"a1"), (1, b"b", b"b1")
    reading(history(*DELETED), *records, keeps_up=False)
    with pytest.raises(Violation) as caught:
        reading(history(*DELETED), (0, b"a", b"a1"), keeps_up=False)
    assert caught.value.kind == "lost"


def test_a_deletion_that_is_aborted_never_was():
    made = history(*FULL)
    made.send([(b"a", None)])
    made.withdraw([(b"a", None)])
    with pytest.raises(Violation):
        reading(made, (1, b"b", b"b1"))
