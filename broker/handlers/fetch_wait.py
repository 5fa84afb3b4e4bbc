"""Fetches that wait for data: what they do when a partition moves, and when their time is over.

One append may wake thousands of them, and the time of thousands may be over at once. Each is looked
at in that turn while it is not spent, the others in later turns, in the order in which they were
woken. Those for which much is there wait until what was read for others is sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from broker.api import Reply
from broker.handlers.fetch_watch import Fetches, Watched

if TYPE_CHECKING:
    from broker.api import Steps
    from broker.fetch_sessions import FetchContext
    from broker.handlers.fetch_look import Collected
    from broker.handlers.fetch_watch import Part
    from runtime.timers import Timer, Timers
    from runtime.turn import Turn
    from wire.kafka.messages.fetch import FetchRequest, FetchResponse

T = TypeVar("T")
#: What is to be looked at, and the partition that moved.
Wake = tuple["WaitingFetch", "Part | None"]
#: What it costs to look whether a fetch has enough, beside reading.
LOOK_UNITS = 3


class Wakes:
    """Fetches that were woken, and are looked at in a later turn."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        #: Each with a partition that moved, once, however often that moved; or with None: what is
        #: there is its answer.
        self._woken: dict[Wake, None] = {}
        #: Those of which it is known that there is much.
        self._long: dict[Wake, None] = {}
        self._is_due = False

    def __len__(self) -> int:
        return len(self._woken) + len(self._long)

    def put_off(self, fetch: WaitingFetch, part: Part | None) -> bool:
        """Whether it will be looked at later, and not now."""
        self._turn.spent_units += LOOK_UNITS
        if self._turn.is_spent:
            self._wait(self._woken, (fetch, part))
        return self._turn.is_spent

    def put_off_long(self, fetch: WaitingFetch, part: Part | None) -> None:
        """It is looked at when what was read for others is sent."""
        self._wait(self._long, (fetch, part))

    def _wait(self, waiting: dict[Wake, None], wake: Wake) -> None:
        waiting[wake] = None
        self._see_to_them()

    def _see_to_them(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._turn.later(self._look_at_some)

    def _look_at_some(self) -> None:
        self._is_due = False
        turn, woken, long = self._turn, self._woken, self._long
        while not turn.is_spent and (waiting := woken or (None if turn.is_behind else long)):
            turn.spent_units += LOOK_UNITS
            fetch, part = wake = next(iter(waiting))
            del waiting[wake]
            if part is None:
                fetch.answer()
            else:
                fetch.look(part)
        if len(self):
            self._see_to_them()

    def forget(self, fetch: WaitingFetch) -> None:
        """Its client is gone: it is not to be answered."""
        self._woken.pop((fetch, None), None)
        self._long.pop((fetch, None), None)


class FetchesThatWait(Fetches, Protocol):
    """What they need of the handler (broker/handlers/fetch.py)."""

    timers: Timers
    wakes: Wakes

    def collect_now(self, body: FetchRequest, context: FetchContext) -> Collected | None: ...

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
        if not watched.has(part):
            return
        if not watched.may_suffice(part):
            return
        has_turn = self.line is None or self.line.has_turn(self)
        if not has_turn and watched.is_certain:
            # It is read when it can be sent.
            self._end()
            return
        handler = self._handler
        collected = handler.collect_now(self._body, self._context)
        if collected is None:
            handler.wakes.put_off_long(self, part)
            return
        if not collected.cold and not handler.is_enough(self._body, collected):
            handler.at_once(watched.unwatch())
            handler.at_once(watched.measured(collected))
            return
        if has_turn:
            self._leave()
            self._resolve(collected)
        else:
            del collected
            self._end()

    def _end(self) -> None:
        """What is there when it is the next is its answer."""
        self._leave()
        self.on_abandoned = self._forget
        self.when_next(self._answer_soon)

    def _answer_soon(self) -> None:
        if not self._handler.wakes.put_off(self, None):
            self.answer()

    def answer(self) -> None:
        """With what is there now."""
        collected = self._handler.collect_now(self._body, self._context)
        if collected is None:
            self._handler.wakes.put_off_long(self, None)
            return
        self.on_abandoned = None
        self._resolve(collected)

    def _resolve(self, collected: Collected) -> None:
        handler = self._handler
        self.resolve(handler.at_once(handler.response(self._context, collected)))

    def _forget(self) -> None:
        self.on_abandoned = None
        self._handler.wakes.forget(self)

    def _leave(self) -> None:
        self.on_abandoned = None
        self._timer.cancel()
        self._handler.at_once(self._watched.end())
