"""One pass over one partition: keys of the dirty ledgers into a map, then group by group copies of
what stays, each put in the place of its sources by the partition's keeper.

    map        every batch of [first dirty, end) is read; the map ends at a ledger, or, where it is
               full within the first dirty one, at a record of that
    group      is read batch by batch; as long as all of it stays nothing is written. At the first
               change a ledger is made, what was passed by is copied, and the rest follows
    swap       the ledger is closed, and the keeper puts it in its sources' place
    cleaned_to is written with the last group's swap, or alone if that group stays as it is

A pass ends early, without harm, when its partition moves, is stopped, suspended or no longer to be
compacted (PassEnded); when sources are gone from the chain, retention being quicker (PassEnded: no
later group may be stamped while an earlier one kept old values); when what it writes cannot be
written (OutputError); and when a source cannot be read, or is not what it should be (SourceError).
What it made by then it deletes, unless a compare-and-set that names it was sent.

The pass holds nothing that a take-over needs, and a crash costs repeated work only.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from itertools import islice
from typing import TYPE_CHECKING

import trio

from broker.log.append.entry_format import (
    FLAG_CONTINUED,
    FLAG_CONTINUES,
    KIND_SNAPSHOT,
    EntryFormatError,
    pack_header,
)
from broker.log.compact.aborted import TransactionPass
from broker.log.compact.compaction_core import Filter, LedgerFacts, Mapping, PassRules
from broker.log.compact.key_map import OpenAddressingKeyMap, size_for
from broker.log.compact.output import ReplacementLedger
from broker.log.compact.pace import Pace
from broker.log.compact.plan_core import Due, PlanSettings, make_groups
from broker.log.compact.progress import Phase
from broker.log.compact.source import Source, read_final_snapshot, read_snapshot
from broker.log.compact.steps import CompactionError
from broker.log.life.swap import Swap, SwapOutcome
from broker.log.partition import State, base_offset_of
from broker.log.transactions.aborted_index import AbortedIndex
from ledger.errors import LedgerError
from metadata.store import MetadataError
from runtime.logs import kv
from wire.dataclass import dataclass
from wire.kafka.errors import WireError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from broker.log.compact.plan_core import Group, Plan
    from broker.log.compact.progress import Progress
    from broker.log.compact.throttle import Throttle
    from broker.log.life.keeper import Keeper
    from broker.log.life.ledger_info import LedgerInfo
    from broker.log.partition import PartitionLog
    from broker.log.settings import LogSettings
    from broker.log.transactions.aborted_index import AbortedTransaction
    from ledger.client import LedgerClient
    from runtime.env import Env
    from wire.buffers import Buffer
    from wire.kafka.records.batch import BatchHeader

logger = logging.getLogger(__name__)

COMPACT = "compact"
#: A batch's records, decompressed; more is damage, as producers are not let through with it.
BATCH_BYTES_MAX = 256 << 20
#: How long the end of a pass may wait for the deletion of what it made.
DISCARD_SECONDS = 2.0
HASH_KEY_BYTES = 16
#: How long a group may wait for its swap; twice what replaced ledgers wait by default.
SWAP_SECONDS = 120.0
#: How soon a pass that waits (for a bookie, or at the throttle) sees that it is to end.
WATCH_SECONDS = 0.05


class PassEnded(Exception):
    """The pass has nothing more to do here; `why` is for people."""


class OutputError(Exception):
    """What stands in the sources' place cannot be written now, for want of bookies or metadata."""


class SourceError(Exception):
    """A ledger of the chain cannot be read, or is not what the chain says."""


@dataclass(slots=True, frozen=True)
class PassLimits:
    """`key_map_bytes`: at most, of this pass. `load_factor`: as the setting says."""

    key_map_bytes: int
    load_factor: float


@dataclass(slots=True, frozen=True)
class PassParts:
    """What passes work with; a broker's have the same."""

    ledgers: LedgerClient
    env: Env
    settings: LogSettings
    throttle: Throttle


