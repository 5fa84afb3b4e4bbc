"""Random fetches that wait, records that come, and turns that are spent or behind: none waits for
ever, and nothing is remembered of those that left."""

import random

import pytest
import trio

from runtime.turn import BEHIND_BYTES, SPENT_UNITS
from tests.broker.handlers.test_fetch_waits import LONG_MS, handler_of

CLIENTS, ROUNDS, FEW, MANY = 12, 3, 4, 130
MIN_BYTES = [1, 200, 1500, 3000, 70_000]


class Course:
    def __init__(self, rng, client, requests):
        self.rng, self.client, self.requests = rng, client, requests
        self.handler = handler_of(client.server)
        self.offsets = [0] * FEW
        self.added_bytes = 0

    def be_behind(self, is_behind):
        self.handler.turn.unsent_bytes -= self.added_bytes
        self.added_bytes = 2 * BEHIND_BYTES if is_behind else 0
        self.handler.turn.unsent_bytes += self.added_bytes

    def body(self):
        rng = self.rng
        chosen = rng.sample(range(FEW), rng.randrange(1, FEW + 1))
        wanted = [("few", number, self.offsets[number]) for number in chosen]
        if rng.random() < 0.2:  # as a task
            wanted += [("many", number, 0) for number in range(MANY)]
        return self.requests.fetch(
            *wanted,
            max_wait_ms=LONG_MS if rng.random() < 0.8 else rng.randrange(100),
            min_bytes=rng.choice(MIN_BYTES),
            isolation_level=rng.randrange(2),
        )

    async def produce_enough(self):
        """For each that waits, of each of the few."""
        rng, came = self.rng, [0] * FEW
        while min(came) <= max(MIN_BYTES):
            number, size = rng.randrange(FEW), rng.choice([1, 300, 900, 60_000])
            await self.client.produce("few", [bytes(size)], partition=number)
            came[number] += size
            self.offsets[number] += 1
            if rng.random() < 0.3:
                self.be_behind(rng.random() < 0.5)
            if rng.random() < 0.2:
                await trio.sleep(0.002)
        self.be_behind(False)


@pytest.mark.parametrize("seed", range(5))
async def test_no_wake_is_lost(client, requests, wait_until, monkeypatch, seed):
    rng, server = random.Random(seed), client.server
    course = Course(rng, client, requests)
    handler = course.handler
    await client.create_topic("many", MANY)
    await client.create_topic("few", FEW)
    put_off = handler.wakes.put_off

    def spent(fetch, part):
        if rng.random() < 0.4:
            handler.turn.spent_units += SPENT_UNITS
        return put_off(fetch, part)

    monkeypatch.setattr(handler.wakes, "put_off", spent)
    for _ in range(ROUNDS):
        others = [await server.connect() for _ in range(CLIENTS)]
        asked = [rng.choice([1, 1, 3]) for _ in others]
        for other, count in zip(others, asked, strict=True):
            for _ in range(count):
                await other.send(course.body(), version=12)
            course.be_behind(rng.random() < 0.2)
        await others.pop().aclose()
        await course.produce_enough()
        with trio.fail_after(20):
            for other, count in zip(others, asked, strict=False):
                for _ in range(count):
                    assert (await other.receive()).error_code == 0
                await other.aclose()
        await wait_until(lambda: handler.waiting_count == 0)
        assert len(handler.wakes) == 0
        assert len(handler.room) == 0
        assert handler.room.cold_bytes == 0
    assert server.parts["KafkaServer"].memory.used_bytes == 0
