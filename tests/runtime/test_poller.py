"""What is served in one turn, and how often the poller looks before it sleeps."""

import os
import select

import pytest
import trio

from runtime.poller import (
    LARGE_BURST_UNITS,
    LOOKS_MAX,
    LOOKS_MIN,
    SLEEPS_UNTIL_TRIED,
    Looks,
    Poller,
)
from runtime.turn import SPENT_UNITS, Turn


class Descriptors:
    """Counters of the system's that a poller waits for: `served` has their numbers, and «turn»
    where what the first of them deferred runs. Each costs `units`."""

    def __init__(self, nursery, units):
        self.turn = Turn()
        self.served = []
        self.units = units
        self._poller = Poller(self.turn)
        self._counters = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(3)]
        self.follows = {}
        for number, fd in enumerate(self._counters):
            self._poller.register(fd, select.EPOLLIN, lambda _, number=number: self._serve(number))
        nursery.start_soon(self._poller.run)

    def ready(self, number):
        os.eventfd_write(self._counters[number], 1)

    def _serve(self, number):
        os.eventfd_read(self._counters[number])
        self.served.append(number)
        self.turn.spent_units += self.units
        if number == 0:
            self.turn.defer(lambda: self.served.append("turn"))
        if number in self.follows:
            self.ready(self.follows[number])

    async def until_served(self, number):
        with trio.fail_after(10):
            while number not in self.served:
                await trio.sleep(0.001)

    def close(self):
        for fd in self._counters:
            os.close(fd)


@pytest.mark.parametrize(
    ("units", "served"),
    [
        (30, [0, 1, "turn", 2]),  # requests: who came while they were handled is in the turn, once
        (0, [0, "turn", 1, 2]),  # a sync: its answers leave first
        (SPENT_UNITS + 1, [0, "turn", 1, 2]),
    ],
)
async def test_what_comes_while_requests_are_handled_is_in_their_turn(nursery, units, served):
    descriptors = Descriptors(nursery, units)
    descriptors.follows = {0: 1, 1: 2}
    descriptors.ready(0)
    await descriptors.until_served(2)
    nursery.cancel_scope.cancel()
    descriptors.close()
    assert descriptors.served == served


async def test_who_spends_the_turn_does_not_come_first_for_ever(nursery):
    """Each of three is ready again as soon as it was served, and costs a turn."""
    descriptors = Descriptors(nursery, SPENT_UNITS + 1)
    descriptors.follows = {0: 0, 1: 1, 2: 2}
    for number in range(3):
        descriptors.ready(number)
    with trio.fail_after(10):
        while len(descriptors.served) < 60:
            await trio.sleep(0.001)
    descriptors.follows = {}
    served = [number for number in descriptors.served if number != "turn"]
    assert min(served.count(number) for number in range(3)) >= len(served) // 4
    nursery.cancel_scope.cancel()
    descriptors.close()


def test_all_looks_at_first_and_after_a_single_sleep():
    looks = Looks()
    assert looks.limit == LOOKS_MAX
    looks.in_vain()
    assert looks.limit == LOOKS_MAX


def test_sleeps_in_a_row_make_them_few_but_they_are_tried_again():
    looks = Looks()
    limits = []
    for _ in range(3 * SLEEPS_UNTIL_TRIED):
        looks.in_vain()
        limits.append(looks.limit)
    assert min(limits) == LOOKS_MIN
    assert [number for number, limit in enumerate(limits, 1) if limit == LOOKS_MAX] == [
        1, SLEEPS_UNTIL_TRIED, 2 * SLEEPS_UNTIL_TRIED, 3 * SLEEPS_UNTIL_TRIED,
    ]  # fmt: skip
    assert sum(limits) < SLEEPS_UNTIL_TRIED * LOOKS_MAX


def test_what_is_found_early_is_waited_for_no_longer_than_that():
    looks = Looks()
    for _ in range(40):
        looks.found(9)
    assert 18 <= looks.limit <= 24
    for _ in range(40):
        looks.found(1)
    assert LOOKS_MIN <= looks.limit <= 2 * LOOKS_MIN


def test_what_is_found_late_has_all_looks_again():
    """Of two things that come in turn, one early and one late, neither is slept for."""
    looks = Looks()
    for _ in range(50):
        looks.found(20)
        assert looks.limit >= 60
        looks.found(60)
        assert looks.limit == LOOKS_MAX


def test_after_large_bursts_there_are_few():
    looks = Looks()
    looks.burst(LARGE_BURST_UNITS - 1)
    assert looks.limit == LOOKS_MAX
    looks.burst(10 * LARGE_BURST_UNITS)
    for _ in range(3):
        looks.burst(0)  # a sync, and its answers
        assert looks.limit == LOOKS_MIN
    for _ in range(20):
        looks.burst(30)
    assert looks.limit == LOOKS_MAX
