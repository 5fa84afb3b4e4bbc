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


def test_replies_answer_requests_in_the_order_in_which_they_were_sent():
    sent = load.Sent()
    sent.add(1.0, 3)
    sent.add(2.0, 0)
    sent.answered(5.0, 2)
    sent.add(5.0, 2)
    sent.answered(6.0, 3)
    assert sent.latencies == [4.0, 4.0, 5.0, 1.0, 1.0]
    with pytest.raises(IndexError):
        sent.answered(7.0, 1)


@pytest.mark.slow
def test_every_reply_of_many_in_flight_has_a_latency():
    """50 in flight: each waited for about 50 others."""
    result = load.self_check(0.2)
    assert len(result.latencies) == result.requests
    waiting_ms = 50 / result.requests_per_second * 1000
    assert waiting_ms / 5 < result.percentile_ms(0.5) < waiting_ms * 2
