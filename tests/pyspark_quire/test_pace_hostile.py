"""A query outlives metadata that are away, in whatever words the store says it."""

import pytest

from metadata.store import MetadataUnavailableError, MetadataUnknownOutcomeError
from pyspark_quire.connection import UnreachableError
from pyspark_quire.options_core import parse_options
from pyspark_quire.pace import Pace


class Away:
    def __init__(self, error):
        self._error = error

    def ends(self, _start):
        raise self._error


@pytest.mark.parametrize(
    "error",
    [
        UnreachableError("metadata zk: no answer within 60 s"),
        # With the defaults these come first: a store's own operations end after 10 s (ZooKeeper)
        # or 20 s (quire+unix), a look only after metadataTimeoutMs=60000.
        MetadataUnavailableError("/quire/topics", "no answer from ZooKeeper within 10.0 s"),
        MetadataUnknownOutcomeError("/quire/topics", "the reply was lost"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_metadata_that_do_not_answer_end_no_query(error):
    options = parse_options({"metadata": "zk://h/ledgers", "subscribe": "t"}, is_stream=True)
    start = {"id-0": 5}
    assert Pace(Away(error), options).next_end(start, None, None) == start
