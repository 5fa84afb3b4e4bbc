"""Fetch over real sockets: what comes, how much of it, and when."""

import uuid

import pytest
import trio

from broker.connection import UNSENT_BYTES_MAX
from broker.handlers import fetch
from broker.log.partition import State
from broker.log.read.partition_reader import PartitionReader
from broker.log.watchers import Watchers
from runtime.turn import Turn
from wire.kafka.api_keys import ApiKey
from wire.kafka.errors import ErrorCode
from wire.kafka.messages import DeleteTopicsRequest, MetadataRequest
from wire.kafka.messages.topics import DeleteTopicState
from wire.kafka.records.batch import scan_batches

LONG_MS = 10_000
MARGIN_SECONDS = 1.5  # two busy cores; a wake-up itself takes about a millisecond


class Watch:
    def __init__(self):
        self._begin = trio.current_time()

    @property
    def seconds(self):
        return trio.current_time() - self._begin


def batches_of(answer):
    return [(header.base_offset, header.record_count) for header in scan_batches(answer.records)]


async def test_every_version_gives_the_same_records(client, requests):
    topic_id = await client.create_topic("versions")
    await client.produce("versions", [b"a", b"b"])
    for version in range(4, 19):
        topic = topic_id if version >= 13 else "versions"
        answer = await client.call(requests.fetch((topic, 0, 0)), version)
        assert (answer.error_code, answer.session_id, answer.throttle_time_ms) == (0, 0, 0)
        [result] = answer.responses
        assert (result.topic_id if version >= 13 else result.topic) == topic
        [data] = result.partitions
        assert (data.partition_index, data.error_code) == (0, 0)
        assert (data.high_watermark, data.last_stable_offset) == (2, 2)
        assert data.log_start_offset == (0 if version >= 5 else -1)
        assert data.preferred_read_replica == -1
        assert not data.aborted_transactions
        assert requests.values(data.records) == [(0, b"a"), (1, b"b")]


async def test_nothing_there_is_empty_not_null(client):
    got = await client.fetch("t", 0)
    assert (got.error_code, got.high_watermark, len(got.records)) == (0, 0, 0)
    assert got.records is not None


async def test_the_batch_that_holds_the_offset_comes_whole(client):
    for count in (3, 3, 3):
        await client.produce("t", [b"v"] * count)
    assert batches_of(await client.fetch("t", 4)) == [(3, 3), (6, 3)]
    assert batches_of(await client.fetch("t", 8)) == [(6, 3)]
    assert batches_of(await client.fetch("t", 9)) == []


async def test_batches_of_one_entry_are_cut_at_the_offset(client, requests):
    """All in one burst, hence in one entry."""
    await client.send(*(requests.produce(("t", 0, [n])) for n in range(20)), version=9)
    for _ in range(20):
        await client.receive()
    for offset in range(20):
        got = await client.fetch("t", offset)
        assert requests.values(got.records) == [(n, b"%d" % n) for n in range(offset, 20)]


async def test_out_of_range(client, name):
    await client.produce("t", [b"a", b"b", b"c"])
    for offset in (-1, -(2**63), 4, 2**63 - 1):
        got = await client.fetch("t", offset)
        assert name(got.error_code) == "OFFSET_OUT_OF_RANGE"
        assert len(got.records) == 0


async def test_unknown_topics_partitions_and_ids(client, requests):
    answer = await client.call(
        requests.fetch(("missing", 0, 0), ("t", 5, 0), ("t", -1, 0), ("t", 0, 0)), 12
    )
    told = [ErrorCode(topic.partitions[0].error_code).name for topic in _flat(answer)]
    assert told == ["UNKNOWN_TOPIC_OR_PARTITION"] * 3 + ["NONE"]
    answer = await client.call(requests.fetch((uuid.UUID(int=5), 0, 0)), 13)
    assert answer.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert answer.responses[0].topic_id == uuid.UUID(int=5)


def _flat(answer):
    """One topic entry for each partition."""
    for topic in answer.responses:
        for partition in topic.partitions:
            yield type(topic)(topic=topic.topic, topic_id=topic.topic_id, partitions=[partition])


