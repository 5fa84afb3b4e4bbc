"""Splits between two offsets of a stream, on simulated bookies."""

import pytest

from ledger.errors import NoSuchLedgerError
from pyspark_quire import streaming
from pyspark_quire.choose_core import DataLossError
from pyspark_quire.pace import Pace
from pyspark_quire.stream_core import limited, part_key
from pyspark_quire.streaming import StreamLooks
from tests.pyspark_quire.simulated import SimulatedLog, entry, options, records


async def test_an_end_before_the_start_is_told_of(nursery, autojump_clock):
    """As KafkaOffsetReader.getOffsetRangesFromResolvedOffsets. Spark 4.0 and 4.1 ask for an end
    without a start: after a restart, with a bookie away, it may lie before where the query is. The
    next batch would then begin there, and have these records a second time."""
    log = SimulatedLog()
    await log.world.start(nursery)
    await log.open(0, *(entry(records(n, b"v%d" % n)) for n in range(6)))
    await log.store_chain()
    looks, key = StreamLooks(options(is_stream=True)), part_key(log.topic.id, 0)
    with pytest.raises(DataLossError):
        await looks._splits({key: 5}, {key: 3}, log.connection)


def test_a_query_outlives_a_ledger_that_vanishes_while_it_looks(monkeypatch):
    """The cleaner, or retention, takes a ledger between the chain's look and the ledger's. A batch
    query plans anew then (`planned`)."""
    looks = StreamLooks(options(is_stream=True))
    answers = [None, streaming.Ends({"a-0": 5}, {"a-0": 0})]

    def run_within(where, seconds, work):
        found = answers.pop(0)
        if found is None:
            raise NoSuchLedgerError(7, "is not there")
        return found

    monkeypatch.setattr(streaming, "run_within", run_within)
    end = Pace(looks, options(is_stream=True)).next_end({"a-0": 0}, None, None)
    assert end in ({"a-0": 0}, {"a-0": 5})


def test_a_small_partition_is_not_starved():
    """As KafkaMicroBatchStream.rateLimit: «don't completely starve small topicpartitions»."""
    at = {"large": 0, "small": 0}
    for batch in range(100):
        end = {"large": 1_000_000 + 10 * batch, "small": 1}
        at = limited(at, end, 10)
    assert at["small"] == 1
