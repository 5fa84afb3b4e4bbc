"""Checkpoints: a round trip, damage at every byte, and the last mark beside them."""

import struct

import pytest

from bookie.errors import CorruptionError
from bookie.journal.journal_format import UNKNOWN_SEQUENCE, Position
from bookie.storage.checkpoint import (
    NO_CHECKPOINT,
    Checkpoint,
    decode_checkpoint,
    encode_checkpoint,
    read_checkpoint,
    write_checkpoint,
)


def test_checkpoint_round_trip_and_damage(disk):
    checkpoint = Checkpoint(Position(3, 4096, 77), 12, 5000, {1: 10, 2: 20}, (7, 8))
    assert read_checkpoint(disk, "/d") == NO_CHECKPOINT
    write_checkpoint(disk, "/d", checkpoint)
    assert read_checkpoint(disk, "/d") == checkpoint
    assert disk.open("/d/lastMark").pread(99, 0) == struct.pack(">qq", 3, 4096)
    data = encode_checkpoint(checkpoint)
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 4
        with pytest.raises(CorruptionError, match="path"):
            decode_checkpoint("path", bytes(damaged))
        with pytest.raises(CorruptionError, match="path"):
            decode_checkpoint("path", data[:at])


def test_a_last_mark_ahead_of_the_checkpoint_refuses(disk):
    """Ours never is: followed, a damaged one would skip what only the journal has."""
    write_checkpoint(disk, "/d", Checkpoint(Position(3, 4096, 77), 12, 5000, {1: 10}))
    for journal_id, offset in ((4, 0), (3, 8192), (3 | 1 << 62, 4096)):
        disk.write_file("/d/lastMark", struct.pack(">qq", journal_id, offset))
        with pytest.raises(CorruptionError, match=r"/d/lastMark: offset 0: .* is ahead"):
            read_checkpoint(disk, "/d")
    disk.write_file("/d/lastMark", struct.pack(">qq", 2, 0))
    assert read_checkpoint(disk, "/d").mark == Position(3, 4096, 77)
    disk.remove("/d/checkpoint")
    mark = Position(2, 0, UNKNOWN_SEQUENCE)
    assert read_checkpoint(disk, "/d") == Checkpoint(mark, -1, 0, {})
