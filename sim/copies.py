"""What auto-recovery owes: in the end every entry of a closed ledger is on its whole write quorum.

Judged where a node of auto-recovery is, at the auditor's default settings but for its pace: after
the heal all bookies are there, so what is marked can be repaired, and what nobody marked is found
by the auditor's check of all ledgers. A copy counts if the bookie's storage has it whole, and if
the ledger's metadata name the bookie for it. Open ledgers are their writers' business.

Copies on a disk that rots count, too: each bookie's scrub comes by before the judgement, and what
it finds is to be mended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from ledger.distribution import Schedule
from sim.history import Violation
from wire.bookkeeper.entry import Digest, DigestMismatchError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sim.ledgers import Copies
    from wire.bookkeeper.ledger_metadata import LedgerMetadata

#: Several rounds of the auditor's check (sim/preset.py), and of repairs that had to wait.
REPAIR_SECONDS = 60.0
LOOK_SECONDS = 2.0


def thin_entries(ledger_id: int, metadata: LedgerMetadata, copies: Copies) -> list[str]:
    """One line for each entry of a closed ledger that a bookie of its write set has not whole.
    `copies`: of every bookie's storage, what it has of this ledger."""
    if not metadata.is_closed:
        return []
    digest = Digest(metadata.digest_type, metadata.password or b"")  # type: ignore[arg-type]
    schedule = Schedule(
        metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size
    )
    found: list[str] = []
    for entry_id in range(metadata.last_entry_id + 1):
        ensemble = metadata.ensemble_at(entry_id)
        wanted = [ensemble[index] for index in schedule.write_set(entry_id)]
        lacking = sorted(
            bookie
            for bookie in wanted
            if not _is_whole(digest, ledger_id, entry_id, copies[bookie].get(entry_id))
        )
        if lacking:
            found.append(f"ledger {ledger_id} entry {entry_id} is not on {', '.join(lacking)}")
    return found


def _is_whole(digest: Digest, ledger_id: int, entry_id: int, entry: bytes | None) -> bool:
    if entry is None:
        return False
    try:
        digest.open(entry, ledger_id, entry_id)
    except DigestMismatchError:
        return False
    return True


async def wait_repaired(look: Callable[[], Awaitable[list[str]]]) -> None:
    """`look()`: the lines of all ledgers, as they are now. Violation if some are left in the
    end."""
    deadline = trio.current_time() + REPAIR_SECONDS
    while thin := await look():
        if trio.current_time() > deadline:
            more = f" and {len(thin) - 1} more" if len(thin) > 1 else ""
            raise Violation("thin copies", f"{thin[0]}{more}")
        await trio.sleep(LOOK_SECONDS)
