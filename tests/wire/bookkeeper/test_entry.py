"""Entries and digests against BookKeeper's vectors."""

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from wire.bookkeeper.entry import (
    MAC_SIZE,
    Digest,
    DigestMismatchError,
    DigestType,
    EntryHeader,
    crc32c_matches,
    crc32c_of_verified,
    master_key,
    parse_header,
    parse_ids,
)

#: (digest type, ledger id, whole entry) of payload «python-0», password «secret», which
#: BookKeeper's Java client read back.
VECTORS = [
    (
        DigestType.CRC32C,
        9,
        "0000000000000009 0000000000000000 ffffffffffffffff 0000000000000008 f4104572"
        "707974686f6e2d30",
    ),
    (
        DigestType.CRC32,
        10,
        "000000000000000a 0000000000000000 ffffffffffffffff 0000000000000008 00000000348e7234"
        "707974686f6e2d30",
    ),
    (
        DigestType.HMAC,
        11,
        "000000000000000b 0000000000000000 ffffffffffffffff 0000000000000008"
        "41eab3639edc0db12df1204b11c8f0466e1ade01 707974686f6e2d30",
    ),
    (
        DigestType.DUMMY,
        12,
        "000000000000000c 0000000000000000 ffffffffffffffff 0000000000000008 707974686f6e2d30",
    ),
]

types = st.sampled_from(list(DigestType))
ids = st.integers(0, 2**63 - 1)


def test_master_key():
    assert master_key(b"secret").hex() == "e793cbc379107648537183605cd361d3bb789a39"
    assert master_key(b"").hex() == "850bf1071c5e3d8c24235676f8816ae0cbe2f14f"


@pytest.mark.parametrize(("digest_type", "ledger_id", "expected"), VECTORS)
def test_vectors(digest_type, ledger_id, expected):
    digest = Digest(digest_type, b"secret")
    entry = bytes.fromhex(expected)
    pieces = (b"pyth", memoryview(b"on"), bytearray(b"-0"))
    assert digest.seal(ledger_id, 0, -1, 8, pieces, 8) + b"python-0" == entry
    assert digest.open(memoryview(entry), ledger_id, 0) == b"python-0"
    assert digest.overhead_size == len(entry) - 8


def test_an_entry_that_java_wrote():
    entry = bytes.fromhex(
        "00000000000000070000000000000000ffffffffffffffff00000000000000067206bf9d6a6176612d30"
    )
    assert Digest(DigestType.CRC32C, b"secret").open(entry, 7, 0) == b"java-0"
    assert parse_header(entry) == EntryHeader(7, 0, -1, 6)
    assert parse_ids(entry) == (7, 0)


def test_a_lac_packet_that_java_wrote():
    packet = bytes.fromhex("0000000000000008 0000000000000004 3d99ff62")
    digest = Digest(DigestType.CRC32C, b"secret")
    assert digest.seal_lac(8, 4) == packet
    assert digest.open_lac(packet, 8) == 4
    with pytest.raises(DigestMismatchError, match="ledger 8"):
        digest.open_lac(packet[:-1] + b"\0", 8)
    with pytest.raises(DigestMismatchError, match="ledger 8"):
        digest.open_lac(packet[:12], 8)
    with pytest.raises(DigestMismatchError, match="of ledger 8"):
        digest.open_lac(packet, 9)


@given(types, ids, ids, st.integers(-1, 2**62), st.lists(st.binary(max_size=80), max_size=5))
def test_round_trip(digest_type, ledger_id, entry_id, lac, pieces):
    digest = Digest(digest_type, b"pw")
    payload = b"".join(pieces)
    head = digest.seal(ledger_id, entry_id, lac, 100 + len(payload), pieces, len(payload))
    entry = memoryview(head + payload)
    assert len(head) == 32 + MAC_SIZE[digest_type]
    assert parse_header(entry) == (ledger_id, entry_id, lac, 100 + len(payload))
    assert digest.open(entry, ledger_id, entry_id) == payload
    assert digest.open_run([entry], ledger_id, entry_id) == [payload]


@given(st.binary(max_size=3), st.binary(max_size=100), st.integers(1, 500))
def test_the_checksum_of_an_entry_whose_digest_is_right(before, part, times):
    payload = part * times
    entry = Digest().seal(3, 4, 2, len(payload), [payload], len(payload)) + payload
    view = memoryview(before + entry + before)
    assert crc32c_matches(view, len(before), len(entry))
    assert crc32c_of_verified(view, len(before), len(entry)) == crc32c(entry)


@given(
    st.sampled_from([DigestType.CRC32, DigestType.HMAC, DigestType.CRC32C]),
    st.binary(max_size=60),
    st.data(),
)
def test_any_changed_byte_is_found(digest_type, payload, data):
    digest = Digest(digest_type, b"pw")
    entry = bytearray(digest.seal(3, 4, 2, 99, [payload], len(payload)) + payload)
    position = data.draw(st.integers(0, len(entry) - 1))
    entry[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises(DigestMismatchError, match="ledger 3 entry 4"):
        digest.open(memoryview(entry), 3, 4)
    with pytest.raises(DigestMismatchError, match="ledger 3 entry 4"):
        digest.open_run([entry], 3, 4)


@pytest.mark.parametrize("digest_type", list(DigestType))
def test_another_entrys_bytes_are_refused(digest_type):
    digest = Digest(digest_type, b"")
    entry = digest.seal(5, 6, 5, 3, [b"abc"], 3) + b"abc"
    with pytest.raises(DigestMismatchError, match=r"ledger 5 entry 7: .* ledger 5 entry 6"):
        digest.open(entry, 5, 7)
    with pytest.raises(DigestMismatchError, match=r"ledger 4 entry 6: .* ledger 5 entry 6"):
        digest.open_run([entry], 4, 6)


@pytest.mark.parametrize("digest_type", list(DigestType))
def test_short_entries_are_refused(digest_type):
    digest = Digest(digest_type, b"")
    entry = digest.seal(5, 6, 5, 0, [], 0)
    assert digest.open(entry, 5, 6) == b""
    for size in range(len(entry)):
        with pytest.raises(DigestMismatchError, match="ledger 5 entry 6"):
            digest.open(entry[:size], 5, 6)
        with pytest.raises(DigestMismatchError, match="ledger 5 entry 6"):
            digest.open_run([entry[:size]], 5, 6)
    with pytest.raises(ValueError, match="31 bytes"):
        parse_header(entry[:31])
    with pytest.raises(ValueError, match="31 bytes"):
        parse_ids(entry[:31])


def test_a_run_is_checked_entry_by_entry():
    digest = Digest(DigestType.CRC32C, b"")
    entries = []
    for entry_id in range(5):
        payload = b"p%d" % entry_id
        head = digest.seal(1, entry_id, entry_id - 1, 2 * entry_id + 2, [payload], 2)
        entries.append(memoryview(head + payload))
    assert digest.open_run(entries, 1, 0) == [b"p0", b"p1", b"p2", b"p3", b"p4"]
    entries[2], entries[3] = entries[3], entries[2]
    with pytest.raises(DigestMismatchError, match="ledger 1 entry 2"):
        digest.open_run(entries, 1, 0)


def test_the_passwords_matter_only_to_hmac():
    sealed = Digest(DigestType.HMAC, b"a").seal(1, 1, 0, 0, [], 0)
    with pytest.raises(DigestMismatchError):
        Digest(DigestType.HMAC, b"b").open(sealed, 1, 1)
