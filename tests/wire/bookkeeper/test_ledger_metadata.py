"""Ledger metadata against BookKeeper's bytes, and garbage."""

import contextlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.bookkeeper.entry import DigestType
from wire.bookkeeper.ledger_metadata import (
    LedgerMetadata,
    LedgerState,
    MetadataFormatError,
    parse,
    serialize,
)

BOOKIES = ("127.0.0.1:31811", "127.0.0.1:31810", "127.0.0.1:31812")
CTOKEN = 0x3123456789ABCDEF
#: Ledger 13 of a Java client: E3 Qw3 Qa2, CRC32C, «secret», app=probe. The bytes of its random
#: creator token were not kept; all else is as it was read from ZooKeeper.
OPEN = LedgerMetadata(
    3,
    3,
    2,
    ((0, BOOKIES),),
    digest_type=DigestType.CRC32C,
    password=b"secret",
    custom_metadata={"app": b"probe"},
    ctoken=CTOKEN,
)
OPEN_BYTES = (
    bytes.fromhex(
        "426f6f6b69654d65746164617461466f726d617456657273696f6e09 330a 6e"
        "08031003180020ffffffffffffffffff01 2801 3235"
    )
    + b"".join(b"\x0a\x0f" + bookie.encode() for bookie in BOOKIES)
    + bytes.fromhex("1000 3803 4206736563726574 4802 5a0c0a0361707012 0570726f6265 60")
    + bytes.fromhex("ef9bafcdf8acd19131")
)
#: Ledger 7, closed at entry 9 with 60 bytes; the tail as Java writes it (cToken 0 after a rewrite).
CLOSED_BYTES = (
    bytes.fromhex(
        "426f6f6b69654d65746164617461466f726d617456657273696f6e09 330a 5d08031003183c20092803 3235"
    )
    + b"".join(b"\x0a\x0f" + bookie.encode() for bookie in BOOKIES)
    + bytes.fromhex("1000 3803 4206736563726574 4802 5a0c0a0361707012 0570726f6265 6000")
)


def test_open_ledger_golden_bytes():
    assert serialize(OPEN) == OPEN_BYTES
    assert parse(OPEN_BYTES) == OPEN


def test_closed_ledger_golden_bytes():
    closed = replace(OPEN, ctoken=0).closed_at(9, 60)
    assert serialize(closed) == CLOSED_BYTES
    assert parse(CLOSED_BYTES) == closed
    assert closed.is_closed


def test_version_2_is_protobuf_text():
    text = (
        b"BookieMetadataFormatVersion\t2\n"
        b"quorumSize: 2\nensembleSize: 3\nlength: 77\nlastEntryId: 4\nstate: CLOSED\n"
        b'segment {\n  ensembleMember: "a:1"\n  ensembleMember: "b:1"\n  ensembleMember: "c:1"\n'
        b"  firstEntryId: 0\n}\n"
        b'digestType: CRC32\npassword: "p\\001"\nackQuorumSize: 2\nctime: 1500000000000\n'
        b'customMetadata {\n  key: "k"\n  value: "v"\n}\n'
    )
    assert parse(text) == LedgerMetadata(
        3,
        2,
        2,
        ((0, ("a:1", "b:1", "c:1")),),
        LedgerState.CLOSED,
        4,
        77,
        DigestType.CRC32,
        b"p\x01",
        {"k": b"v"},
        1500000000000,
    )


