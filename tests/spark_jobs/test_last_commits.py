"""The last commits of batches, against a log that is played through entry by entry."""

from hypothesis import given
from hypothesis import strategies as st

from broker.groups.offsets.offsets_core import CommittedOffset
from broker.groups.records import offset_record
from spark_jobs.last_commits import LastCommits
from wire.kafka.records.batch import build_batch, parse_header
from wire.kafka.records.control import EndTransactionMarker, build_end_transaction_batch
from wire.kafka.records.record import Record


def written(offset, partition, committed, producer):
    """`committed` None: a tombstone; `producer` 0: outside of a transaction."""
    key, value = offset_record("g", "t", partition, CommittedOffset(committed or 0, -1, "", 0))
    record = Record(0, 0, key, None if committed is None else value, [])
    more = {"producer_id": producer, "producer_epoch": 0, "base_sequence": 0} if producer else {}
    return build_batch([record], base_offset=offset, is_transactional=bool(producer), **more)


def ended(offset, producer, committed):
    return build_end_transaction_batch(
        EndTransactionMarker(committed=committed, coordinator_epoch=0),
        producer_id=producer, producer_epoch=0, timestamp_ms=0, base_offset=offset,
    )  # fmt: skip


COMMITS = st.tuples(st.integers(0, 1), st.none() | st.integers(0, 99), st.integers(0, 2))
ENDS = st.tuples(st.integers(1, 2), st.booleans())


def test_a_commit_while_a_transaction_is_open_is_the_later_one():
    """The transaction's was written before, and is decided after."""
    commits = LastCommits()
    for batch in (written(0, 0, 5, 1), written(1, 0, 9, 0), ended(2, 1, True)):
        commits.feed(parse_header(batch), memoryview(batch))
    assert commits.found() == {("g", "t", 0): 9}


@given(st.lists(COMMITS | ENDS.map(lambda end: (*end, "end")), max_size=20))
def test_what_counts_is_what_was_committed_last(history):
    commits = LastCommits()
    #: As Kafka: a commit of a transaction counts where it was written, once that is decided.
    decided = {}
    for offset, event in enumerate(history):
        if event[-1] == "end":
            producer, is_committed, _ = event
            batch = ended(offset, producer, is_committed)
            for place in [p for p, (_, _, who) in decided.items() if who == producer]:
                partition, committed, _ = decided.pop(place)
                if is_committed:
                    decided[place] = partition, committed, 0
        else:
            partition, committed, producer = event
            batch = written(offset, partition, committed, producer)
            decided[offset] = partition, committed, producer
        commits.feed(parse_header(batch), memoryview(batch))
    expected = {}
    for place in sorted(decided):
        partition, committed, producer = decided[place]
        if producer == 0:
            expected[partition] = committed
    wanted = {("g", "t", p): n for p, n in expected.items() if n is not None}
    assert commits.found() == wanted
