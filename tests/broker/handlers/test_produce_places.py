"""What the ordinary Produce remembers of partitions."""

import struct
import sys

import pytest

from broker.handlers import produce
from broker.handlers.produce import ProduceHandler
from wire.kafka.plain_produce import plain_produce

pytestmark = pytest.mark.skipif(
    plain_produce is None, reason="installed where there was no compiler"
)


class Logs:
    def get(self, topic, partition):
        pass


def place(number):
    return b"\2\2t\2" + struct.pack(">i", number)


def remembered(handler, count):
    for number in range(count):
        handler._new_place(9, place(number))
        assert len(handler._places) <= produce.PLACES_MAX


def test_places_are_bounded(monkeypatch):
    monkeypatch.setattr(produce, "PLACES_MAX", 100)
    remembered(ProduceHandler(Logs(), None), 1_000)


def test_one_request_to_a_new_partition_frees_thousands_of_places_at_once():
    """It held the loop for 46 ms of processor time: what one request frees must be little."""
    handler = ProduceHandler(Logs(), None)
    remembered(handler, produce.PLACES_MAX)
    before = len(handler._places)
    handler._new_place(9, place(produce.PLACES_MAX))
    assert before - len(handler._places) <= 1_000
    assert sys.getsizeof(handler._places) < 4 << 20
