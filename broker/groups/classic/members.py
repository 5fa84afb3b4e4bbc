"""Members of one classic group: who is in, who leads, which protocols all of them speak.

Owner: the group's state machine (group_core). Pure: no clock, no loop.

Invariants, asserted by `check`:
- `leader_id` names a member, and is None exactly when there is none;
- every entry of `static_ids` names a member that carries this instance id, and the other way round;
- `awaiting_join_count` is the number of members with a join token.

Kafka keeps members in a Java map in no defined order; here they are in order of joining, so that
elections, votes that end in a tie, and the leader's member list are the same in every run.
"""

from __future__ import annotations

from wire.dataclass import dataclass

#: As many as a member may name: each is counted in one turn of the loop, and those of all members
#: are looked through when one is selected. Clients name up to five; Kafka has no such bound.
PROTOCOLS_MAX = 100
#: A member's protocols in its order of preference: (name, opaque metadata).
Protocols = tuple[tuple[str, bytes], ...]


@dataclass(slots=True)
class Member:
    """One member. A token stands for a request that awaits its answer; None: none does."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    assignment: bytes = b""
    join_token: object | None = None
    sync_token: object | None = None
    #: Joined, but never yet told its member id: it cannot send heartbeats.
    is_new: bool = False
    session_deadline_ms: int = 0

    def metadata(self, protocol_name: str) -> bytes:
        """The metadata that this member gave for a protocol; KeyError if it gave none."""
        for name, metadata in self.protocols:
            if name == protocol_name:
                return metadata
        raise KeyError(f"member {self.member_id} does not support protocol {protocol_name}")

    @property
    def is_excused(self) -> bool:
        """Waits for the group, so its silence is no failure. A new member may only wait so long."""
        return not self.is_new and (self.join_token is not None or self.sync_token is not None)


class Members:
    """The table of members and what is derived from it."""

    __slots__ = ("_protocol_counts", "awaiting_join_count", "by_id", "leader_id", "static_ids")

    def __init__(self) -> None:
        self.by_id: dict[str, Member] = {}
        self.static_ids: dict[str, str] = {}
        self.leader_id: str | None = None
        self.awaiting_join_count = 0
        self._protocol_counts: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.by_id)

    def said_bytes(self) -> int:
        """Of the metadata of all members, for each protocol that they support."""
        members = self.by_id.values()
        return sum(len(metadata) for each in members for _, metadata in each.protocols)

    def add(self, member: Member) -> None:
        assert member.member_id not in self.by_id
        if member.instance_id is not None:
            assert member.instance_id not in self.static_ids
            self.static_ids[member.instance_id] = member.member_id
        assert (self.leader_id is None) == (not self.by_id)
        self.by_id[member.member_id] = member
        self._count(member.protocols, 1)
        if member.join_token is not None:
            self.awaiting_join_count += 1
        if self.leader_id is None:
            self.leader_id = member.member_id

    def remove(self, member_id: str) -> Member | None:
        """Takes a member out; the longest-standing one that is left leads. None: was no member."""
        member = self.by_id.pop(member_id, None)
        if member is None:
            return None
        assert member.join_token is None, "answer a member's request before it is removed"
        assert member.sync_token is None, "answer a member's request before it is removed"
        self._count(member.protocols, -1)
        if member.instance_id is not None:
            del self.static_ids[member.instance_id]
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.by_id), None)
        assert (self.leader_id is None) == (not self.by_id)
        assert self.awaiting_join_count <= len(self.by_id)
        return member

    def replace_static(self, old_id: str, new_id: str) -> Member:
        """The same instance comes back by a new member id (KIP-345). It keeps its place, its
        assignment and, if it led, the lead. Its requests must have been answered before."""
        member = self.by_id[old_id]
        assert member.instance_id is not None
        assert member.join_token is None
        assert member.sync_token is None
        assert new_id not in self.by_id
        member.member_id = new_id
        self.by_id = {new_id if key == old_id else key: each for key, each in self.by_id.items()}
        self.static_ids[member.instance_id] = new_id
        if self.leader_id == old_id:
            self.leader_id = new_id
        return member

    def set_protocols(self, member: Member, protocols: Protocols) -> None:
        self._count(member.protocols, -1)
        member.protocols = protocols
        self._count(protocols, 1)

    def set_join_token(self, member: Member, token: object | None) -> None:
        if (member.join_token is None) != (token is None):
            self.awaiting_join_count += 1 if token is not None else -1
        assert 0 <= self.awaiting_join_count <= len(self.by_id)
        member.join_token = token

    def elect_joined_leader(self) -> bool:
        """Leaves the lead with a member that has joined; False if there is no such member.

        A leader that is late for a rebalance, which only a static member can be and stay in the
        group, loses the lead to the first that is not."""
        if self.leader_id is None:
            return False
        if self.by_id[self.leader_id].join_token is not None:
            return True
        for member in self.by_id.values():
            if member.join_token is not None:
                self.leader_id = member.member_id
                return True
        assert not self.awaiting_join_count, "nobody has joined"
        return False

    def supports_any(self, names: list[str]) -> bool:
        """Whether one of these protocols is spoken by every member."""
        count = len(self.by_id)
        return any(self._protocol_counts.get(name, 0) == count for name in names)

    def select_protocol(self) -> str:
        """The protocol with the most votes; each member votes for the first of its own list that
        every member speaks. A tie goes to the one that was voted for first."""
        assert self.by_id, "an empty group selects no protocol"
        count = len(self.by_id)
        votes: dict[str, int] = {}
        for member in self.by_id.values():
            choice = next(n for n, _ in member.protocols if self._protocol_counts[n] == count)
            votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=votes.__getitem__)

    def rebalance_timeout_ms(self) -> int:
        """The longest of the members': how long a rebalance waits for them. 0 without members."""
        return max((m.rebalance_timeout_ms for m in self.by_id.values()), default=0)

    def check(self) -> None:
        """Asserts the invariants of this table."""
        assert (self.leader_id is None) == (not self.by_id)
        assert self.leader_id is None or self.leader_id in self.by_id
        static = {m.instance_id: i for i, m in self.by_id.items() if m.instance_id is not None}
        assert static == self.static_ids
        awaiting = sum(m.join_token is not None for m in self.by_id.values())
        assert awaiting == self.awaiting_join_count
        counts: dict[str, int] = {}
        for member in self.by_id.values():
            for name in dict.fromkeys(n for n, _ in member.protocols):
                counts[name] = counts.get(name, 0) + 1
        assert counts == self._protocol_counts

    def _count(self, protocols: Protocols, step: int) -> None:
        for name in dict.fromkeys(name for name, _ in protocols):
            left = self._protocol_counts.get(name, 0) + step
            assert left >= 0, "what is taken out was put in"
            if left:
                self._protocol_counts[name] = left
            else:
                del self._protocol_counts[name]
