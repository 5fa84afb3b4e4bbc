"""InitProducerId over real sockets."""

from wire.kafka.messages import InitProducerIdRequest


def ask(**fields):
    fields.setdefault("transactional_id", None)
    return InitProducerIdRequest(transaction_timeout_ms=60_000, **fields)


async def test_every_version_gives_a_new_id(client):
    for version in range(6):
        seen = set()
        for _ in range(5):
            answer = await client.call(ask(), version)
            assert (answer.error_code, answer.producer_epoch, answer.throttle_time_ms) == (0, 0, 0)
            assert answer.producer_id >= 0
            seen.add(answer.producer_id)
        assert len(seen) == 5


async def test_who_names_its_own_id_gets_a_fresh_one_too(client):
    """As Kafka: without a transactional id nothing vouches for the id that a client names."""
    first = await client.call(ask(), 4)
    again = await client.call(
        ask(producer_id=first.producer_id, producer_epoch=first.producer_epoch), 4
    )
    assert (again.error_code, again.producer_epoch) == (0, 0)
    assert again.producer_id != first.producer_id


async def test_an_id_and_an_epoch_go_together(client, name):
    for producer_id, epoch in ((-1, 3), (3, -1)):
        answer = await client.call(ask(producer_id=producer_id, producer_epoch=epoch), 4)
        assert name(answer.error_code) == "INVALID_REQUEST"
        assert (answer.producer_id, answer.producer_epoch) == (-1, -1)


async def test_an_empty_transactional_id(client, name):
    answer = await client.call(ask(transactional_id=""), 4)
    assert name(answer.error_code) == "INVALID_REQUEST"


async def test_ids_differ_over_restarts(start_server):
    seen = []
    for _ in range(3):
        server = await start_server()
        client = await server.connect()
        seen += [(await client.call(ask(), 4)).producer_id for _ in range(3)]
        await server.stop()
    assert len(set(seen)) == 9
