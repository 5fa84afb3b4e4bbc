"""Compacted ledgers for tests, made by hand: some records of some ledgers are left out."""

import trio

from broker.log.append.entry_format import KIND_BATCHES, KIND_INDEX, pack_header
from broker.log.life.ledger_info import LedgerInfo, merged_epochs
from broker.log.life.new_ledger import create_ledger
from broker.log.life.swap import Swap
from broker.log.read.offset_index import OffsetIndex
from broker.log.read.scan import scan
from wire.kafka.records.batch import build_batch, iter_records, scan_batches


def thinned(header, batch, keep, *, has_end):
    """The batch with those of its records whose offset `keep` wants; None if nothing is left and
    it does not have to tell where the range ends."""
    records = [
        record
        for record in iter_records(batch, header, size_max=1 << 30)
        if keep(header.base_offset + record.offset_delta)
    ]
    if not records and not has_end:
        return None
    times = [header.base_timestamp + record.timestamp_delta for record in records]
    has_append_time = header.timestamp_type == 1
    return build_batch(
        records,
        base_offset=header.base_offset,
        leader_epoch=header.partition_leader_epoch,
        base_timestamp=header.base_timestamp if records else -1,
        max_timestamp=header.max_timestamp if has_append_time or not records else max(times),
        timestamp_type=header.timestamp_type,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        last_offset_delta=header.last_offset_delta,
    )


async def thin(world, sources, keep, *, has_end=True, batches_per_entry=1, drop_empty=True):
    """A closed ledger in the place of `sources` (infos), written as a cleaner does; its info.
    Without `has_end` the range may end with a hole."""
    end = sources[-1].end_offset
    left = []
    for info in sources:
        reader = await world.ledgers.open_ledger(info.ledger_id, recover=False)
        entry_id = 0
        while entry_id <= reader.last_add_confirmed:
            chunk = await scan(reader, entry_id)
            for entry in chunk.entries:
                for header, batch in entry.batches():
                    is_last = header.last_offset + 1 == end
                    must = not drop_empty or (is_last and has_end)
                    data = thinned(header, batch, keep, has_end=must)
                    if data is not None:
                        left.append((header, data))
            entry_id = chunk.next_entry_id
    writer = await create_ledger(world.ledgers, world.log, world.log.copies)
    index, size, max_ts, max_ts_offset, entries = OffsetIndex(), 0, -1, -1, 0
    done = trio.Event()
    for start in range(0, len(left), batches_per_entry):
        some = left[start : start + batches_per_entry]
        first, last = some[0][0].base_offset, some[-1][0].last_offset
        body = b"".join(data for _, data in some)
        payload = pack_header(KIND_BATCHES, first, last + 1 - first) + body
        index.add(entries, first, len(payload), max_ts)
        writer.append_nowait((memoryview(payload),), lambda *_: None)
        entries, size = entries + 1, size + len(payload)
        for header, data in some:
            (now,) = scan_batches(memoryview(data))
            if now.record_count and now.max_timestamp > max_ts:
                max_ts, max_ts_offset = now.max_timestamp, header.base_offset
    payload = pack_header(KIND_INDEX, end) + index.to_bytes()
    writer.append_nowait((memoryview(payload),), lambda *_: done.set())
    await done.wait()
    await writer.close()
    return LedgerInfo(
        ledger_id=writer.ledger_id,
        base_offset=sources[0].base_offset,
        leader_epoch=sources[0].leader_epoch,
        created_ms=max(info.created_ms for info in sources),
        last_offset=end - 1,
        entry_count=entries + 1,
        size_bytes=size,
        max_timestamp=max_ts,
        max_timestamp_offset=max_ts_offset,
        index_entry=entries,
        generation=1 + max(info.generation for info in sources),
        epochs=merged_epochs(sources),
    )


async def swap_of(world, sources, keep, *, cleaned_to=None, **options):
    """What a cleaner asks the keeper for."""
    info = await thin(world, sources, keep, **options)
    return Swap(tuple(each.ledger_id for each in sources), (info,), cleaned_to)
