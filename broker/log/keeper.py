"""The keeper of one partition's chain: take-over, new ledgers, rolls, retention, deletion.

One task per partition that holds data or is asked for, asleep unless called. It alone writes the
partition's document in metadata, always by compare-and-set; losing one means that somebody else
took the partition over, and the partition goes offline (design.md §4).

Order of a roll: seal (synchronous), wait for the acks, close the ledger in metadata, create the
successor, then one compare-and-set that makes the end of the old final and adds the new. Only then
does the successor take writes (ledgers.md 2.4).

If no bookies take writes (full disks), the partition loses its open ledger, is taken over again and
is *suspended*: it serves reads, deletions and retention, refuses appends with NOT_ENOUGH_REPLICAS
(retriable, and true: nothing was stored), makes no ledger, and looks for bookies every second.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import trio

from broker.log.chain import ChainFormatError, LedgerInfo
from broker.log.offset_index import OffsetIndex
from broker.log.partition import PartitionLog, State
from broker.log.retention import new_log_start, roll_age_ms
from broker.log.segment import Segment
from broker.log.takeover import take_over
from ledger.errors import LedgerError, NotEnoughBookiesError
from metadata.store import MetadataError
from runtime.logs import kv
from wire.kafka.errors import ErrorCode, KafkaError, WireError

if TYPE_CHECKING:
    from broker.cluster.durability import Copies
    from broker.log.chain import Chain
    from broker.log.settings import LogSettings
    from ledger.client import LedgerClient
    from ledger.writer import LedgerWriter
    from metadata.store import MetadataStore
    from runtime.env import Env

logger = logging.getLogger(__name__)

#: A partition without bookies that take writes looks for some this often.
SUSPENDED_LOOK_SECONDS = 1.0


class Keeper:
    def __init__(
        self,
        log: PartitionLog,
        path: str,
        store: MetadataStore,
        ledgers: LedgerClient,
        env: Env,
        settings: LogSettings,
    ) -> None:
        self._log = log
        self._path = path
        self._store = store
        self._ledgers = ledgers
        self._env = env
        self._settings = settings
        self._version = -1
        self._writer: LedgerWriter | None = None
        self._noted_snapshot: int | None = None
        self._wanted_start = 0
        self._start_moved = trio.Condition()
        self._roll_asked = False
        self._closing = False
        #: Whether the take-over succeeded.
        self.took_over = False

    async def run(self) -> None:
        """Takes over and keeps the partition until it goes offline. Never raises for the
        partition's sake."""
        log = self._log
        try:
            taken = await take_over(
                self._path, self._store, self._ledgers, self._settings,
                self._env.clock.time_ms(),
            )  # fmt: skip
            self._version = taken.version
            self.took_over = True
            log.is_suspended = not await self._can_write()
            log.go_online(taken)
            while log.state is State.ONLINE:
                await self._wait_for_attention()
                await self._attend()
        except (LedgerError, MetadataError, ChainFormatError, WireError) as error:
            log.go_offline(f"{type(error).__name__}: {error}")
        finally:
            async with self._start_moved:
                self._start_moved.notify_all()

    async def _wait_for_attention(self) -> None:
        log = self._log
        with trio.move_on_after(SUSPENDED_LOOK_SECONDS if log.is_suspended else float("inf")):
            await log.attention.wait()
            log.attention = trio.Event()
        if log.is_suspended and await self._can_write():
            log.is_suspended = False
            logger.info("partition_resumed", kv(partition=log.name))

    async def _can_write(self) -> bool:
        """With as few bookies as are allowed."""
        return await self._can_create(self._log.copies.narrowed(0))

    async def _can_create(self, copies: Copies) -> bool:
        return await self._ledgers.can_create(
            ensemble_size=copies.ensemble_size,
            write_quorum_size=copies.write_quorum,
            ack_quorum_size=copies.ack_quorum,
        )

    async def _create_ledger(self) -> LedgerWriter:
        """With all copies, or with as many as there are bookies for, down to the ack quorum; when
        more have come, `widen` has it rolled. LedgerError."""
        log, copies = self._log, self._log.copies
        while True:
            try:
                return await self._ledgers.create_ledger(
                    ensemble_size=copies.ensemble_size,
                    write_quorum_size=copies.write_quorum,
                    ack_quorum_size=copies.ack_quorum,
                    custom_metadata={
                        "application": b"quire",
                        "topic": log.topic.name.encode(),
                        "partition": str(log.partition).encode(),
                    },
                )
            except NotEnoughBookiesError:
                if copies.ensemble_size <= copies.ack_quorum:
                    raise
            copies = copies.narrowed(copies.ensemble_size - 1)
            logger.warning("fewer_copies", kv(partition=log.name, write_quorum=copies.write_quorum))

    def bookies_changed(self) -> None:
        """A ledger that was made with fewer copies than it should have is rolled when there are
        bookies for all."""
        writer = self._writer
        if writer is None or self._roll_asked:
            return
        if writer.metadata.write_quorum_size < self._log.copies.write_quorum:
            self._roll_asked = True
            self._log.call_keeper()

    async def _attend(self) -> None:
        log = self._log
        if log.state is not State.ONLINE:
            return
        if self._roll_due() or await self._widening_due():
            await self._close_ledger()
        elif log.queue.needs_ledger:
            await self._open_ledger(log.chain)
        await self._note_snapshot()
        if self._wanted_start > log.log_start_offset:
            await self._raise_start(self._wanted_start)
        await self._delete_ledgers()

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
        async with self._start_moved:
            while log.log_start_offset < offset:
                if log.state is not State.ONLINE:
                    raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
                await self._start_moved.wait()
        return log.log_start_offset

    def check_retention(self) -> None:
        """The periodic look (log.retention.check.interval.ms): what is to be rolled or dropped."""
        log = self._log
        if log.state is not State.ONLINE:
            return
        config = log.config
        now_ms = self._env.clock.time_ms()
        log.producers.expire(now_ms, self._settings.producer_expiration_ms)
        if "delete" in config.cleanup_policy:
            start = new_log_start(
                log.chain,
                retention_ms=config.retention_ms,
                retention_bytes=config.retention_bytes,
                open_size_bytes=log.segments[-1].size_bytes if self._writer else 0,
                now_ms=now_ms,
            )
            self._wanted_start = max(self._wanted_start, start)
        if self._wanted_start > log.log_start_offset or self._roll_due():
            log.call_keeper()

    async def close(self) -> None:
        """A clean stop: seals and closes the ledger, so that the next take-over reads one entry."""
        self._closing = True
        log = self._log
        if log.state is State.ONLINE and self._writer is not None:
            try:
                await self._close_ledger()
            except (LedgerError, MetadataError) as error:
                logger.warning("close_failed", kv(partition=log.name, error=error))
        log.go_offline("closed")

    # -- ledgers -------------------------------------------------------------------------------

    def _roll_due(self) -> bool:
        if self._writer is None or self._closing:
            return False
        config = self._log.config
        segment = self._log.segments[-1]
        if segment.size_bytes == 0:
            return False
        if segment.size_bytes >= config.segment_bytes:
            return True
        age_ms = self._env.clock.time_ms() - segment.info.created_ms
        retention_ms = config.retention_ms if "delete" in config.cleanup_policy else -1
        return age_ms >= roll_age_ms(config.segment_ms, retention_ms)

    async def _widening_due(self) -> bool:
        if not self._roll_asked or self._closing or self._log.segments[-1].size_bytes == 0:
            return False
        self._roll_asked = False
        return await self._can_create(self._log.copies)

    async def _open_ledger(self, chain: Chain) -> None:
        """Adds a new open ledger to `chain` (whose last one is final) and writes that."""
        log, settings = self._log, self._settings
        writer = await self._create_ledger()
        info = LedgerInfo(
            ledger_id=writer.ledger_id,
            base_offset=chain.closed_end_offset,
            leader_epoch=log.leader_epoch,
            created_ms=self._env.clock.time_ms(),
        )
        segment = Segment(info, self._ledgers, settings, reader=writer.reader, index=OffsetIndex())
        await self._write(chain.with_ledger(info))
        log.segments.append(segment)
        self._writer = log.writer = writer
        self._noted_snapshot = None
        log.queue.roll_bytes = log.config.segment_bytes
        log.queue.attach(writer, segment)

    async def _close_ledger(self) -> None:
        """Makes the open ledger's end final, and opens the next if batches wait for it."""
        log, writer = self._log, self._writer
        assert writer is not None
        log.queue.seal()
        await log.queue.wait_drained()
        if log.state is not State.ONLINE:
            return
        await writer.close()
        segment = log.segments[-1]
        segment.info = segment.closed_info(
            last_offset=log.high_watermark - 1, entry_count=writer.last_add_confirmed + 1
        )
        self._writer = log.writer = None
        chain = log.chain.with_last(segment.info)
        if log.queue.needs_ledger and not self._closing:
            await self._open_ledger(chain)
        else:
            await self._write(chain)

    async def _note_snapshot(self) -> None:
        """Tells metadata where the newest producer snapshot is: a take-over starts there."""
        if self._writer is None:
            return
        snapshot_entry = self._log.segments[-1].snapshot_entry
        if snapshot_entry is not None and snapshot_entry != self._noted_snapshot:
            self._noted_snapshot = snapshot_entry
            known = self._log.chain.ledgers[-1]
            await self._write(
                self._log.chain.with_last(replace(known, snapshot_entry=snapshot_entry))
            )

    async def _raise_start(self, offset: int) -> None:
        log = self._log
        chain = log.chain.with_log_start(min(offset, log.high_watermark))
        await self._write(chain)
        kept = {info.ledger_id for info in chain.ledgers}
        log.segments[:] = [item for item in log.segments if item.info.ledger_id in kept]
        logger.info(
            "log_start_raised",
            kv(
                partition=log.name,
                log_start_offset=chain.log_start_offset,
                ledgers_dropped=len(chain.deleting),
            ),
        )
        async with self._start_moved:
            self._start_moved.notify_all()

    async def _delete_ledgers(self) -> None:
        """First the chain, then the ledgers; what a crash leaves undone is in `deleting`."""
        deleting = self._log.chain.deleting
        if not deleting:
            return
        for ledger_id in deleting:
            await self._ledgers.delete_ledger(ledger_id)
        await self._write(self._log.chain.with_deleted(frozenset(deleting)))

    async def _write(self, chain: Chain) -> None:
        self._version = await self._store.put(self._path, chain.to_bytes(), self._version)
        self._log.chain = chain
