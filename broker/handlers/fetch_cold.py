"""What a fetch reads of partitions that have nothing in memory: from the disk, or from bookies.

The first of them is read alone, as its first batch goes whatever its size; the others together,
each no more than there is room for in the answer. What is kept of them in memory is bounded, too.

Owner: the event loop's thread.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

import trio

from broker.api import Steps, in_slices
from broker.handlers.fetch_look import Collected, fill, listed
from broker.log.partition import State
from wire.kafka.errors import KafkaError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.handlers.fetch_look import Cold
    from broker.log.transactions.aborted_index import AbortedTransaction as Aborted
    from wire.buffers import Buffers
    from wire.kafka.messages.fetch import AbortedTransaction

#: Partitions that one answer may have of these, and that are read at a time for it.
COLD_READS_MAX = 1_000
COLD_READS_AT_ONCE = 16
#: What cold records keep in memory may be so many times their size.
PINNED_SHARE_MAX = 4
#: Aborted transactions that are put into an answer in one step.
LISTED_PER_STEP = 1_000


def cold_bytes_max(collected: Collected, bytes_max: int) -> int:
    """What `read_cold` reads at the most, but for a first batch that is longer."""
    wanted = sum(cold[0].request.partition_max_bytes for cold in collected.cold)
    return max(min(wanted, bytes_max - collected.size_bytes), 0)


async def read_cold(collected: Collected, bytes_max: int, *, committed: bool) -> None:
    """The first of what is cold, and those behind it for which there is room whatever they have:
    each after the other, a consumer of thousands would wait for as many fetches. `bytes_max`: of
    the whole answer. A partition that cannot be read has its error in `collected`."""
    first = collected.cold[0]
    size_max = min(first[0].request.partition_max_bytes, bytes_max - collected.size_bytes)
    # Of the first the first batch goes whatever its size.
    await _read_one(collected, first, max(size_max, 0), committed=committed, at_least_one=True)
    limit = bytes_max - collected.size_bytes
    waiting: deque[tuple[Cold, int]] = deque()
    for cold in islice(collected.cold, 1, COLD_READS_MAX):
        if limit <= 0:
            break
        wanted, _, log = cold
        if log.state is not State.ONLINE:
            continue
        size_max = min(wanted.request.partition_max_bytes, limit)
        there = min(size_max, log.reader.read_bytes_max(wanted.request.fetch_offset))
        if there > 0:
            limit -= there
            waiting.append((cold, there))

    async def read_some() -> None:
        while waiting:
            cold, size_max = waiting.popleft()
            await _read_one(collected, cold, size_max, committed=committed, at_least_one=False)

    async with trio.open_nursery() as nursery:
        for _ in range(min(len(waiting), COLD_READS_AT_ONCE)):
            nursery.start_soon(read_some)


async def _read_one(
    collected: Collected, cold: Cold, size_max: int, *, committed: bool, at_least_one: bool
) -> None:
    wanted, data, log = cold
    offset = wanted.request.fetch_offset
    try:
        end_offset = log.readable_end(committed=committed)
        if committed:
            got, aborted = await log.reader.read_committed(
                offset, size_max, at_least_one=at_least_one
            )
            data.aborted_transactions = await in_slices(_listing(aborted))
        else:
            got = await log.reader.read(offset, size_max, at_least_one=at_least_one)
    except KafkaError as error:
        data.error_code = int(error.code)
        collected.failed = True
        return
    collected.count(wanted, end_offset, got)
    fill(data, log, got)
    if got.parts:
        data.records = _unpinned(got.parts)


def _listing(aborted: Sequence[Aborted]) -> Steps[list[AbortedTransaction]]:
    """As `listed`, of very many, in slices."""
    found: list[AbortedTransaction] = []
    for start in range(0, len(aborted), LISTED_PER_STEP):
        found += listed(aborted[start : start + LISTED_PER_STEP])
        yield LISTED_PER_STEP
    return found


def _unpinned(parts: Buffers) -> Buffers:
    """The same, copied if it is a small part of the memory that it would keep: of an entry of many
    batches one may fit, and a fetch reads from very many cold partitions."""
    views = [part for part in parts if isinstance(part, memoryview)]
    kept_bytes = sum({id(view.obj): memoryview(view.obj).nbytes for view in views}.values())
    is_small = sum(map(len, parts)) * PINNED_SHARE_MAX < kept_bytes
    return [b"".join(parts)] if is_small else parts