# -- sizes ---------------------------------------------------------------------------------------


async def filled(client, partition=0, count=10):
    """Batches of about 1,070 bytes."""
    for n in range(count):
        await client.produce("t", [b"%d" % n * 1000], partition=partition)


async def test_partition_max_bytes(client):
    await filled(client)
    for size_max, count in ((0, 1), (1, 1), (-(2**31), 1), (2200, 2), (3500, 3)):
        got = await client.fetch("t", 2, partition_max_bytes=size_max)
        assert batches_of(got) == [(2 + n, 1) for n in range(count)]


async def test_max_bytes_of_one_partition(client):
    await filled(client)
    for size_max, count in ((0, 1), (1, 1), (-1, 1), (2200, 2)):
        assert len(batches_of(await client.fetch("t", 0, max_bytes=size_max))) == count


async def test_max_bytes_holds_for_all_partitions_together(client, requests):
    await filled(client)
    await filled(client, partition=1)
    for size_max, counts in ((1, [1, 0]), (2200, [2, 0]), (12_500, [10, 1]), (1 << 20, [10, 10])):
        answer = await client.call(requests.fetch(("t", 0, 0), ("t", 1, 0), max_bytes=size_max), 12)
        got = [len(scan_batches(topic.partitions[0].records)) for topic in _flat(answer)]
        assert got == counts
        assert [topic.partitions[0].high_watermark for topic in _flat(answer)] == [10, 10]


async def test_one_huge_batch_first_and_a_tiny_limit(client, requests):
    """What is left of the limit is then far below zero."""
    await client.create_topic("huge", 2, max_message_bytes=8 << 20)
    await client.produce("huge", [b"x" * (6 << 20)])
    await client.produce("huge", [b"y" * 100], partition=1)
    answer = await client.call(requests.fetch(("huge", 0, 0), ("huge", 1, 0), max_bytes=1), 12)
    sizes = [len(topic.partitions[0].records) for topic in _flat(answer)]
    assert sizes[0] > 6 << 20
    assert sizes[1] == 0


@pytest.mark.parametrize("limits", [{"max_bytes": 4000}, {"partition_max_bytes": 1}])
@pytest.mark.parametrize("isolation", [0, 1])
async def test_partitions_behind_a_full_answer_are_not_read(
    client, requests, monkeypatch, limits, isolation
):
    """Attack 74: a batch that does not fit is read, and dropped; 200 of 900 kB held the loop for
    50 ms. The others are told of all the same, and come when they are first."""
    count = fetch.MISFITS_MAX + 5
    await client.create_topic("full", count)
    for number in range(count):
        await client.produce("full", [b"x" * 3000], partition=number)
    reads, read_nowait = [], PartitionReader.read_nowait

    def counted(self, *args, **options):
        reads.append(self._log.partition)
        return read_nowait(self, *args, **options)

    monkeypatch.setattr(PartitionReader, "read_nowait", counted)
    wanted = [("full", number, 0) for number in range(count - 1)]
    request = requests.fetch(*wanted, ("full", count - 1, 7), isolation_level=isolation, **limits)
    answer = [topic.partitions[0] for topic in _flat(await client.call(request, 12))]
    assert reads == list(range(1 + fetch.MISFITS_MAX))
    assert [bool(each.records) for each in answer] == [True] + [False] * (count - 1)
    assert [each.high_watermark for each in answer[:-1]] == [1] * (count - 1)
    told = [each.aborted_transactions for each in answer[:-1]]
    assert told == [[] if isolation else None] * (count - 1)
    assert answer[-1].error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    got = await client.call(requests.fetch(*reversed(wanted), **limits), 12)
    assert next(_flat(got)).partitions[0].records


async def test_what_was_not_read_counts_for_min_bytes(client, requests):
    count = fetch.MISFITS_MAX + 3
    await client.create_topic("full", count)
    for number in range(count):
        await client.produce("full", [b"x" * 3000], partition=number)
    wanted = [("full", number, 0) for number in range(count)]
    limits = {"max_bytes": 1000 * count, "partition_max_bytes": 1000, "min_bytes": 1000 * count}
    watch = Watch()
    answer = await client.call(requests.fetch(*wanted, max_wait_ms=LONG_MS, **limits), 12)
    assert watch.seconds < MARGIN_SECONDS
    assert len(list(_flat(answer))) == count


