"""LedgerClient: makes, opens, recovers and deletes ledgers."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import trio

from ledger.bookie_client import FLAG_DEFERRED_SYNC
from ledger.client_parts import ClientParts, LedgerSeal
from ledger.config import LedgerClientConfig
from ledger.distribution import Schedule
from ledger.entry_cache import EntryCache
from ledger.errors import (
    LedgerError,
    LedgerMetadataError,
    NotEnoughBookiesError,
    UnauthorizedError,
)
from ledger.health import BookieHealth
from ledger.metadata import LedgerManager, Versioned
from ledger.missing_copies import MissingCopies
from ledger.open_ledger import OpenLedger
from ledger.pipeline import AddPipeline, Window
from ledger.placement import TooFewBookiesError
from ledger.placement.quarantine import QuarantinePlacement
from ledger.reader import LedgerReader
from ledger.recovery import LedgerReads, Recovery
from ledger.statistics import LedgerStatistics
from ledger.writer import LedgerWriter
from ledger.writer_core import WriterCore
from ledger.writer_modes import AdvLedgerWriter, DeferredSyncLedgerWriter
from ledger.writer_modes_core import AdvCore, DeferredSyncCore
from runtime.slices import Slices
from runtime.turn import Gathered
from wire.bookkeeper.entry import Digest, DigestType, master_key
from wire.bookkeeper.ledger_metadata import LedgerMetadata
from wire.bookkeeper.status import Status

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping

    from ledger.bookie_client import BookieClient, BookieId
    from ledger.metadata import Place
    from ledger.placement import Placement
    from ledger.statistics import Appending, OperationStatistics
    from metadata.store import MetadataStore
    from runtime.env import Env


W = TypeVar("W", bound=LedgerWriter)

#: How exact add_quorum_timeout_ms is: a share of it.
TIMEOUT_LOOKS = 10
#: A look at one is about a microsecond.
WRITERS_PER_TURN = 1_000
#: How long a bookie has for its answer if it is asked whether it is there.
REACH_SECONDS = 3.0


class _NewLedger(NamedTuple):
    schedule: Schedule
    digest_type: DigestType
    password: bytes
    custom_metadata: Mapping[str, bytes]
    ledger_id: int | None = None


class LedgerClient:
    """Makes handles and keeps none of them. `run` gives the tasks in which writers replace bookies
    that failed; without it a bookie's failure ends the ledger's writing."""

    def __init__(
        self,
        store: MetadataStore,
        bookies: BookieClient,
        env: Env,
        config: LedgerClientConfig | None = None,
        *,
        placement: Placement,
    ) -> None:
        self._config = config if config is not None else LedgerClientConfig()
        self._bookies = bookies
        self._env = env
        #: What failed lately; `health.came` for a bookie that has registered anew.
        self.health = BookieHealth(self._config, env.clock.monotonic)
        self._placement = QuarantinePlacement(placement, self.health)
        self.statistics = LedgerStatistics()
        size = self._config.entry_cache_bytes
        self.cache = EntryCache(size) if size else None
        self.manager = LedgerManager(store, env, self._config.ledgers_root)
        self._nursery: trio.Nursery | None = None
        self._parts = ClientParts(
            config=self._config,
            bookies=bookies,
            manager=self.manager,
            placement=self._placement,
            health=self.health,
            turn=env.turn,
            deliveries=Gathered(env.turn),
            spawn=self._spawn,
            missing=MissingCopies(self.manager, bookies, env.rng, self._spawn),
            statistics=self.statistics,
            cache=self.cache,
        )
        self._uncached_parts = replace(self._parts, cache=None)

    @property
    def env(self) -> Env:
        return self._env

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Runs until it is cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                task_status.started()
                await self._look_after_writers()
            finally:
                self._nursery = None

    async def _look_after_writers(self) -> None:
        """Explicit LACs and time-outs of ack quorums: one task for all writers."""
        config = self._config
        timeout = config.add_quorum_timeout_ms / 1000
        lac_interval = config.explicit_lac_interval_ms / 1000
        periods = [each for each in (timeout / TIMEOUT_LOOKS, lac_interval) if each]
        if not periods:
            await trio.sleep_forever()
        lac_due = trio.current_time() + lac_interval
        while True:
            await trio.sleep(min(periods))
            if timeout:
                now = self._env.clock.monotonic()

                def look(writer: Appending, now: float = now) -> None:
                    writer.look_for_timeout(now, timeout)

                await self._for_each_writer(look)
            if lac_interval and trio.current_time() >= lac_due:
                lac_due = trio.current_time() + lac_interval
                async with trio.open_nursery() as nursery:
                    await self._for_each_writer(lambda writer: nursery.start_soon(writer.tell_lac))

    async def _for_each_writer(self, look: Callable[[Appending], None]) -> None:
        slices = Slices(WRITERS_PER_TURN)
        for reference in self.statistics.writers.valuerefs():
            if slices.due():
                await slices.turn()
            writer = reference()
            if writer is not None:
                look(writer)

    async def create_ledger(
        self,
        *,
        ensemble_size: int = 1,
        write_quorum_size: int = 1,
        ack_quorum_size: int = 1,
        digest_type: DigestType = DigestType.CRC32C,
        password: bytes = b"",
        custom_metadata: Mapping[str, bytes] | None = None,
        is_cached: bool = True,
        place: Place | None = None,
    ) -> LedgerWriter:
        """NotEnoughBookiesError, LedgerMetadataError; ValueError unless E >= Qw >= Qa >= 1.
        Without `is_cached` its entries do not go into this client's cache, for who copies much
        that nobody is about to read. With `place` the caller makes the ledger's node in metadata,
        together with something of his own (`LedgerManager.create`)."""
        schedule = Schedule(ensemble_size, write_quorum_size, ack_quorum_size)
        ledger = _NewLedger(schedule, digest_type, password, custom_metadata or {})
        parts = self._parts if is_cached else self._uncached_parts
        return await self._make(LedgerWriter, WriterCore, ledger, parts=parts, place=place)

    async def create_ledger_adv(
        self,
        *,
        ledger_id: int | None = None,
        ensemble_size: int = 1,
        write_quorum_size: int = 1,
        ack_quorum_size: int = 1,
        digest_type: DigestType = DigestType.CRC32C,
        password: bytes = b"",
        custom_metadata: Mapping[str, bytes] | None = None,
    ) -> AdvLedgerWriter:
        """As `create_ledger`, for entries whose ids the caller gives; and the ledger's, if wanted:
        then LedgerExistsError if it is taken. Parity with BookKeeper's client (writer_modes.py)."""
        schedule = Schedule(ensemble_size, write_quorum_size, ack_quorum_size)
        ledger = _NewLedger(schedule, digest_type, password, custom_metadata or {}, ledger_id)
        return await self._make(AdvLedgerWriter, AdvCore, ledger)

    async def create_ledger_deferred_sync(
        self,
        *,
        ensemble_size: int = 1,
        write_quorum_size: int = 1,
        ack_quorum_size: int = 1,
        digest_type: DigestType = DigestType.CRC32C,
        password: bytes = b"",
        custom_metadata: Mapping[str, bytes] | None = None,
    ) -> DeferredSyncLedgerWriter:
        """As `create_ledger`, for entries that are durable only after `force`. Parity with
        BookKeeper's client (writer_modes.py)."""
        schedule = Schedule(ensemble_size, write_quorum_size, ack_quorum_size)
        ledger = _NewLedger(schedule, digest_type, password, custom_metadata or {})
        return await self._make(
            DeferredSyncLedgerWriter, DeferredSyncCore, ledger, FLAG_DEFERRED_SYNC
        )

    async def _make(
        self,
        writer_type: type[W],
        core_type: type[WriterCore],
        ledger: _NewLedger,
        flags: int = 0,
        *,
        parts: ClientParts | None = None,
        place: Place | None = None,
    ) -> W:
        schedule = ledger.schedule
        with self._timed(self.statistics.create):
            ensemble = await self._new_ensemble(schedule)
            ledger_id, versioned = await self.manager.create(
                LedgerMetadata(
                    schedule.ensemble_size,
                    schedule.write_quorum_size,
                    schedule.ack_quorum_size,
                    ((0, ensemble),),
                    digest_type=ledger.digest_type,
                    password=ledger.password,
                    custom_metadata=dict(ledger.custom_metadata),
                    ctime_ms=self._env.clock.time_ms(),
                ),
                ledger.ledger_id,
                place=place,
            )
        config, parts = self._config, parts or self._parts
        seal = LedgerSeal(
            Digest(ledger.digest_type, ledger.password), master_key(ledger.password), flags
        )
        reader = LedgerReader(ledger_id, versioned, -1, seal.digest, parts)
        opened = OpenLedger(ledger_id, versioned, reader, parts)
        pipeline = AddPipeline(
            core_type(
                ledger_id, schedule, ensemble, delay_ensemble_change=config.delay_ensemble_change
            ),
            parts,
            seal,
            opened,
            Window(config.window_entries_max, config.window_bytes_max),
            # What is acked under deferred sync is not confirmed: `force` tells the reader.
            None if flags & FLAG_DEFERRED_SYNC else reader,
        )
        return writer_type(pipeline, opened, seal, parts)

    async def _new_ensemble(self, schedule: Schedule) -> tuple[str, ...]:
        try:
            return await self._placement.new_ensemble(
                schedule.ensemble_size, schedule.write_quorum_size, schedule.ack_quorum_size
            )
        except TooFewBookiesError as error:
            raise NotEnoughBookiesError(-1, f"for a new ledger: {error}") from error

    async def can_create(
        self, *, ensemble_size: int, write_quorum_size: int, ack_quorum_size: int
    ) -> bool:
        """Whether there are bookies that take writes for such a ledger, as far as is known now."""
        try:
            await self._placement.new_ensemble(ensemble_size, write_quorum_size, ack_quorum_size)
        except TooFewBookiesError:
            return False
        return True

    async def reachable(self, bookies: Collection[BookieId]) -> int:
        """How many of them answer."""
        answered: list[BookieId] = []

        async def ask(bookie: BookieId) -> None:
            with trio.move_on_after(REACH_SECONDS):
                if (await self._bookies.bookie_info(bookie)).status is not Status.EIO:
                    answered.append(bookie)

        async with trio.open_nursery() as nursery:
            for bookie in sorted(bookies):
                nursery.start_soon(ask, bookie)
        return len(answered)

    async def open_ledger(
        self,
        ledger_id: int,
        *,
        password: bytes = b"",
        recover: bool,
        keep_updated: bool = False,
        is_cached: bool = True,
    ) -> LedgerReader:
        """A reader of a closed ledger; of one that is not: with `recover` it is fenced, recovered
        and closed first (its writer acks nothing more); without, the reader goes as far as the
        bookies know to be confirmed, which may be one entry less than the writer knows; its
        `wait_for` goes further. With `keep_updated` the reader watches the ledger's metadata until
        it is closed; without, it reads them again when no replica answers. Without `is_cached` what
        it reads neither comes from this client's cache nor goes into it.

        NoSuchLedgerError, UnauthorizedError, NotEnoughBookiesError, LedgerReadError (the end cannot
        be known now), LedgerMetadataError. Recovery may be tried again after any of them."""
        with self._timed(self.statistics.open):
            parts = self._parts if is_cached else self._uncached_parts
            reader = await self._open(ledger_id, password, recover, parts)
        if keep_updated:
            self._spawn(reader.follow_metadata)
        return reader

    async def _open(
        self, ledger_id: int, password: bytes, recover: bool, parts: ClientParts
    ) -> LedgerReader:
        versioned = await self.manager.read(ledger_id)
        metadata = versioned.metadata
        if metadata.password is not None and metadata.password != password:
            raise UnauthorizedError(ledger_id, "the password is not the one it was made with")
        digest = Digest(self._digest_type(ledger_id, metadata), password)
        if recover and not metadata.is_closed:
            versioned = await self._recover(ledger_id, versioned, digest, password)
            metadata = versioned.metadata
        last_add_confirmed = metadata.last_entry_id
        if not metadata.is_closed:
            reads = LedgerReads(ledger_id, metadata, digest, None, self._bookies)
            last_add_confirmed = (await reads.end()).last_add_confirmed
        return LedgerReader(ledger_id, versioned, last_add_confirmed, digest, parts)

    def reader_of(
        self, ledger_id: int, versioned: Versioned, last_add_confirmed: int, password: bytes = b""
    ) -> LedgerReader:
        """A reader of what the caller knows already: asks nobody. `last_add_confirmed` counts
        where the metadata do not say that the ledger is closed. LedgerMetadataError."""
        digest = Digest(self._digest_type(ledger_id, versioned.metadata), password)
        return LedgerReader(ledger_id, versioned, last_add_confirmed, digest, self._parts)

    @contextmanager
    def _timed(self, operation: OperationStatistics) -> Iterator[None]:
        start = self._env.clock.monotonic()
        try:
            yield
        except LedgerError:
            operation.failures += 1
            raise
        operation.latency.record(self._env.clock.monotonic() - start)

    async def delete_ledger(self, ledger_id: int) -> None:
        """From the metadata; the bookies drop its entries when they next collect garbage. Fine if
        it is gone."""
        with self._timed(self.statistics.delete):
            await self.manager.delete(ledger_id)

    async def _recover(
        self, ledger_id: int, versioned: Versioned, digest: Digest, password: bytes
    ) -> Versioned:
        seal = LedgerSeal(digest, master_key(password))
        recovery = Recovery(ledger_id, self._parts, seal)
        with self._timed(self.statistics.recover):
            versioned = await recovery.run(versioned)
        self._parts.missing.look_after(ledger_id, versioned.metadata, recovery.left_out)
        return versioned

    @staticmethod
    def _digest_type(ledger_id: int, metadata: LedgerMetadata) -> DigestType:
        if metadata.digest_type is None:
            raise LedgerMetadataError(
                ledger_id, "its metadata (of an old format) does not tell the digest type"
            )
        return metadata.digest_type

    def _spawn(self, function: Callable[[], Awaitable[None]]) -> bool:
        nursery = self._nursery
        if nursery is None or nursery.cancel_scope.cancel_called:
            return False
        nursery.start_soon(function)
        return True
