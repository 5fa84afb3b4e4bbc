"""Entropy that is the same each time."""

from runtime.env import seeded_rng


def test_a_seed_draws_the_same_again_and_another_does_not():
    drawn = [[rng.randrange(1000) for _ in range(10)] for rng in map(seeded_rng, ("a", "a", "b"))]
    assert drawn[0] == drawn[1] != drawn[2]
