"""Re-replication: copies what a lost bookie had to another one (features 38, 40).

The rules (invariants A; LedgerFragmentReplicator.java, BookKeeperAdmin.java):

1. Only closed fragments are copied: one that another follows, or the last of a closed ledger. The
   open end of a ledger is recovered (fenced and closed) first, even if the lost bookie had nothing
   of it: a second loss could make its end undecidable.
2. All entries first, with RECOVERY_ADD (the target may be fenced, bk#4163), as they are: header and
   digest included, after the digest was checked. Then one compare-and-set puts the target into the
   fragment's ensemble, at the lost bookie's place, if that one still is there.
3. A target is never in the fragment's ensemble already.
4. Nothing is lost by doing it twice or at two places at once: adds are idempotent, and whoever
   comes second with the compare-and-set finds its premise gone.

If anything fails before the compare-and-set, the metadata is as it was. Entries come from the
bookies that stay, and only if none of them has one, from those to be replaced: they may be alive.

In memory are two batches at most. Whoever wants this slower sets the rates of ReplicationConfig.
"""

from __future__ import annotations

import logging
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import trio

from ledger.errors import (
    LedgerError,
    LedgerMetadataError,
    LedgerReadError,
    MetadataConflictError,
    NotEnoughBookiesError,
)
from ledger.fragments import Fragment, fragments, schedule_of, with_replacements
from ledger.placement import TooFewBookiesError
from runtime.logs import kv
from runtime.throttle import Throttle
from wire.bookkeeper.entry import Digest, DigestMismatchError, master_key
from wire.bookkeeper.status import FLAG_RECOVERY_ADD, Status
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from ledger.bookie_client import BookieClient, BookieId
    from ledger.client import LedgerClient
    from ledger.metadata import LedgerManager
    from ledger.placement import Placement
    from wire.bookkeeper.ledger_metadata import LedgerMetadata

    #: step(entries, bytes): so many copies more were written.
    Step = Callable[[int, int], None]

logger = logging.getLogger(__name__)

#: How often a ledger is looked at again because somebody else changed it, or a target failed.
ROUNDS_MAX = 20
RETRY_PAUSE_SECONDS = 0.1
#: Of an entry, where the metadata does not tell the mean.
STRIPED_SIZE_GUESS_BYTES = 64 << 10
#: Entries that are asked for at once where a bookie knows no batch reads.
SINGLE_READS = 16


class UnreadableEntryError(LedgerReadError):
    """No bookie gives an entry; the detail says what each answered."""

    def __init__(self, ledger_id: int, entry_id: int, answers: str) -> None:
        super().__init__(ledger_id, f"entry {entry_id}: no bookie gives it ({answers})")
        self.entry_id = entry_id


class TargetFailedError(LedgerError):
    """A bookie that was to get copies did not take one; another one may."""

    def __init__(self, ledger_id: int, entry_id: int, bookie: BookieId, status: Status) -> None:
        super().__init__(ledger_id, f"entry {entry_id} not copied: {bookie} says {status.name}")
        self.bookie = bookie


