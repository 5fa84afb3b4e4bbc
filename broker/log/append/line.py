"""AppendLine: the batches of one partition that have no offsets yet, in the order they came.

A batch waits here for one of three things, and everything behind it waits, too, so that the order
of a partition's requests is that of its offsets:

    held       the take-over is under way, or the ledger holds all that it may: not looked at yet
    unchecked  it is too long to be checked in this turn of the loop (broker/log/append/checking.py)
    checked    it is whole, and the ledger has no room by now

What is checked came before what is unchecked, and that before what is held. Who calls `release`
when there is room again is the partition's keeper. All that waits is requests, which count against
the memory of requests as long as they are unanswered.

Owner: the event loop's thread.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

from wire.kafka.errors import KafkaError

if TYPE_CHECKING:
    from broker.cluster.config import TopicConfig
    from broker.log.append.checking import BatchChecks
    from broker.log.append.queue import Append
    from broker.log.append.validation import Checked

#: Batches that waited and are taken in one turn of the loop.
RELEASE_COUNT = 64
#: … or until the locks of those that were checked before cost so much.
RELEASE_LOCKS_NS = 2_000_000


class Numbering(Protocol):
    """The partition, as far as its line needs it (broker/log/partition.py)."""

    @property
    def config(self) -> TopicConfig: ...

    def has_room(self) -> bool:
        """Whether a batch may be numbered now."""

    def accept(self, append: Append, checked: Checked) -> None:
        """Numbers a batch, or fails it."""

    def call_keeper(self) -> None:
        """There is something that waits for room."""


class AppendLine:
    __slots__ = ("_checked", "_checks", "_held", "_log", "_unchecked")

    def __init__(self, log: Numbering, checks: BatchChecks) -> None:
        self._log = log
        self._checks = checks
        self._held: deque[tuple[Append, bool]] = deque()
        self._unchecked: deque[tuple[Append, bool]] = deque()
        self._checked: deque[tuple[Append, Checked]] = deque()

    @property
    def is_held(self) -> bool:
        """Whether something waits for room, so that what comes has to wait behind it."""
        return bool(self._held or self._checked)

    @property
    def oldest(self) -> tuple[Append, str] | None:
        """What waits here for the longest, and for what."""
        if self._checked:
            return self._checked[0][0], "room in the ledger"
        if self._unchecked:
            return self._unchecked[0][0], "its check"
        return (self._held[0][0], "the take-over, or room in the ledger") if self._held else None

    def hold(self, append: Append, internal: bool) -> None:
        self._held.append((append, internal))

    def take(self, append: Append, internal: bool) -> None:
        """Of what comes while something is held, or the ledger has been full."""
        if self.is_held or not self._log.has_room():
            self.hold(append, internal)
            self._log.call_keeper()
        else:
            self.check(append, internal)

    def check(self, append: Append, internal: bool) -> None:
        """Checks and accepts it in this turn, or puts it into the line of what is checked later."""
        if self._unchecked:
            self._unchecked.append((append, internal))
            return
        try:
            checked = self._checks.check_now(append.records, self._log.config, internal=internal)
        except KafkaError as error:
            append.fail(error)
            return
        if checked is None:
            self._unchecked.append((append, internal))
            self._checks.call(self)
            return
        self._log.accept(append, checked)

    def release(self) -> bool:
        """Takes up some of what waited, in order; True: there are more, and room."""
        locks_ns = 0
        for _ in range(RELEASE_COUNT):
            if not self.is_held or not self._log.has_room():
                return False
            if self._checked:
                append, checked = self._checked.popleft()
                self._log.accept(append, checked)
                locks_ns += 0 if checked.locks is None else checked.locks.cost_ns
                if locks_ns >= RELEASE_LOCKS_NS:
                    break
            else:
                self.check(*self._held.popleft())
        return self.is_held

    def resume(self, append: Append, checked: Checked) -> None:
        """Of one that waited elsewhere after it was checked (broker/log/transactions/gate.py)."""
        if self.is_held or not self._log.has_room():
            self._checked.append((append, checked))
            self._log.call_keeper()
        else:
            self._log.accept(append, checked)

    def unchecked_head(self) -> tuple[Append, TopicConfig, bool] | None:
        """What is first in line to be checked, for what settings, and whether it is internal."""
        if not self._unchecked:
            return None
        append, internal = self._unchecked[0]
        return append, self._log.config, internal

    def was_checked(self, append: Append, outcome: Checked | KafkaError) -> bool:
        """Of the first in line: accepts or refuses it, or has it wait for room. Whether more are in
        line; not if they were all refused meanwhile, as the partition went offline."""
        line = self._unchecked
        if not line or line[0][0] is not append:
            return False
        line.popleft()
        if isinstance(outcome, KafkaError):
            append.fail(outcome)
        elif self._checked or not self._log.has_room():
            self._checked.append((append, outcome))
            self._log.call_keeper()
        else:
            self._log.accept(append, outcome)
        return bool(line)

    def clear(self) -> list[Append]:
        """All that waited, oldest first: nobody will number it any more."""
        lost = [append for append, _ in self._checked]
        lost += [append for append, _ in self._unchecked]
        lost += [append for append, _ in self._held]
        self._checked.clear()
        self._unchecked.clear()
        self._held.clear()
        return lost
