"""A round trip through the ledger client: what `bookkeeper shell bookiesanity` does.

A ledger is made, written, closed, read back and deleted. Its entries are known bytes of several
sizes, so that an answer from another ledger, or one that was cut, is found out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from ledger.client import LedgerClient
    from ledger.errors import LedgerError
    from ledger.reader import LedgerReader
    from ledger.writer import LedgerWriter

ENTRY_COUNT = 10
#: Sizes go up to one that needs several pages.
ENTRY_SIZE_STEP_BYTES = 1000
READ_SIZE_BYTES = 1 << 20


class SanityError(Exception):
    """What was read is not what was written."""


def _payload(ledger_id: int, entry_id: int) -> bytes:
    mark = f"sanity {ledger_id} {entry_id} ".encode()
    size = 1 + entry_id * ENTRY_SIZE_STEP_BYTES
    return (mark * (size // len(mark) + 1))[: max(size, len(mark))]


async def round_trip(ledgers: LedgerClient) -> int:
    """The number of entries that came back as they were written. SanityError, LedgerError."""
    writer = await ledgers.create_ledger(custom_metadata={"application": b"quire-sanity"})
    ledger_id = writer.ledger_id
    try:
        await _write(writer)
        await writer.close()
        await _check(await ledgers.open_ledger(ledger_id, recover=False))
    finally:
        # Also of a check that failed or took too long nothing should stay behind.
        with trio.move_on_after(1, shield=True):
            await ledgers.delete_ledger(ledger_id)
    return ENTRY_COUNT


async def _write(writer: LedgerWriter) -> None:
    """Appends all entries at once, and waits until each was acknowledged."""
    outcomes: list[LedgerError | None] = []
    finished = trio.Event()

    def done(entry_id: int, error: LedgerError | None) -> None:
        outcomes.append(error)
        if len(outcomes) == ENTRY_COUNT:
            finished.set()

    for entry_id in range(ENTRY_COUNT):
        writer.append_nowait([_payload(writer.ledger_id, entry_id)], done)
    await finished.wait()
    for error in outcomes:
        if error is not None:
            raise error


async def _check(reader: LedgerReader) -> None:
    if reader.last_add_confirmed != ENTRY_COUNT - 1:
        raise SanityError(
            f"ledger {reader.ledger_id} ends at entry {reader.last_add_confirmed}, "
            f"{ENTRY_COUNT} entries were acknowledged"
        )
    entry_id = 0
    while entry_id < ENTRY_COUNT:
        for payload in await reader.read(
            entry_id, count_max=ENTRY_COUNT - entry_id, size_max=READ_SIZE_BYTES
        ):
            if payload != _payload(reader.ledger_id, entry_id):
                raise SanityError(
                    f"ledger {reader.ledger_id} entry {entry_id} is not what was written"
                )
            entry_id += 1
