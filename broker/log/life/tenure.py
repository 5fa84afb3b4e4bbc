"""One tenure of a partition: from the assignment to this broker until the partition is let go.

Pure. The manager tells what happened and does what comes back (broker/log/manager.py); it tells a
tenure that was superseded the same things, and those change nothing.

                 begun               taken over
    WAITING -------------> TAKING_OVER -----> KEEPING
       |                        |  withdrawn, or (KEEPING) a higher epoch
       |  gone offline          +---------------------> LEAVING
       v                        |                          | gone offline
    RESTING <-------------------+  gone offline            v
       |  ^                                              ENDED, and a new tenure if the partition
       |  | not confirmed                                is assigned to this broker
       v  |                                                ^
    CONFIRMING --------------------------------------------+  confirmed

- A take-over begins in WAITING alone, and a new tenure only where the old one is not under way. So
  no two tenures of one partition are under way at once (`UNDER_WAY`).
- A take-over that is under way is not broken off by a higher epoch: it is told the assignment again
  when the take-over is done.
- A higher epoch of a partition that is kept is handed over to ourselves: the next tenure has it.
- What rests is not confirmed if the assignment is news: it was made after the loss.
- A deleted topic ends a tenure wherever it is, and nobody waits for the keeper: its ledgers go
  anyway. A topic's id never comes back.
- When the broker stops (CLOSING), what is under way is closed, and nothing follows it.
"""

from __future__ import annotations

from enum import Enum

from wire.dataclass import dataclass


class Phase(Enum):
    #: For a place among the take-overs, for the document, for a live owner to let go.
    WAITING = "waiting"
    TAKING_OVER = "taking over"
    #: Online, or just gone offline and not cleaned up yet.
    KEEPING = "keeping"
    #: It is handed over, to another broker or to ourselves with a higher epoch.
    LEAVING = "leaving"
    #: It was lost by accident, or could not be taken over.
    RESTING = "resting"
    #: Metadata is asked whether the partition is still assigned to this broker.
    CONFIRMING = "confirming"
    #: It is closed because the broker stops.
    CLOSING = "closing"
    ENDED = "ended"


class Event(Enum):
    #: The partition is assigned to this broker with a higher epoch than the tenure has.
    RAISED = "raised"
    #: The partition is assigned to this broker no longer.
    WITHDRAWN = "withdrawn"
    #: The owner that is waited for died, or let go.
    OWNER_GONE = "owner gone"
    #: All is there that a take-over needs, and nobody needs to be waited for.
    BEGUN = "begun"
    TAKEN_OVER = "taken over"
    #: The keeper is done, for whatever reason, and has cleaned up.
    GONE_OFFLINE = "gone offline"
    DELAY_PASSED = "delay passed"
    CONFIRMED = "confirmed"
    NOT_CONFIRMED = "not confirmed"
    TOPIC_DELETED = "topic deleted"
    STOPPING = "stopping"


class Effect(Enum):
    """What the manager does, in the order given. What a phase is about (to wait, to take over, to
    keep, to rest, to ask) is done by the tenure's own task, which looks at the phase."""

    #: The wait for the owner ends, and the document is looked at again.
    STOP_WAITING = "stop waiting"
    #: The epoch is published, if the partition is assigned to this broker.
    PUBLISH = "publish"
    #: A task closes and releases the partition, in bounded time.
    HAND_OVER = "hand over"
    #: The keeper closes the partition.
    CLOSE = "close"
    #: The partition is not found here any more.
    FORGET = "forget"
    #: The log goes offline, and the tenure's task is cancelled.
    GIVE_UP = "give up"
    #: A new tenure begins, if the partition is assigned to this broker.
    HOLD = "hold"


#: Phases of a tenure whose keeper may change the chain.
UNDER_WAY = frozenset({Phase.TAKING_OVER, Phase.KEEPING, Phase.LEAVING, Phase.CLOSING})

Effects = tuple[Effect, ...]

_W, _T, _K, _L = Phase.WAITING, Phase.TAKING_OVER, Phase.KEEPING, Phase.LEAVING
_R, _C, _X, _E = Phase.RESTING, Phase.CONFIRMING, Phase.CLOSING, Phase.ENDED
_AGAIN: Effects = (Effect.FORGET, Effect.HOLD)
_DROPPED: Effects = (Effect.FORGET, Effect.GIVE_UP)

