"""Key to newest offset: what a cleaning pass remembers of the part of the log that it read.

`OpenAddressingKeyMap` is one buffer of 24-byte slots: 16 bytes of a keyed BLAKE2b of the record's
key, then its offset. A key costs 24 bytes / load factor, whatever its own size; a dict costs five
times that and has a spike at each resize. Two keys with one hash would erase each other's records:
among n keys that has a chance of n² / 2¹²⁸. Kafka's SkimpyOffsetMap hashes with MD5, where whoever
chooses the keys can craft two that collide; here the hash has a random key that the caller draws
for every pass.

Owner of the state: the pass, which releases the map at its end.
"""

from __future__ import annotations

from hashlib import blake2b
from math import ceil, isqrt
from mmap import MADV_DONTNEED, MAP_ANONYMOUS, MAP_PRIVATE, mmap
from struct import Struct
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wire.buffers import Buffer

HASH_BYTES = 16
#: The key's hash, its offset + 1; a slot of zeros is free.
_SLOT = Struct(">16sq")
SLOT_BYTES = _SLOT.size
assert SLOT_BYTES == 24
#: Given back in one step: 0.4 ms if all of it was touched.
RELEASE_BYTES = 4 << 20
#: Two halves of a hash: the first slot to look at, and the step to the next.
_PLACES = Struct(">QQ")
#: Kafka's default of log.cleaner.io.buffer.load.factor, and what is sensible.
LOAD_FACTOR = 0.9
LOAD_FACTOR_MAX = 0.95


class KeyMap(Protocol):
    """What a pass needs of a map."""

    @property
    def is_full(self) -> bool:
        """Whether it takes no further key."""

    @property
    def size_bytes(self) -> int:
        """Memory that it holds."""

    def __len__(self) -> int:
        """Keys."""

    def put(self, key: Buffer, offset: int) -> None:
        """Remembers `offset` as the key's newest. Offsets of one key ascend. Not if it is full."""

    def get(self, key: Buffer) -> int:
        """The offset last put for the key; -1 if there is none."""

    def shorten(self, key: bytes) -> bytes:
        """What stands for a long key in `put` and `get`, always or never; may be called on another
        thread, while the map is used."""


def size_for(keys: int, load_factor: float = LOAD_FACTOR) -> int:
    """Bytes of an OpenAddressingKeyMap that holds `keys` keys, at least one."""
    slots = ceil(max(keys, 1) / load_factor) + 2
    # The slots are a prime number, and there is one within 1/16 below any number from 64 on.
    return (slots + slots // 16 + 64) * SLOT_BYTES


def _prime_up_to(number: int) -> int:
    """The largest prime that is not above `number` (>= 2)."""
    while any(number % factor == 0 for factor in range(2, isqrt(number) + 1)):
        number -= 1
    return number


class OpenAddressingKeyMap:
    """A KeyMap in one buffer of `size_bytes` bytes at most, allocated at once.

    A key's slots are tried in steps that its hash tells, so the keys of one run do not crowd the
    next one's; the number of slots is prime, so the steps come to every slot. At a load of 0.9 a
    key that is not there takes ten looks; with steps of one it would be fifty.
    """

    __slots__ = ("_count", "_hash_key", "_keys_max", "_slot_count", "_slots")

    def __init__(
        self, size_bytes: int, *, hash_key: bytes, load_factor: float = LOAD_FACTOR
    ) -> None:
        """`hash_key`: 16 to 64 random bytes, new for every pass. `load_factor`: the part of the
        slots that is filled, above 0 and at most 0.95; at least one key fits, so that every pass
        gets on. ValueError if the size has no room for two slots, or a number is out of bounds.
        """
        if not HASH_BYTES <= len(hash_key) <= 64:
            raise ValueError(f"hash key of {len(hash_key)} bytes, needs {HASH_BYTES} to 64")
        if not 0 < load_factor <= LOAD_FACTOR_MAX:
            raise ValueError(f"load factor {load_factor}, may be up to {LOAD_FACTOR_MAX}")
        if size_bytes < 2 * SLOT_BYTES:
            raise ValueError(f"key map of {size_bytes} bytes, needs at least {2 * SLOT_BYTES}")
        self._hash_key = hash_key
        self._slot_count = _prime_up_to(size_bytes // SLOT_BYTES)
        self._keys_max = max(1, int(self._slot_count * load_factor))
        assert self._keys_max < self._slot_count, "a search ends at a free slot"
        # Zeros that nobody has to write: 128 MiB of a bytearray take 60 ms.
        self._slots = mmap(-1, self._slot_count * SLOT_BYTES, MAP_PRIVATE | MAP_ANONYMOUS)
        self._count = 0

    def release(self) -> Iterator[None]:
        """Gives the memory back, RELEASE_BYTES in each step, since 128 MiB at once take 34 ms. No
        key may be put or asked for any more."""
        for start in range(0, len(self._slots), RELEASE_BYTES):
            size = min(RELEASE_BYTES, len(self._slots) - start)
            self._slots.madvise(MADV_DONTNEED, start, size)
            yield
        self._slots.close()

    @property
    def is_full(self) -> bool:
        return self._count >= self._keys_max

    @property
    def size_bytes(self) -> int:
        return len(self._slots)

    @property
    def keys_max(self) -> int:
        """How many keys it takes."""
        return self._keys_max

    def __len__(self) -> int:
        return self._count

    def put(self, key: Buffer, offset: int) -> None:
        assert offset >= 0
        position, digest, place = self._find(key)
        if not place:
            assert self._count < self._keys_max, "a full map takes no key"
            self._count += 1
        _SLOT.pack_into(self._slots, position, digest, offset + 1)

    def get(self, key: Buffer) -> int:
        return self._find(key)[2] - 1

    def shorten(self, key: bytes) -> bytes:
        # With the pass's own key, so that nobody can make a short key that is another's hash.
        return blake2b(key, digest_size=2 * HASH_BYTES, key=self._hash_key, person=b"long").digest()

    def _find(self, key: Buffer) -> tuple[int, bytes, int]:
        """Where the key's slot begins, its hash, and what the slot has: offset + 1, 0 if free."""
        digest = blake2b(key, digest_size=HASH_BYTES, key=self._hash_key).digest()
        first, second = _PLACES.unpack(digest)
        slot_count, slots, unpack_from = self._slot_count, self._slots, _SLOT.unpack_from
        number = first % slot_count
        step = 0
        while True:
            position = number * SLOT_BYTES
            found, place = unpack_from(slots, position)
            if not place or found == digest:
                return position, digest, place
            # Only the second look needs the step; most keys are found at the first.
            step = step or 1 + second % (slot_count - 1)
            number = (number + step) % slot_count
