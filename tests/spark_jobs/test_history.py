"""Where the live part of a history begins."""

import json
from dataclasses import replace

from spark_jobs.history import _borders
from spark_jobs.manifest import Manifest
from tests.pyspark_quire.in_memory import topic

EMPTY = Manifest("t", "id", 0, "read_uncommitted", 0, 30)


def test_a_partition_that_nobody_archived_is_read_from_its_beginning():
    found = _borders(topic(partitions=3), [EMPTY, replace(EMPTY, partition=2, next_base=7)])
    assert json.loads(found) == {"t": {"0": 30, "1": -2, "2": 7}}
