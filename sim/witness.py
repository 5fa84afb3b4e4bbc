"""The witness: sees what bookies answer and what ledger clients tell, and knows what the disks and
the metadata hold. What no history of clients would show until the right node fails, it tells at
once.

Of bookies (the answer of an add or of a fencing read is about to leave):
- *early answer*: what was answered EOK would not outlive a power failure of that bookie;
- *made again*: an add made a ledger that this life of the bookie had deleted.
Of ledger clients (brokers and nodes of auto-recovery):
- *ahead of metadata*: an add went to a bookie that the metadata does not name for that entry;
- *thin*: a LAC was told, or a ledger was closed, and an entry up to there had not been answered EOK
  by an ack quorum of the bookies that the metadata names for it;
- *before the segment*: a recovery wrote back an entry from before the last segment;
- *uncovered*: a recovery went on to entries before its fence covered every write set.

The rules are BookKeeper's (LedgerRecoveryOp, PendingAddOp, its TLA+ specification), judged by code
that shares nothing with the code under test but the parsing of headers. Nothing here draws or
waits: but for the faults that it gives their moment a world with a witness runs as one without.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any

from bookie.journal.journal_format import LEDGER_FENCED, special_record
from bookie.ledger_table import decode_ledger_state
from sim.history import Violation
from wire.bookkeeper.entry import parse_header
from wire.bookkeeper.ledger_metadata import LedgerState
from wire.bookkeeper.status import (
    FLAG_DEFERRED_SYNC,
    FLAG_DO_FENCING,
    FLAG_RECOVERY_ADD,
    LAST_ADD_CONFIRMED_ENTRY,
    Status,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from bookie.bookie import Bookie
    from ledger.bookie_client import AddDone, BookieClient
    from sim.nodes import BookieNode, Node
    from sim.world import World
    from wire.bookkeeper.ledger_metadata import LedgerMetadata
    from wire.buffers import Buffers

#: Answers to a fencing read after which the bookie counts as fenced.
FENCED = (Status.EOK, Status.ENOENTRY, Status.ENOLEDGER)


def write_set(metadata: LedgerMetadata, entry_id: int) -> list[str]:
    """The bookies that the metadata names for an entry (RoundRobinDistributionSchedule.java)."""
    ensemble = metadata.ensemble_at(entry_id)
    size = len(ensemble)
    return [ensemble[(entry_id + step) % size] for step in range(metadata.write_quorum_size)]


class Witness:
    def __init__(self, world: World) -> None:
        self._world = world
        #: Ledger -> entry -> bookies that answered EOK.
        self._stored: dict[int, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        #: Ledger -> the highest LAC that was told and judged.
        self._told: dict[int, int] = {}
        #: Client and ledger -> bookies that answered its fencing reads.
        self._fenced: dict[tuple[str, int], set[str]] = defaultdict(set)
        #: Called once each: when a bookie has answered a fence, and when a LAC was told.
        self.on_fence: Callable[[str], None] | None = None
        self.on_told: Callable[[list[str]], None] | None = None
        #: Called with each entry that a ledger's writer sends, before the first bookie gets it, and
        #: whenever one more has answered, before the writer hears it: who writes, the ledger, the
        #: entry's id, its bytes, and how many bookies have it.
        self.on_append: Callable[[Node, int, int, bytes, int], None] | None = None
        #: Ledger -> the last entry that was sent.
        self._sent: dict[int, int] = {}

    def fail(self, kind: str, story: str) -> None:
        self._world.fail(Violation(kind, story))

    # -- bookies -------------------------------------------------------------------------------

    def watch_bookie(self, node: BookieNode, bookie: Bookie) -> None:
        """Stands between it and its server from now on."""
        life = node.life
        # Replaced where the bookie's composition has put them (Bookie._compose_requests).
        parts: Any = bookie
        add_entry, read_entry, is_fenced = parts.add_entry, parts.read_entry, parts.is_fenced
        table: Any = parts._ledger
        acked: set[int] = set()

        def added(
            ledger_id: int, entry: Buffers, is_new: bool, done: AddDone, status: Status
        ) -> None:
            if status == 0 and node.life is life:
                if is_new:
                    self.fail("made again", f"{node.name}: ledger {ledger_id} was deleted there")
                acked.add(ledger_id)
                is_sound = node.name != self._world.rotten
                if is_sound and not node.disk.is_durable(b"".join(entry), "/journal/"):
                    self.fail("early answer", f"{node.name}: an add to ledger {ledger_id}")
            done(status)

        def add(
            ledger_id: int,
            entry_id: int,
            master_key: bytes,
            entry: Buffers,
            flags: int,
            done: AddDone,
        ) -> None:
            if not flags & FLAG_DEFERRED_SYNC:
                is_new = ledger_id in acked and table(ledger_id) is None
                done = partial(added, ledger_id, entry, is_new, done)
            add_entry(ledger_id, entry_id, master_key, entry, flags, done)

        async def read(
            ledger_id: int, entry_id: int, *, flags: int = 0, master_key: bytes | None = None
        ) -> tuple[Status, memoryview]:
            answer: tuple[Status, memoryview] = await read_entry(
                ledger_id, entry_id, flags=flags, master_key=master_key
            )
            if flags & FLAG_DO_FENCING and node.life is life:
                self._fence_answered(node, ledger_id, answer[0])
            return answer

        def fenced(ledger_id: int, master_key: bytes | None) -> bool:
            answer: bool = is_fenced(ledger_id, master_key)
            if answer and node.life is life:
                self._fence_answered(node, ledger_id, Status.EOK)
            return answer

        parts.add_entry, parts.read_entry, parts.is_fenced = add, read, fenced

    def _fence_answered(self, node: BookieNode, ledger_id: int, status: Status) -> None:
        if status not in (Status.EOK, Status.ENOENTRY) or node.name == self._world.rotten:
            return
        record = bytes(special_record(ledger_id, LEDGER_FENCED))
        stored = node.index.durable_ledger(ledger_id)
        is_stored = stored is not None and decode_ledger_state(ledger_id, stored).fenced
        if not is_stored and not node.disk.is_durable(record, "/journal/"):
            self.fail("early answer", f"{node.name}: a fence of ledger {ledger_id}")

    # -- clients -------------------------------------------------------------------------------

    def add_sent(self, node: Node, bookie: str, ledger_id: int, entry_id: int, lac: int) -> None:
        """By the ledger's writer."""
        metadata = self._world.storage.ledger(ledger_id)
        if metadata is not None and metadata.state is LedgerState.OPEN:
            named = write_set(metadata, entry_id)
            if bookie not in named:
                story = f"{node.name}: ledger {ledger_id} entry {entry_id} to {bookie}, not {named}"
                self.fail("ahead of metadata", story)
        self.lac_told(ledger_id, lac)

    def appending(self, node: Node, ledger_id: int, entry_id: int, entry: Buffers) -> None:
        """The writer is about to send an entry to one of its bookies."""
        if self.on_append is not None and self._sent.get(ledger_id, -1) < entry_id:
            self._sent[ledger_id] = entry_id
            self.on_append(node, ledger_id, entry_id, b"".join(entry), 0)

    def appended(self, node: Node, ledger_id: int, entry_id: int, entry: Buffers) -> None:
        """One more bookie has it, and the writer does not know yet."""
        if self.on_append is not None:
            copies = len(self._stored[ledger_id][entry_id])
            self.on_append(node, ledger_id, entry_id, b"".join(entry), copies)

    def write_back_sent(self, node: Node, ledger_id: int, entry_id: int) -> None:
        """By a recovery. (Auto-recovery copies with the same flag, and any segment.)"""
        metadata = self._world.storage.ledger(ledger_id)
        if metadata is None or metadata.state is not LedgerState.IN_RECOVERY:
            return
        if entry_id < metadata.last_segment[0]:
            self.fail("before the segment", f"{node.name}: ledger {ledger_id} entry {entry_id}")

    def stored(self, bookie: str, ledger_id: int, entry_id: int) -> None:
        self._stored[ledger_id][entry_id].add(bookie)

    def lac_told(self, ledger_id: int, lac: int) -> None:
        before = self._told.get(ledger_id, -1)
        if lac <= before:
            return
        self._told[ledger_id] = lac
        metadata = self._world.storage.ledger(ledger_id)
        if metadata is not None:
            for entry_id in range(before + 1, lac + 1):
                self._judge(ledger_id, entry_id, metadata, "the LAC was told")
        if self.on_told is not None:
            tell, self.on_told = self.on_told, None
            tell(sorted(self._stored[ledger_id][lac]))

    def changed(self, ledger_id: int, metadata: LedgerMetadata) -> None:
        """The ledger's metadata are this now."""
        last = metadata.last_entry_id if metadata.is_closed else self._told.get(ledger_id, -1)
        for entry_id in range(last + 1):
            self._judge(ledger_id, entry_id, metadata, "the metadata changed")

    def _judge(self, ledger_id: int, entry_id: int, metadata: LedgerMetadata, when: str) -> None:
        named = write_set(metadata, entry_id)
        having = self._stored[ledger_id][entry_id].intersection(named)
        if len(having) < metadata.ack_quorum_size:
            story = f"ledger {ledger_id} entry {entry_id} is on {sorted(having)} of {named}: {when}"
            self.fail("thin", f"{story}; {metadata}")

    # -- recovery ------------------------------------------------------------------------------

    def recovery_asks(self, node: Node, ledger_id: int, entry_id: int) -> None:
        if entry_id == LAST_ADD_CONFIRMED_ENTRY:
            return
        metadata = self._world.storage.ledger(ledger_id)
        if metadata is None or metadata.state is not LedgerState.IN_RECOVERY:
            return
        fenced = self._fenced[node.name, ledger_id]
        for first in range(metadata.ensemble_size):
            named = write_set(metadata, metadata.last_segment[0] + first)
            unfenced = [bookie for bookie in named if bookie not in fenced]
            if len(unfenced) >= metadata.ack_quorum_size:
                story = f"{node.name}: ledger {ledger_id}: {unfenced} may still confirm an entry"
                self.fail("uncovered", story)

    def recovery_answered(self, node: Node, bookie: str, ledger_id: int, status: Status) -> None:
        if status in FENCED:
            self._fenced[node.name, ledger_id].add(bookie)
            if self.on_fence is not None and status is not Status.ENOLEDGER:
                tell, self.on_fence = self.on_fence, None
                tell(bookie)