@dataclass(slots=True, frozen=True)
class ReplicationConfig:
    """BookKeeper: rereplicationEntryBatchSize, replicationRateByBytes."""

    batch_entries_max: int = 256
    #: Of a batch, unless a single entry is larger.
    batch_size_max_bytes: int = 1 << 20
    #: 0: no limit.
    entries_per_second: float = 0
    bytes_per_second: float = 0
    #: So often an add is tried again that a bookie refused for having too much to do.
    retry_count_max: int = 6

    def __post_init__(self) -> None:
        for name in ("batch_entries_max", "batch_size_max_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, is {getattr(self, name)}")
        for name in ("entries_per_second", "bytes_per_second", "retry_count_max"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, is {getattr(self, name)}")


class Copied(NamedTuple):
    """Copies that were written: one for each entry and target."""

    entries: int = 0
    size_bytes: int = 0

    def plus(self, other: Copied) -> Copied:
        return Copied(self.entries + other.entries, self.size_bytes + other.size_bytes)


@dataclass(slots=True, frozen=True)
class LedgerOutcome:
    """What `Replicator.replace_bookies` did to a ledger."""

    ledger_id: int
    fragments: int
    copied: Copied
    #: It was open, and is closed now.
    was_recovered: bool = False
    #: Its open end still names a bookie that was to be replaced.
    open_end_skipped: bool = False


class _Copy(NamedTuple):
    bookie: BookieId
    entry_id: int
    #: One object for all targets of an entry: its frame is made once.
    entry: tuple[memoryview]


class _Adds:
    """Adds under way; `refused` has those that were not taken, when none is left."""

    __slots__ = ("_event", "_pending", "refused")

    def __init__(self) -> None:
        self._pending = 0
        self._event = trio.Event()
        self.refused: list[tuple[_Copy, Status]] = []

    def expect(self, count: int) -> None:
        self._pending += count

    def on_done(self, copy: _Copy, status: Status) -> None:
        if status is not Status.EOK:
            self.refused.append((copy, status))
        self._pending -= 1
        if not self._pending:
            self._event.set()

    async def wait(self) -> None:
        if self._pending:
            await self._event.wait()


class Replicator:
    """Copies fragments. Has no state but the rates, so one may serve many ledgers at once."""

    def __init__(
        self,
        manager: LedgerManager,
        bookies: BookieClient,
        config: ReplicationConfig | None = None,
    ) -> None:
        self._manager = manager
        self._bookies = bookies
        self._config = config if config is not None else ReplicationConfig()
        self._entry_rate = Throttle(self._config.entries_per_second)
        self._byte_rate = Throttle(self._config.bytes_per_second)

    async def replicate(
        self,
        fragment: Fragment,
        metadata: LedgerMetadata,
        replacements: Mapping[int, BookieId],
        step: Step | None = None,
    ) -> Copied:
        """Copies the fragment's entries to `replacements` (ensemble index -> new bookie), then puts
        these into its ensemble. `metadata`: as the fragment was taken from; gives the keys.

        ValueError: the fragment is open, or a new bookie is in its ensemble. UnreadableEntryError;
        TargetFailedError; MetadataConflictError: the old bookie is not there any more;
        NoSuchLedgerError, LedgerMetadataError."""
        if not fragment.is_closed:
            raise ValueError(f"ledger {fragment.ledger_id}: an open fragment is not copied")
        if set(replacements.values()) & set(fragment.ensemble) or not replacements:
            raise ValueError(f"{dict(replacements)} can replace nobody of {fragment.ensemble}")
        copying = _Copying(self._bookies, self._config, fragment, metadata, replacements)
        ids = fragment.entry_ids(copying.schedule, replacements)
        copied = await self._copy(copying, ids, step)
        versioned = await self._manager.read(fragment.ledger_id)
        await self._manager.update(
            fragment.ledger_id, versioned, partial(with_replacements, fragment, replacements)
        )
        logger.info(
            "fragment_replicated",
            kv(
                ledger=fragment.ledger_id,
                first_entry=fragment.first_entry_id,
                entries=copied.entries,
                bytes=copied.size_bytes,
                targets=",".join(replacements.values()),
            ),
        )
        return copied

    async def restore(
        self,
        fragment: Fragment,
        metadata: LedgerMetadata,
        index: int,
        entry_ids: Iterable[int],
        step: Step | None = None,
    ) -> Copied:
        """Writes entries again to the bookie at `index`, which should have them and has not; the
        metadata stays as it is. `entry_ids` are consecutive unless the ledger is striped.
        UnreadableEntryError, TargetFailedError."""
        if not fragment.is_closed:
            raise ValueError(f"ledger {fragment.ledger_id}: an open fragment is not copied")
        bookie = {index: fragment.ensemble[index]}
        copying = _Copying(self._bookies, self._config, fragment, metadata, bookie)
        return await self._copy(copying, iter(entry_ids), step)

    async def check_readable(
        self, fragment: Fragment, metadata: LedgerMetadata, entry_id: int
    ) -> None:
        """UnreadableEntryError if no bookie gives the entry: then nothing needs to be copied in
        front of it only to fail there again (bk#1908)."""
        nobody: dict[int, BookieId] = {}
        await _Copying(self._bookies, self._config, fragment, metadata, nobody).read_one(entry_id)

    async def _copy(self, copying: _Copying, ids: Iterator[int], step: Step | None) -> Copied:
        """Reads a batch while the one before it is written."""
        copied = Copied()
        written = Copied()
        adds: _Adds | None = None
        waiting = list(islice(ids, copying.read_count))
        while waiting or adds is not None:
            batch = await copying.read(waiting) if waiting else {}
            waiting = waiting[len(batch) :]
            waiting += islice(ids, copying.read_count - len(waiting))
            if adds is not None:
                await self._finish(copying, adds)
                copied = copied.plus(written)
                if step is not None:
                    step(*written)
            copies = copying.copies(batch)
            written = Copied(len(copies), sum(len(copy.entry[0]) for copy in copies))
            await self._entry_rate.take(written.entries)
            await self._byte_rate.take(written.size_bytes)
            adds = self._send(copying, copies) if copies else None
        return copied

    def _send(self, copying: _Copying, copies: Sequence[_Copy]) -> _Adds:
        adds = _Adds()
        # Before the first add: it may be answered at once.
        adds.expect(len(copies))
        for copy in copies:
            self._bookies.add_entry(
                copy.bookie,
                copying.fragment.ledger_id,
                copy.entry_id,
                copying.master_key,
                copy.entry,
                FLAG_RECOVERY_ADD,
                partial(adds.on_done, copy),
            )
        return adds

    async def _finish(self, copying: _Copying, adds: _Adds) -> None:
        """Waits for all acks; asks again where a bookie had too much to do. TargetFailedError."""
        for attempt in range(self._config.retry_count_max + 1):
            await adds.wait()
            if not adds.refused:
                return
            for copy, status in adds.refused:
                is_last = attempt == self._config.retry_count_max
                if status is not Status.ETOOMANYREQUESTS or is_last:
                    raise TargetFailedError(
                        copying.fragment.ledger_id, copy.entry_id, copy.bookie, status
                    )
            await trio.sleep(RETRY_PAUSE_SECONDS * 2**attempt)
            adds = self._send(copying, [copy for copy, _ in adds.refused])

    async def replace_bookies(
        self,
        client: LedgerClient,
        placement: Placement,
        ledger_id: int,
        lost: Collection[BookieId],
        *,
        skip_open: bool = False,
        step: Step | None = None,
    ) -> LedgerOutcome:
        """Takes the bookies of `lost` out of all ensembles of a ledger, whose data other bookies
        get as `placement` says. An open end is recovered first, or left with `skip_open`.

        NotEnoughBookiesError: nobody can take a place; LedgerReadError: entries are on no bookie
        that answers; NoSuchLedgerError, UnauthorizedError, LedgerMetadataError. What was done
        before an error stays."""
        done, was_recovered, unfit = 0, False, set(lost)
        copied = Copied()
        last_error: LedgerError | None = None
        for _ in range(ROUNDS_MAX):
            metadata = (await self._manager.read(ledger_id)).metadata
            found = [each for each in fragments(ledger_id, metadata) if each.indexes_of(lost)]
            is_open = bool(found) and not found[-1].is_closed
            if is_open and not skip_open:
                await client.open_ledger(ledger_id, password=metadata.password or b"", recover=True)
                was_recovered = True
                continue
            try:
                for fragment in found:
                    if fragment.is_closed:
                        targets = await choose_targets(placement, fragment, metadata, lost, unfit)
                        new = await self.replicate(fragment, metadata, targets, step)
                        done, copied = done + 1, copied.plus(new)
            except TargetFailedError as error:
                unfit.add(error.bookie)
                last_error = error
            except MetadataConflictError as error:
                last_error = error
            else:
                return LedgerOutcome(ledger_id, done, copied, was_recovered, is_open)
        assert last_error is not None
        raise last_error


async def choose_targets(
    placement: Placement,
    fragment: Fragment,
    metadata: LedgerMetadata,
    lost: Collection[BookieId],
    unfit: Collection[BookieId],
) -> dict[int, BookieId]:
    """Ensemble index -> who takes the place of a bookie of `lost`; nobody of `unfit`.
    NotEnoughBookiesError."""
    indexes = fragment.indexes_of(lost)
    try:
        ensemble = await placement.replace(
            fragment.ensemble,
            indexes,
            metadata.write_quorum_size,
            metadata.ack_quorum_size,
            unfit,
        )
    except TooFewBookiesError as error:
        gone = ", ".join(fragment.ensemble[index] for index in indexes)
        raise NotEnoughBookiesError(
            fragment.ledger_id, f"no bookies in place of {gone}: {error}"
        ) from error
    return {index: ensemble[index] for index in indexes}


class _Copying:
    """One fragment's way to other bookies: who is asked, who gets what."""

    __slots__ = (
        "_bookies",
        "_config",
        "_digest",
        "_no_batches",
        "_preferred",
        "_replacements",
        "fragment",
        "master_key",
        "read_count",
        "schedule",
    )

    def __init__(
        self,
        bookies: BookieClient,
        config: ReplicationConfig,
        fragment: Fragment,
        metadata: LedgerMetadata,
        replacements: Mapping[int, BookieId],
    ) -> None:
        if metadata.digest_type is None or metadata.password is None:
            words = "its metadata (of an old format) does not tell digest type and password"
            raise LedgerMetadataError(fragment.ledger_id, words)
        self._bookies = bookies
        self._config = config
        self._digest = Digest(metadata.digest_type, metadata.password)
        self._replacements = replacements
        #: Bookies that do not know batch reads.
        self._no_batches: set[BookieId] = set()
        #: Who gave an entry last: it has the next ones at hand, and another may be silent.
        self._preferred: BookieId | None = None
        self.fragment = fragment
        self.master_key = master_key(metadata.password)
        self.schedule = schedule_of(metadata)
        #: Entries that are asked for together.
        self.read_count = config.batch_entries_max
        if self.schedule.is_striped:
            # They are asked for one by one, so no answer limits how much comes in all.
            size = metadata.length // (metadata.last_entry_id + 1) if metadata.length else 0
            fitting = config.batch_size_max_bytes // (size or STRIPED_SIZE_GUESS_BYTES)
            self.read_count = max(1, min(self.read_count, fitting))

    def copies(self, entries: Mapping[int, memoryview]) -> list[_Copy]:
        copies: list[_Copy] = []
        for entry_id, view in entries.items():
            entry = (view,)
            write_set = self.schedule.write_set(entry_id)
            copies += [
                _Copy(bookie, entry_id, entry)
                for index, bookie in self._replacements.items()
                if index in write_set
            ]
        return copies

    def _sources(self, entry_id: int) -> list[BookieId]:
        """Those that stay first."""
        write_set = self.schedule.write_set(entry_id)
        ordered = sorted(write_set, key=lambda index: index in self._replacements)
        sources = [self.fragment.ensemble[index] for index in ordered]
        preferred = self._preferred
        if preferred is not None and preferred != sources[0] and preferred in sources:
            sources.remove(preferred)
            sources.insert(0, preferred)
        return sources

    async def read(self, entry_ids: Sequence[int]) -> dict[int, memoryview]:
        """Whole entries, at least the first; ids that were not read are for the next time."""
        if not self.schedule.is_striped:
            run = await self._read_run(entry_ids[0], len(entry_ids))
            if run:
                return dict(enumerate(run, entry_ids[0]))
            has_batches = self._no_batches.isdisjoint(self._sources(entry_ids[0]))
            entry_ids = entry_ids[: 1 if has_batches else SINGLE_READS]
        entries: dict[int, memoryview] = {}
        failures: dict[int, LedgerReadError] = {}

        async def read_one(entry_id: int) -> None:
            try:
                entries[entry_id] = await self.read_one(entry_id)
            except LedgerReadError as error:
                failures[entry_id] = error

        async with trio.open_nursery() as nursery:
            for entry_id in entry_ids:
                nursery.start_soon(read_one, entry_id)
        if failures:
            raise failures[min(failures)]
        return {entry_id: entries[entry_id] for entry_id in entry_ids}

    async def _read_run(self, first_entry_id: int, count: int) -> list[memoryview]:
        """Consecutive entries with right digests, from the first bookie that gives any."""
        ledger_id = self.fragment.ledger_id
        for bookie in self._sources(first_entry_id):
            if bookie in self._no_batches:
                continue
            status, views = await self._bookies.read_entries(
                bookie,
                ledger_id,
                first_entry_id,
                count_max=count,
                size_max=self._config.batch_size_max_bytes,
            )
            if status is Status.EBADREQ:
                self._no_batches.add(bookie)
            intact: list[memoryview] = []
            for entry_id, view in enumerate(views[:count], first_entry_id):
                try:
                    self._digest.open(view, ledger_id, entry_id)
                except DigestMismatchError:
                    break
                intact.append(view)
            if status is Status.EOK and intact:
                self._preferred = bookie
                return intact
        return []

    async def read_one(self, entry_id: int) -> memoryview:
        ledger_id = self.fragment.ledger_id
        answers: list[str] = []
        for bookie in self._sources(entry_id):
            status, view = await self._bookies.read_entry(bookie, ledger_id, entry_id)
            words = status.name
            if status is Status.EOK:
                try:
                    self._digest.open(view, ledger_id, entry_id)
                except DigestMismatchError as error:
                    words = str(error)
                else:
                    self._preferred = bookie
                    return view
            answers.append(f"{bookie}: {words}")
        raise UnreadableEntryError(ledger_id, entry_id, "; ".join(answers))
