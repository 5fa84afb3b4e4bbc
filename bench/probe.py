"""When does each partition take a record again? Asked of brokers directly, all the time.

A client library looks for a new leader when its own timers say so, up to two seconds late; a probe
sends a record for each partition that has not acknowledged yet to every broker that is left, some
partitions to a request, and notes when the first is accepted.
"""

import select
import socket
import struct
import threading
import time
from dataclasses import dataclass, field

from bench import frames, load

#: Partitions in a request: all of them are answered together.
CHUNK = 25
#: A broker is asked again so long after it answered, and at least five times as long as it took:
#: asking is not to be what it is busy with. There is a limit: it may have parked some for long.
PAUSE_SECONDS = 0.01
PAUSE_SECONDS_MAX = 2.0
#: NOT_LEADER_OR_FOLLOWER, UNKNOWN_TOPIC_OR_PARTITION, LEADER_NOT_AVAILABLE, NOT_ENOUGH_REPLICAS
#: (and after append): what a broker may say while partitions move.
NOT_YET = {6, 3, 5, 19, 20}
BATCH = frames.record_batch([bytes(100)])


@dataclass
class Asked:
    """A broker, and the requests that it has not answered."""

    sock: socket.socket
    data: bytearray = field(default_factory=bytearray)
    outstanding: int = 0
    sent_at: float = 0.0
    due_at: float = 0.0


class Probe(threading.Thread):
    """Runs until each partition has acknowledged, or `finish` gives up. `acks`: when, in seconds
    since 1970."""

    def __init__(self, addresses: list[tuple[str, int]], topic: str, partitions: int) -> None:
        super().__init__(name=f"probe of {topic}", daemon=True)
        self.topic = topic
        self.acks: dict[int, float] = {}
        self._pending = set(range(partitions))
        self._failure: BaseException | None = None
        self._gives_up = False
        self._asked = [Asked(load.connect(address)) for address in addresses]

    def run(self) -> None:
        poll = select.poll()
        by_number = {asked.sock.fileno(): asked for asked in self._asked}
        for number in by_number:
            poll.register(number, select.POLLIN)
        try:
            while self._pending and not self._gives_up:
                now = time.monotonic()
                for asked in self._asked:
                    if not asked.outstanding and now >= asked.due_at:
                        self._ask(asked, now)
                for number, _ in poll.poll(PAUSE_SECONDS * 500):
                    self._receive(by_number[number])
        except BaseException as failure:  # told by `finish`, in the thread that asked for this one
            self._failure = failure
        finally:
            for asked in self._asked:
                asked.sock.close()

    def _ask(self, asked: Asked, now: float) -> None:
        pending = sorted(self._pending)
        asked.sent_at = now
        for first in range(0, len(pending), CHUNK):
            chunk = pending[first : first + CHUNK]
            asked.sock.sendall(frames.produce_many_frame(self.topic, chunk, BATCH))
            asked.outstanding += 1

    def _receive(self, asked: Asked) -> None:
        data = asked.data
        received = asked.sock.recv(1 << 18)
        if not received:
            raise load.ConnectionLostError("a broker that should stay closed a connection")
        data += received
        at = 0
        while len(data) >= at + 4:
            end = at + 4 + struct.unpack_from(">i", data, at)[0]
            if len(data) < end:
                break
            self._note(frames.parse_produce(memoryview(bytes(data[at + 4 : end]))))
            asked.outstanding -= 1
            at = end
        del data[:at]
        if not asked.outstanding:
            now = time.monotonic()
            took = now - asked.sent_at
            asked.due_at = now + min(max(PAUSE_SECONDS, 5 * took), PAUSE_SECONDS_MAX)

    def _note(self, answers: list[tuple[int, int]]) -> None:
        now = time.time()
        for partition, error in answers:
            if not error:
                self.acks.setdefault(partition, now)
                self._pending.discard(partition)
            elif error not in NOT_YET:
                raise RuntimeError(f"partition {partition}: error {error}")

    def finish(self, timeout_seconds: float) -> None:
        """Waits for all acknowledgements; RuntimeError if they do not come in time."""
        self.join(timeout_seconds)
        self._gives_up = True
        self.join()
        if self._failure is not None:
            raise RuntimeError(f"the probe of {self.topic} ended") from self._failure
        if self._pending:
            raise RuntimeError(
                f"{len(self._pending)} partitions of {self.topic} take nothing,"
                f" {timeout_seconds} s after they lost their broker"
            )

    def since(self, began: float) -> list[float]:
        """Seconds from `began` to each partition's acknowledgement, ascending."""
        return sorted(at - began for at in self.acks.values())
