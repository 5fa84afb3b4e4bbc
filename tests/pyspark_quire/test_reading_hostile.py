"""A ledger's entries that say other things than what is in them: whatever a header claims, a record
is read, or its absence is an error that names the ledger."""

import pytest

from broker.log.append.entry_format import (
    FLAG_CONTINUED,
    FLAG_CONTINUES,
    EntryFormatError,
)
from pyspark_quire.columns import column_set
from pyspark_quire.decode import Bounds, Decoder
from pyspark_quire.reading import MissingRecordsError, Range, read_index, read_range
from tests.pyspark_quire.in_memory import Reader, batch, entry
from wire.kafka.records.batch import build_batch, complete, parse_header
from wire.kafka.records.record import Record

OFFSETS = column_set("offset", include_headers=False)


async def offsets(payloads, start, end):
    """As a task has them: read, and decoded."""
    decoder = Decoder("t", 0, OFFSETS, Bounds(start, end))

    async def send(bodies, _position):
        for body in bodies:
            decoder.feed(body)

    await read_range(Reader(payloads), Range(start, end, first_entry=0), send)
    found = decoder.take()
    return [] if found is None else found.column("offset").to_pylist()


def changed(made, **fields):
    """With other fields in the batch's header, and the checksum for them."""
    found = bytearray(made)
    complete(found, parse_header(made)._replace(**fields))
    return bytes(found)


async def test_what_is_right_is_read():
    made = [entry(0, 5, batch(0, 5)), entry(5, 5, batch(5, 5))]
    assert await offsets(made, 0, 10) == list(range(10))


LIES = {
    "an entry claims more records than it has": [entry(0, 10, batch(0, 5))],
    "an entry claims all the offsets that there are": [
        entry(0, 2**31 - 1, batch(0, 1)), entry(1, 9, batch(1, 9)),
    ],
    "a batch has other offsets than its entry": [
        entry(0, 5, batch(1000, 5)), entry(5, 5, batch(5, 5)),
    ],
    "an entry is empty": [entry(0, 10, b"")],
    "batches of an entry overlap": [entry(0, 10, batch(0, 5) + batch(0, 5))],
    "batches of an entry leave offsets out": [entry(0, 10, batch(0, 4) + batch(5, 5))],
    "a batch has fewer records than offsets": [
        entry(0, 10, changed(batch(0, 5), last_offset_delta=9)),
    ],
    "a batch ends before it begins": [entry(0, 10, changed(batch(0, 10), last_offset_delta=-1))],
    "records lie outside of their batch": [
        entry(0, 3, build_batch([Record(n, 0, None, b"") for n in (9, -3, 2**31 - 1)],
                                last_offset_delta=2)),
        entry(3, 7, batch(3, 7)),
    ],
}  # fmt: skip


@pytest.mark.parametrize("payloads", LIES.values(), ids=LIES)
async def test_a_header_that_lies_is_no_reason_to_leave_records_out(payloads):
    with pytest.raises((MissingRecordsError, ValueError)):
        await offsets(payloads, 0, 10)


async def test_a_batch_that_never_ends_does_not_fill_the_memory():
    """Entries of which each says that it goes on: the reader must stop before it holds them all."""

    class Endless(Reader):
        given = 0

        async def read(self, first_entry_id, *, count_max, size_max):
            self.given += 1 << 20
            assert self.given <= 512 << 20, "512 MiB of one batch are held"
            flags = FLAG_CONTINUES | (FLAG_CONTINUED if first_entry_id else 0)
            return [memoryview(entry(0, 1, bytes(1 << 20), flags))]

    async def send(_bodies, _position):
        raise AssertionError("no batch is whole")

    reader = Endless([])
    reader.last_add_confirmed = 10_000
    with pytest.raises(MissingRecordsError):
        await read_range(reader, Range(0, 10, first_entry=0), send)


async def test_entries_of_two_batches_are_not_put_together():
    made = batch(0, 5)
    halves = [
        entry(0, 5, made[:40], FLAG_CONTINUES),
        entry(77, 5, made[40:], FLAG_CONTINUED),
    ]
    with pytest.raises((MissingRecordsError, EntryFormatError)):
        await offsets(halves, 0, 5)


@pytest.mark.parametrize("payload", [b"abc", b"\x09" + bytes(40)], ids=["short", "version"])
async def test_an_entry_that_is_none_is_named(payload):
    with pytest.raises(EntryFormatError, match=r"ledger 7.*entry 1"):
        await offsets([entry(0, 5, batch(0, 5)), payload], 0, 10)


async def test_an_index_that_is_damaged_is_named():
    with pytest.raises(ValueError, match="ledger 7"):
        await read_index(Reader([entry(0, 0, b"QIX1 and nothing else", kind=2)]), 0)


MISSING = {
    "an entry is missing": [entry(0, 5, batch(0, 5)), entry(6, 4, batch(6, 4))],
    "the ledger ends early": [entry(0, 5, batch(0, 5))],
    "an entry is there twice": [
        entry(0, 5, batch(0, 5)), entry(0, 5, batch(0, 5)), entry(5, 5, batch(5, 5)),
    ],
    "the batch does not go on": [
        entry(0, 5, batch(0, 5)[:40], FLAG_CONTINUES), entry(5, 5, batch(5, 5)),
    ],
}  # fmt: skip


@pytest.mark.parametrize("payloads", MISSING.values(), ids=MISSING)
async def test_what_is_missing_between_entries_is_told(payloads):
    with pytest.raises(MissingRecordsError, match="ledger 7"):
        await offsets(payloads, 0, 10)


async def test_a_compacted_ledger_may_have_holes_and_goes_forward():
    made = [entry(0, 5, batch(0, 2)), entry(7, 3, batch(8, 2))]
    taken = []

    async def send(bodies, position):
        taken.append((len(bodies), position))

    await read_range(Reader(made), Range(0, 10, is_compacted=True, first_entry=0), send)
    assert taken == [(2, 10)]
    back = [entry(5, 5, batch(5, 5)), entry(0, 5, batch(0, 5))]
    with pytest.raises(MissingRecordsError):
        await read_range(Reader(back), Range(0, 20, is_compacted=True, first_entry=0), send)
