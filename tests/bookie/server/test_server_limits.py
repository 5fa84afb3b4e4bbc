"""A server in front of a bookie that is behind: writers wait, whoever reads does not."""

import struct

import trio

from bookie.server.connection import BookieConnection
from bookie.server.processor import Processor
from runtime.receive import ReceiveChunks
from runtime.timers import Timers
from wire.bookkeeper import v2
from wire.bookkeeper.requests import ReadRequest
from wire.bookkeeper.status import FLAG_DO_FENCING, LAST_ADD_CONFIRMED_ENTRY, Status

KIB = 1024
KEY = b"k" * 20
FRAME_BYTES_MAX = 5 << 20


class Peer:
    """The transport of one connection, and the client behind it."""

    peer = "peer"
    unsent_bytes = 0

    def __init__(self, processor):
        self.answers = []
        self.is_paused = False
        self._unread = b""
        self.connection = BookieConnection(self, processor, ReceiveChunks(), FRAME_BYTES_MAX)

    def write(self, buffers):
        self._unread += b"".join(buffers)
        while len(self._unread) >= 4:
            (size,) = struct.unpack_from(">I", self._unread)
            frame, self._unread = self._unread[4 : 4 + size], self._unread[4 + size :]
            self.answers.append(v2.decode_response(memoryview(frame)))

    def pause_reading(self):
        self.is_paused = True

    def resume_reading(self):
        self.is_paused = False

    def close(self):
        raise AssertionError("closed")

    def send(self, data):
        """As many of the bytes as fit one read."""
        assert not self.is_paused
        buffer = self.connection.receive_buffer()
        count = min(len(buffer), len(data))
        buffer[:count] = data[:count]
        self.connection.received(count)
        return data[count:]


def add_frame(entry_bytes, ledger_id, entry_id, size):
    entry = entry_bytes(ledger_id, entry_id, bytes(size))
    return b"".join(v2.encode_add_request(KEY, (entry,)))


def read_frame(ledger_id, entry_id, *, fencing=False):
    flags, key = (FLAG_DO_FENCING, KEY) if fencing else (0, None)
    return b"".join(v2.encode_request(ReadRequest(ledger_id, entry_id, flags, key)))


def make_processor(bookie, machine, nursery):
    return Processor(bookie, machine.turn, Timers(), nursery, lambda: (0, 0))


async def wait_for_answers(peer, count):
    with trio.fail_after(30):
        while len(peer.answers) < count:
            await trio.sleep(0.001)


async def test_a_writer_that_is_too_fast_waits_and_nothing_is_refused(machine_class, entry_bytes):
    machine = machine_class(
        journal_queue_size_max_bytes=64 * KIB,
        write_cache_size_bytes=256 * KIB,
        journal_size_bytes=256 * KIB,
        held_adds_size_max_bytes=512 * KIB,
        held_adds_max=1000,
    )
    machine.disk.faults.sync_seconds = (0.01, 0.01)
    count = 700
    async with machine.running() as bookie, trio.open_nursery() as nursery:
        processor = make_processor(bookie, machine, nursery)
        writer, reader = Peer(processor), Peer(processor)
        frames = b"".join(add_frame(entry_bytes, 1, i, 2000) for i in range(count))
        pauses = 0
        with trio.fail_after(60):
            while frames:
                if writer.is_paused:
                    if not pauses:
                        reader.send(read_frame(1, 0))
                        await wait_for_answers(reader, 1)
                        assert writer.is_paused, "the read was answered while the writer waited"
                    pauses += 1
                    while writer.is_paused:
                        await trio.sleep(0.001)
                frames = writer.send(frames)
                assert bookie.statistics().held_bytes <= 512 * KIB
        assert pauses, "1.4 MB never filled what is held"
        await wait_for_answers(writer, count)
        assert [answer.entry_id for answer in writer.answers] == list(range(count))
        assert {answer.status for answer in writer.answers} == {Status.EOK}
        assert reader.answers[0].status is Status.EOK
        nursery.cancel_scope.cancel()


async def test_reads_that_fence_wait_for_the_first_fence_only(machine, entry_bytes):
    async with machine.running() as bookie, trio.open_nursery() as nursery:
        turn = machine.turn
        processor = make_processor(bookie, machine, nursery)
        writer, reader = Peer(processor), Peer(processor)
        writer.send(b"".join(add_frame(entry_bytes, 1, i, 100) for i in range(3)))
        await wait_for_answers(writer, 3)
        assert not bookie.is_fenced(1, KEY)
        reader.send(read_frame(1, LAST_ADD_CONFIRMED_ENTRY, fencing=True))
        await wait_for_answers(reader, 1)
        assert bookie.is_fenced(1, KEY)
        assert not bookie.is_fenced(1, bytes(20)), "with another key it is for `fence` to refuse"
        for entry_id in range(3):
            reader.send(read_frame(1, entry_id, fencing=True))
        turn.run()
        assert len(reader.answers) == 4, "without a task, and so without waiting"
        assert [answer.status for answer in reader.answers] == [Status.EOK] * 4
        assert processor.counts.fences == 4
        writer.send(add_frame(entry_bytes, 1, 3, 100))
        await wait_for_answers(writer, 4)
        assert writer.answers[3].status is Status.EFENCED
        nursery.cancel_scope.cancel()