class Pass:
    """To be run once. `progress` is told as it goes."""

    def __init__(
        self,
        log: PartitionLog,
        keeper: Keeper,
        plan: Plan,
        parts: PassParts,
        limits: PassLimits,
        progress: Progress,
    ) -> None:
        assert plan.due is not None
        self._log = log
        self._keeper = keeper
        self._plan = plan
        self._parts = parts
        self._limits = limits
        self._progress = progress
        self._config = log.config
        self._pace = Pace(parts.env, self.check)
        #: Of the tasks that read ahead.
        self._nursery: trio.Nursery | None = None
        #: Why the pass did not come to its end.
        self._end: Exception | None = None
        #: Aborted transactions that begin before it are known.
        self._aborted_to = 0
        #: The ledger that is being written, and the swap that names it.
        self._output: ReplacementLedger | None = None
        self._swap: Swap | None = None

    def check(self) -> None:
        """PassEnded if it must not go on; asked after every slice, and while it waits by whoever
        runs it."""
        log = self._log
        if log.state is not State.ONLINE:
            raise PassEnded("the partition is offline")
        if log.is_closing:
            raise PassEnded("the partition is handed over or stopped")
        if log.is_suspended:
            raise PassEnded("no bookies take writes")
        if COMPACT not in log.config.cleanup_policy:
            raise PassEnded("the topic is not to be compacted any more")

    async def run(self) -> None:
        """PassEnded, OutputError, SourceError; CompactionError if a source is damaged."""
        async with trio.open_nursery() as self._nursery:
            self._nursery.start_soon(self._watch, self._nursery.cancel_scope)
            try:
                await self._run()
            except (PassEnded, OutputError, SourceError, CompactionError) as error:
                self._end = error
            self._nursery.cancel_scope.cancel()
        if self._end is not None:
            raise self._end

    async def _watch(self, scope: trio.CancelScope) -> None:
        """Ends the pass also where it waits for others."""
        while True:
            await trio.sleep(WATCH_SECONDS)
            try:
                self.check()
            except PassEnded as error:
                self._end = error
                scope.cancel()
                return

    async def _run(self) -> None:
        plan = self._plan
        self.check()
        if plan.due is Due.HORIZON:
            await self._copy(plan.groups, None, last_mapped=plan.end - 1, cleaned_to=None)
            return
        key_map = self._make_map()
        try:
            await self._run_mapped(key_map)
        finally:
            # Also of a pass that was cancelled: some turns more, which hold nobody up.
            with trio.CancelScope(shield=True):
                for _ in key_map.release():
                    await trio.lowlevel.checkpoint()

    async def _run_mapped(self, key_map: OpenAddressingKeyMap) -> None:
        plan = self._plan
        last_mapped = await self._map(key_map)
        groups = plan.groups
        if last_mapped + 1 < plan.end:
            count = bisect_right(plan.ledgers, last_mapped, key=_base_offset)
            ledgers = plan.ledgers[:count]
            groups = await self._pace.drive(make_groups(ledgers, PlanSettings.of(self._config)))
        await self._copy(groups, key_map, last_mapped=last_mapped, cleaned_to=last_mapped + 1)

    # -- the map -------------------------------------------------------------------------------

    def _make_map(self) -> OpenAddressingKeyMap:
        plan, limits = self._plan, self._limits
        wanted = size_for(max(plan.end - plan.first_dirty, 1), limits.load_factor)
        return OpenAddressingKeyMap(
            min(wanted, limits.key_map_bytes),
            hash_key=self._parts.env.rng.randbytes(HASH_KEY_BYTES),
            load_factor=limits.load_factor,
        )

    async def _map(self, key_map: OpenAddressingKeyMap) -> int:
        """The last offset that is mapped: all of the dirty ledgers, or those before the one in
        which the map was full; within the first dirty one only if it is that one."""
        plan, progress = self._plan, self._progress
        dirty = plan.ledgers[bisect_right(plan.ledgers, plan.first_dirty, key=_end_offset) :]
        progress.begin(Phase.MAPPING, plan.cleanable_bytes)
        transactions = TransactionPass()
        self._aborted_to = 0
        mapping = Mapping(
            key_map, transactions, start_offset=plan.first_dirty, size_max=BATCH_BYTES_MAX
        )
        last_mapped = plan.first_dirty - 1
        for info in dirty:
            await self._note_aborted(info, transactions)
            await self._map_ledger(info, mapping)
            progress.keys, progress.keys_max = len(key_map), key_map.keys_max
            if mapping.is_full and (info is not dirty[0] or mapping.last_mapped < last_mapped):
                return last_mapped
            if mapping.is_full:
                return mapping.last_mapped
            last_mapped = info.end_offset - 1
        return last_mapped

    async def _map_ledger(self, info: LedgerInfo, mapping: Mapping) -> None:
        with self._source(info) as source:
            while (batches := await self._next(source)) is not None:
                for header, batch in batches:
                    self._progress.done_bytes += len(batch)
                    if not await self._pace.drive(mapping.add(batch, header)):
                        return

    # -- the copies ----------------------------------------------------------------------------

    async def _copy(
        self,
        groups: Sequence[Group],
        key_map: OpenAddressingKeyMap | None,
        *,
        last_mapped: int,
        cleaned_to: int | None,
    ) -> None:
        progress = self._progress
        total_bytes = 0
        for group in groups:
            total_bytes += group.size_bytes
            await self._pace.step(len(group.sources))
        progress.begin(Phase.COPYING, total_bytes)
        transactions = None if key_map is None else TransactionPass()
        self._aborted_to = 0
        copying = Filter(await self._rules(last_mapped), key_map, transactions or TransactionPass())
        for number, group in enumerate(groups):
            self.check()
            is_last = number + 1 == len(groups)
            if group.end_offset <= self._log.log_start_offset:
                progress.done_bytes += group.size_bytes
                written = False  # retention took all of it, and so what it had of old values
            else:
                written = await self._copy_group(
                    group, copying, transactions, cleaned_to if is_last else None
                )
            if is_last and not written and cleaned_to is not None:
                await self._ask(Swap((), (), cleaned_to))
        if not groups and cleaned_to is not None:
            await self._ask(Swap((), (), cleaned_to))

    async def _rules(self, last_mapped: int) -> PassRules:
        log = self._log
        data_offsets: dict[int, int] = {}
        epochs: dict[int, int] = {}
        high_watermark = log.high_watermark
        for producer_id, last_offset, epoch in log.producers.last_places(high_watermark):
            if last_offset >= 0:
                data_offsets[producer_id] = last_offset
            else:
                epochs[producer_id] = epoch
            await self._pace.step(1)
        return PassRules(
            now_ms=self._parts.env.clock.time_ms(),
            delete_retention_ms=self._config.delete_retention_ms,
            last_mapped=last_mapped,
            high_watermark=high_watermark,
            size_max=BATCH_BYTES_MAX,
            log_start=log.log_start_offset,
            last_data_offsets=data_offsets,
            marker_epochs=epochs,
        )

    async def _note_aborted(self, info: LedgerInfo, transactions: TransactionPass) -> None:
        """What was aborted and begins in the ledger, wherever its markers are; of the first ledger
        that is read also what covers data in it and began before."""
        known_to = self._aborted_to

        def take(rows: list[AbortedTransaction]) -> None:
            transactions.add_aborted(row for row in rows if row.first_offset >= known_to)

        await self._walk_aborted(info, info.end_offset, take)
        self._aborted_to = info.end_offset

    async def _walk_aborted(
        self, info: LedgerInfo, end_offset: int, take: Callable[[list[AbortedTransaction]], None]
    ) -> None:
        try:
            await self._log.transactions.aborted.walk(info.base_offset, end_offset, take)
        except LedgerError as error:
            raise self._source_error(info, error) from error
        except (EntryFormatError, WireError) as error:
            raise CompactionError(info.base_offset, str(error)) from error

    async def _aborted_of(self, group: Group, copying: Filter, *, is_mapped: bool) -> AbortedIndex:
        """What the group's ledger lists. To be asked for once of each group, written or not."""
        of_sources: list[AbortedTransaction] = []
        if not is_mapped and any(info.aborted_count for info in group.sources):
            await self._walk_aborted(group.sources[0], group.end_offset, of_sources.extend)
        index = AbortedIndex()
        for row in copying.take_aborted(of_sources):
            if row.last_offset < group.end_offset:
                index.add(row)
            await self._pace.step(1)
        return index

    async def _copy_group(
        self,
        group: Group,
        copying: Filter,
        transactions: TransactionPass | None,
        cleaned_to: int | None,
    ) -> bool:
        """Whether it was written anew. False: all of it stays as it is. `transactions`: those that
        a pass with a map judges by."""
        self._begin_group()
        copying.begin_group(self._parts.env.clock.time_ms())
        try:
            facts = await self._write_group(group, copying, transactions)
            aborted = await self._aborted_of(group, copying, is_mapped=transactions is not None)
            if self._output is None:
                return False
            snapshot = await self._final_snapshot(group.sources[-1])
            try:
                info = await self._output.finish(group.sources, facts, aborted, snapshot)
            except LedgerError as error:
                raise OutputError(str(error)) from error
            self._progress.note_group(group, info, facts)
            await self._ask(Swap(group.source_ids, (info,), cleaned_to))
            self._log_group(group, info, facts)
            return True
        finally:
            if self._output is not None and (self._swap is None or self._swap.may_delete):
                await self._discard(self._output)

    def _begin_group(self) -> None:
        self._output = self._swap = None

    async def _write_group(
        self, group: Group, copying: Filter, transactions: TransactionPass | None
    ) -> LedgerFacts:
        """What stays, in `_output` if anything is changed."""
        facts = LedgerFacts()
        if group.is_joining:
            self._output = await self._make_output()
        passed_by = 0  # batches in front of the first change
        for info in group.sources:
            if transactions is not None:
                await self._note_aborted(info, transactions)
            with self._source(info) as source:
                while (batches := await self._next(source)) is not None:
                    for header, batch in batches:
                        self._progress.done_bytes += len(batch)
                        is_end = header.last_offset + 1 == group.end_offset
                        kept = await self._pace.drive(
                            copying.keep(
                                batch, header, is_compacted=info.is_compacted, is_range_end=is_end
                            )
                        )
                        facts.add(kept)
                        if self._output is None and not kept.is_changed:
                            passed_by += 1
                            continue
                        if self._output is None:
                            self._output = await self._make_output()
                            await self._copy_passed_by(group, passed_by)
                        if kept.data is not None:
                            await self._add(kept.data, header, kept.max_timestamp)
        return facts

    async def _copy_passed_by(self, group: Group, count: int) -> None:
        """The group's first batches, all of which stay as they are."""
        for info in group.sources:
            if not count:
                return
            with self._source(info) as source:
                while count and (batches := await self._next(source)) is not None:
                    for header, batch in islice(batches, count):
                        count -= 1
                        await self._pace.step(1)
                        await self._add(batch, header, header.max_timestamp)

    async def _add(self, data: Buffer, header: BatchHeader, max_timestamp: int) -> None:
        assert self._output is not None
        try:
            await self._output.add(data, header.base_offset, header.last_offset, max_timestamp)
        except LedgerError as error:
            raise OutputError(str(error)) from error

    async def _make_output(self) -> ReplacementLedger:
        parts = self._parts
        try:
            return await ReplacementLedger.create(
                self._log, parts.ledgers, parts.settings, parts.throttle
            )
        except LedgerError as error:
            raise OutputError(str(error)) from error

    async def _final_snapshot(self, info: LedgerInfo) -> list[Buffer]:
        """Of the producers behind the ledger, as entries. If a recovery closed it the next ledger
        begins with one; if there is none yet, our own state is that."""
        ledgers, log = self._parts.ledgers, self._log
        try:
            snapshot: list[Buffer] = [*await read_final_snapshot(ledgers, info)]
            if snapshot:
                return snapshot
            following = bisect_right(log.segments, info.base_offset, key=base_offset_of)
            if following < len(log.segments):
                reader = await log.segments[following].open()
                return [*await read_snapshot(reader, 0, info.end_offset)]
        except LedgerError as error:
            raise self._source_error(info, error) from error
        if log.next_offset != info.end_offset:
            return []
        parts = log.producers.snapshot()  # of now, whenever they are encoded
        for number, part in enumerate(parts):
            flags = FLAG_CONTINUED if number else 0
            flags |= FLAG_CONTINUES if number + 1 < len(parts) else 0
            snapshot.append(pack_header(KIND_SNAPSHOT, info.end_offset, 0, flags) + part())
            await self._pace.give_way()
        return snapshot

    def _source(self, info: LedgerInfo) -> Source:
        assert self._nursery is not None
        return Source(self._nursery, self._parts.ledgers, info, self._parts.throttle)

    async def _next(self, source: Source) -> Iterator[tuple[BatchHeader, memoryview]] | None:
        try:
            return await source.next_batches()
        except LedgerError as error:
            raise self._source_error(source.info, error) from error

    def _source_error(self, info: LedgerInfo, error: Exception) -> Exception:
        """What `error` of a source means: a ledger that the chain names no more was deleted."""
        self.check()
        if all(info.ledger_id != each.ledger_id for each in self._log.chain.ledgers):
            return PassEnded(f"ledger {info.ledger_id} is gone from the chain")
        return SourceError(str(error))

    # -- the swap ------------------------------------------------------------------------------

    async def _ask(self, swap: Swap) -> None:
        """PassEnded or OutputError unless the chain has it now."""
        self._swap = swap
        with trio.move_on_after(SWAP_SECONDS) as limit:
            await self._keeper.swap(swap)
        if swap.outcome is SwapOutcome.DONE:
            return
        self.check()
        if limit.cancelled_caught and swap.may_delete:
            # Other partitions want the cleaner's task.
            raise OutputError(
                f"no turn of the keeper's in {SWAP_SECONDS:.0f} s: metadata is away, or too many"
                " ledgers wait for their deletion (file.delete.delay.ms)"
            )
        raise PassEnded(f"the keeper did not put it in the chain: {swap.outcome.value}")

    async def _discard(self, output: ReplacementLedger) -> None:
        """Also when the pass was cancelled. What cannot be deleted in time is an orphan."""
        with trio.move_on_after(DISCARD_SECONDS, shield=True) as limit:
            try:
                await output.discard()
            except (LedgerError, MetadataError) as error:
                logger.warning("replacement_ledger_left", kv(ledger=output.ledger_id, error=error))
        if limit.cancelled_caught:
            logger.warning("replacement_ledger_left", kv(ledger=output.ledger_id, error="slow"))

    def _log_group(self, group: Group, info: LedgerInfo, facts: LedgerFacts) -> None:
        logger.info(
            "ledgers_compacted",
            kv(
                partition=self._log.name,
                ledgers=len(group.sources),
                ledger=info.ledger_id,
                base_offset=info.base_offset,
                last_offset=info.last_offset,
                bytes_before=group.size_bytes,
                bytes_after=info.size_bytes,
                records_dropped=facts.records_dropped,
            ),
        )


def _base_offset(info: LedgerInfo) -> int:
    return info.base_offset


def _end_offset(info: LedgerInfo) -> int:
    return info.end_offset
