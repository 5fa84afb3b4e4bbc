"""What is read of cold partitions, in bytes and at a time, and what is told of those that fail."""

from types import SimpleNamespace

import pytest
import trio

from broker.handlers import fetch_cold
from broker.handlers.fetch_cold import COLD_READS_AT_ONCE, cold_bytes_max, read_cold
from broker.handlers.fetch_look import Collected
from broker.log.partition import State
from broker.log.read.partition_reader import ReadResult
from wire.kafka.errors import ErrorCode, KafkaError
from wire.kafka.messages.fetch import FetchPartition, PartitionData

END, STABLE = 1_000, 400


class ColdLog:
    """Of a partition that has batches of 100 bytes, each of 10 offsets."""

    state = State.ONLINE
    high_watermark, last_stable_offset, log_start_offset = END, STABLE, 0

    def __init__(self, reads, *, there=1 << 20, error=None, first_bytes=100):
        self.reader = self
        self._reads, self._there, self._error, self._first_bytes = reads, there, error, first_bytes

    def readable_end(self, *, committed):
        return STABLE if committed else END

    def read_bytes_max(self, offset):
        return self._there

    async def read(self, offset, size_max, *, at_least_one):
        self._reads.append((size_max, at_least_one))
        await trio.sleep(1)
        if self._error is not None:
            raise KafkaError(self._error)
        count = size_max // 100
        if not count and at_least_one:
            return ReadResult([bytes(self._first_bytes)], self._first_bytes, offset + 10)
        return ReadResult([bytes(count * 100)], count * 100, offset + count * 10)

    async def read_committed(self, offset, size_max, *, at_least_one):
        aborted = [SimpleNamespace(producer_id=7, first_offset=3)]
        return await self.read(offset, size_max, at_least_one=at_least_one), aborted


def collected_of(*logs, size_max=300, size_bytes=0):
    """One look that has found `size_bytes` elsewhere, and these cold."""
    collected = Collected.nothing()
    collected.size_bytes = size_bytes
    for log in logs:
        wanted = SimpleNamespace(
            request=FetchPartition(partition_max_bytes=size_max, fetch_offset=0), topic="t"
        )
        collected.cold.append((wanted, PartitionData(records=b""), log))
        collected.data.append(collected.cold[-1][:2])
    return collected


def records_of(collected):
    return [sum(map(len, data.records)) for _, data, _ in collected.cold]


async def test_the_first_one_gives_its_first_batch_whatever_its_size(autojump_clock):
    reads = []
    collected = collected_of(ColdLog(reads, first_bytes=5_000), ColdLog(reads), size_max=50)
    await read_cold(collected, 1_000, committed=False)
    assert reads == [(50, True)], "there is no room for more"
    assert records_of(collected) == [5_000, 0]
    assert collected.size_bytes == 5_000


async def test_also_where_there_is_no_room_at_all(autojump_clock):
    reads = []
    collected = collected_of(ColdLog(reads), size_bytes=2_000)
    await read_cold(collected, 1_000, committed=False)
    assert reads == [(0, True)]


async def test_the_others_share_what_is_left(autojump_clock):
    """Each up to its limit and to what it has, none by a byte more; who has nothing or is being
    taken over is not read."""
    reads = []
    away, empty = ColdLog(reads), ColdLog(reads, there=0)
    away.state = State.LOADING
    few = ColdLog(reads, there=120)
    collected = collected_of(
        ColdLog(reads), away, empty, few, ColdLog(reads), ColdLog(reads), ColdLog(reads)
    )
    await read_cold(collected, 1_000, committed=False)
    # 1,000 but 300 of the first are left: 120 for `few`, 300, and the rest.
    assert reads == [(300, True), (120, False), (300, False), (280, False)]
    assert records_of(collected) == [300, 0, 0, 100, 300, 200, 0]
    assert collected.size_bytes == 900
    assert len(collected.reads) == 4


async def test_so_many_at_a_time(autojump_clock, monkeypatch):
    reads = []
    monkeypatch.setattr(fetch_cold, "COLD_READS_MAX", 3 * COLD_READS_AT_ONCE + 1)
    collected = collected_of(*(ColdLog(reads) for _ in range(100)))
    before = trio.current_time()
    await read_cold(collected, 1 << 20, committed=False)
    assert len(reads) == 3 * COLD_READS_AT_ONCE + 1
    assert trio.current_time() - before == pytest.approx(4), "the first, and three times sixteen"


@pytest.mark.parametrize("at", [0, 1])
async def test_who_fails_says_so_and_the_answer_waits_for_nothing(autojump_clock, at):
    reads = []
    logs = [ColdLog(reads), ColdLog(reads)]
    logs[at] = ColdLog(reads, error=ErrorCode.KAFKA_STORAGE_ERROR)
    collected = collected_of(*logs)
    await read_cold(collected, 1_000, committed=False)
    assert collected.failed
    assert collected.cold[at][1].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    other = collected.cold[1 - at][1]
    assert (other.error_code, other.high_watermark, other.last_stable_offset) == (0, END, STABLE)
    assert records_of(collected)[1 - at] == 300


@pytest.mark.parametrize(("committed", "is_cut"), [(False, True), (True, False)])
async def test_the_end_is_what_the_client_may_read(autojump_clock, committed, is_cut):
    """Up to the last stable offset all of it is read: there is no more for who reads committed."""
    collected = collected_of(ColdLog([]), size_max=4_000)
    await read_cold(collected, 1 << 20, committed=committed)
    assert collected.is_cut is is_cut
    assert collected.available_bytes == 4_000
    aborted = collected.cold[0][1].aborted_transactions
    listed = [(each.producer_id, each.first_offset) for each in aborted or ()]
    assert listed == ([(7, 3)] if committed else [])


async def test_one_that_is_cut_stays_so(autojump_clock):
    collected = collected_of(ColdLog([]), ColdLog([], there=20_000), size_max=20_000)
    collected.is_cut = True
    await read_cold(collected, 1 << 20, committed=False)
    assert collected.is_cut


@pytest.mark.parametrize(
    ("size_max", "size_bytes", "most"), [(300, 0, 600), (300, 700, 300), (300, 2_000, 0)]
)
def test_so_much_is_asked_room_for(size_max, size_bytes, most):
    collected = collected_of(ColdLog([]), ColdLog([]), size_max=size_max, size_bytes=size_bytes)
    assert cold_bytes_max(collected, 1_000) == most