#: What is not here changes nothing if it is from outside or the tenure ended, else cannot happen.
_TRANSITIONS: dict[tuple[Phase, Event], tuple[Phase, Effects]] = {
    (_W, Event.RAISED): (_W, ()),
    (_W, Event.WITHDRAWN): (_E, _DROPPED),
    (_W, Event.OWNER_GONE): (_W, (Effect.STOP_WAITING,)),
    (_W, Event.BEGUN): (_T, ()),
    (_W, Event.GONE_OFFLINE): (_R, ()),
    (_W, Event.TOPIC_DELETED): (_E, _DROPPED),
    (_W, Event.STOPPING): (_E, ()),
    (_T, Event.WITHDRAWN): (_L, (Effect.HAND_OVER,)),
    (_T, Event.TAKEN_OVER): (_K, (Effect.PUBLISH,)),
    (_T, Event.GONE_OFFLINE): (_R, ()),
    (_T, Event.TOPIC_DELETED): (_E, _DROPPED),
    (_T, Event.STOPPING): (_X, (Effect.CLOSE,)),
    (_K, Event.RAISED): (_L, (Effect.HAND_OVER,)),
    (_K, Event.WITHDRAWN): (_L, (Effect.HAND_OVER,)),
    (_K, Event.GONE_OFFLINE): (_R, ()),
    (_K, Event.TOPIC_DELETED): (_E, _DROPPED),
    (_K, Event.STOPPING): (_X, (Effect.CLOSE,)),
    (_L, Event.TAKEN_OVER): (_L, (Effect.PUBLISH,)),
    (_L, Event.GONE_OFFLINE): (_E, _AGAIN),
    (_L, Event.TOPIC_DELETED): (_E, _DROPPED),
    (_L, Event.STOPPING): (_X, (Effect.CLOSE,)),
    (_R, Event.RAISED): (_E, _AGAIN),
    (_R, Event.WITHDRAWN): (_E, (Effect.FORGET,)),
    (_R, Event.DELAY_PASSED): (_C, ()),
    (_R, Event.TOPIC_DELETED): (_E, _DROPPED),
    (_R, Event.STOPPING): (_E, ()),
    (_C, Event.RAISED): (_E, _AGAIN),
    (_C, Event.WITHDRAWN): (_E, (Effect.FORGET,)),
    (_C, Event.CONFIRMED): (_E, _AGAIN),
    (_C, Event.NOT_CONFIRMED): (_R, ()),
    (_C, Event.TOPIC_DELETED): (_E, _DROPPED),
    (_C, Event.STOPPING): (_E, ()),
    (_X, Event.TAKEN_OVER): (_X, ()),
    (_X, Event.GONE_OFFLINE): (_E, ()),
    (_X, Event.TOPIC_DELETED): (_E, _DROPPED),
}
#: What comes at any time.
_FROM_OUTSIDE = frozenset({Event.RAISED, Event.WITHDRAWN, Event.OWNER_GONE, Event.STOPPING})


@dataclass(slots=True, eq=False)
class Tenure:
    #: The leader epoch that it has, or that its take-over is to give at least.
    epoch: int
    phase: Phase = Phase.WAITING

    @property
    def is_under_way(self) -> bool:
        return self.phase in UNDER_WAY

    def assigned(self, epoch: int | None) -> Effects:
        """The assignment says so now: `epoch` is None if the partition is not this broker's."""
        if epoch is None:
            return self.step(Event.WITHDRAWN)
        if epoch <= self.epoch:
            return ()
        if self.phase is Phase.WAITING:
            self.epoch = epoch
        return self.step(Event.RAISED)

    def taken_over(self, leader_epoch: int) -> Effects:
        self.epoch = max(self.epoch, leader_epoch)
        return self.step(Event.TAKEN_OVER)

    def step(self, event: Event) -> Effects:
        """AssertionError: that cannot happen in this phase."""
        after = _TRANSITIONS.get((self.phase, event))
        if after is None:
            assert self.phase is Phase.ENDED or event in _FROM_OUTSIDE, (self.phase, event)
            return ()
        self.phase, effects = after
        return effects
