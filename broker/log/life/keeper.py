"""The keeper of one partition's chain: take-over, new ledgers, rolls, retention, deletion.

One task per partition that holds data or is asked for, asleep unless called. It alone writes the
partition's document in metadata, always by compare-and-set; losing one means that somebody else
took the partition over, and the partition goes offline. Metadata that is away is no
reason to: as long as the ledger takes writes the partition serves, and what has to be written
waits; but nothing is rolled, and who needs a new ledger gets NOT_ENOUGH_REPLICAS.

Order of a roll: seal (synchronous), wait for the acks, close the ledger in metadata, then one
compare-and-set that makes the end of the old final and adds the new. Only then does the successor
take writes. It was made before (broker/log/life/spare.py), or is made in the same multi.

A roll holds producers up, and a ledger that waits for it may grow. So it comes before all else:
what the keeper does is cut into steps of one or two changes in metadata, and after each step it
looks for the most urgent one again (`_next_step`).

If no bookies take writes (full disks), the partition loses its open ledger, is taken over again and
is *suspended*: it serves reads, deletions and retention, refuses appends with NOT_ENOUGH_REPLICAS
(retriable, and true: nothing was stored), makes no ledger, and looks for bookies every second.

Compaction makes ledgers beside all this and asks for a *swap* (broker/log/life/swap.py): one
compare-and-set, by the chain as it is then, and in the same turn the new segments are in the place
of the old.

A hand-over, and a clean stop: appends are refused from now on, the ledger is sealed, drained and
closed, and the document says in the same compare-and-set that nobody owns the partition.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from contextlib import suppress
from dataclasses import field, replace
from functools import partial
from typing import TYPE_CHECKING

import trio

from broker.log.life.archived import ArchivedFormatError, read_archived
from broker.log.life.chain import ChainFormatError, SourcesGoneError
from broker.log.life.deletions import Deletions
from broker.log.life.document import write_chain
from broker.log.life.doubts import settle_doubts
from broker.log.life.ledger_info import LedgerInfo
from broker.log.life.new_ledger import can_create, create_ledger
from broker.log.life.retention import new_log_start, roll_age_ms, roll_jitter_ms
from broker.log.life.spare import SpareLedger
from broker.log.life.swap import SwapOutcome
from broker.log.life.takeover import take_over
from broker.log.partition import PartitionLog, State, base_offset_of
from broker.log.read.offset_index import OffsetIndex
from broker.log.read.segment import Segment
from ledger.errors import LedgerError, LedgerMetadataError, NotEnoughBookiesError
from metadata.store import (
    MetadataClosedError,
    MetadataError,
    MetadataUnavailableError,
    MetadataUnknownOutcomeError,
    NoNodeError,
)
from runtime.logs import kv
from wire.dataclass import dataclass
from wire.kafka.errors import ErrorCode, KafkaError, WireError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from broker.cluster.config import TopicConfig
    from broker.log.life.chain import Chain
    from broker.log.life.swap import Swap
    from broker.log.life.takeover import ChainStores, Claim
    from ledger.metadata import Place
    from ledger.writer import LedgerWriter
    from metadata.store import Node, Op
    from runtime.env import Env

logger = logging.getLogger(__name__)

#: A partition without bookies that take writes looks for some this often.
SUSPENDED_LOOK_SECONDS = 1.0
#: What could not be written because metadata is away is tried again this often.
AWAY_RETRY_SECONDS = 0.5
#: An append looks for the ledger's age this long after the last look at the earliest: with a
#: `segment.ms` of milliseconds each would ask for a ledger, and one that is old and cannot be
#: closed (metadata is away) would be looked at by all.
ROLL_LOOK_SECONDS = 1.0
#: How long a tenure's end may wait for the deletion of what was not used.
DISCARD_SECONDS = 2.0
#: Swaps that one compare-and-set has at most: each may make an archive anew.
SWAPS_PER_WRITE = 8
#: How long a take-over may take at first. One that hangs (bookies or metadata that do not answer)
#: must not keep its place from others; the manager gives it longer each time.
TAKEOVER_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class KeeperParts:
    """What keepers work with; the manager has one for those of all its partitions."""

    stores: ChainStores
    env: Env
    is_metadata_away: Callable[[], bool] = lambda: False
    #: The broker's places for first ledgers that are being opened.
    opening: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(1))


class Keeper:
    def __init__(self, log: PartitionLog, claim: Claim, parts: KeeperParts) -> None:
        self._log = log
        self._claim = claim
        self._path = claim.path
        self._stores = parts.stores
        self._store = parts.stores.store
        self._ledgers = parts.stores.ledgers
        self._settings = parts.stores.settings
        self._env = parts.env
        self._is_metadata_away = parts.is_metadata_away
        self._opening = parts.opening
        #: The least leader epoch that the take-over gives.
        self.epoch_min = 0
        self._version = -1
        self._writer: LedgerWriter | None = None
        self._noted_snapshot: int | None = None
        self._wanted_start = 0
        #: Where retention would go, once it is known how far the archive goes; 0: nowhere.
        self._archivable_start = 0
        self._start_moved: trio.Event | None = None
        self._roll_asked = False
        #: Those that are asked for and not begun, in order.
        self._swaps: dict[Swap, trio.Event] = {}
        self._spare = SpareLedger(log, self._ledgers)
        self._deletions = Deletions(self._ledgers)
        self._closing = self._releasing = False
        self._finished = trio.Event()
        #: Whether the take-over succeeded.
        self.took_over = False

    async def take_over(
        self, node: Node | None = None, *, limit_seconds: float = TAKEOVER_SECONDS
    ) -> bool:
        """Whether the partition is online now; if not it is offline. `node`: its document, if it
        was just read.

        One that is given up at the limit may have been done nevertheless: the next one reads the
        document anew, and raises the epoch once more."""
        log = self._log
        try:
            with trio.move_on_after(limit_seconds) as limit:
                taken = await take_over(
                    self._claim,
                    self._stores,
                    now_ms=self._env.clock.time_ms(),
                    epoch_min=self.epoch_min,
                    node=node,
                )
                self._version = taken.version
                log.is_suspended = not await self._can_write()
            if limit.cancelled_caught:
                log.go_offline(f"the take-over was not done after {limit_seconds:.0f} s")
        except (LedgerError, MetadataError, ChainFormatError, WireError) as error:
            log.go_offline(f"{type(error).__name__}: {error}")
        if log.state is not State.LOADING:  # also if it was given up meanwhile
            self._finished.set()
            return False
        self.took_over = True
        log.is_unbounded = self._is_metadata_away()
        self._deletions.hold(taken.found_deleting, trio.current_time())
        log.go_online(taken)
        return True

    async def run(self) -> None:
        """Takes over, unless that was done, and keeps the partition until it goes offline. Never
        raises for the partition's sake."""
        log = self._log
        try:
            if not self.took_over and not await self.take_over():
                return
            while log.state is State.ONLINE:
                if self._closing:
                    await self._finish()
                    return
                await self._wait_for_attention()
                await self._attend()
        except (LedgerError, MetadataError) as error:
            log.go_offline(f"{type(error).__name__}: {error}")
        finally:
            self._finished.set()
            self._tell_start_moved()
            self._refuse_swaps()

    async def _finish(self) -> None:
        log = self._log
        if self._writer is not None:
            await self._close_ledger()
        elif self._releasing and log.chain.owner is not None:
            await self._write(log.chain.released())
        log.go_offline("closed")
        await self.discard_spare()

    async def _wait_for_attention(self) -> None:
        log = self._log
        wait_seconds = self._deletions.release(trio.current_time(), self._delete_delay_seconds())
        if self._deletions.is_due(log.chain):
            wait_seconds = 0.0  # their time has just come
        elif log.is_suspended:
            wait_seconds = min(wait_seconds, SUSPENDED_LOOK_SECONDS)
        if self._writer is not None:
            self._ask_to_roll()
        with trio.move_on_after(wait_seconds):
            await log.attention.wait()
            log.attention = trio.Event()
        self._deletions.release(trio.current_time(), self._delete_delay_seconds())
        self._deletions.try_again()
        if log.is_suspended and await self._can_write():
            log.is_suspended = False
            logger.info("partition_resumed", kv(partition=log.name))

    def _delete_delay_seconds(self) -> float:
        return self._log.config.file_delete_delay_ms / 1000

    async def _can_write(self) -> bool:
        """With as few bookies as are allowed."""
        return await can_create(self._ledgers, self._log.copies.narrowed(0))

    async def _create_ledger(self, place: Place) -> LedgerWriter:
        """With all copies, or with as many as there are bookies for, down to the ack quorum; when
        more have come, `widen` has it rolled. LedgerError, and as `place`, which names it in the
        chain."""
        log, copies = self._log, self._log.copies
        while True:
            try:
                return await create_ledger(self._ledgers, log, copies, place=place)
            except NotEnoughBookiesError:
                if copies.ensemble_size <= copies.ack_quorum:
                    raise
            except LedgerMetadataError as error:
                log.is_suspended = True
                await self._wait_for_metadata(error)
                continue
            copies = copies.narrowed(copies.ensemble_size - 1)
            logger.warning("fewer_copies", kv(partition=log.name, write_quorum=copies.write_quorum))

    async def _wait_for_metadata(self, error: LedgerMetadataError | MetadataError) -> None:
        """For a moment; raises `error` if it is of another kind or there is no use in waiting."""
        cause = error if isinstance(error, MetadataError) else error.__cause__
        is_away = isinstance(cause, MetadataUnavailableError | MetadataUnknownOutcomeError)
        is_over = isinstance(cause, MetadataClosedError)  # it failed, and everything ends
        if not is_away or is_over or self._log.state is not State.ONLINE:
            raise error
        logger.warning("metadata_away", kv(partition=self._log.name, error=error))
        await trio.sleep(AWAY_RETRY_SECONDS)

    def bookies_changed(self) -> None:
        """A ledger that was made with fewer copies than it should have is rolled when there are
        bookies for all; one that goes on without a bookie that nobody can replace, at once: its
        metadata still name that bookie, so auto-recovery would fence it."""
        writer = self._writer
        self._spare.bookies_changed()
        if writer is None or self._roll_asked:
            return
        if writer.is_short or writer.metadata.write_quorum_size < self._log.copies.write_quorum:
            self._roll_asked = True
            self._log.call_keeper()

    def metadata_changed(self) -> None:
        """It is away, or back: without it no ledger can follow the open one, which takes all."""
        self._log.is_unbounded = self._is_metadata_away()
        self._log.call_keeper()

    async def discard_spare(self) -> None:
        """At the end of the tenure: nobody else would use it."""
        with trio.move_on_after(DISCARD_SECONDS):
            await self._spare.discard()

    async def _attend(self) -> None:
        log = self._log
        while log.state is State.ONLINE and not self._closing:
            step = await self._next_step()
            if step is None:
                return
            await step()

    async def _next_step(self) -> Callable[[], Awaitable[None]] | None:
        """The most urgent thing that is due."""
        log = self._log
        while log.release_waiting():
            await trio.lowlevel.checkpoint()
        if self._roll_due() or await self._widening_due():
            return self._close_ledger
        if log.queue.needs_ledger:
            return self._open_first_ledger
        if log.is_doubting:
            version = None if self._is_metadata_away() else self._version
            return partial(settle_doubts, log, self._store, self._path, version)
        if self._spare_due():
            return self._make_spare
        if self._start_due() and self._deletions.may_grow(log.chain):
            return self._raise_start
        if self._archivable_start and not self._is_metadata_away():
            return self._ask_archive
        if self._swap_due():
            return self._swap_ledgers
        if self._has_new_snapshot():
            return self._note_snapshot
        if self._spare.is_unfit:
            return self._spare.discard
        if self._deletions.is_due(log.chain):
            return self._delete_some
        return None

    # -- asked from outside --------------------------------------------------------------------

    async def delete_records(self, offset: int) -> int:
        """Raises the log start to `offset` (-1: to the high watermark) and gives the new one.
        KafkaError: OFFSET_OUT_OF_RANGE, NOT_LEADER_OR_FOLLOWER."""
        log = self._log
        if offset < 0:
            offset = log.high_watermark
        if log.state is not State.ONLINE:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if offset > log.high_watermark:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        self._wanted_start = max(self._wanted_start, offset)
        log.call_keeper()
        while log.log_start_offset < offset:
            if log.state is not State.ONLINE:
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            if self._start_moved is None:
                self._start_moved = trio.Event()
            await self._start_moved.wait()
        return log.log_start_offset

    async def swap(self, swap: Swap) -> SwapOutcome:
        """Puts the swap's ledgers in the place of its sources, by one compare-and-set (which others
        that were asked for meanwhile may share), and gives `swap.outcome`. Returns when that is
        final; while metadata is away it waits, and appends do not wait for it.

        Raises nothing but a cancellation, after which `swap.outcome` holds: what was not sent then
        is not sent later, and what was sent is UNKNOWN until it is known. The sources are closed
        ledgers, which are deleted file.delete.delay.ms later; the log start may be among them."""
        assert swap.outcome is SwapOutcome.NOT_ASKED, "each is used once"
        assert bool(swap.source_ids) == bool(swap.infos), "what is in whose place"
        if self._log.state is State.ONLINE and not self._closing:
            self._swaps[swap] = done = trio.Event()
            self._log.call_keeper()
            try:
                await done.wait()
            finally:
                self._swaps.pop(swap, None)
        return swap.outcome

    def _refuse_swaps(self) -> None:
        """What was not begun will not be."""
        while self._swaps:
            _, done = self._swaps.popitem()
            done.set()

    def configure(self, config: TopicConfig) -> None:
        """What is in force of the topic's settings, changed or not."""
        if config is not self._log.config:
            self._log.config = config
            if self._writer is not None:
                self._ask_to_roll()

    def check_retention(self) -> None:
        """The periodic look (log.retention.check.interval.ms): what is to be rolled or dropped."""
        log = self._log
        if log.state is not State.ONLINE:
            return
        config = log.config
        now_ms = self._env.clock.time_ms()
        self._tell_refused()
        log.producers.expire(now_ms, self._settings.producer_expiration_ms)
        if "delete" in config.cleanup_policy:
            start = new_log_start(
                log.chain,
                retention_ms=config.retention_ms,
                retention_bytes=config.retention_bytes,
                open_size_bytes=log.segments[-1].size_bytes if self._writer else 0,
                now_ms=now_ms,
            )
            if start > log.log_start_offset and config.quire_archive_required:
                self._archivable_start = start
                log.call_keeper()
            else:
                self._wanted_start = max(self._wanted_start, start)
        delay_seconds = self._delete_delay_seconds()  # it may be a shorter one than before
        has_waited = self._deletions.has_come(trio.current_time(), delay_seconds)
        # The start is also due by what was kept for producers that expired.
        if has_waited or self._start_due() or self._roll_due():
            log.call_keeper()

    def _tell_refused(self) -> None:
        """Once for all that were refused since the last look: a client may try without a pause."""
        name, producers = self._log.name, self._log.producers
        if count := producers.take_refused():
            known, limit = len(producers), producers.producers_max
            facts = kv(partition=name, batches=count, known=known, limit=limit)
            logger.warning("producers_refused", facts)

    async def close(self, *, release: bool = False) -> None:
        """Seals and closes the ledger, so that the next take-over reads one entry, and goes
        offline. With `release` the document says so even if there is no ledger to close. Done by
        the task in `run`, which has to be under way; a take-over is finished first."""
        self._closing = True
        self._releasing |= release
        self._log.is_closing = True
        self._refuse_swaps()
        self._log.call_keeper()
        await self._finished.wait()

    # -- ledgers -------------------------------------------------------------------------------

    def _roll_due(self) -> bool:
        if self._writer is None or self._closing or self._is_metadata_away():
            return False
        segment = self._log.segments[-1]
        if segment.size_bytes == 0:
            return False
        is_large = segment.size_bytes >= self._log.config.segment_bytes
        return is_large or self._log.transactions.has_many_aborted or self._ms_to_roll() <= 0

    def _ms_to_roll(self) -> int:
        """Until the open ledger is as old as it may get."""
        config, info = self._log.config, self._log.segments[-1].info
        retention_ms = config.retention_ms if "delete" in config.cleanup_policy else -1
        jitter_ms = roll_jitter_ms(config.segment_ms, config.segment_jitter_ms, info.ledger_id)
        lag_ms = config.max_compaction_lag_ms if "compact" in config.cleanup_policy else None
        age_ms = roll_age_ms(config.segment_ms - jitter_ms, retention_ms, lag_ms)
        return info.created_ms + age_ms - self._env.clock.time_ms()

    def _ask_to_roll(self) -> None:
        """What is appended once the open ledger is old calls the keeper: the next periodic look may
        be minutes away."""
        seconds = max(self._ms_to_roll() / 1000, ROLL_LOOK_SECONDS)
        self._log.queue.attention_time = trio.current_time() + seconds

    async def _widening_due(self) -> bool:
        writer = self._writer
        # Asked for while the ledger was being closed for another reason: the next one is new.
        if writer is None or not self._roll_asked or self._closing:
            return False
        if self._log.segments[-1].size_bytes == 0:
            return False
        self._roll_asked = False
        return writer.is_short or await can_create(self._ledgers, self._log.copies)

    def _spare_due(self) -> bool:
        writer, log = self._writer, self._log
        if writer is None or self._closing or self._is_metadata_away():
            return False
        has_enough = log.segments[-1].size_bytes >= self._spare_bytes()
        return has_enough and self._spare.is_wanted(writer.ledger_id)

    def _spare_bytes(self) -> int:
        return int(self._log.config.segment_bytes * self._settings.spare_ledger_share)

    async def _make_spare(self) -> None:
        if self._writer is not None:
            self._log.queue.attention_bytes = self._log.config.segment_bytes
            await self._spare.make(self._writer.ledger_id)

    async def _open_first_ledger(self) -> None:
        """When there is a place: thousands of partitions may be written for the first time in one
        request. A roll does not wait for one, as it holds up who is at work."""
        async with self._opening:
            if self._log.queue.needs_ledger:  # else it went offline meanwhile
                await self._open_ledger(self._log.chain)

    async def _open_ledger(self, chain: Chain) -> None:
        """Adds a new open ledger to `chain` (whose last one is final) and writes that. What has no
        spare ledger makes one in the same compare-and-set, so that a first write costs one."""
        log, settings = self._log, self._settings
        writer = self._spare.take()
        if writer is not None:
            await self._add_spare(chain, writer)
        else:

            async def place(ledger_id: int, new_ledger: Op) -> None:
                await self._write(self._with_ledger(chain, ledger_id), new_ledger)

            writer = await self._create_ledger(place)
        info = log.chain.ledgers[-1]
        assert info.ledger_id == writer.ledger_id
        segment = Segment(info, self._ledgers, settings, reader=writer.reader, index=OffsetIndex())
        log.is_suspended = False
        log.segments.append(segment)
        log.transactions.aborted.segments_changed(log.segments)
        self._writer = log.writer = writer
        self._noted_snapshot = None
        self._roll_asked = False
        self._ask_to_roll()
        log.queue.attention_bytes = self._spare_bytes()
        log.queue.attach(writer, segment)

    async def _add_spare(self, chain: Chain, writer: LedgerWriter) -> None:
        try:
            await self._write(self._with_ledger(chain, writer.ledger_id))
        except NoNodeError:
            # The topic was deleted. Where we were deposed, the document may name the ledger: we may
            # have written it with a lost answer. Then it is for the sweep
            # (broker/log/life/orphans.py).
            with suppress(LedgerError, MetadataError):
                await self._ledgers.delete_ledger(writer.ledger_id)
            raise

    def _with_ledger(self, chain: Chain, ledger_id: int) -> Chain:
        info = LedgerInfo(
            ledger_id=ledger_id,
            base_offset=chain.closed_end_offset,
            leader_epoch=self._log.leader_epoch,
            created_ms=self._env.clock.time_ms(),
        )
        return chain.with_ledger(info)

    async def _close_ledger(self) -> None:
        """Makes the open ledger's end final, and opens the next if batches wait for it."""
        log, writer = self._log, self._writer
        assert writer is not None
        log.queue.seal()
        await log.queue.wait_drained()
        if log.state is not State.ONLINE:
            return
        while True:
            try:
                await writer.close()
                break
            except LedgerMetadataError as error:
                await self._wait_for_metadata(error)
        segment = log.segments[-1]
        segment.info = segment.closed_info(
            last_offset=log.high_watermark - 1, entry_count=writer.last_add_confirmed + 1
        )
        log.transactions.aborted.segments_changed(log.segments)
        self._writer = log.writer = None
        chain = log.chain.with_last(segment.info)
        if log.queue.needs_ledger and not self._closing:
            await self._open_ledger(chain)
        else:
            await self._write(chain.released() if self._closing else chain)

    def _has_new_snapshot(self) -> bool:
        if self._writer is None:
            return False
        snapshot_entry = self._log.segments[-1].snapshot_entry
        return snapshot_entry is not None and snapshot_entry != self._noted_snapshot

    async def _note_snapshot(self) -> None:
        """Tells metadata where the newest producer snapshot is: a take-over starts there."""
        self._noted_snapshot = snapshot_entry = self._log.segments[-1].snapshot_entry
        known = self._log.chain.ledgers[-1]
        await self._write(self._log.chain.with_last(replace(known, snapshot_entry=snapshot_entry)))

    def _start_due(self) -> bool:
        log = self._log
        return self._wanted_start > log.log_start_offset or (
            log.chain.has_superfluous(keeps_producers=len(log.producers) > 0)
        )

    async def _raise_start(self) -> None:
        log = self._log
        before = log.chain
        start = max(min(self._wanted_start, log.high_watermark), before.log_start_offset)
        keeps_producers = len(log.producers) > 0
        await self._write(before.with_log_start(start, keeps_producers=keeps_producers))
        chain = log.chain
        if self._writer is not None and chain.ledgers[0].end_offset_or(start + 1) <= start:
            # Kept for its snapshot: with a newer one it can go.
            log.queue.push_snapshot()
        kept = {info.ledger_id for info in chain.ledgers}
        log.segments[:] = [item for item in log.segments if item.info.ledger_id in kept]
        log.transactions.aborted.segments_changed(log.segments)
        logger.info(
            "log_start_raised",
            kv(
                partition=log.name,
                log_start_offset=chain.log_start_offset,
                ledgers_dropped=len(before.ledgers) - len(chain.ledgers),
            ),
        )
        self._tell_start_moved()

    async def _ask_archive(self) -> None:
        """Retention goes as far as the archive does, and no further (quire.archive.required)."""
        archived = 0
        try:
            archived = await read_archived(self._store, self._path)
        except (MetadataError, ArchivedFormatError) as error:  # the next look at retention asks
            logger.warning("archive_unknown", kv(partition=self._log.name, error=error))
        self._wanted_start = max(self._wanted_start, min(self._archivable_start, archived))
        self._archivable_start = 0

    def _swap_due(self) -> bool:
        may_be = bool(self._swaps) and not self._is_metadata_away()
        return may_be and self._deletions.may_replace(self._log.chain)

    async def _swap_ledgers(self) -> None:
        """Some of the swaps that were asked for, in one compare-and-set. Whatever becomes of it,
        who asked hears of it."""
        events: list[trio.Event] = []
        try:
            chain, taken = self._log.chain, []
            for swap in list(self._swaps)[:SWAPS_PER_WRITE]:
                events.append(self._swaps.pop(swap))
                try:
                    chain = swap.change(chain)
                    taken.append(swap)
                except SourcesGoneError:
                    swap.outcome = SwapOutcome.GONE
            if taken:
                await self._write_swaps(chain, taken)
        finally:
            for done in events:
                done.set()

    async def _write_swaps(self, chain: Chain, swaps: list[Swap]) -> None:
        """`chain` has them."""
        # From here on until the answer nobody may delete what is named, whatever comes.
        outcome = SwapOutcome.UNKNOWN
        for swap in swaps:
            swap.outcome = outcome
        try:
            await self._write(chain)
            outcome = SwapOutcome.DONE
            for swap in swaps:
                self._replace_segments(swap)
        except NoNodeError:
            outcome = SwapOutcome.GONE  # the topic is deleted, and all of its ledgers go
            raise
        finally:
            for swap in swaps:
                swap.outcome = outcome

    def _replace_segments(self, swap: Swap) -> None:
        """In the turn in which the chain was changed: who reads sees both or none."""
        if not swap.source_ids:
            return
        segments = self._log.segments
        start = bisect_left(segments, swap.infos[0].base_offset, key=base_offset_of)
        stop = start + len(swap.source_ids)
        replaced = tuple(segment.info.ledger_id for segment in segments[start:stop])
        assert replaced == swap.source_ids, "the segments are the chain's"
        kept = {info.ledger_id for info in self._log.chain.ledgers}
        segments[start:stop] = [
            Segment(info, self._ledgers, self._settings)
            for info in swap.infos
            if info.ledger_id in kept
        ]
        self._log.swap_count += 1
        self._log.transactions.aborted.segments_changed(segments)
        self._deletions.hold(swap.source_ids, trio.current_time())

    def _tell_start_moved(self) -> None:
        if self._start_moved is not None:
            self._start_moved.set()
            self._start_moved = None

    async def _delete_some(self) -> None:
        if await self._deletions.delete_next(self._log.chain):
            await self._write(self._log.chain)

    async def _write(self, chain: Chain, new_ledger: Op | None = None) -> None:
        """And what was deleted by now; `new_ledger` makes one that it names. Errors as
        `put_document`."""
        chain = self._deletions.without(chain)
        while True:
            try:
                chain, self._version = await write_chain(
                    self._stores.writes,
                    self._path,
                    self._log.chain,
                    chain,
                    self._version,
                    self._settings,
                    new_ledger=new_ledger,
                )
                break
            except MetadataError as error:
                await self._wait_for_metadata(error)
        self._deletions.forget()
        self._log.chain = chain
