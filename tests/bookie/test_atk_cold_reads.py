"""Recoveries that do not end leave ordinary reads of old data some threads."""

import trio

from bookie.storage.cold_reads import ColdReads


async def test_ordinary_reads_go_on_while_recoveries_read(autojump_clock):
    """Nine reads of recoveries (or of any client that sets the high-priority flag) at a time."""
    cold_reads = ColdReads()
    counts = {True: 0, False: 0}

    async def read(is_urgent):
        while True:
            async with cold_reads.turn(is_urgent=is_urgent):
                await trio.sleep(0.01)
            counts[is_urgent] += 1

    with trio.move_on_after(10):
        async with trio.open_nursery() as nursery:
            for _ in range(9):
                nursery.start_soon(read, True)
            await trio.sleep(0.005)
            for _ in range(8):
                nursery.start_soon(read, False)
    assert counts[False] > 0, counts
