"""Frames are cut alike however the bytes are torn, and memory follows what really arrived."""

import ctypes
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.receive import (
    LARGE_FIRST_BYTES,
    LARGE_FRAME_BYTES,
    SPARE_LARGE_BYTES_MAX,
    FrameReceiver,
    FrameTooLargeError,
    ReceiveChunks,
)


def feed(receiver, data, sizes):
    """Hands `data` over in pieces; `sizes` is cycled through."""
    position = 0
    turn = 0
    while position < len(data):
        buffer = receiver.buffer()
        count = min(len(buffer), sizes[turn % len(sizes)], len(data) - position)
        buffer[:count] = data[position : position + count]
        receiver.received(count)
        position += count
        turn += 1


def framed(bodies):
    return b"".join(struct.pack(">i", len(body)) + body for body in bodies)


@given(
    st.lists(st.binary(min_size=1, max_size=300), max_size=30),
    st.lists(st.integers(1, 400), min_size=1, max_size=5),
)
def test_small_frames_survive_any_tearing(bodies, sizes):
    got = []
    receiver = FrameReceiver(ReceiveChunks(), 1 << 20, lambda frame: got.append(frame) or True)
    feed(receiver, framed(bodies), sizes)
    # Looked at only now: what later frames and other connections received must not show through.
    assert [bytes(frame) for frame in got] == bodies


@given(
    st.lists(
        st.sampled_from([1, 100, LARGE_FRAME_BYTES, LARGE_FRAME_BYTES + 1, 200_000, 3_000_000]),
        max_size=6,
    ),
    st.lists(st.sampled_from([3, 4096, 65536, 1 << 20]), min_size=1, max_size=3),
)
def test_large_frames_get_their_own_memory(lengths, sizes):
    if 3 in sizes:
        lengths = [min(length, 1000) for length in lengths]
    bodies = [bytes([number]) * length for number, length in enumerate(lengths)]
    got = []
    receiver = FrameReceiver(ReceiveChunks(), 1 << 23, lambda frame: got.append(frame) or True)
    feed(receiver, framed(bodies), sizes)
    assert [bytes(frame) for frame in got] == bodies


@given(
    st.lists(
        st.tuples(
            st.sampled_from([10, 5000, LARGE_FRAME_BYTES + 1, 60_000, 70_000, 300_000, 2_000_000]),
            st.integers(0, 6),
        ),
        min_size=1,
        max_size=60,
    ),
    st.sampled_from([40_000, 1 << 20]),
)
def test_memory_that_is_used_again_is_nobodys(frames, piece):
    """Each frame is held for as long as so many others come, and does not change meanwhile."""
    held = []
    chunks = ReceiveChunks()
    receiver = FrameReceiver(chunks, 1 << 23, lambda frame: held.append([frame, 0, 0]) or True)
    for number, (length, lasting) in enumerate(frames):
        mark = number % 251
        feed(receiver, framed([bytes([mark]) * length]), [piece])
        held[-1][1:] = [mark, lasting + 1]
        for entry in held:
            frame, mark, left = entry
            assert frame == bytes([mark]) * len(frame)
            entry[2] = left - 1
        frame = None
        held[:] = [entry for entry in held if entry[2]]
    assert chunks.large.kept_bytes <= SPARE_LARGE_BYTES_MAX


def test_memory_is_used_again():
    """What is received and let go of, over and over, touches no new memory."""
    addresses = set()

    def on_frame(frame):
        addresses.add(ctypes.addressof(ctypes.c_char.from_buffer(frame)))
        return True

    receiver = FrameReceiver(ReceiveChunks(), 1 << 23, on_frame)
    for number in range(200):
        feed(receiver, framed([b"x" * (65_600 + number % 30)]), [20_000])
    assert len(addresses) == 1


def test_two_connections_share_a_chunk_without_mixing():
    chunks = ReceiveChunks()
    one, two = [], []
    first = FrameReceiver(chunks, 1000, lambda frame: one.append(frame) or True)
    second = FrameReceiver(chunks, 1000, lambda frame: two.append(frame) or True)
    for number in range(2000):
        feed(first, framed([b"a%05d" % number])[:5], [100])
        feed(second, framed([b"b%05d" % number]), [7])
        feed(first, framed([b"a%05d" % number])[5:], [100])
    assert [bytes(frame) for frame in one] == [b"a%05d" % number for number in range(2000)]
    assert [bytes(frame) for frame in two] == [b"b%05d" % number for number in range(2000)]


@pytest.mark.parametrize("size", [0, -1, 1001, 2**31 - 1])
def test_sizes_out_of_bounds_are_refused(size):
    receiver = FrameReceiver(ReceiveChunks(), 1000, lambda frame: True)
    with pytest.raises(FrameTooLargeError, match=str(size)):
        feed(receiver, struct.pack(">i", size) + b"x" * 10, [100])


def test_an_announced_size_costs_no_memory():
    receiver = FrameReceiver(ReceiveChunks(), 100 << 20, lambda frame: True)
    feed(receiver, struct.pack(">i", 100 << 20) + b"x" * 100, [200])
    assert receiver.held_bytes <= LARGE_FIRST_BYTES + 4


def test_frames_are_writable():
    got = []
    receiver = FrameReceiver(ReceiveChunks(), 1 << 20, lambda frame: got.append(frame) or True)
    feed(receiver, framed([b"abc", b"x" * 100_000]), [1 << 20])
    for frame in got:
        frame[:1] = b"z"
    assert got[0] == b"zbc"


@given(
    st.lists(st.binary(min_size=1, max_size=300), max_size=20),
    st.lists(st.integers(1, 4000), min_size=1, max_size=5),
    st.lists(st.booleans(), min_size=1, max_size=7),
)
def test_what_is_behind_a_stop_is_kept(bodies, sizes, answers):
    got = []

    def on_frame(frame):
        got.append(bytes(frame))
        return answers[len(got) % len(answers)]

    receiver = FrameReceiver(ReceiveChunks(), 1 << 20, on_frame)
    data = framed(bodies)
    for start in range(0, len(data), 1000):
        feed(receiver, data[start : start + 1000], sizes)
        for _ in range(len(bodies)):
            receiver.go_on()
    assert got == bodies
