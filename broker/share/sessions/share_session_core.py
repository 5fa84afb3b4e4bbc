"""Share sessions (KIP-932): which partitions a member fetches from this broker, and in what order.

Pure. A session is that of a (group, member) and of one connection. Its epoch counts its requests,
ShareFetch and ShareAcknowledge alike: 0 opens it, -1 closes it, and each other request must have
the epoch that is due; 1 follows 2**31 - 1. So a request that was lost or came twice is noticed.

A session belongs to its connection: whoever comes with its epoch by another one has none
(SHARE_SESSION_NOT_FOUND) and begins anew. When the connection closes, the session is over. One that
is opened again takes the old one's place; what the member holds it keeps then, as in Kafka
(SharePartitionManager.newContext: the old one is removed, and nobody is told).

There are at most `sessions_max`, of SESSION_PARTITIONS_MAX partitions altogether; one more is
SHARE_SESSION_LIMIT_REACHED.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple, Protocol

from wire.kafka.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable
    from uuid import UUID

FINAL_EPOCH = -1
INITIAL_EPOCH = 0
EPOCH_MAX = (1 << 31) - 1
SESSION_PARTITIONS_MAX = 200_000
#: So many partitions are one step, or units of what they cost: some 0.1 ms.
PARTITIONS_PER_STEP = 100


class Partition(NamedTuple):
    topic_id: UUID
    number: int


class Uses(Protocol):
    """Who is told which partitions sessions have. A session that was closed has still to be let go
    of."""

    def use(self, session: ShareSession, partition: Partition, /) -> int:
        """Gives what it took, in microseconds."""

    def unuse(self, session: ShareSession, partition: Partition, /) -> None: ...


class ShareSession:
    __slots__ = ("connection", "group", "is_closed", "member", "next_epoch", "partitions")

    def __init__(self, group: str, member: str, connection: str) -> None:
        self.group = group
        self.member = member
        self.connection = connection
        self.next_epoch = 1
        self.is_closed = False
        #: In the order in which they are served: who got something is the last then.
        self.partitions: OrderedDict[Partition, None] = OrderedDict()

    def rotate(self, served: Iterable[Partition]) -> None:
        for partition in served:
            if partition in self.partitions:  # else it was forgotten meanwhile
                self.partitions.move_to_end(partition)


class ShareSessions:
    def __init__(self, sessions_max: int, uses: Uses) -> None:
        self._sessions_max = sessions_max
        self._uses = uses
        self._sessions: dict[tuple[str, str], ShareSession] = {}
        #: In the order in which they came: a set's would be that of hashes.
        self._by_connection: dict[str, dict[ShareSession, None]] = {}
        self.partitions_count = 0
        #: That changes which have begun are still to add.
        self._coming_count = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def fetch(
        self, group: str, member: str, epoch: int, connection: str, *, acknowledges: bool
    ) -> ShareSession:
        """That of a ShareFetch; with FINAL_EPOCH it is to be closed when that is done. One that is
        to be opened anew was closed by the caller (`find`). KafkaError: INVALID_REQUEST,
        SHARE_SESSION_NOT_FOUND, SHARE_SESSION_LIMIT_REACHED, INVALID_SHARE_SESSION_EPOCH."""
        if epoch != INITIAL_EPOCH:
            return self._next(group, member, epoch, connection)
        if acknowledges:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "the first fetch of a session cannot acknowledge"
            )
        if len(self._sessions) >= self._sessions_max:
            raise KafkaError(ErrorCode.SHARE_SESSION_LIMIT_REACHED)
        assert (group, member) not in self._sessions
        session = ShareSession(group, member, connection)
        self._sessions[group, member] = session
        self._by_connection.setdefault(connection, {})[session] = None
        return session

    def find(self, group: str, member: str) -> ShareSession | None:
        """Whosever connection it is."""
        return self._sessions.get((group, member))

    def acknowledge(self, group: str, member: str, epoch: int, connection: str) -> ShareSession:
        """That of a ShareAcknowledge. KafkaError as `fetch`."""
        if epoch == INITIAL_EPOCH:
            raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        return self._next(group, member, epoch, connection)

    def _next(self, group: str, member: str, epoch: int, connection: str) -> ShareSession:
        session = self._sessions.get((group, member))
        if session is None or session.connection != connection:
            raise KafkaError(ErrorCode.SHARE_SESSION_NOT_FOUND)
        if epoch != FINAL_EPOCH:
            if epoch != session.next_epoch:
                raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
            session.next_epoch = 1 if epoch == EPOCH_MAX else epoch + 1
        return session

    def change(
        self, session: ShareSession, added: list[Partition], forgotten: list[Partition]
    ) -> Generator[int, None, None]:
        """In steps, of some microseconds each. What is in both is forgotten, as in Kafka's
        ShareSession: Java's client names what its member is relieved of once more, to acknowledge
        what it has of it, in the request that forgets it. KafkaError SHARE_SESSION_LIMIT_REACHED,
        and then nothing is changed."""
        left = len(added)
        if self.partitions_count + self._coming_count + left > SESSION_PARTITIONS_MAX:
            raise KafkaError(ErrorCode.SHARE_SESSION_LIMIT_REACHED)
        self._coming_count += left
        try:
            units = 0
            for partition in added:
                units += 1
                left -= 1
                self._coming_count -= 1
                if not session.is_closed and partition not in session.partitions:
                    session.partitions[partition] = None
                    self.partitions_count += 1
                    units += self._uses.use(session, partition)
                if units >= PARTITIONS_PER_STEP:
                    yield units
                    units = 0
            yield units
            for some in _some_of(forgotten):
                for partition in some:
                    if not session.is_closed and session.partitions.pop(partition, self) is None:
                        self.partitions_count -= 1
                        self._uses.unuse(session, partition)
                yield len(some)
        finally:
            self._coming_count -= left

    def close(self, session: ShareSession) -> None:
        """Its partitions stay with it, for whoever releases what the member holds of them."""
        if session.is_closed:
            return
        session.is_closed = True
        self.partitions_count -= len(session.partitions)
        del self._sessions[session.group, session.member]
        of_connection = self._by_connection[session.connection]
        del of_connection[session]
        if not of_connection:
            del self._by_connection[session.connection]

    def connection_closed(self, connection: str) -> list[ShareSession]:
        """Those that are over with it; they are closed."""
        sessions = list(self._by_connection.get(connection, ()))
        for session in sessions:
            self.close(session)
        return sessions


def _some_of(partitions: list[Partition]) -> Iterable[list[Partition]]:
    starts = range(0, len(partitions), PARTITIONS_PER_STEP)
    return (partitions[start : start + PARTITIONS_PER_STEP] for start in starts)
