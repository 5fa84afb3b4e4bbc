"""How long a coordinator cannot give up on a member of KIP-848, by what the member knows.

Assumed: the coordinator's two clocks begin when it handles a heartbeat, hence not before that was
sent: the session's with each, the rebalance's with the first that was told to give something up,
until one says that it was given up (KIP-848; Kafka's GroupMetadataManager).
"""

from __future__ import annotations

from dataclasses import dataclass

from sim.group_members.member import REBALANCE_MS, SESSION_MS


@dataclass(slots=True)
class SafeTime:
    """Of one membership. Times are virtual seconds."""

    _sent_at: float = 0.0
    #: When the first was sent of those that had no answer, the last one among them: what took
    #: something may have been told to any of them.
    _unheard_since: float | None = None
    _taking_since: float | None = None

    def asks(self, now: float) -> None:
        """A heartbeat goes out, which tells what is owned if that has changed."""
        self._sent_at = now
        if self._unheard_since is None:
            self._unheard_since = now

    def answered(self, *, is_taken: bool) -> float:
        """Until then the coordinator waits. `is_taken`: of what the member owned when it asked,
        something is not its own any more."""
        if not is_taken:
            self._taking_since = None
        elif self._taking_since is None:
            self._taking_since = self._unheard_since
        self._unheard_since = None
        safe_until = self._sent_at + SESSION_MS / 1000
        if self._taking_since is None:
            return safe_until
        return min(safe_until, self._taking_since + REBALANCE_MS / 1000)