class WitnessedBookies:
    """A BookieClient: the given one, before a witness."""

    def __init__(self, bookies: BookieClient, witness: Witness, node: Node) -> None:
        """For the node's present life: of what is left of one that was cut off nothing is judged,
        for it reaches nobody."""
        self._bookies = bookies
        self._witness = witness
        self._node = node
        self._life = node.life
        self._is_repair = node.name.startswith("repair")

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # as the one behind has it
        return getattr(self._bookies, name)

    def add_entry(
        self,
        bookie: str,
        ledger_id: int,
        entry_id: int,
        master_key: bytes,
        entry: Buffers,
        flags: int,
        done: AddDone,
    ) -> None:
        witness = self._witness
        if self._node.life is not self._life:
            pass
        elif not flags & FLAG_RECOVERY_ADD:
            lac = parse_header(entry[0]).last_add_confirmed
            witness.add_sent(self._node, bookie, ledger_id, entry_id, lac)
            witness.appending(self._node, ledger_id, entry_id, entry)
        elif not self._is_repair:
            witness.write_back_sent(self._node, ledger_id, entry_id)

        def answered(status: Status) -> None:
            if status == 0:
                witness.stored(bookie, ledger_id, entry_id)
                if self._node.life is self._life and not flags & FLAG_RECOVERY_ADD:
                    witness.appended(self._node, ledger_id, entry_id, entry)
            done(status)

        self._bookies.add_entry(bookie, ledger_id, entry_id, master_key, entry, flags, answered)

    async def read_entry(
        self,
        bookie: str,
        ledger_id: int,
        entry_id: int,
        *,
        flags: int = 0,
        master_key: bytes | None = None,
    ) -> tuple[Status, memoryview]:
        is_fencing = flags & FLAG_DO_FENCING and self._node.life is self._life
        if is_fencing:
            self._witness.recovery_asks(self._node, ledger_id, entry_id)
        answer = await self._bookies.read_entry(
            bookie, ledger_id, entry_id, flags=flags, master_key=master_key
        )
        if is_fencing:
            self._witness.recovery_answered(self._node, bookie, ledger_id, answer[0])
        return answer

    async def write_lac(
        self, bookie: str, ledger_id: int, last_add_confirmed: int, master_key: bytes, packet: bytes
    ) -> Status:
        if self._node.life is self._life:
            self._witness.lac_told(ledger_id, last_add_confirmed)
        return await self._bookies.write_lac(
            bookie, ledger_id, last_add_confirmed, master_key, packet
        )
