"""The judge of copies after repair: what it must refuse, and what passes beside it."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import trio

sys.path.insert(0, str(Path(__file__).parents[2]))

from sim.copies import thin_entries, wait_repaired
from sim.history import Violation
from sim.plan import Fault
from sim.runner import Outcome, run_seed
from sim.shape import Shape
from wire.bookkeeper.entry import Digest, DigestType
from wire.bookkeeper.ledger_metadata import LedgerMetadata

DIGEST = Digest(DigestType.CRC32C, b"")
OPEN = LedgerMetadata(
    3,
    2,
    1,
    ((0, ("a", "b", "c")), (2, ("a", "d", "c"))),
    digest_type=DigestType.CRC32C,
    password=b"",
)
CLOSED = OPEN.closed_at(3, 4)


def copies(**entry_ids):
    found = {name: {} for name in "abcd"}
    for name, ids in entry_ids.items():
        for entry_id in ids:
            found[name][entry_id] = DIGEST.seal(7, entry_id, -1, 1, (b"x",), 1) + b"x"
    return found


def test_every_entry_on_its_write_quorum():
    # Entry 0 is on a and b, 1 on b and c, 2 on c and a, 3 on a and d.
    whole = copies(a=(0, 2, 3), b=(0, 1), c=(1, 2), d=(3,))
    assert thin_entries(7, CLOSED, whole) == []
    del whole["d"][3]
    assert thin_entries(7, CLOSED, whole) == ["ledger 7 entry 3 is not on d"]
    assert thin_entries(7, replace(OPEN), whole) == []
    whole["b"][3] = whole["a"][3]  # where it does not belong
    whole["c"][2] = whole["c"][2][:-1] + b"y"
    assert thin_entries(7, CLOSED, whole) == [
        "ledger 7 entry 2 is not on c",
        "ledger 7 entry 3 is not on d",
    ]


async def test_repairs_have_their_time(autojump_clock):
    looks = []

    async def mended():
        looks.append(trio.current_time())
        return ["one"] if len(looks) < 10 else []

    async def never():
        return ["one", "two"]

    await wait_repaired(mended)
    assert len(looks) == 10
    with pytest.raises(Violation, match="one and 1 more"):
        await wait_repaired(never)


#: The index is the last of the places of sim/damage.py; it is read, and the bookie serves on.
INDEX = Fault(0, 4.0, "rot-anywhere", 8.5 / 9, 0.9, 1.0)
ROT = [Fault(n, 4.0 + n, "bit-rot", 0.3 * n % 1, 0.95, 1.0) for n in range(1, 7)]


def test_a_damaged_index_hides_no_rotten_copies():
    """Of one ledger the index cannot be read; logs that have entries of it rot, too."""
    shape = Shape(bookies=4, recoverers=1, plain_producers=0, admins=0, small_caches=1)
    result = run_seed(1, plan=[INDEX, *ROT], shape=shape)
    assert result.outcome is Outcome.FINE, result.story
    assert result.counts["damaged: index"] == 1
    assert result.counts["bits rotten"] > 10
    assert result.counts["ledgers repaired"] > 0
