"""A task: one split, read from bookies and decoded, as Arrow batches.

    for batch in read_split(split, options): ...

A thread runs trio with the bookies' connections, and keeps some MiB ahead; this generator decodes.
Whoever leaves the generator (`limit(1)`, a cancelled job) ends both: when `close` returns, the
thread, its connections and its descriptors are gone.

The driver's plan is enough to read. Only when a ledger cannot be read by it (it was deleted,
compacted, or moved to other bookies since) the task asks the metadata, once, and goes on at the
same offset in what has that offset now.
"""

from __future__ import annotations

import logging
import queue
import threading
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING
from uuid import UUID

import trio

from broker.cluster.topic import Topic
from broker.log.life.chain import Chain
from ledger.client import LedgerClient
from ledger.errors import LedgerError
from ledger.metadata import Versioned
from ledger.network.client import NetworkBookieClient
from ledger.placement import RandomPlacement
from metadata.memory import MemoryStore
from pyspark_quire.choose_core import DataLossError
from pyspark_quire.connection import (
    UnreachableError,
    Where,
    connected,
    reader_env,
    single_error,
    start_env,
)
from pyspark_quire.decode import INT64_MAX, INT64_MIN, Bounds, Decoder
from pyspark_quire.partitions import TopicGoneError, document_path, read_chains
from pyspark_quire.plan_core import parts_of
from pyspark_quire.reading import MissingRecordsError, Range, read_range
from pyspark_quire.worker_logs import Refusals, log_to_stderr
from runtime.logs import kv
from runtime.running import running
from wire.bookkeeper.ledger_metadata import parse

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    import pyarrow as pa

    from ledger.reader import LedgerReader
    from pyspark_quire.connection import Connection
    from pyspark_quire.options_core import ReadOptions
    from pyspark_quire.plan_core import Part
    from pyspark_quire.splits import Split
    from wire.buffers import Buffer

logger = logging.getLogger(__name__)

#: Runs of entries, of 1 MiB each, that wait to be decoded; one more is being read.
RUNS_AHEAD = 4


@dataclass(slots=True, frozen=True)
class Run:
    """Record batches, back to back in each of `bodies`, of which records before offset `start` do
    not count."""

    bodies: list[Buffer]
    start: int


def read_split(split: Split, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """DataLossError, LedgerError, WireError, MissingRecordsError, UnreachableError."""
    decoder = decoder_of(split, options)
    feed = EntryFeed(split, options)
    try:
        for run in feed:
            if run.start > decoder.bounds.start:
                # A new plan begins within a batch, of which the first records are not asked for.
                yield from _taken(decoder)
                decoder.bounds = replace(decoder.bounds, start=run.start)
            for body in run.bodies:
                decoder.feed(body)
                while decoder.is_due:
                    if (batch := decoder.take()) is not None:
                        yield batch
        yield from _taken(decoder)
    finally:
        feed.close()


def _taken(decoder: Decoder) -> Iterator[pa.RecordBatch]:
    while (batch := decoder.take()) is not None:
        yield batch


def decoder_of(split: Split, options: ReadOptions) -> Decoder:
    """With the split's offsets and the options' times."""
    low, high = options.min_timestamp, options.max_timestamp
    bounds = Bounds(
        split.start,
        split.end,
        INT64_MIN if low is None else low,
        INT64_MAX if high is None else high,
    )
    return Decoder(
        split.topic,
        split.partition,
        options.columns,
        bounds,
        aborted=split.aborted,
        checks_crc=options.checks_crc,
    )


class EntryFeed:
    """Iterates over runs of record batches, read ahead in a thread of its own."""

    def __init__(self, split: Split, options: ReadOptions) -> None:
        self._reading = SplitReading(split, options)
        self._scope = trio.CancelScope()
        self._room = trio.Semaphore(RUNS_AHEAD)
        self._token: trio.lowlevel.TrioToken | None = None
        #: Ends with an error, or with None.
        self._runs: queue.SimpleQueue[Run | BaseException | None] = queue.SimpleQueue()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"quire-{split.name}", daemon=True)
        self._thread.start()
        self._started.wait()

    def __iter__(self) -> Iterator[Run]:
        while (run := self._runs.get()) is not None:
            if isinstance(run, BaseException):
                raise run
            yield run
            self._soon(self._room.release)

    def close(self) -> None:
        """May be called again; waits for the thread's end."""
        self._soon(self._scope.cancel)
        self._thread.join()

    def _soon(self, call: Callable[[], object]) -> None:
        if self._token is not None:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(call)

    def _run(self) -> None:
        end: BaseException | None = None
        log_to_stderr()
        with Refusals() as refusals:
            try:
                trio.run(self._main)
            except BaseException as error:  # raised by who iterates
                end = refusals.told(single_error(error))
            finally:
                self._started.set()
                self._runs.put(end)

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._started.set()
        with self._scope:
            await self._reading.run(self._put)

    async def _put(self, run: Run) -> None:
        await self._room.acquire()
        self._runs.put(run)