async def test_bytes_that_are_read_are_charged_to_the_turn(client, requests):
    """So are those that did not fit."""
    await client.create_topic("paid", 3)
    for number in range(3):
        await client.produce("paid", [b"x" * 500_000], partition=number)
    handler, spent = handler_of(client.server), []
    real, handler.turn = handler.turn, Turn()
    for limits in ({}, {"max_bytes": 1}):
        handler.turn.spent_units = 0
        wanted = [("paid", number, 0) for number in range(3)]
        await client.call(requests.fetch(*wanted, **limits), 12)
        spent.append(handler.turn.spent_units)
    handler.turn = real
    assert spent[0] > 3 * 500_000 >> fetch.READ_BYTES_SHIFT
    assert spent[1] > 500_000 >> fetch.READ_BYTES_SHIFT


async def test_an_empty_partition_takes_nothing_of_the_first_batchs_right(client, requests):
    await client.produce("t", [b"x" * 5000], partition=1)
    answer = await client.call(requests.fetch(("t", 0, 0), ("t", 1, 0), max_bytes=10), 12)
    assert [len(topic.partitions[0].records) > 5000 for topic in _flat(answer)] == [False, True]


async def test_the_brokers_own_limit(start_server, requests):
    server = await start_server({"fetch.max.bytes": "2048"})
    client = await server.connect()
    await client.create_topic("t")
    await filled(client)
    assert len(batches_of(await client.fetch("t", 0))) < 3


# -- waiting -------------------------------------------------------------------------------------


async def test_data_wakes_a_waiting_fetch(client, requests, waiting):
    other = await client.server.connect()
    await client.send(requests.fetch(("t", 0, 0), max_wait_ms=LONG_MS), version=12)
    await waiting(client.server, 1)
    watch = Watch()
    await other.produce("t", [b"late"])
    answer = await client.receive()
    assert watch.seconds < MARGIN_SECONDS
    assert requests.values(answer.responses[0].partitions[0].records) == [(0, b"late")]
    assert handler_of(client.server).waiting_count == 0


async def test_any_of_the_partitions_wakes_it(client, requests, waiting):
    other = await client.server.connect()
    await client.send(requests.fetch(("t", 0, 0), ("t", 1, 0), max_wait_ms=LONG_MS), version=12)
    await waiting(client.server, 1)
    await other.produce("t", [b"late"], partition=1)
    answer = await client.receive()
    assert [len(topic.partitions[0].records) > 0 for topic in _flat(answer)] == [False, True]


async def test_many_waiters_all_wake(client, requests, waiting):
    others = [await client.server.connect() for _ in range(30)]
    for other in others:
        await other.send(requests.fetch(("t", 0, 0), max_wait_ms=LONG_MS), version=12)
    await waiting(client.server, 30)
    await client.produce("t", [b"late"])
    for other in others:
        answer = await other.receive()
        assert requests.values(answer.responses[0].partitions[0].records) == [(0, b"late")]


async def test_the_time_is_honoured(client):
    watch = Watch()
    got = await client.fetch("t", 0, max_wait_ms=120)
    assert 0.115 <= watch.seconds < MARGIN_SECONDS
    assert len(got.records) == 0


async def test_min_bytes(client, requests, waiting):
    other = await client.server.connect()
    await client.send(requests.fetch(("t", 0, 0), max_wait_ms=LONG_MS, min_bytes=2000), version=12)
    for n in range(2):
        await waiting(client.server, 1)
        await other.produce("t", [b"x" * 1000])
        assert handler_of(client.server).waiting_count == 1 - n
    answer = await client.receive()
    assert len(scan_batches(answer.responses[0].partitions[0].records)) == 2


