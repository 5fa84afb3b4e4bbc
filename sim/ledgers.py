"""What must hold of ledgers, in metadata at any time and in the bookies' storage at the end.

The invariants of BookKeeper's TLA+ specification, judged from outside: by what ZooKeeper and the
disks of all bookies hold, and by nothing that a client says of itself.
- *reopened*: a ledger goes OPEN -> IN_RECOVERY -> CLOSED, never back; where a closed one ends never
  changes; segments are appended, and only the last one may be replaced (recovery apart);
- *torn chain*: a chain whose ledgers do not follow one another, whose epochs fall, or that says a
  ledger is closed which is not, or ends elsewhere;
- *missing copies*: an entry up to the last add confirmed (of a closed ledger: up to its end) that
  is whole on fewer bookies of its write set than the ack quorum says;
- *diverging copies*: two whole copies of such an entry differ in their payload;
- *dead place* (sim/storage.py): a bookie's index has a place of a ledger that was deleted there, or
  in an entry log that is gone;
- *LAC backwards*: an entry that knows of less than one before it, unless a recovery wrote it back:
  these tell the LAC that it began with (invariant R4), as a copy of the one before does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from ledger.distribution import Schedule
from sim.history import Violation
from wire.bookkeeper.entry import Digest, DigestMismatchError, parse_header
from wire.bookkeeper.ledger_metadata import LedgerState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from broker.log.life.chain import Chain
    from wire.bookkeeper.ledger_metadata import LedgerMetadata

    #: bookie -> entry id -> what its storage has for it.
    Copies = Mapping[str, Mapping[int, bytes]]

ORDER = {LedgerState.OPEN: 0, LedgerState.IN_RECOVERY: 1, LedgerState.CLOSED: 2}


@dataclass(slots=True)
class LedgerHistory:
    known: dict[int, LedgerMetadata] = field(default_factory=dict)

    def see(self, ledger_id: int, new: LedgerMetadata) -> None:
        """Violation unless it may follow what was seen of that ledger before."""
        old = self.known.get(ledger_id)
        self.known[ledger_id] = new
        if old is None:
            return
        story = f"ledger {ledger_id}: from {old} to {new}"
        if ORDER[new.state] < ORDER[old.state]:
            raise Violation("reopened", story)
        if old.is_closed and (new.last_entry_id, new.length) != (old.last_entry_id, old.length):
            raise Violation("reopened", story)
        starts = [first for first, _ in new.segments]
        if starts != sorted(set(starts)):
            raise Violation("reopened", f"{story}: segments out of order")
        # What was settled stays: auto-recovery changes bookies in segments, never where they begin.
        settled = [first for first, _ in old.segments[:-1]]
        if starts[: len(settled)] != settled:
            raise Violation("reopened", f"{story}: a settled segment is gone")


def check_chain(name: str, chain: Chain, ledger: Callable[[int], LedgerMetadata | None]) -> None:
    """`ledger`: its metadata now; None if it is gone. Violation."""
    for one, other in pairwise(chain.ledgers):
        if one.is_open or one.end_offset != other.base_offset:
            raise Violation("torn chain", f"{name}: {one} is followed by {other}")
        if other.leader_epoch < one.leader_epoch:
            raise Violation("torn chain", f"{name}: the epoch falls from {one} to {other}")
    for info in chain.ledgers:
        metadata = ledger(info.ledger_id)
        if metadata is None:
            raise Violation("torn chain", f"{name}: the ledger of {info} is gone")
        if info.is_open:
            continue
        if not metadata.is_closed or metadata.last_entry_id + 1 != info.entry_count:
            raise Violation("torn chain", f"{name}: {info} is not what its ledger is: {metadata}")


def check_copies(
    ledger_id: int, metadata: LedgerMetadata, copies: Copies, *, spoilt: int = 0
) -> int:
    """`copies`: of every bookie's storage, what it has of this ledger. `spoilt`: so many of a write
    set's copies may be lost, on bookies whose disks rot. Violation; else how many entries were
    judged."""
    digest = Digest(metadata.digest_type, metadata.password or b"")  # type: ignore[arg-type]
    whole: dict[str, dict[int, bytes]] = {}
    lacs: dict[int, int] = {}
    #: What the copy of an entry tells that knows least: of two one may be a recovery's.
    least: dict[int, int] = {}
    for bookie, entries in copies.items():
        whole[bookie] = {}
        for entry_id, entry in entries.items():
            try:
                payload = digest.open(entry, ledger_id, entry_id)
            except DigestMismatchError:
                continue
            whole[bookie][entry_id] = bytes(payload)
            lac = parse_header(entry).last_add_confirmed
            lacs[entry_id] = max(lac, lacs.get(entry_id, -1))
            least[entry_id] = min(lac, least.get(entry_id, lac))
    last = metadata.last_entry_id if metadata.is_closed else max(lacs.values(), default=-1)
    known = [(entry_id, lacs[entry_id]) for entry_id in sorted(lacs) if entry_id <= last]
    for (one, lac), (other, later) in pairwise(known):
        is_written_back = metadata.is_closed and least[one] <= later
        if later < lac and not is_written_back:
            raise Violation(
                "LAC backwards", f"ledger {ledger_id}: {lac} in {one}, {later} in {other}"
            )
    distribution = Schedule(
        metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size
    )
    for entry_id in range(last + 1):
        ensemble = metadata.ensemble_at(entry_id)
        bookies = [ensemble[index] for index in distribution.write_set(entry_id)]
        found = [whole[b][entry_id] for b in bookies if entry_id in whole.get(b, ())]
        if len(found) < metadata.ack_quorum_size - spoilt:
            raise Violation(
                "missing copies",
                f"ledger {ledger_id} entry {entry_id}: {len(found)} of {bookies} have it, "
                f"{metadata}",
            )
        if len(set(found)) > 1:
            raise Violation("diverging copies", f"ledger {ledger_id} entry {entry_id} on {bookies}")
    return last + 1
