"""How far a micro-batch goes, without a cluster."""

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


def test_a_query_to_a_pinned_end_does_not_end_before_it_because_nobody_answers():
    """Trigger.AvailableNow: an end that is the start again says that all was read, and the query
    is over, without an error."""
    looks = Looks({"a-0": 100})
    pace = Pace(looks, options(is_stream=True))
    pinned = pace.look_now().ends
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
    pinned = pace.look_now().ends
    looks.found = Ends({"a-0": 95}, {"a-0": 0})
    pace._found_at -= 2
    assert pace.next_end({"a-0": 95}, None, None, pinned) == {"a-0": 100}


@pytest.fixture
def admitted(monkeypatch):
    """pyspark_quire.admitted on stand-ins for the classes of Spark's API that it needs."""
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
    import pyspark_quire.admitted as module

    yield module
    for name in ours:
        sys.modules.pop(f"pyspark_quire.{name}", None)


def test_all_that_is_there_is_more_than_a_least_number(admitted):
    """Trigger.Once asks for all; minOffsetsPerTrigger is a limit that this overrides, as
    KafkaMicroBatchStream.latestOffset has it. Else the query ends, and has read nothing."""
    reader = admitted.AdmittedReader(options(is_stream=True, minOffsetsPerTrigger="50"))
    reader._pace = Pace(Looks({"a-0": 10}), reader._options)
    start = {"v": 1, "parts": {"a-0": 0}}
    end = reader.latestOffset(start, admitted.ReadAllAvailable())
    assert end["parts"] == {"a-0": 10}


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
