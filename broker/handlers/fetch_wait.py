"""Fetches that wait for data: what they do when a partition moves, and when their time is over.

One append may wake thousands of them. Each is looked at in the turn of the append while that turn
is not spent, and while what was read for others does not wait to be sent; the others in later
turns, in the order in which they were woken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from broker.api import Reply
from broker.handlers.fetch_watch import Fetches, Watched

if TYPE_CHECKING:
    from broker.api import Steps
    from broker.fetch_sessions import FetchContext
    from broker.handlers.fetch_watch import Collected, Part
    from runtime.timers import Timer, Timers
    from runtime.turn import Turn
    from wire.kafka.messages.fetch import FetchRequest, FetchResponse

T = TypeVar("T")
#: What it costs to look whether a fetch has enough, beside reading.
LOOK_UNITS = 3


class Wakes:
    """Fetches that were woken, and are looked at in a later turn."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        #: Each with a partition that moved, once, however often that moved.
        self._waiting: dict[tuple[WaitingFetch, Part], None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def put_off(self, fetch: WaitingFetch, part: Part) -> bool:
        """Whether it will be looked at later, and not now."""
        turn = self._turn
        turn.spent_units += LOOK_UNITS
        if not (turn.is_spent or turn.is_behind):
            return False
        if not self._waiting:
            turn.later(self._look_at_some)
        self._waiting[fetch, part] = None
        return True

    def _look_at_some(self) -> None:
        waiting, turn = self._waiting, self._turn
        while waiting and not (turn.is_spent or turn.is_behind):
            turn.spent_units += LOOK_UNITS
            fetch, part = next(iter(waiting))
            del waiting[fetch, part]
            fetch.look(part)
        if waiting:
            turn.later(self._look_at_some)


class FetchesThatWait(Fetches, Protocol):
    """What they need of the handler (broker/handlers/fetch.py)."""

    timers: Timers
    wakes: Wakes

    def collect(self, body: FetchRequest, context: FetchContext) -> Steps[Collected]: ...

    def at_once(self, steps: Steps[T]) -> T: ...

    def is_enough(self, body: FetchRequest, collected: Collected) -> bool: ...

    def response(self, context: FetchContext, collected: Collected) -> Steps[FetchResponse]: ...


class WaitingFetch(Reply):
    """A fetch that found less than min_bytes: waits for data or for max_wait_ms, and then, with
    nothing in its hands, for its turn in the line of replies."""

    __slots__ = ("_body", "_context", "_handler", "_timer", "_watched")

    def __init__(
        self,
        handler: FetchesThatWait,
        body: FetchRequest,
        context: FetchContext,
        collected: Collected,
    ) -> None:
        super().__init__()
        self._handler = handler
        self._body = body
        self._context = context
        self._timer: Timer = handler.timers.after(body.max_wait_ms / 1000, self._end)
        self._watched = Watched(handler, body, len(context.wanted), self._moved)
        handler.at_once(self._watched.measured(collected))
        self.on_abandoned = self._leave

    def _moved(self, part: Part) -> None:
        if not self._handler.wakes.put_off(self, part):
            self.look(part)

    def look(self, part: Part) -> None:
        """Answers if there is enough, now that this one moved; unless it did already."""
        watched = self._watched
        if self.on_abandoned is None or not watched.has(part):
            return
        if not watched.may_suffice(part):
            return
        has_turn = self.line is None or self.line.has_turn(self)
        if not has_turn and watched.is_certain:
            # It is read when it can be sent.
            self._leave()
            self.when_next(self._answer_anew)
            return
        handler = self._handler
        collected = handler.at_once(handler.collect(self._body, self._context))
        if not collected.cold and not handler.is_enough(self._body, collected):
            handler.at_once(watched.unwatch())
            handler.at_once(watched.measured(collected))
            return
        self._leave()
        if has_turn:
            self._answer(collected)
        else:
            del collected
            self.when_next(self._answer_anew)

    def _end(self) -> None:
        self._leave()
        self.when_next(self._answer_anew)

    def _answer_anew(self) -> None:
        handler = self._handler
        self._answer(handler.at_once(handler.collect(self._body, self._context)))

    def _answer(self, collected: Collected) -> None:
        handler = self._handler
        self.resolve(handler.at_once(handler.response(self._context, collected)))

    def _leave(self) -> None:
        self.on_abandoned = None
        self._timer.cancel()
        self._handler.at_once(self._watched.end())
