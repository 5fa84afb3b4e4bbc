"""What clients were answered and did not take, of all connections: bounded, as requests are.

One connection may leave some 16 MiB here (broker/connection.py), so that a client that pipelines is
never waited for; but there may be thousands. Beyond SHORT_FROM_BYTES in all, fetches are given
short answers, SHORT_ANSWER_BYTES or one batch each, so that readers that are slow together go on.
Beyond TOTAL_BYTES_MAX whoever leaves most is closed: its client fetches again. Those whose answers
wait for their turn to be sent here are spared: what fetches read ahead of that is bounded elsewhere
(broker/handlers/fetch_room.py).

Owner: the event loop's thread.
"""

from __future__ import annotations

import logging
from typing import Protocol

from broker.api import ANSWER_BYTES_MAX
from runtime.logs import kv

logger = logging.getLogger(__name__)

SHORT_FROM_BYTES = 128 << 20
SHORT_ANSWER_BYTES = 128 << 10
TOTAL_BYTES_MAX = 512 << 20
#: Of one connection: less than this is not counted, and costs nothing to know.
COUNTED_FROM_BYTES = 64 << 10


class Holder(Protocol):
    @property
    def peer(self) -> str: ...

    @property
    def waits_here(self) -> bool:
        """What it has written waits for its turn here, and not for its client."""

    def close(self) -> None: ...


class UnsentAnswers:
    __slots__ = ("_held", "closed_count", "total_bytes")

    def __init__(self) -> None:
        #: By connection; exact whenever something was written to it, and when all was taken.
        self._held: dict[Holder, int] = {}
        self.total_bytes = 0
        self.closed_count = 0

    @property
    def answer_bytes_max(self) -> int:
        """Of the next fetch's records, unless its first batch is larger."""
        return ANSWER_BYTES_MAX if self.total_bytes <= SHORT_FROM_BYTES else SHORT_ANSWER_BYTES

    def note(self, holder: Holder, held_bytes: int) -> None:
        """It has so many now. May close it, or another one."""
        self.total_bytes += held_bytes - self._held.pop(holder, 0)
        if held_bytes:
            self._held[holder] = held_bytes
            while self.total_bytes > TOTAL_BYTES_MAX and self._close_largest():
                pass

    def _close_largest(self) -> bool:
        """Of those that do not take what they are sent; whether there was one."""
        unread = [each for each in self._held if not each.waits_here]
        if not unread:
            return False
        largest = max(unread, key=self._held.__getitem__)
        held_bytes = self._held.pop(largest)
        self.total_bytes -= held_bytes
        self.closed_count += 1
        logger.warning("unread_answers", kv(peer=largest.peer, bytes=held_bytes))
        largest.close()
        return True
