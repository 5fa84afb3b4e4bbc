"""Whether the bookies of an open ledger's last ensemble have all that they should have by now.

Nobody is fenced for the question. First every bookie tells the LAC and the last entry that it
knows; then the copies up to the highest of these are looked for, as if the ledger ended there. An
entry beyond the LAC may be confirmed although no bookie was told, so the last entry counts too. One
that is still under way to a bookie is taken for missing: the mark stays until the next look.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import trio

from wire.bookkeeper.entry import Digest, DigestMismatchError, parse_header
from wire.bookkeeper.ledger_metadata import LedgerState
from wire.bookkeeper.status import Status

if TYPE_CHECKING:
    from collections.abc import Collection

    from ledger.bookie_client import BookieClient, BookieId, LacRecord
    from ledger.copy_check import CopyChecker
    from ledger.fragments import Fragment
    from wire.bookkeeper.ledger_metadata import LedgerMetadata

_HAS_NONE = (Status.ENOENTRY, Status.ENOLEDGER)


async def is_open_end_whole(
    bookies: BookieClient,
    checker: CopyChecker,
    fragment: Fragment,
    metadata: LedgerMetadata,
    registered: Collection[BookieId],
) -> bool:
    """False also if that cannot be told: a bookie gives no answer, or somebody recovers the ledger.

    `fragment` is the open one of `metadata`; `checker` has not asked its bookies yet."""
    if metadata.state is not LedgerState.OPEN:
        return False
    last_seen = await _last_seen(bookies, fragment, metadata)
    if last_seen is None:
        return False
    end = max(last_seen, fragment.first_entry_id - 1)
    return not await checker.check(replace(fragment, last_entry_id=end), registered)


async def _last_seen(
    bookies: BookieClient, fragment: Fragment, metadata: LedgerMetadata
) -> int | None:
    """The highest entry that a bookie has, or that one knows to be confirmed; -1: none. None if not
    all of them tell."""
    if metadata.digest_type is None or metadata.password is None:
        return None
    digest = Digest(metadata.digest_type, metadata.password)
    found: list[int | None] = [-1]

    async def ask(bookie: BookieId) -> None:
        found.append(_told(await bookies.read_lac(bookie, fragment.ledger_id), fragment, digest))

    async with trio.open_nursery() as nursery:
        for bookie in fragment.ensemble:
            nursery.start_soon(ask, bookie)
    told = [entry_id for entry_id in found if entry_id is not None]
    return max(told) if len(told) == len(found) else None


def _told(record: LacRecord, fragment: Fragment, digest: Digest) -> int | None:
    """Only what its digest vouches for; None otherwise, and if the bookie does not tell."""
    if record.status in _HAS_NONE:
        return -1
    if record.status is not Status.EOK:
        return None
    last = -1
    try:
        if record.packet is not None:
            last = digest.open_lac(record.packet, fragment.ledger_id)
        if record.last_entry is not None:
            entry_id = parse_header(record.last_entry).entry_id
            digest.open(record.last_entry, fragment.ledger_id, entry_id)
            last = max(last, entry_id)
    except (DigestMismatchError, ValueError):
        return None
    return last
