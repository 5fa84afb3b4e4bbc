"""What is cut into slices lets others run after as many units as were agreed, and not before."""

import trio

from runtime.slices import Slices


async def test_others_run_after_each_slice():
    passes = 0
    seen = []

    async def others():
        nonlocal passes
        while True:
            passes += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(others)
        slices = Slices(10)
        for _ in range(35):
            if slices.due():
                await slices.turn()
            seen.append(passes)
        nursery.cancel_scope.cancel()
    # Who runs first in a pass of the loop is drawn by trio, so two turns are one pass or more.
    assert [len(set(seen[at : at + 10])) for at in range(0, 30, 10)] == [1, 1, 1]
    assert seen[0] < seen[-1]


async def test_a_unit_larger_than_a_slice_is_due_at_once():
    slices = Slices(10)
    assert slices.due(11)
    assert slices.due(1)
    assert not slices.due(9)
    assert slices.due(1)
