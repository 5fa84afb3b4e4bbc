"""The key map is a dict of bounded memory."""

import random
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.log.compact import key_map
from broker.log.compact.key_map import RELEASE_BYTES, SLOT_BYTES, OpenAddressingKeyMap, size_for

HASH_KEY = bytes(range(16))


@given(
    st.lists(st.tuples(st.binary(max_size=2), st.integers(0, 2**63 - 2)), max_size=200),
    st.integers(2, 90),
    st.sampled_from([0.1, 0.5, 0.9, 0.95]),
)
def test_it_is_a_dict(puts, slots, load_factor):
    made = OpenAddressingKeyMap(slots * SLOT_BYTES, hash_key=HASH_KEY, load_factor=load_factor)
    model = {}
    for key, offset in puts:
        if not made.is_full:
            made.put(key, offset)
            model[key] = offset
        assert len(made) == len(model) <= made.keys_max
        assert made.is_full == (len(model) == made.keys_max)
    assert made.size_bytes <= slots * SLOT_BYTES
    for key in [*model, *(key for key, _ in puts), b"another", b"another one"]:
        assert made.get(key) == model.get(key, -1)


def test_a_full_map_takes_newer_offsets_of_its_keys_only():
    made = OpenAddressingKeyMap(2 * SLOT_BYTES, hash_key=HASH_KEY)
    made.put(b"a", 0)
    assert made.is_full
    made.put(b"a", 7)
    assert (made.get(b"a"), made.get(b"b")) == (7, -1)
    with pytest.raises(AssertionError):
        made.put(b"b", 8)


@pytest.mark.parametrize("keys", [0, 1, 2, 3, 10, 63, 64, 1000, 12345, 10**6, 5 * 10**7])
def test_size_for_has_room(keys):
    with patch.object(key_map, "bytearray", lambda size: range(size), create=True):
        made = OpenAddressingKeyMap(size_for(keys), hash_key=HASH_KEY)
    assert keys <= made.keys_max <= 2 * keys + 200


def test_a_full_map_is_searched_quickly():
    """At a load of 0.9 a search that finds nothing looks at some ten slots, not at runs of them."""
    rng = random.Random(1)
    made = OpenAddressingKeyMap(1000 * SLOT_BYTES, hash_key=HASH_KEY)
    while not made.is_full:
        made.put(rng.randbytes(8), 1)
    looks = 0

    class Counting:
        def unpack_from(self, slots, position):
            nonlocal looks
            looks += 1
            return slot.unpack_from(slots, position)

    slot = key_map._SLOT
    with patch.object(key_map, "_SLOT", Counting()):
        for _ in range(2000):
            assert made.get(rng.randbytes(9)) == -1
    assert 2 < looks / 2000 < 20


def test_the_hash_depends_on_the_key_of_the_pass():
    """Whoever chooses records' keys cannot know where they come to lie."""
    maps = [OpenAddressingKeyMap(24 * 97, hash_key=bytes([n] * 16)) for n in range(2)]
    for made in maps:
        made.put(b"a", 5)
    assert maps[0]._slots != maps[1]._slots


@pytest.mark.parametrize(
    ("size", "hash_key", "load_factor"),
    [(47, HASH_KEY, 0.9), (480, b"short", 0.9), (480, bytes(65), 0.9), (480, HASH_KEY, 0),
     (480, HASH_KEY, 0.96)],
)  # fmt: skip
def test_bounds(size, hash_key, load_factor):
    with pytest.raises(ValueError, match=r"hash key|load factor|key map"):
        OpenAddressingKeyMap(size, hash_key=hash_key, load_factor=load_factor)


def test_the_memory_is_given_back_in_steps():
    key_map = OpenAddressingKeyMap(3 * RELEASE_BYTES, hash_key=HASH_KEY)
    key_map.put(b"key", 7)
    assert len(list(key_map.release())) == 3
    with pytest.raises(ValueError, match="closed"):
        key_map.get(b"key")
