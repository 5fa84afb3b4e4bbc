"""When a broker says that it cannot write."""

import pytest
import trio

from broker.cluster.reach import BookieReach


class World:
    def __init__(self, nursery):
        self.bookies = {"a", "b", "c"}
        self.cut = set()
        self.needed = 2
        self.is_doubtful = True
        self.asked = 0
        self.told = []
        reach = BookieReach(
            lambda: self.bookies,
            self.reachable,
            self.is_needed,
            self.has_doubt,
            lambda can_write: self.told.append((can_write, trio.current_time())),
        )
        nursery.start_soon(reach.run)

    async def is_needed(self):
        return self.needed

    async def has_doubt(self):
        return self.is_doubtful

    async def reachable(self, bookies):
        await trio.sleep(0.1)
        self.asked += 1
        return len(set(bookies) - self.cut)


@pytest.fixture
async def world(nursery, autojump_clock):
    return World(nursery)


async def test_without_doubt_nobody_is_asked(world, autojump_clock):
    world.is_doubtful, world.cut = False, {"a", "b", "c"}
    await trio.sleep(100)
    assert (world.asked, world.told) == (0, [])


@pytest.mark.parametrize(
    ("cut", "is_told"), [("", False), ("a", False), ("ab", True), ("abc", True)]
)
async def test_it_is_said_when_an_ack_quorum_is_out_of_reach(world, autojump_clock, cut, is_told):
    world.cut = set(cut)
    start = trio.current_time()
    await trio.sleep(30)
    assert [can_write for can_write, _ in world.told] == ([False] if is_told else [])
    for _, at in world.told:
        assert 8 <= at - start <= 15


async def test_too_few_bookies_for_everybody_are_no_reason(world, autojump_clock):
    world.bookies, world.cut = {"a"}, {"a"}
    await trio.sleep(60)
    assert world.told == []


async def test_it_is_taken_back_when_what_was_needed_then_is_there(world, autojump_clock):
    world.cut = {"a", "b", "c"}
    await trio.sleep(30)
    # What it led has moved away, and with it the failures.
    world.needed, world.is_doubtful = 1, False
    world.cut = {"b", "c"}
    await trio.sleep(60)
    assert len(world.told) == 1
    world.cut = {"c"}
    await trio.sleep(8)
    assert len(world.told) == 1, "it may go again"
    await trio.sleep(10)
    assert [can_write for can_write, _ in world.told] == [False, True]


async def test_a_network_that_comes_and_goes_is_not_told(world, autojump_clock):
    for _ in range(20):
        world.cut = {"a", "b"}
        await trio.sleep(6)
        world.cut = set()
        await trio.sleep(3)
    assert world.told == []
