"""Recovery: fence a ledger, find its end, make it final (invariants R).

1. OPEN -> IN_RECOVERY by compare-and-set.
2. Fencing read of the last entry from every bookie of the last segment, until no Qa bookies of any
   write set are left that might not be fenced. The highest LAC seen is the start.
3. From LAC + 1: read each entry, fencing again (a bookie that missed the first fence must not ack
   later, bk#2614), and write it again to its whole write set; stop at the first entry that
   provably was not acked.
4. Compare-and-set to CLOSED at the last entry written.

All reads use the ensembles as they were at the start; ensembles changed while writing back stay in
memory until step 4. Otherwise a second recoverer would ask bookies that never had an entry, and cut
acked entries off. Recovery may be repeated and may run several times at once: whoever closes first
decides, the others adopt it.

A recovered ledger may need no further copies: step 3 writes back every entry that is not known to
be acknowledged, and replaces lost bookies meanwhile. Of a ledger that was written in one burst that
is all of it.
"""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import trio

from ledger.distribution import Schedule
from ledger.errors import (
    LedgerError,
    LedgerReadError,
    NotEnoughBookiesError,
    UnauthorizedError,
)
from ledger.pipeline import AddPipeline, Window
from ledger.recovery_core import EndCore, EntryCore, Verdict
from ledger.statistics import LedgerStatistics
from ledger.writer_core import PendingAdd, WriterCore
from wire.bookkeeper.entry import Digest, DigestMismatchError, parse_header
from wire.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState
from wire.bookkeeper.status import (
    FLAG_DO_FENCING,
    FLAG_HIGH_PRIORITY,
    FLAG_RECOVERY_ADD,
    LAST_ADD_CONFIRMED_ENTRY,
    Status,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence

    from ledger.bookie_client import BookieClient
    from ledger.client_parts import ClientParts, LedgerSeal
    from ledger.metadata import Versioned
    from ledger.writer_core import AppendDone, ChangeRequest

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: What is in flight is bounded by what recovery reads ahead.
UNBOUNDED = Window(sys.maxsize, sys.maxsize)
#: Entries that recovery asks for first; then twice as many, up to recovery_read_batch.
FIRST_READ_BATCH = 2


class LedgerEnd(NamedTuple):
    last_add_confirmed: int
    #: Payload bytes up to that entry; None if no answer told.
    length: int | None


class RecoveredEntry(NamedTuple):
    payload: memoryview
    #: As the writer counted: payload bytes up to and including this entry.
    length: int


class RememberedEnsembles:
    """A recovery's `ledger.pipeline.Ensembles`: new ones stay in memory until the ledger closes."""

    def __init__(self) -> None:
        #: First entry id -> ensemble, ascending.
        self.segments: dict[int, tuple[str, ...]] = {}
        #: Bookies without which entries were written back.
        self.left_out: set[str] = set()

    async def store_ensemble(self, request: ChangeRequest, ensemble: tuple[str, ...]) -> None:
        self.segments[request.first_entry_id] = ensemble

    def leave_out(self, bookies: Collection[str]) -> None:
        self.left_out.update(bookies)

    def take_in(self, bookie: str) -> None:
        """What was written back without it is not there all the same."""


class WriteBackCore(WriterCore):
    """What is written back tells the LAC that the recovery began with, and no later one.

    Its own acks may come from bookies that took another one's place, and these ensembles are lost
    if it ends before the closing compare-and-set. The next recovery would believe a LAC that they
    made, begin behind entries that have too few copies, and close over them (invariant R4)."""

    __slots__ = ("_lac_told",)

    def __init__(
        self,
        ledger_id: int,
        schedule: Schedule,
        ensemble: tuple[str, ...],
        *,
        last_add_confirmed: int,
    ) -> None:
        super().__init__(ledger_id, schedule, ensemble, last_add_confirmed=last_add_confirmed)
        self._lac_told = last_add_confirmed

    def add(self, size: int, done: AppendDone) -> PendingAdd:
        pending = super().add(size, done)
        assert pending.last_add_confirmed >= self._lac_told
        pending.last_add_confirmed = self._lac_told
        return pending


class WriteBack:
    """Writes entries again, to all of their write sets."""

    def __init__(self, core: WriterCore, parts: ClientParts, seal: LedgerSeal) -> None:
        self.ensembles = RememberedEnsembles()
        self.failure: LedgerError | None = None
        self._core = core
        self._pipeline = AddPipeline(
            core,
            # Nobody's adds: they are not counted.
            replace(parts, statistics=LedgerStatistics()),
            replace(seal, flags=FLAG_RECOVERY_ADD | FLAG_HIGH_PRIORITY),
            self.ensembles,
            UNBOUNDED,
        )

    @property
    def last_add_confirmed(self) -> int:
        return self._core.last_add_confirmed

    @property
    def confirmed_length(self) -> int:
        return self._core.confirmed_length

    async def add(self, entry: RecoveredEntry, entry_id: int, pending_max: int) -> None:
        """Sends this entry, the next one, when fewer than `pending_max` are in flight; raises why
        not."""
        core = self._core
        if len(core.pending) >= pending_max:
            await self.finish()
        if core.error is not None:
            raise core.error
        # The entry keeps the length that its first writer gave it.
        core.length = entry.length - len(entry.payload)
        self._pipeline.append((entry.payload,), self._on_done)
        assert core.last_add_pushed == entry_id

    async def finish(self) -> None:
        """Waits until all are acked; raises why not."""
        await self._pipeline.wait_drained()
        if self.failure is not None:
            raise self.failure

    def _on_done(self, entry_id: int, error: LedgerError | None) -> None:
        if error is not None and self.failure is None:
            self.failure = error


class LedgerReads:
    """The questions of one recovery (or of an opening without one), with one ledger's keys."""

    def __init__(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        digest: Digest,
        master_key: bytes | None,
        bookies: BookieClient,
    ) -> None:
        """With a `master_key` all reads fence; without, none does."""
        self._ledger_id = ledger_id
        self._metadata = metadata
        self._digest = digest
        self._key = master_key
        self._flags = 0 if master_key is None else FLAG_DO_FENCING
        self._bookies = bookies
        self.schedule = Schedule(
            metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size
        )

    async def end(self) -> LedgerEnd:
        """The LAC that the last segment's bookies know of; NotEnoughBookiesError if too few of them
        answer, UnauthorizedError."""
        first_entry_id, bookies = self._metadata.last_segment
        core = EndCore(self.schedule, first_entry_id)
        statuses: list[str] = []
        #: Entry id -> payload bytes up to it, as far as any answer tells.
        lengths: dict[int, int] = {-1: 0}

        def on_reply(index: int, answer: tuple[Status, memoryview]) -> Verdict:
            status, view = answer
            statuses.append(f"{bookies[index]}: {status.name}")
            header = None
            if status is Status.EOK:
                with suppress(ValueError):  # a damaged last entry tells nothing, but was fenced
                    found = parse_header(view)
                    payload = self._digest.open(view, self._ledger_id, found.entry_id)
                    header = found
                    lengths[found.entry_id] = found.length
                    lengths.setdefault(found.entry_id - 1, found.length - len(payload))
            return core.reply(index, status, header)

        asks = [partial(self._read, bookie, LAST_ADD_CONFIRMED_ENTRY) for bookie in bookies]
        if await self._decide(asks, on_reply) is not Verdict.FOUND:
            raise NotEnoughBookiesError(
                self._ledger_id, f"too few bookies know its end ({'; '.join(statuses)})"
            )
        return LedgerEnd(core.last_add_confirmed, lengths.get(core.last_add_confirmed))

    async def entry(self, entry_id: int) -> RecoveredEntry | None:
        """The entry, from whichever replica has it intact; None if it provably was never acked.
        LedgerReadError if neither can be known now."""
        bookies = self._metadata.ensemble_at(entry_id)
        core = EntryCore(self.schedule)
        found: list[RecoveredEntry] = []
        statuses: list[str] = []
        asked = [bookies[index] for index in self.schedule.write_set(entry_id)]

        def on_reply(position: int, answer: tuple[Status, memoryview]) -> Verdict:
            status, view = answer
            words = status.name
            if status is Status.EOK:
                try:
                    payload = self._digest.open(view, self._ledger_id, entry_id)
                    found.append(RecoveredEntry(payload, parse_header(view).length))
                except DigestMismatchError as error:
                    words = str(error)
            statuses.append(f"{asked[position]}: {words}")
            return core.reply(status, bool(found))

        verdict = await self._decide(
            [partial(self._read, bookie, entry_id) for bookie in asked], on_reply
        )
        if verdict is Verdict.UNDECIDED:
            raise LedgerReadError(
                self._ledger_id,
                f"whether entry {entry_id} exists cannot be known now ({'; '.join(statuses)})",
            )
        return found[0] if verdict is Verdict.FOUND else None

    async def _read(self, bookie: str, entry_id: int) -> tuple[Status, memoryview]:
        flags = self._flags
        if flags and entry_id != LAST_ADD_CONFIRMED_ENTRY:
            flags |= FLAG_HIGH_PRIORITY
        answer = await self._bookies.read_entry(
            bookie, self._ledger_id, entry_id, flags=flags, master_key=self._key
        )
        if answer[0] is Status.EUA:
            words = f"bookie {bookie} knows the ledger with another master key"
            raise UnauthorizedError(self._ledger_id, words)
        return answer

    async def _decide(
        self,
        asks: Sequence[Callable[[], Awaitable[T]]],
        on_reply: Callable[[int, T], Verdict],
    ) -> Verdict:
        """Asks all at once; the first answer that decides ends it."""
        if len(asks) == 1:  # a task for it would cost more than the question
            return on_reply(0, await asks[0]())
        verdict = Verdict.UNDECIDED
        failure: LedgerError | None = None
        is_decided = False

        async def ask_one(position: int, scope: trio.CancelScope) -> None:
            nonlocal verdict, failure, is_decided
            try:
                answer = await asks[position]()
            except LedgerError as error:
                failure = error
            if is_decided:
                return
            if failure is None:
                verdict = on_reply(position, answer)
            if failure is not None or verdict is not Verdict.WAITING:
                is_decided = True
                scope.cancel()

        async with trio.open_nursery() as nursery:
            for position in range(1, len(asks)):
                nursery.start_soon(ask_one, position, nursery.cancel_scope)
            await ask_one(0, nursery.cancel_scope)
        if failure is not None:
            raise failure
        return verdict


class Recovery:
    """One recovery of one ledger. `await run()`; make another for another try."""

    def __init__(self, ledger_id: int, parts: ClientParts, seal: LedgerSeal) -> None:
        self._ledger_id = ledger_id
        self._parts = parts
        self._seal = seal
        self._manager = parts.manager
        #: Bookies of the closed ledger that lack entries, as far as is known.
        self.left_out: frozenset[str] = frozenset()

    async def run(self, versioned: Versioned) -> Versioned:
        """The closed ledger's metadata. NotEnoughBookiesError, LedgerReadError: not possible now,
        the ledger stays IN_RECOVERY. UnauthorizedError, LedgerMetadataError."""
        ledger_id = self._ledger_id
        versioned = await self._manager.update(ledger_id, versioned, _mark_in_recovery)
        if versioned.metadata.is_closed:
            return versioned
        metadata = versioned.metadata
        seal, bookies = self._seal, self._parts.bookies
        reads = LedgerReads(ledger_id, metadata, seal.digest, seal.master_key, bookies)
        end = await reads.end()
        core = WriteBackCore(
            ledger_id,
            reads.schedule,
            metadata.last_segment[1],
            last_add_confirmed=end.last_add_confirmed,
        )
        written = WriteBack(core, self._parts, seal)
        await self._write_back(reads, written, end.last_add_confirmed + 1)
        self.left_out = frozenset(written.ensembles.left_out)
        last_entry_id = written.last_add_confirmed
        if last_entry_id > end.last_add_confirmed:
            length = written.confirmed_length
        else:
            length = await self._length(reads, end)
        versioned = await self._manager.update(
            ledger_id,
            versioned,
            lambda stored: _close(
                ledger_id, stored, written.ensembles.segments, last_entry_id, length
            ),
        )
        logger.info(
            "ledger=%d recovered: lac=%d last_entry=%d length=%d",
            ledger_id,
            end.last_add_confirmed,
            versioned.metadata.last_entry_id,
            versioned.metadata.length,
        )
        return versioned

    async def _write_back(self, reads: LedgerReads, written: WriteBack, entry_id: int) -> None:
        # Mostly one entry is beyond the LAC that the bookies know: a thousand idle ledgers should
        # not ask for eight each.
        batch_max = self._parts.config.recovery_read_batch
        batch = min(FIRST_READ_BATCH, batch_max)
        while True:
            results = await _read_batch(reads, range(entry_id, entry_id + batch))
            for result in results:
                if isinstance(result, LedgerError):
                    raise result
                if result is None:
                    await written.finish()
                    return
                await written.add(result, entry_id, 2 * batch)
                entry_id += 1
            batch = min(2 * batch, batch_max)

    async def _length(self, reads: LedgerReads, end: LedgerEnd) -> int:
        """Of a ledger to which nothing was written back: its last entry tells. If nobody has that
        now, the ledger is closed all the same (its end is certain), with a length of 0."""
        if end.length is not None:
            return end.length
        with suppress(LedgerReadError):
            entry = await reads.entry(end.last_add_confirmed)
            if entry is not None:
                return entry.length
        logger.warning(
            "ledger=%d last_entry=%d is on no bookie that answers: its length is not known",
            self._ledger_id,
            end.last_add_confirmed,
        )
        return 0


async def _read_batch(
    reads: LedgerReads, entry_ids: range
) -> list[RecoveredEntry | LedgerError | None]:
    """In order; an error takes its entry's place: it matters only if the ledger goes that far."""
    results: list[RecoveredEntry | LedgerError | None] = [None] * len(entry_ids)

    async def read_one(position: int) -> None:
        try:
            results[position] = await reads.entry(entry_ids[position])
        except LedgerError as error:
            results[position] = error

    async with trio.open_nursery() as nursery:
        for position in range(1, len(entry_ids)):
            nursery.start_soon(read_one, position)
        await read_one(0)
    return results


def _mark_in_recovery(metadata: LedgerMetadata) -> LedgerMetadata | None:
    if metadata.state is not LedgerState.OPEN:
        return None
    return replace(metadata, state=LedgerState.IN_RECOVERY)


def _close(
    ledger_id: int,
    stored: LedgerMetadata,
    segments: dict[int, tuple[str, ...]],
    last_entry_id: int,
    length: int,
) -> LedgerMetadata | None:
    """The stored metadata, closed here with the ensembles of the write-back; None if another
    recoverer has closed it, whose end then is the end."""
    if stored.is_closed:
        return None
    assert stored.state is LedgerState.IN_RECOVERY, f"ledger {ledger_id} is open again"
    for first_entry_id, bookies in segments.items():
        stored = stored.with_segment(first_entry_id, bookies)
    return stored.closed_at(last_entry_id, length)
