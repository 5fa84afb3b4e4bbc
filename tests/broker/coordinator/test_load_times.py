"""Loads of the last minute: the longest, and their average."""

import math
from types import SimpleNamespace

from broker.coordinator.load_times import LoadTimes


def test_of_the_last_minute():
    now = 100.0
    times = LoadTimes(SimpleNamespace(monotonic=lambda: now))
    assert math.isnan(times.max_ms())
    assert math.isnan(times.average_ms())
    times.loaded(99.0)
    now = 130.0
    times.loaded(127.0)
    assert (times.max_ms(), times.average_ms()) == (3000, 2000)
    now = 161.0
    assert (times.max_ms(), times.average_ms()) == (3000, 3000)
    now = 191.0
    assert math.isnan(times.max_ms())
