"""The load generator must not be what is measured."""

import pytest

from bench import load


def test_ring_sends_partitions_in_turn_with_new_correlation_ids():
    ring = load.Ring("t", range(3), load.KILOBYTE, 4)
    assert ring.count == 6
    sent = b"".join(part for count in (4, 4, 6) for part in map(bytes, ring.take(count)))
    size = ring.frame_size
    made = [sent[at : at + size] for at in range(0, len(sent), size)]
    assert [int.from_bytes(frame[8:12], "big") for frame in made] == list(range(14))
    assert all(frame[12:] == made[index % 3][12:] for index, frame in enumerate(made))
    assert len({frame[12:] for frame in made}) == 3


@pytest.mark.slow
def test_generator_is_faster_than_any_server_here():
    assert load.self_check(0.5).requests_per_second > 80_000