@pytest.mark.parametrize("cut_by", ["partition_max_bytes", "max_bytes"])
async def test_what_does_not_fit_counts_for_min_bytes(client, requests, cut_by):
    """Whole batches fall short of the limit, and of min_bytes just below it: what else is there
    counts up to the partition's limit, so that nothing is waited for."""
    for _ in range(4):
        await client.produce("t", [b"x" * 300_000])
    limits = {"partition_max_bytes": 1 << 20, cut_by: 700_000}
    wanted = requests.fetch(("t", 0, 0), max_wait_ms=3_600_000, min_bytes=690_000, **limits)
    answer = await client.call(wanted, 12)  # which waits 15 s at most
    assert len(scan_batches(answer.responses[0].partitions[0].records)) == 2
    assert handler_of(client.server).waiting_count == 0


async def test_what_does_not_fit_is_looked_at_once_while_it_is_too_little(
    client, requests, waiting
):
    """With less there than the limit and min_bytes, a fetch waits, and looks when more comes."""
    other = await client.server.connect()
    await other.produce("t", [b"x" * 300_000])
    await client.send(
        requests.fetch(
            ("t", 0, 0), max_wait_ms=3_600_000, min_bytes=690_000, partition_max_bytes=700_000
        ),
        version=12,
    )
    for _ in range(2):
        await waiting(client.server, 1)
        await other.produce("t", [b"x" * 300_000])
    answer = await client.receive()
    assert len(scan_batches(answer.responses[0].partitions[0].records)) == 2


async def test_who_does_not_want_to_wait(client):
    for fields in ({"min_bytes": 0}, {"max_wait_ms": 0}, {"max_wait_ms": -1}):
        watch = Watch()
        await client.fetch("t", 0, **{"max_wait_ms": LONG_MS, "min_bytes": 1, **fields})
        assert watch.seconds < MARGIN_SECONDS


async def test_too_little_comes_when_the_time_is_over(client, requests):
    await client.produce("t", [b"x"])
    got = await client.fetch("t", 0, max_wait_ms=50, min_bytes=10_000)
    assert requests.values(got.records) == [(0, b"x")]


async def test_an_error_is_not_waited_with(client, requests):
    watch = Watch()
    await client.call(requests.fetch(("t", 0, 0), ("t", 9, 0), max_wait_ms=LONG_MS), 12)
    assert watch.seconds < MARGIN_SECONDS


async def test_a_client_that_leaves_is_forgotten(client, requests, waiting):
    server = client.server
    for _ in range(3):
        other = await server.connect()
        await other.send(requests.fetch(("t", 0, 0), max_wait_ms=3_600_000), version=12)
    await waiting(server, 3)
    for connection in list(server.parts["Dispatcher"].connections):
        if connection.waiting_count:
            connection.close()
    await waiting(server, 0)
    log = server.parts["LogManager"].get("t", 0)
    assert not log._watchers
    assert server.parts["KafkaServer"].memory.used_bytes == 0
    assert (await client.produce("t", [b"x"])).error_code == 0


async def test_a_topic_that_goes_ends_the_wait(client, requests, waiting):
    other = await client.server.connect()
    await client.send(requests.fetch(("t", 0, 0), max_wait_ms=LONG_MS), version=12)
    await waiting(client.server, 1)
    watch = Watch()
    await other.call(DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=5000), 6)
    answer = await client.receive()
    assert watch.seconds < MARGIN_SECONDS
    assert answer.responses[0].partitions[0].error_code in (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    )


async def test_pipelined_requests_behind_a_waiting_fetch_wait_too(client, requests, waiting):
    other = await client.server.connect()
    await client.send(requests.fetch(("t", 0, 0), max_wait_ms=LONG_MS), version=12)
    await client.send(MetadataRequest(topics=[]), version=12)
    await waiting(client.server, 1)
    await other.produce("t", [b"x"])
    assert (await client.receive()).responses
    assert (await client.receive()).brokers


