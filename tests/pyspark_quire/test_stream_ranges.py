"""What a stream asks, and how it shares a bound, without a cluster."""

from ledger.errors import NoSuchLedgerError
from pyspark_quire import streaming
from pyspark_quire.pace import Pace
from pyspark_quire.stream_core import limited
from pyspark_quire.streaming import StreamLooks
from tests.pyspark_quire.simulated import options


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


def test_a_partition_that_the_start_does_not_know_has_nothing_to_wait_for():
    assert limited({"a": 5}, {"a": 25, "new": 1000}, 10) == {"a": 15, "new": 1000}
