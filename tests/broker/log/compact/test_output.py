"""The ledger that a pass writes: what is in it, what the chain is told, and how it is given up."""

import pytest
import trio

from broker.log.append.entry_format import KIND_BATCHES, KIND_INDEX, parse_header
from broker.log.compact.compaction_core import Kept, LedgerFacts
from broker.log.compact.output import ENTRIES_IN_FLIGHT_MAX, ReplacementLedger
from broker.log.compact.source import Source
from broker.log.compact.throttle import Throttle
from broker.log.life.orphans import _maker
from broker.log.read.offset_index import OffsetIndex
from broker.log.settings import LogSettings
from broker.log.transactions.aborted_index import AbortedIndex
from ledger.errors import LedgerError
from wire.kafka.records.batch import parse_header as parse_batch


@pytest.fixture
async def throttle(autojump_clock):
    return Throttle(lambda: 1e12, trio.current_time)


async def made(shop, throttle, **settings):
    return await ReplacementLedger.create(
        shop.log, shop.broker.ledgers, LogSettings(**settings), throttle
    )


async def copied(shop, throttle, output, skip=()):
    """All batches of the log's ledgers but some into `output`; what the chain is to be told."""
    sources, facts = shop.log.chain.ledgers, LedgerFacts()
    async with trio.open_nursery() as nursery:
        for info in sources:
            with Source(nursery, shop.broker.ledgers, info, throttle) as source:
                while (batches := await source.next_batches()) is not None:
                    for header, batch in batches:
                        if header.base_offset in skip:
                            continue
                        last, stamp = header.last_offset, header.max_timestamp
                        await output.add(batch, header.base_offset, last, stamp)
                        facts.add(Kept(batch, False, last, 1, 0, 0, False, -1, stamp, last))
    return await output.finish(sources, facts, AbortedIndex(), [])


async def test_entries_and_index(autojump_clock, shop, throttle):
    await shop.open()
    for number in range(3):
        await shop.fill(*([(b"k", b"." * 100 + b"%d" % n)] for n in range(number, 10)))
    gone = {3, 4, 11, 12, 13}
    output = await made(shop, throttle, entry_bytes_target=400)
    info = await copied(shop, throttle, output, gone)
    reader = await shop.broker.ledgers.open_ledger(info.ledger_id, recover=False)
    assert reader.metadata.is_closed
    assert reader.last_add_confirmed + 1 == info.entry_count == info.index_entry + 1
    offsets, size = [], 0
    for entry_id in range(info.index_entry):
        [payload] = await reader.read(entry_id, count_max=1, size_max=1)
        header = parse_header(payload)
        assert header.kind == KIND_BATCHES
        size += len(payload)
        position = 16
        while position < len(payload):
            batch = parse_batch(payload, position)
            position += batch.size
            offsets.append(batch.base_offset)
            end = batch.last_offset + 1
        assert header.first_offset + header.record_count == end, "the span of what is in it"
    assert offsets == [n for n in range(27) if n not in gone]
    assert size == info.size_bytes
    [payload] = await reader.read(info.index_entry, count_max=1, size_max=1)
    assert parse_header(payload).kind == KIND_INDEX
    index = OffsetIndex.from_bytes(payload[16:])
    assert index.entry_for_offset(0) == 0
    assert (info.base_offset, info.last_offset, info.generation) == (0, 26, 1)
    assert info.created_ms == max(each.created_ms for each in shop.log.chain.ledgers)


async def test_it_is_stamped_as_the_partition_s(autojump_clock, shop, throttle):
    """And has the copies that the topic wants now."""
    await shop.open()
    output = await made(shop, throttle)
    metadata = output._writer.metadata
    maker = _maker(metadata)
    assert maker.partition == 0
    assert maker.leader_epoch == shop.log.leader_epoch
    assert maker.topic_id == str(shop.log.topic.id)
    assert metadata.write_quorum_size == shop.log.copies.write_quorum == 3
    await output.discard()
    assert output.ledger_id not in shop.stored_ids()


async def test_few_entries_are_in_flight(autojump_clock, shop, throttle, monkeypatch):
    await shop.open()
    await shop.fill(*([(b"k%d" % n, b"." * 100)] for n in range(40)))
    output = await made(shop, throttle, entry_bytes_target=200)
    most, push = [], type(output._writer).append_nowait

    def counted(self, payload, done):
        most.append(self.pending_count + 1)
        return push(self, payload, done)

    monkeypatch.setattr(type(output._writer), "append_nowait", counted)
    await copied(shop, throttle, output)
    assert max(most) == ENTRIES_IN_FLIGHT_MAX
    assert len(most) > 20


async def test_a_lost_ledger_is_an_error(autojump_clock, shop, throttle):
    """Fenced by somebody who takes it for a dead owner's."""
    await shop.open()
    await shop.fill(*([(b"k%d" % n, b"." * 100)] for n in range(40)))
    output = await made(shop, throttle, entry_bytes_target=200)
    await shop.broker.ledgers.open_ledger(output.ledger_id, recover=True)
    with pytest.raises((LedgerError, BaseExceptionGroup)) as caught:
        await copied(shop, throttle, output)
    error = caught.value
    while isinstance(error, BaseExceptionGroup):
        [error] = error.exceptions
    assert isinstance(error, LedgerError)
    await output.discard()
