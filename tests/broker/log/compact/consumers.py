"""What consumers of committed records make of one answer: batches, and the list of aborted ones.

Three ways of client libraries, by their sources. Java (CompletedFetch.nextFetchedRecord): a
producer's data is dropped from an entry's first offset on, until an abort marker of it is *seen*.
librdkafka (rd_kafka_aborted_txns_pop_offset) and franz-go (aborter): each producer has a list of
first offsets; an abort marker at or behind the first of them takes it off.
"""

from collections import defaultdict

from wire.kafka.records.batch import iter_records, scan_batches
from wire.kafka.records.control import decode_end_transaction_marker


def batches_of(parts):
    data, position = b"".join(parts), 0
    for header in scan_batches(data):
        yield header, data[position : position + header.size]
        position += header.size


def is_abort(header, batch):
    """Whether the batch is an abort marker; one without its record is none."""
    if not header.is_control:
        return False
    for record in iter_records(batch, header, size_max=1 << 20):
        return not decode_end_transaction_marker(record).committed
    return False


def java(parts, aborted):
    waiting = sorted(aborted, key=lambda row: row.first_offset)
    assert waiting == list(aborted), "they are sent in the order of their first offsets"
    dropped = set()
    for header, batch in batches_of(parts):
        while waiting and waiting[0].first_offset <= header.last_offset:
            dropped.add(waiting.pop(0).producer_id)
        if header.is_control:
            if is_abort(header, batch):
                dropped.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in dropped):
            yield header, batch


def by_lists(parts, aborted):
    firsts = defaultdict(list)
    for row in aborted:
        firsts[row.producer_id].append(row.first_offset)
    for header, batch in batches_of(parts):
        mine = firsts[header.producer_id]
        is_covered = header.is_transactional and bool(mine) and header.base_offset >= mine[0]
        if header.is_control:
            if is_covered and is_abort(header, batch):
                del mine[0]
        elif not is_covered:
            yield header, batch


CONSUMERS = (java, by_lists)


async def read_committed(log, consumer, offset=0, size_max=1 << 20):
    """(offset, key, value) of all records from `offset` up to the last stable offset."""
    start, found = offset, []
    while offset < log.last_stable_offset:
        got = await log.read(offset, size_max, committed=True)
        assert got.next_offset > offset, f"no progress at {offset}"
        aborted = await log.reader.read_aborted(offset, got.next_offset)
        for header, batch in consumer(got.parts, aborted):
            for record in iter_records(batch, header, size_max=1 << 30):
                at = header.base_offset + record.offset_delta
                if at >= start:
                    found.append((at, record.key, record.value))
        offset = got.next_offset
    return found
