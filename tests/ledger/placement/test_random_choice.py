"""Random placement: enough bookies, all different, none that is excluded."""

import random

import pytest

from ledger.placement import RandomPlacement, TooFewBookiesError


async def test_ensembles_are_different_bookies_chosen_evenly():
    placement = RandomPlacement(lambda: ["a", "b", "c", "d"], random.Random(1))
    counts = dict.fromkeys("abcd", 0)
    for _ in range(1_000):
        ensemble = await placement.new_ensemble(2, 2, 1)
        assert len(set(ensemble)) == 2
        counts[ensemble[0]] += 1
    assert min(counts.values()) > 180


async def test_a_replacement_is_new_and_the_rest_stays():
    placement = RandomPlacement(lambda: list("abcdef"), random.Random(1))
    for _ in range(50):
        new = await placement.replace(("a", "b", "c"), {0, 2}, 3, 2, {"a", "c", "d"})
        assert new[1] == "b"
        assert {new[0], new[2]} == {"e", "f"}
    with pytest.raises(TooFewBookiesError, match="3 bookies are needed, 2"):
        await placement.replace(("a", "b", "c"), {0, 1, 2}, 3, 2, {"d"})


async def test_bookies_that_come_are_found():
    bookies = ["a"]
    placement = RandomPlacement(lambda: bookies, random.Random(1))
    with pytest.raises(TooFewBookiesError):
        await placement.new_ensemble(2, 2, 2)
    bookies.append("b")
    assert set(await placement.new_ensemble(2, 2, 2)) == {"a", "b"}


async def test_a_seed_decides_whatever_the_order_of_names():
    one = RandomPlacement(lambda: list("abcdef"), random.Random(5))
    other = RandomPlacement(lambda: list("fcadbe"), random.Random(5))
    assert await one.new_ensemble(3, 3, 2) == await other.new_ensemble(3, 3, 2)