async def test_timers_of_answered_fetches_are_not_kept(client, requests, waiting):
    """A fetch that may wait for weeks and is answered at once leaves nothing behind."""
    timers = handler_of(client.server).timers
    other = await client.server.connect()
    for n in range(200):
        await client.send(requests.fetch(("t", 0, n), max_wait_ms=2**31 - 1), version=12)
        await waiting(client.server, 1)
        await other.produce("t", [b"x"])
        await client.receive()
    assert len(timers) < 150


# -- leader epochs -------------------------------------------------------------------------------


async def test_leader_epochs(start_server, requests, name):
    client = None
    for start in range(3):  # each start is an epoch, with two records
        server = await start_server()
        client = await server.connect()
        if not start:
            await client.create_topic("t")
        await client.call(MetadataRequest(topics=None))
        await client.produce("t", [b"a", b"b"])
        if start < 2:
            await server.stop()
    metadata = await client.call(MetadataRequest(topics=None))
    epoch = metadata.topics[0].partitions[0].leader_epoch
    assert (await client.fetch("t", 0, epoch=epoch)).error_code == 0
    assert name((await client.fetch("t", 0, epoch=epoch - 1)).error_code) == "FENCED_LEADER_EPOCH"
    assert name((await client.fetch("t", 0, epoch=epoch + 1)).error_code) == "UNKNOWN_LEADER_EPOCH"
    for last_epoch, offset in ((epoch, 6), (epoch - 1, 4), (epoch - 2, 2)):
        got = await client.fetch("t", offset, last_epoch=last_epoch)
        assert got.diverging_epoch is None
        assert got.error_code == 0
    got = await client.fetch("t", 5, last_epoch=epoch - 1)
    assert (got.diverging_epoch.epoch, got.diverging_epoch.end_offset) == (epoch - 1, 4)
    assert len(got.records) == 0
    got = await client.fetch("t", 6, last_epoch=epoch + 1)
    assert name(got.error_code) == "OFFSET_OUT_OF_RANGE"
    assert got.diverging_epoch is None


# -- cold ----------------------------------------------------------------------------------------


async def test_a_partition_that_is_still_being_taken_over(
    client, requests, name, monkeypatch, wait_until
):
    """Who does not want to wait is told to ask again; who does gets data when it is there."""
    from broker.log.life import keeper

    hold = trio.Event()
    original = keeper.take_over

    async def slowly(*arguments, **keywords):
        await hold.wait()
        return await original(*arguments, **keywords)

    await client.produce("t", [b"x"])
    monkeypatch.setattr(keeper, "take_over", slowly)
    log = client.server.parts["LogManager"].get("t", 0)
    log.go_offline("a test's wish")  # it is taken over again a second later
    await wait_until(lambda: client.server.parts["LogManager"].get("t", 0) is not log)
    for wait_ms in (0, 50):
        got = await client.fetch("t", 0, max_wait_ms=wait_ms)
        assert name(got.error_code) == "NOT_LEADER_OR_FOLLOWER"
    await client.send(requests.fetch(("t", 0, 0), max_wait_ms=LONG_MS), version=12)
    hold.set()
    answer = await client.receive()
    assert requests.values(answer.responses[0].partitions[0].records) == [(0, b"x")]


@pytest.mark.parametrize("clean", [True, False])
async def test_reads_after_a_restart(start_server, requests, clean):
    server = await start_server()
    client = await server.connect()
    await client.create_topic("t", 2, segment_bytes=1 << 20)
    for n in range(60):  # 1.5 MB in each partition: two ledgers
        await client.produce("t", [b"%02d" % n * 25_000, b"x"], partition=n % 2)
    if not clean:

        async def leave_open():
            pass

        for held in server.parts["LogManager"]._every():
            held.keeper.close = leave_open
    await server.stop()
    server = await start_server()
    client = await server.connect()
    # At once, while partitions are still being taken over.
    answer = await client.call(
        requests.fetch(("t", 0, 0), ("t", 1, 7), max_wait_ms=LONG_MS, max_bytes=50 << 20), 12
    )
    assert answer.responses
    for partition in range(2):
        offset, found = 0, []
        while offset < 60:
            got = await client.fetch("t", offset, partition=partition, max_wait_ms=LONG_MS)
            assert got.error_code == 0
            assert got.high_watermark == 60
            news = [one for one in requests.values(got.records) if one[0] >= offset]
            assert news, f"stuck at {offset}"
            found += news
            offset = news[-1][0] + 1
        assert [at for at, _ in found] == list(range(60))
        assert [value for _, value in found[::2]] == [
            b"%02d" % n * 25_000 for n in range(partition, 60, 2)
        ]
    assert (await client.produce("t", [b"more"])).base_offset == 60


