"""The earliest timestamp of a ledger: who learns it, who may not know it, and that documents of
before read as «not known»."""

import json
from dataclasses import replace

import pytest
import trio

from broker.log.life.chain import (
    ARCHIVED_FORMAT,
    FORMAT,
    Chain,
    ChainFormatError,
    archive_bytes,
    archive_from_bytes,
)
from broker.log.life.document import read_chain
from broker.log.life.ledger_info import NO_TIMESTAMP, TIMESTAMP_MAX, LedgerInfo, known_minimum
from tests.broker.log.test_partition import PATH, World, batch
from wire.kafka.records.batch import build_batch
from wire.kafka.records.record import Record

LEDGER = LedgerInfo(7, 0, 0, 1000, 9, 10, 100, max_timestamp=90, min_timestamp=40)


@pytest.fixture
async def world(tmp_path, nursery):
    made = World(str(tmp_path), nursery)
    await made.start()
    return made


async def produce(world, *values, **times):
    """As a client does: the batch is walked, where one of a coordinator is not."""
    done = trio.Event()
    view = memoryview(bytearray(batch(*values, **times)))
    world.log.append_nowait(view, lambda _: done.set())
    with trio.fail_after(20):
        await done.wait()


async def minimum(world):
    """Of the partition's last ledger, as its document says."""
    return (await read_chain(world.store, PATH))[0].ledgers[-1].min_timestamp


def test_nothing_and_no_time_are_not_known():
    assert [known_minimum(time) for time in (0, 5, -1, -9, TIMESTAMP_MAX)] == [0, 5, -1, -1, -1]


def test_documents_and_archives_keep_it_in_the_formats_of_before():
    chain = Chain(0, 0, (LEDGER, replace(LEDGER, ledger_id=8, base_offset=10, last_offset=19)))
    document = json.loads(chain.to_bytes())
    assert document["format"] == FORMAT
    assert [item["min_ts"] for item in document["ledgers"]] == [40, 40]
    assert Chain.from_bytes(chain.to_bytes()) == chain
    mixed = [chain.ledgers[0], replace(chain.ledgers[1], min_timestamp=NO_TIMESTAMP)]
    archive = json.loads(archive_bytes(mixed))
    assert (archive["format"], archive["min_ts"]) == (ARCHIVED_FORMAT, [40, -1])
    assert {len(row) for row in archive["ledgers"]} == {11}, "what brokers of before read"
    assert archive_from_bytes(archive_bytes(mixed)) == mixed


def test_what_is_older_than_the_field_reads_as_not_known():
    unknown = replace(LEDGER, min_timestamp=NO_TIMESTAMP)
    document = json.loads(Chain(0, 0, (LEDGER,)).to_bytes())
    del document["ledgers"][0]["min_ts"]
    assert Chain.from_bytes(json.dumps(document).encode()).ledgers == (unknown,)
    assert b"min_ts" not in archive_bytes([unknown])
    assert archive_from_bytes(archive_bytes([unknown])) == [unknown]


@pytest.mark.parametrize("minima", [[40, 40], [], ["40"], 40])
def test_a_damaged_list_of_an_archive_is_named(minima):
    archive = json.loads(archive_bytes([LEDGER])) | {"min_ts": minima}
    with pytest.raises(ChainFormatError, match="damaged"):
        archive_from_bytes(json.dumps(archive).encode())


async def test_a_closed_ledger_tells_its_earliest_record(world):
    await produce(world, b"a", b"b", timestamp=5000)
    await produce(world, b"c", b"d", b"e", timestamp=3000, step=-10)
    await produce(world, b"f", timestamp=4000)
    await world.restart()
    assert await minimum(world) == 2980


@pytest.mark.parametrize("timestamp", [-1, 0])
async def test_a_record_without_a_time_makes_it_unknown(world, timestamp):
    await produce(world, b"a", timestamp=5000)
    await produce(world, b"b", b"c", timestamp=timestamp, step=-1 if not timestamp else 0)
    await produce(world, b"d", timestamp=6000)
    await world.restart()
    assert await minimum(world) == NO_TIMESTAMP


async def test_append_times_are_known_after_a_crash_too(world):
    world.config.message_timestamp_type = "LogAppendTime"
    before = world.env.clock.time_ms()
    await produce(world, b"a", b"b", timestamp=5)
    await world.crash()
    assert before <= await minimum(world) <= world.env.clock.time_ms()


async def test_a_take_over_knows_it_of_single_records_only(world):
    await produce(world, b"a", timestamp=5000)
    await produce(world, b"b", timestamp=4000)
    await world.crash()
    assert await minimum(world) == 4000
    await produce(world, b"c", b"d", timestamp=5000, step=-1)
    await world.crash()
    assert await minimum(world) == NO_TIMESTAMP


async def test_a_batch_of_a_coordinator_is_not_looked_into(world):
    await world.append(b"a", timestamp=5000)
    await world.restart()
    assert await minimum(world) == 5000
    await world.append(b"a", b"b", timestamp=5000)
    await world.restart()
    assert await minimum(world) == NO_TIMESTAMP


async def together(world, *batches):
    """In one turn, so that those behind the first wait for its acknowledgement; their errors."""
    answers = []
    for each in batches:
        world.log.append_nowait(memoryview(bytearray(each)), answers.append)
    with trio.fail_after(20):
        while len(answers) < len(batches):
            await trio.sleep(0.001)
    return [one.error.name for one in answers]


async def test_a_duplicate_that_waits_has_no_time_of_its_own(world):
    """It writes nothing, so the ledger's earliest record is known as it was."""
    again = batch(b"a", timestamp=5000, producer_id=7, producer_epoch=0, base_sequence=0)
    assert await together(world, again, again) == ["NONE", "NONE"]
    await world.restart()
    assert await minimum(world) == 5000


async def test_a_lock_conflict_that_waits_has_no_time_of_its_own(world):
    world.config.quire_locks = "optional"
    headers = [("quire.position", b"0"), ("quire.lock.write", b"x")]
    locked = build_batch([Record(0, 0, None, b"v", headers)], base_timestamp=5000)
    assert await together(world, locked, locked) == ["NONE", "INVALID_RECORD"]
    await world.restart()
    assert await minimum(world) == 5000
