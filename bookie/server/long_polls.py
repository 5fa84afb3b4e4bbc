"""Reads that wait for a ledger's LAC to move (LongPollReadEntryProcessorV3).

No task each: a waiter on the ledger's LAC and a timer. A poll ends by the LAC, by the fence, by its
time or with its connection, once.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from wire.bookkeeper.responses import ReadResponse, refusal
from wire.bookkeeper.status import Status

if TYPE_CHECKING:
    from bookie.bookie import Bookie
    from bookie.ledger_lac import LedgerLac
    from bookie.server.connection import BookieConnection
    from runtime.timers import Timer, Timers
    from runtime.turn import Turn
    from wire.bookkeeper.requests import ReadRequest

#: Polls that are answered in one turn of the loop.
ANSWERED_PER_TURN = 200


class LongPolls:
    def __init__(self, bookie: Bookie, turn: Turn, timers: Timers, count_max: int) -> None:
        self.turn = turn
        self._bookie = bookie
        self._timers = timers
        self._count_max = count_max
        self._parked: dict[BookieConnection, set[_LongPoll]] = {}
        self._moved: deque[_LongPoll] = deque()
        self.count = 0

    def park(self, connection: BookieConnection, request: ReadRequest, lac: LedgerLac) -> None:
        """Answers at once if there is something to tell, else later. ETOOMANYREQUESTS."""
        assert request.previous_lac is not None
        timeout_ms = request.timeout_ms or 0
        if lac.lac > request.previous_lac or lac.is_ended or timeout_ms <= 0:
            self._answer(connection, request, lac)
        elif self.count >= self._count_max:
            connection.answer(refusal(request, Status.ETOOMANYREQUESTS))
        elif not connection.is_closed:
            self.count += 1
            poll = _LongPoll(self, connection, request, lac)
            self._parked.setdefault(connection, set()).add(poll)
            poll.start(self._timers, timeout_ms / 1000)

    def moved(self, poll: _LongPoll) -> None:
        """The LAC moved: it is answered at the end of the turn, for a ledger's adds come first,
        then who reads them; or, if thousands wait for it, in one of the next turns."""
        if not self._moved:
            self.turn.defer(self._answer_moved)
        self._moved.append(poll)

    def _answer_moved(self) -> None:
        moved = self._moved
        for _ in range(min(len(moved), ANSWERED_PER_TURN)):
            self.done(moved.popleft())
        if moved:
            self._timers.after(0.0, self._answer_moved)

    def forget(self, connection: BookieConnection) -> None:
        """The connection was closed."""
        for poll in self._parked.pop(connection, ()):
            self.count -= 1
            poll.cancel()

    def done(self, poll: _LongPoll) -> None:
        polls = self._parked.get(poll.connection)
        if polls is None or poll not in polls:
            return  # its connection was closed
        polls.discard(poll)
        if not polls:
            del self._parked[poll.connection]
        self.count -= 1
        self._answer(poll.connection, poll.request, poll.lac)

    def _answer(self, connection: BookieConnection, request: ReadRequest, lac: LedgerLac) -> None:
        """The LAC, and with it the entry behind the one that the client knows, if it is here."""
        assert request.previous_lac is not None
        entry_id = request.previous_lac + 1
        entries: list[memoryview] = []
        if request.is_piggyback and lac.lac >= entry_id:
            # Best effort: an entry that is not in memory comes by an ordinary read.
            found = self._bookie.read_entries_nowait(request.ledger_id, entry_id, 1, 0)
            if found is not None and found[0] is Status.EOK:
                entries = found[1]
        connection.answer(
            ReadResponse(
                Status.EOK,
                request.ledger_id,
                entry_id if entries else request.entry_id,
                entries[0] if entries else None,
                lac.lac,
                lac.updated_ms,
                request.transaction_id,
            )
        )


class _LongPoll:
    __slots__ = ("_polls", "_timer", "connection", "lac", "request")

    def __init__(
        self,
        polls: LongPolls,
        connection: BookieConnection,
        request: ReadRequest,
        lac: LedgerLac,
    ) -> None:
        self._polls = polls
        self._timer: Timer | None = None
        self.connection = connection
        self.request = request
        self.lac = lac

    def start(self, timers: Timers, timeout_seconds: float) -> None:
        assert self.request.previous_lac is not None
        self._timer = timers.after(timeout_seconds, self._timed_out)
        self.lac.wait(self.request.previous_lac, self._moved)

    def _moved(self) -> None:
        self.cancel()
        self._polls.moved(self)

    def _timed_out(self) -> None:
        self.lac.forget(self._moved)
        self._done()

    def _done(self) -> None:
        self._polls.done(self)

    def cancel(self) -> None:
        self.lac.forget(self._moved)
        if self._timer is not None:
            self._timer.cancel()