class SplitReading:
    """The way through a split's parts: by the plan, and if that fails by the metadata."""

    def __init__(self, split: Split, options: ReadOptions) -> None:
        self._split = split
        self._options = options
        self._where = Where(options.metadata, options.bookkeeper)
        #: The first offset that was not given yet.
        self._next = split.start
        #: Where the plan that is followed begins.
        self._start = split.start
        self._give: Callable[[Run], Awaitable[None]] | None = None

    async def run(self, give: Callable[[Run], Awaitable[None]]) -> None:
        """`give(run)` in the order of offsets; errors as of `read_split`."""
        self._give = give
        try:
            await self._by_plan()
        except* (LedgerError, MissingRecordsError) as errors:
            failed = single_error(errors)
        else:
            return
        logger.warning(
            "plan_out_of_date", kv(partition=self._split.name, offset=self._next, error=failed)
        )
        await self._by_metadata(failed)

    async def _send(self, bodies: list[Buffer], position: int) -> None:
        assert self._give is not None
        await self._give(Run(bodies, self._start))
        self._next = max(self._next, position)

    async def _by_plan(self) -> None:
        env = reader_env()
        split, root = self._split, self._where.ledgers_root
        async with AsyncExitStack() as stack:
            await start_env(env, stack)
            bookies = NetworkBookieClient(env, split.addresses.get, self._where.network())
            await stack.enter_async_context(running(bookies.run))
            # Of what the plan does not say nothing is known here; `_by_metadata` asks.
            ledgers = LedgerClient(
                MemoryStore(),
                bookies,
                env,
                self._where.client(root),
                placement=RandomPlacement(list, env.rng),
            )
            for part in split.parts:
                facts = split.ledgers[part.ledger_id]
                versioned = Versioned(parse(facts.metadata), facts.version)
                reader = ledgers.reader_of(part.ledger_id, versioned, facts.last_entry)
                await self._read(reader, part)

    async def _read(self, reader: LedgerReader, part: Part) -> None:
        wanted = Range(max(part.start, self._next), part.end, part.is_compacted, part.first_entry)
        await read_range(reader, wanted, self._send)
        self._next = max(self._next, part.end)

    async def _by_metadata(self, failed: BaseException) -> None:
        """What the chain has now for the offsets that are left. DataLossError, LedgerError;
        UnreachableError, from what failed before."""
        seconds = self._options.metadata_timeout_ms / 1000
        split = self._split
        with trio.move_on_after(seconds) as scope:
            async with connected(self._where) as connection:
                parts = await self._parts_now(connection)
                scope.deadline = inf
                for part in parts:
                    reader = await connection.ledgers.open_ledger(part.ledger_id, recover=False)
                    facts = split.ledgers.get(part.ledger_id)
                    if facts is not None and not reader.metadata.is_closed:
                        # The plan's word, a broker's perhaps, reaches further than the bookies'.
                        last = max(reader.last_add_confirmed, facts.last_entry)
                        reader.last_add_confirmed = last
                    await self._read(reader, part)
                return
        raise UnreachableError(
            f"{split.name}: the plan is out of date ({failed}), and metadata"
            f" {self._options.metadata} do not answer within {seconds:g} s"
        )

    async def _parts_now(self, connection: Connection) -> list[Part]:
        split = self._split
        topic = Topic(UUID(split.topic_id), split.topic, 0, {}, internal=False)
        await connection.store.sync(document_path(topic, split.partition))
        start = self._next
        try:
            chain = (await read_chains(connection.store, topic, [split.partition]))[split.partition]
            first = chain.log_start_offset
            self._check_end(chain)
        except TopicGoneError:
            chain, first = Chain(), split.end
        if first > start:
            words = (
                f"{split.name}: offsets {start} to {min(first, split.end)} (of {split.start} to"
                f" {split.end}) were deleted before they were read"
            )
            if self._options.fails_on_data_loss:
                raise DataLossError(
                    f"{words}. Set failOnDataLoss to false to go on with what is there"
                )
            logger.warning("records_lost", kv(partition=split.name, reason=words))
            self._next = start = min(first, split.end)
        self._start = start
        return parts_of(chain.ledgers, start, split.end)

    def _check_end(self, chain: Chain) -> None:
        """DataLossError if the log ends before the split does: it reached further once."""
        split, end = self._split, max(chain.closed_end_offset, chain.log_start_offset)
        if end >= split.end or (chain.ledgers and chain.ledgers[-1].is_open):
            return
        words = f"{split.name}: the log ends at offset {end} now, and had offsets up to {split.end}"
        if self._options.fails_on_data_loss:
            raise DataLossError(f"{words}. Set failOnDataLoss to false to go on with what is there")
        logger.warning("records_lost", kv(partition=split.name, reason=words))