@pytest.mark.parametrize("isolation", [0, 1])
async def test_cold_partitions_come_together(start_server, requests, wait_until, isolation):
    """All for which there is room, and no more: what they have is known before they are read."""
    server = await start_server()
    client = await server.connect()
    await client.create_topic("t", 40)
    for number in range(40):
        await client.produce("t", [b"%d" % number * 1000], partition=number)
    for max_bytes in (50 << 20, 20_000):
        await server.stop()
        server = await start_server()
        client = await server.connect()
        logs = server.parts["LogManager"]
        await wait_until(lambda: all(log.state is State.ONLINE for log in logs.all()))  # noqa: B023
        wanted = [("t", number, 0) for number in range(40)]
        body = requests.fetch(
            *wanted, max_wait_ms=LONG_MS, max_bytes=max_bytes, isolation_level=isolation
        )
        answer = await client.call(body, 12)
        [topic] = answer.responses
        assert [each.error_code for each in topic.partitions] == [0] * 40
        found = {
            each.partition_index: requests.values(each.records)
            for each in topic.partitions
            if each.records
        }
        assert sum(len(each.records) for each in topic.partitions) <= max_bytes
        count = 40 if max_bytes > 1 << 20 else len(found)
        assert 5 < count <= 40
        assert found == {number: [(0, b"%d" % number * 1000)] for number in range(count)}


async def test_a_ledger_that_cannot_be_read_is_an_error_not_a_loop(
    start_server, name, caplog, waiting
):
    server = await start_server()
    client = await server.connect()
    await client.create_topic("t")
    await client.produce("t", [b"x"])
    await server.stop()
    server = await start_server()
    client = await server.connect()
    await client.call(MetadataRequest(topics=None))
    for ledger_id in list(server.parts["Bookie"].list_ledgers()):
        await server.parts["Bookie"].delete_ledger(ledger_id)
    with trio.fail_after(5):
        got = await client.fetch("t", 0, max_wait_ms=200)
    assert name(got.error_code) == "KAFKA_STORAGE_ERROR"
    assert (await client.produce("t", [b"y"])).base_offset == 1
    assert (await client.fetch("t", 1)).error_code == 0


# ------------------------------------------------------------------------------------------------


def handler_of(server):
    return server.parts["Dispatcher"]._apis[ApiKey.FETCH].handle.__self__


@pytest.fixture
def waiting(wait_until):
    """await waiting(server, count): so many fetches are parked."""
    return lambda server, count: wait_until(lambda: handler_of(server).waiting_count == count)


async def test_a_fetch_on_a_partition_that_loads_ends_with_its_connection(
    client, requests, monkeypatch, wait_until
):
    """It went on waiting, with its request, for as long as the client had said."""
    server = client.server
    log = server.parts["LogManager"].get("t", 0)
    nursery = server.parts["Dispatcher"]._nursery
    monkeypatch.setattr(log, "state", State.LOADING)
    monkeypatch.setattr(log, "_loaded", trio.Event())
    other = await server.connect()
    await other.send(requests.fetch(("t", 0, 0), max_wait_ms=LONG_MS), version=12)
    await wait_until(lambda: nursery.child_tasks)
    assert server.parts["KafkaServer"].memory.used_bytes == 0, "its frame is not held"
    await other.aclose()
    await wait_until(lambda: not nursery.child_tasks)


