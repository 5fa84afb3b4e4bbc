"""What a Fetch of cold partitions holds in memory."""

from broker.handlers import fetch
from broker.handlers.fetch_cold import read_cold
from broker.log.partition import State


async def test_cold_reads_hold_no_more_than_the_fetch_may_have(
    start_server, requests, wait_until, monkeypatch
):
    """Of an entry of many batches one may fit, and all of the entry stays in memory for it."""
    server = await start_server()
    client = await server.connect()
    count = 30
    await client.create_topic("t", count)
    for number in range(count):
        await client.send(
            *(requests.produce(("t", number, [b"v" * 5_000])) for _ in range(60)), version=9
        )
        for _ in range(60):
            await client.receive()
    await server.stop()
    server = await start_server()
    client = await server.connect()
    logs = server.parts["LogManager"]
    await wait_until(lambda: all(log.state is State.ONLINE for log in logs.all()))
    held = []

    async def read(collected, bytes_max, *, committed):
        await read_cold(collected, bytes_max, committed=committed)
        seen = {}
        for _, data in collected.data:
            for part in data.records:
                memory = part.obj if isinstance(part, memoryview) else part
                seen[id(memory)] = len(memory)
        held.append((sum(seen.values()), collected.size_bytes, len(seen)))

    monkeypatch.setattr(fetch, "read_cold", read)
    max_bytes = 1 << 20
    body = requests.fetch(
        *(("t", number, 0) for number in range(count)), max_wait_ms=10_000, max_bytes=max_bytes
    )
    for topic in body.topics:
        for wanted in topic.partitions:
            wanted.partition_max_bytes = 6_000
    await client.call(body, 12)
    [(held_bytes, _, _)] = held
    assert held_bytes <= 4 * max_bytes, held
