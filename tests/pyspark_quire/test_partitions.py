"""Where a partition's log ends, on simulated bookies."""

import pytest

from ledger.errors import LedgerError
from pyspark_quire.partitions import read_view
from tests.pyspark_quire.simulated import SimulatedLog, entry, records


async def three(nursery):
    """Offset 2 is acknowledged, and the bookies do not know so yet."""
    log = SimulatedLog()
    await log.world.start(nursery)
    await log.open(0, *(entry(records(n, b"v%d" % n)) for n in range(3)))
    await log.store_chain()
    return log


async def test_a_leaders_word_reaches_further_than_the_bookies(nursery, autojump_clock):
    log = await three(nursery)
    assert (await read_view(log.connection, log.topic, 0)).end_offset == 2
    view = await read_view(log.connection, log.topic, 0, high_watermark=3)
    assert (view.end_offset, view.reader.last_add_confirmed) == (3, 2)


async def test_what_a_leader_confirms_and_no_copy_has_is_an_error(nursery, autojump_clock):
    """As it is of every other entry. A log that ends before it would lack an acknowledged record,
    and nobody would be told."""
    log = await three(nursery)
    for bookie in "abc":
        log.world.bookies.corrupt(bookie, log.writer.ledger_id, 2)
    with pytest.raises(LedgerError):
        await read_view(log.connection, log.topic, 0, high_watermark=3)


async def test_a_chain_that_was_read_long_ago_is_read_again(nursery, autojump_clock):
    """Its open ledger is closed by now, and others follow: `spark_jobs` looks for ends minutes
    after it has read the chains."""
    log = await three(nursery)
    before = log.chain
    await log.close(2)
    await log.open(3, *(entry(records(n, b"v%d" % n)) for n in range(3, 9)))
    await log.append(entry(records(9, b"v9")))
    await log.store_chain()
    view = await read_view(log.connection, log.topic, 0, chain=before)
    assert view.end_offset == 9


async def test_what_a_writer_has_told_the_bookies_is_read(nursery, autojump_clock):
    """An explicit LAC (explicitLacInterval): they know more than their last entry says."""
    log = await three(nursery)
    await log.writer.tell_lac()
    assert (await read_view(log.connection, log.topic, 0)).end_offset == 3


async def test_a_log_does_not_end_before_it_starts(nursery, autojump_clock):
    """All records were deleted, the last of which the bookies do not know to be confirmed. A
    stream from `latest` would begin at what is not there, and fail for it with its first batch."""
    log = await three(nursery)
    log.log_start = 3
    await log.store_chain()
    assert (await read_view(log.connection, log.topic, 0)).end_offset >= 3
