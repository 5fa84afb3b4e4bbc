"""What the clients of a bookie know of it: what they sent, and what they were promised."""

from dataclasses import dataclass, field

import trio

LEDGERS = range(5)
#: Given up as one that has too many copies, from whichever collection on.
GIVEN_UP = 3
#: Deleted by way of the metadata: the next collection finds it gone. The others of those that are
#: deleted are by a request.
GONE = 4


@dataclass
class Lacs:
    """Explicit LACs of a ledger, in the order in which they were sent."""

    sent: list[bytes] = field(default_factory=list)
    #: The number of the last of them that was answered EOK.
    last_done: int = -1


@dataclass
class Known:
    next_ids: dict[int, int] = field(default_factory=lambda: dict.fromkeys(LEDGERS, 0))
    #: By (ledger id, entry id).
    sent: dict[tuple[int, int], bytes] = field(default_factory=dict)
    acknowledged: dict[tuple[int, int], bytes] = field(default_factory=dict)
    #: Entries of a ledger that was given up: they may be there, or not.
    uncertain: set[tuple[int, int]] = field(default_factory=set)
    #: Whether the request was answered EOK. Of these nothing is to be read any more, but may be.
    deleted: dict[int, bool] = field(default_factory=dict)
    #: Ledgers that the metadata do not have any more.
    gone: set[int] = field(default_factory=set)
    #: Whether a request was answered as one that fenced the ledger.
    fenced: dict[int, bool] = field(default_factory=dict)
    lacs: dict[int, Lacs] = field(default_factory=dict)
    #: What happened, for who reads of a failure.
    trace: list[str] = field(default_factory=list)

    def note(self, *words):
        self.trace.append(" ".join(str(word) for word in words))


class Metadata:
    """What a collection is told of ledgers: `bookie.known_ledgers.KnownLedgers`."""

    seconds_to_confirm = float("inf")

    def __init__(self, known):
        self.is_over_replicated = False
        self._known = known

    async def gone(self, ledger_ids):
        return [ledger_id for ledger_id in ledger_ids if ledger_id in self._known.gone]

    async def confirmed(self):
        return []

    async def over_replicated(self, ledger_ids, give_up):
        if self.is_over_replicated and GIVEN_UP in ledger_ids:
            given_up = (key for key in self._known.acknowledged if key[0] == GIVEN_UP)
            self._known.uncertain.update(given_up)
            await trio.lowlevel.checkpoint()
            await give_up([GIVEN_UP])

    async def digest(self, ledger_id):
        return None
