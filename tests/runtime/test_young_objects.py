"""New objects are looked at after so many steps of tasks, however many others were freed."""

import gc

import trio

from runtime.young_objects import STEPS, YoungObjects


class Cell:
    """Something that the collector looks at."""


async def test_what_is_freed_meanwhile_does_not_put_off_the_look():
    """As many old objects are freed as new ones are made: the collector's own count stays at 0."""
    before = gc.get_threshold()
    old = [Cell() for _ in range(60_000)]
    kept, young = [], []

    def look(generation):
        young.append(len(gc.get_objects(generation=0)))
        return gc.collect(generation)

    instrument = YoungObjects(look)
    gc.freeze()
    gc.set_threshold(5_000, 0, 5_000)
    trio.lowlevel.add_instrument(instrument)
    try:
        while old:
            for _ in range(20):
                old.pop()
                kept.append(Cell())
            await trio.lowlevel.checkpoint()
    finally:
        trio.lowlevel.remove_instrument(instrument)
        gc.set_threshold(*before)
        gc.unfreeze()
    assert len(kept) == 60_000
    assert len(young) >= 3000 // STEPS
    assert max(young) < 10 * 20 * STEPS


async def test_each_second_look_is_at_those_of_the_last_too():
    looks = []
    instrument = YoungObjects(lambda generation: looks.append(generation) or 0)
    trio.lowlevel.add_instrument(instrument)
    for _ in range(4 * STEPS):
        await trio.lowlevel.checkpoint()
    trio.lowlevel.remove_instrument(instrument)
    assert looks[:4] == [0, 1, 0, 1]
