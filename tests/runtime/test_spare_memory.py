"""Memory comes back when nobody looks into it, and what is kept is bounded."""

import pytest

from runtime.spare_memory import ROUND_BYTES, SpareMemory, is_free_of_views


@pytest.mark.parametrize("view", [lambda whole: whole, lambda whole: whole[5:9].toreadonly()])
def test_a_view_is_seen(view):
    memory = bytearray(b"0123456789")
    held = view(memoryview(memory))
    assert not is_free_of_views(memory)
    held.release()
    assert is_free_of_views(memory)
    assert memory == b"0123456789"


def test_only_what_is_free_and_fits_is_used_again():
    spare = SpareMemory(1 << 20)
    first, second = spare.take(100_000), spare.take(50_000)
    assert len(first) >= 100_000
    assert len(second) >= 50_000
    view = memoryview(first)
    spare.keep(first)
    spare.keep(second)
    assert spare.take(90_000) is not first
    view.release()
    assert spare.take(10) is not second, "far too large for it"
    assert spare.take(99_000) is first
    assert spare.take(49_000) is second
    assert spare.kept_bytes == 0


def test_what_is_kept_is_bounded():
    spare = SpareMemory(4 * ROUND_BYTES)
    for _ in range(10):
        spare.keep(bytearray(ROUND_BYTES))
        assert spare.kept_bytes <= 4 * ROUND_BYTES
    spare.keep(bytearray(5 * ROUND_BYTES))
    assert spare.kept_bytes == 0