async def test_a_fetch_of_many_partitions_is_answered_and_waits_as_any(
    client, requests, waiting, wait_until
):
    await client.create_topic("many", 300)
    wanted = [("many", number, 0) for number in range(300)]
    answer = await client.call(requests.fetch(*wanted, max_wait_ms=0), 12)
    assert sum(len(topic.partitions) for topic in answer.responses) == 300
    other = await client.server.connect()
    await other.send(requests.fetch(*wanted, max_wait_ms=LONG_MS), version=12)
    await waiting(client.server, 1)
    await client.produce("many", [b"x"], partition=299)
    answer = await other.receive()
    last = answer.responses[-1].partitions[-1]
    assert requests.values(last.records) == [(0, b"x")]
    await other.send(requests.fetch(*wanted[:299], max_wait_ms=LONG_MS), version=12)
    await waiting(client.server, 1)
    await other.aclose()
    await waiting(client.server, 0)


async def test_what_waits_is_bounded(client, requests, monkeypatch):
    monkeypatch.setattr(fetch, "WAITING_PARTITIONS_MAX", 0)
    watch = Watch()
    await client.call(requests.fetch(("t", 0, 0), max_wait_ms=LONG_MS), 12)
    assert watch.seconds < MARGIN_SECONDS
    monkeypatch.setattr(fetch, "PARTITIONS_MAX", 1)
    answer = await client.call(requests.fetch(("t", 0, 0), ("t", 1, 0)), 12)
    assert answer.error_code == ErrorCode.INVALID_REQUEST


async def test_those_who_wait_are_not_all_looked_at_in_one_turn(
    client, requests, waiting, monkeypatch
):
    """Pipelined by one client, up to 1000 fetches of 200 partitions wait: each batch of anybody has
    all 200,000 looked at in one piece, half a second of the loop."""
    await client.create_topic("many", 200)
    wanted = [("many", number, 0) for number in range(200)]
    for _ in range(20):
        await client.send(
            requests.fetch(*wanted, min_bytes=1 << 30, max_wait_ms=LONG_MS), version=12
        )
    await waiting(client.server, 20)
    looks, most = 0, 0
    read_nowait, tell = PartitionReader.read_nowait, Watchers.tell

    def counted_read(self, *args, **options):
        nonlocal looks
        looks += 1
        return read_nowait(self, *args, **options)

    def counted_tell(self):
        nonlocal looks, most
        looks = 0
        tell(self)
        most = max(most, looks)

    monkeypatch.setattr(PartitionReader, "read_nowait", counted_read)
    monkeypatch.setattr(Watchers, "tell", counted_tell)
    other = await client.server.connect()
    await other.produce("many", [b"x"], partition=7)
    await trio.sleep(0.5)
    assert most <= 1000, f"{most} partitions were looked at in one turn"


async def test_pipelined_fetches_that_end_together_are_bounded_in_memory(client, requests, waiting):
    """Each of them may be answered with fetch.max.bytes, and all at once: the client's limit of
    unsent bytes must hold then, too."""
    for _ in range(4):
        await client.produce("t", [bytes(900_000)])
    other = await client.server.connect()
    before = set(client.server.parts["Dispatcher"].connections)
    for _ in range(40):
        body = requests.fetch(
            ("t", 0, 0), min_bytes=1 << 30, max_wait_ms=1500, partition_max_bytes=8 << 20
        )
        await other.send(body, version=12)
    await waiting(client.server, 40)
    await waiting(client.server, 0)
    await trio.sleep(0.3)
    unsent = max(connection._transport.unsent_bytes for connection in before)
    answer_bytes = 4 << 20
    assert unsent <= UNSENT_BYTES_MAX + 2 * answer_bytes, f"{unsent >> 20} MiB are held for one"


@pytest.mark.parametrize("partitions", [2, 40, 300])
@pytest.mark.parametrize("end", ["data", "time", "leaves"])
async def test_what_a_fetch_waited_for_is_given_back(
    client, requests, waiting, wait_until, partitions, end
):
    await client.create_topic("many", partitions)
    wanted = [("many", number, 0) for number in range(partitions)]
    other = await client.server.connect()
    wait_ms = 300 if end == "time" else LONG_MS
    await other.send(requests.fetch(*wanted, max_wait_ms=wait_ms), version=12)
    await waiting(client.server, 1)
    handler = handler_of(client.server)
    assert handler.waiting_partitions == partitions
    if end == "data":
        await client.produce("many", [b"x"], partition=partitions - 1)
        answer = await other.receive()
        assert requests.values(answer.responses[-1].partitions[-1].records) == [(0, b"x")]
    elif end == "time":
        await other.receive()
    else:
        await other.aclose()
    await waiting(client.server, 0)
    assert handler.waiting_partitions == 0
    logs = client.server.parts["LogManager"]
    assert not any(logs.get("many", number)._watchers for number in range(partitions))


