"""Lines of a trace in words, from bytes that the simulation itself sent."""

import pytest

from sim.describe import readable


@pytest.mark.parametrize(
    ("node", "source", "size", "data", "words"),
    [
        (
            "bookie-1", "broker-1", 351,
            "0000015b02010000850bf1071c5e3d8c24235676f8816ae0cbe2f14f"
            "00000000000000010000000000000008",
            "add ledger=1 entry=8",
        ),
        (
            "broker-1", "bookie-4", 28, "00000018020100000000000000000000000000010000000000000008",
            "add answered EOK ledger=1 entry=8",
        ),
        (
            "broker-1", "bookie-4", 80, "00000018020100000000006500000000000000010000000000000008",
            "add answered EIO ledger=1 entry=8, and more",
        ),
        (
            "broker-1", "idem-1", 476,
            "000001d80000000900000007000373696d0000ffff0000138802046c6f67020000",
            "PRODUCE v9 #7",
        ),
        ("idem-1", "broker-1", 54, "00000032000000070002046c6f670200", "answer #7"),
        ("bookie-1", "broker-1", 144, "2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e2e", "..."),
        ("broker-1", "bookie-2", 5, "0000001802", "..."),
    ],
)  # fmt: skip
def test_a_segment_in_words(node, source, size, data, words):
    head = f"    0.549500 {node:<10} receive        c5 from {source} {size} bytes "
    assert readable(f"{head}{data}\n") == f"{head}{words}\n"


def test_other_lines_stay():
    line = "    0.549500 bookie-1   write          /journal/current/3.txn 512+256\n"
    assert readable(line) == line
