"""Key to newest offset: what a cleaning pass remembers of the part of the log that it read.

`OpenAddressingKeyMap` is one buffer of 24-byte slots: 16 bytes of a keyed BLAKE2b of the record's
key, then its offset. A key costs 24 bytes / load factor, whatever its own size; a dict costs five
times that and has a spike at each resize. Two keys with one hash would erase each other's records:
among n keys that has a chance of n² / 2¹²⁸. Kafka's SkimpyOffsetMap hashes with MD5, where whoever
chooses the keys can craft two that collide; here the hash has a random key that the caller draws
for every pass.

Owner of the state: the pass, which drops the map at its end.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from wire.buffers import Buffer

HASH_BYTES = 16
_OFFSET = Struct(">q")
SLOT_BYTES = HASH_BYTES + _OFFSET.size
#: Kafka's default of log.cleaner.io.buffer.load.factor.
LOAD_FACTOR = 0.9
#: log.cleaner.dedupe.buffer.size per thread may not be less than this (bytes).
SIZE_MIN = 1 << 20
NOT_FOUND = -1


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


def size_for(keys: int, load_factor: float = LOAD_FACTOR) -> int:
    """Bytes of an OpenAddressingKeyMap that holds `keys` keys, at least one."""
    slots = int(max(keys, 1) / load_factor) + 2
    return slots * SLOT_BYTES


class OpenAddressingKeyMap:
    """A KeyMap in one buffer of `size_bytes` bytes at most, allocated at once."""

    __slots__ = ("_count", "_hash_key", "_keys_max", "_slot_count", "_slots")

    def __init__(
        self, size_bytes: int, *, hash_key: bytes, load_factor: float = LOAD_FACTOR
    ) -> None:
        """`hash_key`: 16 to 64 random bytes, new for every pass. `load_factor`: the part of the
        slots that is filled, above 0 and at most 0.95; at least one key fits, so that every pass
        gets on. ValueError if the size has no room for two slots, or a number is out of bounds.
        """
        raise ValueError("not built yet")

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
        raise ValueError("not built yet")

    def get(self, key: Buffer) -> int:
        raise ValueError("not built yet")