@pytest.mark.parametrize("count", [40, 300])
async def test_min_bytes_are_counted_over_many_partitions(client, requests, waiting, count):
    """One at a time: neither may it wake too early, nor stay asleep."""
    await client.create_topic("many", count)
    await client.produce("many", [b"x" * 1000], partition=0)
    wanted = [("many", number, 0) for number in range(count)]
    other = await client.server.connect()
    await other.send(
        requests.fetch(*wanted, wanted[1], max_wait_ms=LONG_MS, min_bytes=6000), version=12
    )
    for partition in (1, 1, 2):  # 1,070 bytes each, those of partition 1 twice
        await waiting(client.server, 1)
        await trio.sleep(0.05)
        assert handler_of(client.server).waiting_count == 1
        await client.produce("many", [b"x" * 1000], partition=partition)
    watch = Watch()
    answer = await other.receive()
    assert watch.seconds < MARGIN_SECONDS
    assert sum(len(topic.partitions[0].records) for topic in _flat(answer)) > 6000


@pytest.mark.parametrize("kind", ["there", "many", "waits"])
async def test_what_a_client_asked_for_but_does_not_read_is_not_kept(
    client, requests, wait_until, kind
):
    """Behind a fetch that waits, answers that are there already; and those that tasks make."""
    await client.create_topic("many", 300)
    for _ in range(4):
        await client.produce("many", [bytes(900_000)])
    other = await client.server.connect()
    [connection] = list(client.server.parts["Dispatcher"].connections)[-1:]
    first = requests.fetch(("t", 0, 0), max_wait_ms=1500)
    await other.send(first, version=12)
    wanted = [("many", n, 0) for n in range(300 if kind == "many" else 1)]
    wait = {"min_bytes": 1 << 30, "max_wait_ms": 500} if kind == "waits" else {}
    body = requests.fetch(*wanted, partition_max_bytes=8 << 20, **wait)

    async def send():
        # The server may stop reading until something was received.
        for _ in range(40):
            await other.send(body, version=12)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        most = 0
        with trio.move_on_after(2.5):
            while True:
                held = sum(
                    len(part)
                    for reply in connection._line
                    for topic in (reply.message.responses if reply.message else ())
                    for partition in topic.partitions
                    for part in partition.records
                    if not isinstance(part, int)
                )
                most = max(most, held + connection._transport.unsent_bytes)
                await trio.sleep(0.01)
        assert (1 << 20) < most <= UNSENT_BYTES_MAX + (8 << 20), f"{most >> 20} MiB"
        await other.receive()
        for _ in range(40):
            answer = await other.receive()
            assert len(answer.responses[0].partitions[0].records) > 3_600_000


async def test_a_cold_partition_that_wants_less_than_nothing_makes_no_room_for_others(
    start_server, requests, wait_until
):
    server = await start_server()
    client = await server.connect()
    await client.create_topic("t", 20)
    for number in range(20):
        await client.produce("t", [b"%d" % number * 1000], partition=number)
    await server.stop()
    server = await start_server()
    client = await server.connect()
    logs = server.parts["LogManager"]
    await wait_until(lambda: all(log.state is State.ONLINE for log in logs.all()))
    body = requests.fetch(
        *(("t", number, 0) for number in range(20)), max_wait_ms=LONG_MS, max_bytes=3_000
    )
    body.topics[0].partitions[0].partition_max_bytes = -(2**31)
    answer = await client.call(body, 12)
    [topic] = answer.responses
    assert sum(len(each.records) for each in topic.partitions) <= 3_000
