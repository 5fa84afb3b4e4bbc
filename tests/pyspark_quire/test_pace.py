"""How far a micro-batch goes, without a cluster."""

import pickle
import socket
import sys
import types

import pytest

from metadata.store import MetadataUnavailableError
from pyspark_quire import streaming
from pyspark_quire.connection import UnreachableError
from pyspark_quire.pace import Pace
from pyspark_quire.streaming import Ends, StreamLooks
from tests.pyspark_quire.simulated import options


class Looks:
    """What `StreamLooks` would find. `away`: the metadata do not answer."""

    def __init__(self, ends):
        self.found = Ends(ends, dict.fromkeys(ends, 0))
        self.away = False

    def ends(self, start):
        if self.away:
            raise UnreachableError("no answer within 60 s")
        return self.found

    def check_gone(self, start, found):
        pass

    def initial(self):
        """The end, as startingOffsets has it in a stream by default."""
        return self.found.ends

    def splits_between(self, start, end):
        assert start == end
        return []


def test_a_query_to_a_pinned_end_does_not_end_before_it_because_nobody_answers():
    """Trigger.AvailableNow: an end that is the start again says that all was read, and the query
    is over, without an error."""
    looks = Looks({"a-0": 100})
    pace = Pace(looks, options(is_stream=True))
    pinned = pace.look_now()
    first = pace.next_end({"a-0": 0}, 40, None, pinned)
    assert first == {"a-0": 40}
    pace._found_at -= 2  # the last look is old enough for another one
    looks.away = True
    try:
        end = pace.next_end(first, 40, None, pinned)
    except UnreachableError:
        return
    assert end != first


def test_a_pinned_end_is_what_was_there_whatever_bookies_know_later():
    """As KafkaMicroBatchStream, which asks once. Without a broker's word a later look may find
    less: the bookie that knew most is away."""
    looks = Looks({"a-0": 100})
    pace = Pace(looks, options(is_stream=True))
    pinned = pace.look_now()
    looks.found = Ends({"a-0": 95}, {"a-0": 0})
    pace._found_at -= 2
    assert pace.next_end({"a-0": 95}, None, None, pinned) == {"a-0": 100}


@pytest.fixture
def readers(monkeypatch):
    """The readers' classes, on stand-ins for those of Spark's API that they need."""
    limits = ("ReadAllAvailable", "ReadMaxBytes", "ReadMaxRows", "ReadMinRows")
    names = {
        "pyspark": (),
        "pyspark.sql": (),
        "pyspark.sql.datasource": ("DataSourceStreamReader", "InputPartition"),
        "pyspark.sql.streaming": (),
        "pyspark.sql.streaming.datasource": (*limits, "SupportsTriggerAvailableNow"),
    }
    for name, classes in names.items():
        module = types.ModuleType(name)
        for each in classes:
            setattr(module, each, type(each, (), {}))
        monkeypatch.setitem(sys.modules, name, module)
    ours = ("admitted", "stream", "partition", "remembering")
    for name in ours:
        monkeypatch.delitem(sys.modules, f"pyspark_quire.{name}", raising=False)
    from pyspark_quire.admitted import AdmittedReader
    from pyspark_quire.remembering import RememberingReader

    def make(kind, looks, **given):
        parsed = options(is_stream=True, **given)
        reader = {"4.0": RememberingReader, "4.2": AdmittedReader}[kind](parsed)
        reader._looks, reader._pace = looks, Pace(looks, parsed)
        return reader

    yield make
    for name in ours:
        sys.modules.pop(f"pyspark_quire.{name}", None)


def offset(number):
    return {"v": 1, "parts": {"a-0": number}}


def test_all_that_is_there_is_more_than_a_least_number(readers):
    """Trigger.Once asks for all; minOffsetsPerTrigger is a limit that this overrides, as
    KafkaMicroBatchStream.latestOffset has it. Else the query ends, and has read nothing."""
    reader = readers("4.2", Looks({"a-0": 10}), minOffsetsPerTrigger="50")
    limit = sys.modules["pyspark.sql.streaming.datasource"].ReadAllAvailable()
    assert reader.latestOffset(offset(0), limit) == offset(10)


def test_an_end_never_goes_back_behind_a_restart(readers):
    """Spark 4.0 and 4.1 ask for an end without a start. But of a query that goes on they tell what
    was seen last, by `partitions` from there to there (AcceptsLatestSeenOffset). Else, with a
    bookie away that knew more, the batch ends where the query has been, and what lies between is
    read a second time."""
    reader = readers("4.0", Looks({"a-0": 90}))
    assert reader.partitions(offset(100), offset(100)) == []
    assert reader.latestOffset() == offset(100)


@pytest.mark.parametrize("kind", ["4.0", "4.2"])
def test_where_a_query_starts_is_decided_once(readers, kind):
    """MicroBatchExecution asks before the first batch's end is looked for, and again when it runs;
    KafkaMicroBatchStream keeps its answer. With `latest` the batch would begin behind its end."""
    looks = Looks({"a-0": 90})
    reader = readers(kind, looks)
    first = reader.initialOffset()
    looks.found = Ends({"a-0": 95}, {"a-0": 0})
    assert reader.initialOffset() == first


def test_a_query_outlives_an_operation_of_metadata_that_ends_before_the_look_does(monkeypatch):
    """A store gives up an operation after 10 s (ZooKeeper), or 20; a look has 60 by default."""

    def run_within(_where, _seconds, _work):
        raise MetadataUnavailableError("/quire/topics", "no answer within 10 s")

    monkeypatch.setattr(streaming, "run_within", run_within)
    given = options(is_stream=True)
    start = {"a-0": 5}
    assert Pace(StreamLooks(given), given).next_end(start, None, None) == start


@pytest.mark.slow
def test_a_query_outlives_a_zookeeper_that_says_nothing():
    """With the default of metadataTimeoutMs."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        given = options(is_stream=True, metadata=f"zk+hierarchical://127.0.0.1:{port}/ledgers")
        start = {"a-0": 5}
        assert Pace(StreamLooks(given), given).next_end(start, None, None) == start


@pytest.mark.parametrize("kind", ["4.0", "4.2"])
def test_passwords_for_brokers_stay_with_the_driver(readers, kind):
    """A task asks no broker."""
    reader = readers(kind, Looks({}), **{"kafka.sasl.jaas.config": "password='hidden'"})
    assert b"hidden" in pickle.dumps(reader._options)
    sent = pickle.dumps(reader)
    assert b"hidden" not in sent
    assert pickle.loads(sent)._options.which == reader._options.which
    assert "hidden" not in repr(reader._options)
