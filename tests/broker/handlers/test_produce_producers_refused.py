"""A partition remembers so many idempotent producers: what one more is answered, and until when."""

import logging

from wire.kafka.errors import ErrorCode
from wire.kafka.messages import InitProducerIdRequest


async def test_a_producer_too_many_is_asked_to_come_again_and_is_taken_when_one_expired(
    start_server, requests, wait_until, caplog
):
    """The error is one that Kafka's producers retry; its text names the setting to lower."""
    caplog.set_level(logging.WARNING)
    server = await start_server({"log.retention.check.interval.ms": "20"})
    logs = server.parts["LogManager"]
    logs._settings.producers_max = 2
    client = await server.connect()
    await client.create_topic("t")

    async def new_batches():
        """Two batches of one new producer, the second behind the first."""
        answer = await client.call(InitProducerIdRequest(transactional_id=None), 4)
        whose = {"producer_id": answer.producer_id, "producer_epoch": answer.producer_epoch}
        return [requests.batch([b"%d" % n], base_sequence=n, **whose) for n in range(2)]

    known, another, refused = [await new_batches() for _ in range(3)]
    for batches in (known, another):
        assert (await client.produce("t", batches[0])).error_code == 0
    assert not told(caplog)
    for count in (1, 2):
        answer = await client.produce("t", refused[0])
        code = ErrorCode(answer.error_code)
        assert code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert code.retriable
        assert "producer.id.expiration.ms" in answer.error_message
        assert logs.producers_room.refused_count == count
    # Who is known goes on, and so does who is not idempotent.
    assert (await client.produce("t", known[1])).base_offset == 2
    assert (await client.produce("t", [b"plain"])).base_offset == 3

    async def is_told():
        return bool(told(caplog))

    await wait_until(is_told)
    facts = told(caplog)[0]
    assert (facts["partition"], facts["known"], facts["limit"]) == ("t-0", 2, 2)
    assert 1 <= facts["batches"] <= 2

    await client.set_config("0", resource_type=4, producer_id_expiration_ms=1)

    async def is_taken():
        answer = await client.produce("t", refused[0])
        return not answer.error_code

    await wait_until(is_taken)
    assert (await client.produce("t", refused[1])).base_offset == 5
    # Each is there once.
    assert requests.values((await client.fetch("t", 4)).records) == [(4, b"0"), (5, b"1")]


def told(caplog):
    return [record.args for record in caplog.records if record.msg == "producers_refused"]
