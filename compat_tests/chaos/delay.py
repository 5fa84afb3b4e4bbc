"""A line that is slow: what comes out of a tun device goes back into it later, or never.

    delay.py DEVICE        # standard input: lines «milliseconds jitter loss-percent»

The routes of the namespace say what comes by here. Packets keep their order: none goes before one
that came earlier.
"""

import collections
import fcntl
import os
import random
import select
import struct
import sys
import time

TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
PACKET_BYTES_MAX = 65536
#: Packets that wait, at most; a full line drops.
WAITING_MAX = 20_000


def open_device(name: str) -> int:
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    request = struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI)
    fcntl.ioctl(device, TUNSETIFF, request)
    return device


class Line:
    def __init__(self, device: int) -> None:
        self.device = device
        self.delay_s = self.jitter_s = self.loss = 0.0
        #: (when, packet), the earliest first.
        self.waiting: collections.deque[tuple[float, bytes]] = collections.deque()

    def configure(self, words: str) -> None:
        delay_ms, jitter_ms, loss_percent = map(float, words.split())
        self.delay_s, self.jitter_s = delay_ms / 1000, jitter_ms / 1000
        self.loss = loss_percent / 100

    def take(self) -> None:
        while True:
            try:
                packet = os.read(self.device, PACKET_BYTES_MAX)
            except BlockingIOError:
                return
            if random.random() < self.loss or len(self.waiting) >= WAITING_MAX:
                continue
            due = time.monotonic() + self.delay_s + random.uniform(0, self.jitter_s)
            if self.waiting:
                due = max(due, self.waiting[-1][0])
            self.waiting.append((due, packet))

    def give(self) -> float | None:
        """Seconds until the next is due."""
        while self.waiting:
            left = self.waiting[0][0] - time.monotonic()
            if left > 0:
                return left
            os.write(self.device, self.waiting.popleft()[1])
        return None


def main(name: str) -> None:
    line = Line(open_device(name))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    left: float | None = None
    while True:
        ready, _, _ = select.select([line.device, sys.stdin], [], [], left)
        if sys.stdin in ready:
            words = os.read(sys.stdin.fileno(), 4096).decode()
            if not words:
                return
            line.configure(words.splitlines()[-1])
        line.take()
        left = line.give()


if __name__ == "__main__":
    main(sys.argv[1])
