"""ShareAcknowledge on a real server."""

import trio

from broker.api import ConnectionInfo, Request
from wire.kafka.errors import ErrorCode

E = ErrorCode


async def test_persister_write_fails(shares, share_member):
    shares.change(record_lock_duration_ms=2_000)
    member = await share_member("one")
    await member.admin.produce("t", [b"a"])
    assert await member.take() == [(0, 0, 1)]
    shares.change(record_lock_duration_ms=30_000)
    shares.persister.refusal = E.COORDINATOR_NOT_AVAILABLE
    assert await member.acknowledge((0, 0, 1)) == "COORDINATOR_NOT_AVAILABLE"
    shares.persister.refusal = None
    assert await member.take() == [(0, 0, 2)], "delivered again, and counted"
    assert await member.acknowledge((0, 0, 1)) == "NONE"


async def test_nothing_is_answered_before_it_is_stored(shares, share_member):
    shares.persister.doubles = True
    member = await share_member("one")
    await member.admin.produce("t", [b"a", b"b"])
    assert await member.take() == [(0, 1, 1)]
    shares.persister.gate = trio.Event()
    answered = []
    async with trio.open_nursery() as nursery:

        async def acknowledge():
            answered.append(await member.acknowledge((0, 1, 1)))

        nursery.start_soon(acknowledge)
        await trio.sleep(0.1)
        assert answered == []
        shares.persister.gate.set()
    assert answered == ["NONE"]
    assert shares.persister.writes[-1] == (0, 2, ((0, 1, 2, 1),)) * 1


async def test_ack_vs_lock_timeout(shares, share_member):
    shares.change(record_lock_duration_ms=100)
    member, other = await share_member("one"), await share_member("two")
    await member.admin.produce("t", [b"a"])
    assert await member.take() == [(0, 0, 1)]
    shares.change(record_lock_duration_ms=30_000)
    assert await other.take() == [(0, 0, 2)], "the lock is over"
    assert await member.acknowledge((0, 0, 1)) == "INVALID_RECORD_STATE"
    assert await other.acknowledge((0, 0, 1)) == "NONE"
    assert await other.take(max_wait_ms=50) == []


async def test_renew_extends(shares, share_member):
    shares.change(record_lock_duration_ms=2_000)
    member, other = await share_member("one"), await share_member("two")
    await member.admin.produce("t", [b"a"])
    assert await member.take() == [(0, 0, 1)]
    shares.change(record_lock_duration_ms=30_000)
    assert await member.acknowledge((0, 0, 4), renews=True) == "NONE"
    await trio.sleep(2.1)
    assert await other.take(max_wait_ms=1) == []
    zero = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 0, "max_records": 0}
    assert await member.take((0, 0, 4), is_renew_ack=True, **zero) == []
    assert await member.acknowledge((0, 0, 1)) == "NONE"


async def test_renew_disabled(shares, share_member):
    shares.change(renew_acknowledge_enable=False)
    member = await share_member("one")
    await member.admin.produce("t", [b"a"])
    assert await member.take() == [(0, 0, 1)]
    assert await member.acknowledge((0, 0, 4), renews=True) == "INVALID_RECORD_STATE"
    assert await member.acknowledge((0, 0, 4)) == "INVALID_REQUEST", "it does not say so"
    assert await member.acknowledge((0, 0, 4), version=1) == "INVALID_REQUEST"


async def test_release_to_limit_archives(shares, share_member):
    shares.change(delivery_count_limit=2)
    member = await share_member("one")
    await member.admin.produce("t", [b"a"])
    assert await member.take() == [(0, 0, 1)]
    assert await member.acknowledge((0, 0, 2)) == "NONE"
    assert await member.take() == [(0, 0, 2)]
    assert await member.acknowledge((0, 0, 2)) == "NONE"
    assert await member.take(max_wait_ms=50) == []
    assert shares.persister.writes[-1][2] == ((0, 0, 4, 2),)


async def test_errors(share_member):
    member, other = await share_member("one"), await share_member("two")
    await member.admin.produce("t", [b"a", b"b", b"c"])
    assert await member.acknowledge((0, 0, 1), epoch=0) == "INVALID_SHARE_SESSION_EPOCH"
    assert await member.acknowledge((0, 0, 1), epoch=3) == "SHARE_SESSION_NOT_FOUND"
    assert await member.take() == [(0, 2, 1)]
    assert await other.take(max_wait_ms=1) == []
    assert await member.acknowledge((0, 0, 1), epoch=9) == "INVALID_SHARE_SESSION_EPOCH"
    assert await other.acknowledge((0, 0, 1)) == "INVALID_RECORD_STATE", "another member's"
    assert await member.acknowledge((2, 3, 1)) == "INVALID_REQUEST", "never delivered"
    assert await member.acknowledge((1, 1, 1), (0, 0, 1)) == "INVALID_REQUEST", "not in order"
    assert await member.acknowledge((0, 2, 1, 1)) == "INVALID_REQUEST", "neither one nor all"
    assert await member.acknowledge((0, 0, 9)) == "INVALID_REQUEST"
    assert await member.acknowledge((0, 0, 1), partition=9) == "UNKNOWN_TOPIC_OR_PARTITION"
    assert await member.acknowledge((0, 0, 1), partition=1) == "INVALID_RECORD_STATE"
    assert await member.acknowledge((0, 2, 1, 2, 3)) == "NONE"
    assert await member.take() == [(1, 1, 2)]
    assert await member.acknowledge((0, 0, 1)) == "NONE", "it is over"
    assert await member.acknowledge(epoch=-1) == "NONE"
    assert await member.acknowledge(epoch=-1) == "SHARE_SESSION_NOT_FOUND"
    assert await other.take() == [(1, 1, 2)], "it was released"


async def test_who_goes_away_while_it_is_acknowledged_holds_nothing(share_member, wait_until):
    member, other = await share_member("one"), await share_member("two")
    await member.admin.produce("t", [b"a"] * 100)
    assert await member.take() == [(0, 99, 1)]
    assert await other.take(max_wait_ms=1) == []
    handler = member.client.server.parts["Dispatcher"]._apis[79].handle.__self__
    session = handler.sessions.find("g", "one")
    (share,) = handler.partitions._held.values()
    request = Request(
        key=79, version=2, correlation_id=1, client_id="test",
        connection=ConnectionInfo(session.connection, "127.0.0.1", "PLAINTEXT"),
        body=member.acknowledge_request((0, 99, *([1, 2] * 50)), (1_000, 1_999, *([1] * 1_000))),
    )  # fmt: skip
    steps = handler.share_acknowledge(request)
    while len(share.core.runs) < 50:
        next(steps)
    await member.client.aclose()
    await wait_until(lambda: handler.sessions.find("g", "one") is None)
    steps.close()
    given = 0
    while given < 100:
        found = await other.take(max_wait_ms=10_000)
        assert found, "it is free"
        given += sum(last - first + 1 for first, last, _ in found)


async def test_a_hundred_thousand_types(share_member):
    member = await share_member("one")
    await member.admin.produce("t", [b"a"] * 3)
    assert await member.take() == [(0, 2, 1)]
    many = (0, 99_999, *([1, 2] * 50_000))
    assert await member.acknowledge(many) == "INVALID_REQUEST"
    assert await member.acknowledge((0, 2, 1)) == "NONE"
