"""A bookie's lives one after the other, on a disk and an index of which single operations find no
space, and which lose power or are left by a killed process at any operation. What was promised in
one life holds in all that follow.

The environment's `QUIRE_FAULT_HISTORIES` says how many histories of each kind: `500`, or with the
first seed before it, `1000:500`.
"""

import os

import pytest

from tests.bookie.fault_histories.history import KINDS, run_history

#: Of each kind.
COUNT = 8


def seeds():
    first, _, count = os.environ.get("QUIRE_FAULT_HISTORIES", str(COUNT)).rpartition(":")
    start = int(first or 0)
    return range(start, start + int(count))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", seeds())
def test_what_was_promised_holds(kind, seed):
    run_history(kind, seed)
