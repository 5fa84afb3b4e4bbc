"""What is checked of acknowledgements before anything is changed."""

import pytest

from broker.api import all_steps
from broker.share.partition.acknowledgements import Acknowledgement, checked
from wire.kafka.messages.share_groups import AcknowledgementBatch


def batches(*wanted):
    return [
        AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=types)
        for first, last, types in wanted
    ]


@pytest.mark.parametrize(
    "wanted",
    [
        [(5, 4, [1])],
        [(0, 1, [])],
        [(0, 1, [1, 1, 1])],
        [(0, 1, [1, -1])],
        [(0, 1, [5])],
        [(0, 1, [300])],
        [(0, 1, [4])],
        [(0, 1, [1]), (1, 2, [1])],
        [(3, 4, [1]), (0, 1, [1])],
        [(-1, 1, [1])],
    ],
)
def test_refused(wanted):
    assert all_steps(checked(batches(*wanted), may_renew=False)) is None


def test_allowed():
    found = all_steps(checked(batches((0, 1, [1]), (2, 4, [4, 0, 3])), may_renew=True))
    assert found == [Acknowledgement(0, 1, b"\1"), Acknowledgement(2, 4, b"\4\0\3")]


def test_very_many_are_checked_in_steps():
    """100,000 batches of one partition took 100 ms at once."""
    many = batches(*((at, at, [1]) for at in range(1000)))
    assert max(checked(many, may_renew=False)) <= 3


def test_pieces():
    each = Acknowledgement(10, 15, b"\1\1\2\2\2\1")
    assert list(each.pieces(0)) == [(10, 11, 1), (12, 14, 2), (15, 15, 1)]
    assert list(each.pieces(13)) == [(13, 14, 2), (15, 15, 1)]
    assert list(each.pieces(16)) == []
    assert list(Acknowledgement(10, 15, b"\1").pieces(12)) == [(12, 15, 1)]
    assert list(Acknowledgement(10, 15, b"\1").pieces(99)) == []
