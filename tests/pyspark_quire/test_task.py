"""One split: what becomes of its plan, and that nothing of a task is left behind."""

import dataclasses
import os
import threading
import time

import pytest
from confluent_kafka import TopicPartition

from ledger.errors import LedgerError
from pyspark_quire.choose_core import DataLossError
from pyspark_quire.planning import batch_splits
from pyspark_quire.task import read_split


def offsets(split, options):
    return [n for batch in read_split(split, options) for n in batch.column("offset").to_pylist()]


def planned(served, topic, count=60, **given):
    """(options, the only split)"""
    served.create(topic)
    served.fill(topic, count)
    options = served.options(subscribe=topic, **given)
    [split] = batch_splits(options)
    return options, split


def unreadable(split, **changes):
    """As if the bookies were not where the plan says."""
    addresses = dict.fromkeys(split.addresses, ("127.0.0.1", 1))
    return dataclasses.replace(split, addresses=addresses, **changes)


def state():
    return threading.active_count(), len(os.listdir("/proc/self/fd"))


def settled(before):
    """Other tests' threads may end meanwhile."""
    deadline = time.monotonic() + 20
    while any(now > was for now, was in zip(state(), before, strict=True)):
        assert time.monotonic() < deadline, (state(), before)
        time.sleep(0.01)
    return True


def test_a_task_leaves_no_thread_and_no_descriptor(served, topic):
    options, split = planned(served, topic)
    before = state()
    for _ in range(3):
        assert offsets(split, options) == list(range(60))
    batches = read_split(split, options)
    assert next(batches).num_rows
    batches.close()  # as `limit(1)` does
    assert settled(before)


def test_bookies_that_moved_are_asked_of_the_metadata(served, topic):
    options, split = planned(served, topic)
    assert offsets(unreadable(split), options) == list(range(60))


def test_what_was_deleted_meanwhile_is_an_error_or_left_out(served, topic):
    options, split = planned(served, topic)
    asked = TopicPartition(topic, 0, 60)
    served.fill(topic, 1)
    served.admin.delete_records([asked])[asked].result(20)
    gone = unreadable(split)
    with pytest.raises(DataLossError, match=f"{topic}-0: offsets 0 to 60"):
        offsets(gone, options)
    lenient = dataclasses.replace(options, fails_on_data_loss=False)
    assert offsets(gone, lenient) == []
    served.delete(topic)
    with pytest.raises(DataLossError, match="were deleted before they were read"):
        offsets(gone, options)


def test_a_new_plan_begins_where_the_log_does_within_a_batch_too(served, topic):
    """What was deleted is not given again because it lies in a batch with records that are left."""
    served.create(topic)
    served.fill(topic, 60, runs=1)  # one batch of 59
    options = served.options(subscribe=topic, failOnDataLoss="false")
    splits = batch_splits(options)
    asked = TopicPartition(topic, 0, 25)
    served.admin.delete_records([asked])[asked].result(20)
    found = [n for split in splits for n in offsets(unreadable(split), options)]
    assert found == list(range(25, 60))


def test_an_error_names_the_ledger(served, topic):
    """A digest that no copy has: the plan's metadata, and the service's, agree on the bookies."""
    options, split = planned(served, topic)
    part = split.parts[0]
    wrong = dataclasses.replace(part, first_entry=10**6)
    broken = dataclasses.replace(split, parts=(wrong, *split.parts[1:]), topic_id=split.topic_id)
    # The plan does not hold; the metadata's word does.
    assert offsets(broken, options) == list(range(60))
    missing = dataclasses.replace(options, metadata="quire+unix:///nothing/here")
    with pytest.raises(Exception, match="--bookie-listen") as caught:
        offsets(unreadable(split), missing)
    assert not isinstance(caught.value, LedgerError)