@pytest.mark.parametrize(
    ("tail", "state", "last_entry_id"),
    [
        (b"", LedgerState.OPEN, -1),
        (b"12\tCLOSED", LedgerState.CLOSED, 12),
        (b"-102\tCLOSED", LedgerState.IN_RECOVERY, -1),
    ],
)
def test_version_1_is_lines(tail, state, last_entry_id):
    data = b"BookieMetadataFormatVersion\t1\n2\n3\n0\n0\ta:1\tb:1\tc:1\n8\ta:1\td:1\tc:1\n" + tail
    metadata = parse(data)
    assert metadata.segments == ((0, ("a:1", "b:1", "c:1")), (8, ("a:1", "d:1", "c:1")))
    assert (metadata.write_quorum_size, metadata.ensemble_size) == (2, 3)
    assert (metadata.state, metadata.last_entry_id) == (state, last_entry_id)
    assert metadata.password is None
    assert metadata.digest_type is None


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "version line"),
        (b"garbage", "version line"),
        (b"BookieMetadataFormatVersion\t3", "version line"),
        (b"BookieMetadataFormatVersion\t4\nabc", "not 1, 2 or 3"),
        (b"BookieMetadataFormatVersion\t3\n", "cut or too large"),
        (b"BookieMetadataFormatVersion\t3\n\xff\xff\xff\xff\xff\x01", "cut or too large"),
        (b"BookieMetadataFormatVersion\t3\n\x05abc", "3 of 5 bytes"),
        (b"BookieMetadataFormatVersion\t3\n\x03abc", "not a LedgerMetadataFormat message"),
        (b"BookieMetadataFormatVersion\t3\n\x02\x08\x03", "missing|not a LedgerMetadataFormat"),
        (b"BookieMetadataFormatVersion\t2\nquorumSize: x", "not a LedgerMetadataFormat text"),
        (b"BookieMetadataFormatVersion\t2\n\xff\xfe", "not a LedgerMetadataFormat text"),
        (b"BookieMetadataFormatVersion\t2\nquorumSize: 1", "missing|text"),
        (b"BookieMetadataFormatVersion\t1\n2\n3", "version 1"),
        (b"BookieMetadataFormatVersion\t1\n2\n3\n0\nx\ta", "version 1"),
        (b"BookieMetadataFormatVersion\t1\n2\n3\n0\n0\ta", "1 bookies"),
        (b"BookieMetadataFormatVersion\t1\n2\n1\n0\n0\ta", "at least 1"),
        (b"BookieMetadataFormatVersion\t1\n1\n1\n0\n", "no segment"),
        (b"BookieMetadataFormatVersion\t1\n1\n1\n0\n5\ta\n5\tb\n", "follows"),
    ],
)
def test_garbage_is_named(data, words):
    with pytest.raises(MetadataFormatError, match=words):
        parse(data)


@given(st.sampled_from([b"1", b"2", b"3"]), st.binary(max_size=200))
def test_arbitrary_bytes_never_raise_anything_else(version, payload):
    for data in (b"BookieMetadataFormatVersion\t" + version + b"\n" + payload, payload):
        with contextlib.suppress(MetadataFormatError):
            parse(data)


@given(st.data())
def test_damaged_golden_bytes_never_raise_anything_else(data):
    damaged = bytearray(OPEN_BYTES)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(MetadataFormatError):
        parse(bytes(damaged))


bookie_ids = st.text(min_size=1, max_size=20)


@st.composite
def metadatas(draw):
    ensemble_size = draw(st.integers(1, 6))
    write_quorum_size = draw(st.integers(1, ensemble_size))
    firsts = sorted(draw(st.sets(st.integers(0, 2**40), min_size=1, max_size=4)))
    members = st.lists(bookie_ids, min_size=ensemble_size, max_size=ensemble_size).map(tuple)
    state = draw(st.sampled_from(list(LedgerState)))
    closed = state is LedgerState.CLOSED
    return LedgerMetadata(
        ensemble_size,
        write_quorum_size,
        draw(st.integers(1, write_quorum_size)),
        tuple((first, draw(members)) for first in firsts),
        state,
        draw(st.integers(-1, 2**62)) if closed else -1,
        draw(st.integers(0, 2**62)) if closed else 0,
        draw(st.sampled_from([None, *DigestType])),
        draw(st.none() | st.binary(max_size=20)),
        draw(st.dictionaries(st.text(max_size=8), st.binary(max_size=8), max_size=3)),
        draw(st.none() | st.integers(0, 2**50)),
        draw(st.integers(0, 2**63 - 1)),
    )


@given(metadatas())
def test_round_trip(metadata):
    assert parse(serialize(metadata)) == metadata


def test_ensemble_of_an_entry_and_new_segments():
    metadata = replace(OPEN, ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
    metadata = replace(metadata, segments=((0, ("a",)), (10, ("b",))))
    assert [metadata.ensemble_at(e) for e in (0, 9, 10, 99)] == [("a",), ("a",), ("b",), ("b",)]
    assert metadata.with_segment(10, ("c",)).segments == ((0, ("a",)), (10, ("c",)))
    assert metadata.with_segment(11, ("c",)).segments == ((0, ("a",)), (10, ("b",)), (11, ("c",)))
    with pytest.raises(ValueError, match="before the last one"):
        metadata.with_segment(9, ("c",))


def test_a_contradiction_is_not_written():
    with pytest.raises(MetadataFormatError, match="2/3/1"):
        serialize(replace(OPEN, ensemble_size=2, write_quorum_size=3, ack_quorum_size=1))
