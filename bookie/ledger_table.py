"""What a bookie knows of each ledger besides its entries: master key, fence, explicit LAC.

All of it is in memory; what changed is written to the index with each checkpoint, as BookKeeper's
LedgerData message (DbLedgerStorageDataFormats.proto): exists 1, fenced 2, masterKey 3,
explicitLac 4, limbo 5.

Owner: the event loop's thread. Invariants (B): the first master key sticks; a fenced
ledger stays fenced; a deleted ledger stays refused, as long as it is remembered.

A checkpoint may move the mark past the record of a ledger's key while the ledger's deletion is not
durable. Until it is, the checkpoint still stores the ledger's state (`take_dirty`). Otherwise a
crash could undo the deletion and leave entries of a ledger without a key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Set

    from bookie.journal.group import Group
    from bookie.ledger_lac import LedgerLac

#: Deleted ledgers that are remembered, to refuse a writer that has not heard of it yet: of each of
#: two ages so many (`age_tombstones`). In memory only: see bookie/space/garbage_collector.py.
TOMBSTONES_MAX = 50_000
#: Master keys that are told apart while ledgers are loaded.
KEYS_MAX = 1000


class LedgerState:
    __slots__ = (
        "explicit_lac",
        "fence_group",
        "fenced",
        "lac",
        "ledger_id",
        "limbo",
        "master_key",
    )

    def __init__(self, ledger_id: int, master_key: bytes | None) -> None:
        self.ledger_id = ledger_id
        #: None only while the journal is replayed and the key has not come by yet.
        self.master_key = master_key
        self.fenced = False
        #: Entries of it may be missing here, for the disk lost something (BP-46): what is not here
        #: is not answered «no such entry».
        self.limbo = False
        #: The journal's group with the fence, until it is durable.
        self.fence_group: Group | None = None
        #: The LAC packet of the last WRITE_LAC.
        self.explicit_lac: bytes | None = None
        #: Its LAC, while somebody follows it.
        self.lac: LedgerLac | None = None

    def encode(self) -> bytes:
        key = self.master_key
        assert key is not None
        parts = [b"\x08\x01\x10", b"\x01" if self.fenced else b"\x00", b"\x1a", _varint(len(key))]
        parts.append(key)
        if self.explicit_lac is not None:
            parts += [b"\x22", _varint(len(self.explicit_lac)), self.explicit_lac]
        if self.limbo:
            parts.append(b"\x28\x01")
        return b"".join(parts)


def decode_ledger_state(ledger_id: int, data: bytes) -> LedgerState:
    """ValueError if it is no LedgerData message with a key."""
    state = LedgerState(ledger_id, None)
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        if tag & 7 == 0:
            value, at = _read_varint(data, at)
            if tag >> 3 == 2:
                state.fenced = bool(value)
            elif tag >> 3 == 5:
                state.limbo = bool(value)
        elif tag & 7 == 2:
            size, at = _read_varint(data, at)
            if at + size > len(data):
                raise ValueError(f"ledger {ledger_id}: a field of {size} bytes goes beyond the end")
            if tag >> 3 == 3:
                state.master_key = data[at : at + size]
            elif tag >> 3 == 4:
                state.explicit_lac = data[at : at + size]
            at += size
        else:
            raise ValueError(f"ledger {ledger_id}: field tag {tag} is not known")
    if state.master_key is None:
        raise ValueError(f"ledger {ledger_id}: there is no master key")
    return state


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 64:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError(f"a number at {at} does not end")


class LedgerTable:
    __slots__ = (
        "_dirty",
        "_dying",
        "_keys",
        "_ledgers",
        "_old_tombstones",
        "_tombstones",
        "get",
        "undone",
    )

    def __init__(self) -> None:
        self._ledgers: dict[int, LedgerState] = {}
        #: Master keys that were loaded, each once.
        self._keys: dict[bytes, bytes] = {}
        self._dirty: dict[int, LedgerState] = {}
        #: Deleted before they were stored.
        self._dying: dict[int, LedgerState] = {}
        self._tombstones: dict[int, None] = {}
        self._old_tombstones: dict[int, None] = {}
        #: Deleted, and the index does not know yet. What it had would be taken for the new one's,
        #: and what the new one got would go with it. The checkpointer's own, which changes.
        self.undone: Container[int] = ()
        #: `get(ledger_id) -> LedgerState | None`, without a call in between: the add's first step.
        self.get = self._ledgers.get

    def load(self, stored: Iterable[tuple[int, bytes]]) -> None:
        """ValueError names the ledger that cannot be read."""
        for ledger_id, data in stored:
            state = self._ledgers[ledger_id] = decode_ledger_state(ledger_id, data)
            if (key := state.master_key) is not None:
                # Most ledgers have the same: 53 bytes each.
                if len(self._keys) >= KEYS_MAX:
                    self._keys.clear()
                state.master_key = self._keys.setdefault(key, key)

    def ids(self) -> list[int]:
        return list(self._ledgers)

    @property
    def known_ids(self) -> Set[int]:
        """A view, which changes with the table."""
        return self._ledgers.keys()

    def __len__(self) -> int:
        return len(self._ledgers)

    def create(self, ledger_id: int, master_key: bytes | None) -> LedgerState:
        assert ledger_id not in self._ledgers
        state = self._ledgers[ledger_id] = LedgerState(ledger_id, master_key)
        self._dirty[ledger_id] = state
        return state

    def changed(self, state: LedgerState) -> None:
        self._dirty[state.ledger_id] = state

    def take_dirty(self, *deleted: Container[int]) -> list[LedgerState]:
        """What has to be written to the index; the caller writes it, gives it back, or ends.

        `deleted`: durably, those in any of these. Of others that are deleted the state is
        returned, too: a crash may still undo the deletion, and then the journal has entries of the
        ledger, and its key maybe not."""
        dirty, self._dirty = self._dirty, {}
        dying, self._dying = self._dying, {}
        states = list(dirty.values())
        states += [
            state for i, state in dying.items() if not any(i in portion for portion in deleted)
        ]
        return states

    def give_back(self, states: Iterable[LedgerState]) -> None:
        """They were not written."""
        for state in states:
            if self._ledgers.get(state.ledger_id) is state:
                self._dirty[state.ledger_id] = state
            else:
                self._dying.setdefault(state.ledger_id, state)

    def delete(self, ledger_id: int) -> None:
        state = self._ledgers.pop(ledger_id, None)
        if state is not None and ledger_id in self._dirty and state.master_key is not None:
            self._dying[ledger_id] = state
        self._dirty.pop(ledger_id, None)
        self._tombstones[ledger_id] = None
        if len(self._tombstones) > TOMBSTONES_MAX:
            self.age_tombstones()

    def is_deleted(self, ledger_id: int) -> bool:
        if ledger_id in self.undone:
            return True
        return ledger_id in self._tombstones or ledger_id in self._old_tombstones

    def age_tombstones(self) -> None:
        """Forgets what was deleted before the last call of this, or before TOMBSTONES_MAX more."""
        self._old_tombstones, self._tombstones = self._tombstones, {}
