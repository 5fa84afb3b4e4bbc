"""Records of `__share_group_state`: the quick way and the declared one come to the same bytes."""

import random
import uuid

import pytest

from wire.kafka.codec import encode
from wire.kafka.errors import WireError
from wire.kafka.records.share_state import (
    SHARE_STATE_VALUES,
    SNAPSHOT_TYPE,
    UPDATE_TYPE,
    ShareSnapshotValue,
    ShareUpdateValue,
    StoredStateBatch,
    decode_share_key,
    decode_share_key_message,
    decode_share_value,
    decode_snapshot,
    decode_update,
    encode_share_key,
    encode_snapshot,
    encode_update,
)

ID = uuid.UUID(int=0x0102030405060708090A0B0C0D0E0F10)
BATCHES = [(10, 19, 2, 1), (20, 1 << 40, 4, 5)]


def test_bytes_of_a_key_and_of_both_values():
    key = encode_share_key(UPDATE_TYPE, "gé", ID, 7)
    assert key.hex() == "0001" + "0003" + "67c3a9" + ID.hex + "00000007"
    assert decode_share_key(key) == (UPDATE_TYPE, "gé", ID, 7)
    snapshot = encode_snapshot((1, 2, 3), 4, 5, (6, 7), [(8, 9, 2, 1)])
    assert snapshot.hex() == (
        "0000" "00000001" "00000002" "00000003" "0000000000000004"
        "0000000000000006" "0000000000000007"
        "02" "0000000000000008" "0000000000000009" "02" "0001" "00" "01" "00" "04" "00000005"
    )  # fmt: skip
    update = encode_update((1, 3), -1, -1, [])
    assert update.hex() == "0000" "00000001" "00000003" "ffffffffffffffff" "01" "00"  # fmt: skip


@pytest.mark.parametrize("count", [0, 1, 126, 127, 128, 3_000])
@pytest.mark.parametrize("complete", [-1, 0, 77])
def test_both_ways(count, complete):
    rng = random.Random(count)
    batches = [
        (rng.getrandbits(62), rng.getrandbits(62), rng.randrange(5), rng.randrange(9))
        for _ in range(count)
    ]
    rows = [StoredStateBatch(*each) for each in batches]
    declared = ShareSnapshotValue(1, 2, 3, 4, complete, 6, 7, rows)
    data = encode_snapshot((1, 2, 3), 4, complete, (6, 7), batches)
    assert data == b"\0\0" + encode(declared, 0)
    assert decode_share_value(ShareSnapshotValue, data) == declared
    assert decode_snapshot(data) == (ShareSnapshotValue(1, 2, 3, 4, complete, 6, 7, []), batches)
    declared = ShareUpdateValue(1, 3, -1, complete, rows)
    data = encode_update((1, 3), -1, complete, batches)
    assert data == b"\0\0" + encode(declared, 0)
    assert decode_update(data) == (ShareUpdateValue(1, 3, -1, complete, []), batches)


def test_tagged_fields_of_a_newer_coordinator_are_passed_over():
    data = encode_update((1, 3), -1, -1, BATCHES)
    # The second batch has a field 5 of one byte, and so has the value.
    newer = data[:-2] + b"\x01\x05\x01x" + b"\x01\x05\x01x"
    assert decode_update(newer) == decode_update(data)


def test_what_is_cut_is_refused():
    data = encode_snapshot((1, 2, 3), 4, 5, (6, 7), BATCHES)
    for size in range(len(data)):
        with pytest.raises(WireError):
            decode_snapshot(data[:size])
    with pytest.raises(WireError):
        decode_snapshot(data + b"x")
    with pytest.raises(WireError):
        decode_update(b"\0\1" + encode_update((1, 3), -1, -1, [])[2:])


def test_keys_of_other_types_are_left_alone():
    key = encode_share_key(SNAPSHOT_TYPE, "g", ID, 7)
    assert decode_share_key(b"\0\2" + key[2:]) is None
    for broken in (None, b"", b"\0", key[:-1], key + b"x"):
        with pytest.raises(WireError):
            decode_share_key(broken)
    assert type(decode_share_key_message(key)) in SHARE_STATE_VALUES
