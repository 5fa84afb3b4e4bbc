"""What a batch may make of a task's memory, and that its damage is told with the place."""

import subprocess
import sys

import pytest

from broker.log.read.segment import DECOMPRESSED_BYTES_MAX
from broker.log.transactions.aborted_index import AbortedTransaction
from pyspark_quire import decode
from pyspark_quire.columns import column_set
from pyspark_quire.decode import BATCH_BYTES_MAX, Bounds, Decoder
from tests.pyspark_quire.in_memory import batch
from wire.kafka.errors import WireError
from wire.kafka.records.batch import build_batch, complete, parse_header
from wire.kafka.records.compression import Compression
from wire.kafka.records.record import Record

ALL = column_set(None, include_headers=True)


def decoder():
    return Decoder("t", 3, ALL, Bounds())


def decoded(*bodies):
    made = decoder()
    for body in bodies:
        made.feed(body)
    return made.take()


def test_one_entry_of_many_compressed_batches_is_not_held_as_a_whole():
    """9 kB of an entry are 256 MiB of records; 1 MiB of such would be 30 GiB."""
    one = [Record(0, 0, None, bytes(32 << 20))]
    body = b"".join(build_batch(one, base_offset=n, compression=Compression.ZSTD) for n in range(8))
    assert len(body) < 1 << 20
    made = decoder()
    try:
        made.feed(body)
    except WireError:
        return  # refused is bounded, too
    assert made.pending_bytes <= 128 << 20


def test_a_batch_may_have_what_the_broker_takes_and_not_much_more():
    assert BATCH_BYTES_MAX <= DECOMPRESSED_BYTES_MAX


BEYOND_TWO_GIB = """
import os, sys, tempfile
import numpy as np
from pyspark_quire.decode import _Rows
with tempfile.NamedTemporaryFile() as file:  # sparse: it needs neither disk nor memory
    at = (2 << 30) + 1000
    os.ftruncate(file.fileno(), at + 4096)
    os.pwrite(file.fileno(), b"x" * 100, at)
    rows = _Rows.__new__(_Rows)
    rows._data, rows.count = np.memmap(file.name, np.uint8, "r"), 1
    try:
        found = rows.binary(np.array([at]), np.array([100]))
    except Exception as error:
        sys.exit(0)
    sys.exit(0 if found.to_pylist() == [b"x" * 100] else 3)
"""


def test_a_value_behind_two_gib_of_records_is_right_or_an_error():
    """Places of Arrow's views have 32 bits: beyond them other memory would be read."""
    done = subprocess.run([sys.executable, "-c", BEYOND_TWO_GIB], timeout=60)
    assert done.returncode == 0


def with_header(made, **fields):
    found = bytearray(made)
    complete(found, parse_header(made)._replace(**fields))
    return bytes(found)


def damaged_inside():
    """A key that is longer than its record, and a checksum that is right."""
    found = bytearray(batch(40, 5))
    found[65] = 0x63
    complete(found, parse_header(bytes(found)))
    return bytes(found)


DAMAGED = {
    "a record": damaged_inside(),
    "a header that is cut": batch(40, 5)[:30],
    "another magic": batch(40, 5)[:16] + b"\x01" + batch(40, 5)[17:],
}


@pytest.mark.parametrize("body", DAMAGED.values(), ids=DAMAGED)
def test_damage_is_told_with_its_place(body):
    with pytest.raises(WireError, match="t-3"):
        decoded(batch(0, 5) + body)


def test_fewer_than_no_records_are_damage():
    nothing = build_batch([], base_offset=5, last_offset_delta=0)
    with pytest.raises(WireError):
        decoded(with_header(nothing, record_count=-1), batch(6, 5))


def test_an_arrow_batch_has_about_so_many_bytes(monkeypatch):
    """Of what was unpacked, and not of what is stored: these are 40 bytes each, compressed."""
    monkeypatch.setattr(decode, "BATCH_BYTES", 10_000)
    made = decoder()
    for number in range(6):
        record = Record(0, 0, None, bytes(6_000))
        made.feed(build_batch([record], base_offset=number, compression=Compression.ZSTD))
    counts = []
    while (found := made.take()) is not None:
        counts.append(found.num_rows)
    assert counts == [2, 2, 2]


def test_all_aborted_transactions_of_a_producer_are_left_out():
    """In whatever order they are told."""
    rows = [AbortedTransaction(7, n, n + 1, n) for n in (8, 0, 4)]
    made = Decoder("t", 3, column_set("offset", include_headers=False), Bounds(), aborted=rows)
    more = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
    for number in range(12):
        made.feed(build_batch([Record(0, 0, None, b"v")], base_offset=number, **more))
    assert made.take().column("offset").to_pylist() == [2, 3, 6, 7, 10, 11]
