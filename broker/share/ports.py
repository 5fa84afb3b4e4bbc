"""Where the state of share partitions is kept, as those who need it see it (KIP-932's Persister).

The real one asks the share coordinator of each key, which may be another broker. So a call may be
lost, late, or done twice although it failed here: every one of them is idempotent by its epochs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from wire.kafka.errors import ErrorCode


class ShareKey(NamedTuple):
    """One partition as one share group sees it. A topic made anew under its name is another."""

    group_id: str
    topic_id: UUID
    partition: int


class StateBatch(NamedTuple):
    """Records that are in one state, as it is stored."""

    first_offset: int
    last_offset: int
    #: 0 available, 2 acknowledged, 3 archiving, 4 archived. Never 1, acquired.
    delivery_state: int
    delivery_count: int


class ShareState(NamedTuple):
    """What is stored of a key. `error` other than NONE: the rest says nothing."""

    error: ErrorCode
    state_epoch: int = 0
    #: -1: nothing was delivered yet; the group's share.auto.offset.reset says where it begins.
    start_offset: int = -1
    #: Records from `start_offset` on that are acknowledged or archived; -1 if unknown.
    delivery_complete_count: int = -1
    batches: tuple[StateBatch, ...] = ()
    #: Of the partition's leader that read it last; 0: none did.
    leader_epoch: int = 0


class Persister(Protocol):
    """Every call answers exactly once, with an error instead of an exception; those of a
    coordinator that cannot be reached are COORDINATOR_NOT_AVAILABLE. One call of many keys asks
    each coordinator once."""

    async def initialize(
        self, keys: Sequence[tuple[ShareKey, int, int]], /
    ) -> dict[ShareKey, ErrorCode]:
        """Begins each (key, state epoch, start offset). FENCED_STATE_EPOCH if a later one is."""

    async def read(self, keys: Sequence[tuple[ShareKey, int]], /) -> dict[ShareKey, ShareState]:
        """Each (key, leader epoch): older leaders are fenced from now on; -1 fences nobody."""

    async def write(
        self,
        key: ShareKey,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: Sequence[StateBatch],
        /,
    ) -> ErrorCode:
        """Merges the batches into what is stored. `start_offset` -1: unchanged. FENCED_STATE_EPOCH,
        FENCED_LEADER_EPOCH; INVALID_REQUEST for a key that was never initialised."""

    async def delete(self, keys: Sequence[ShareKey], /) -> dict[ShareKey, ErrorCode]:
        """Also of keys that are not there."""

    async def read_summary(self, keys: Sequence[ShareKey], /) -> dict[ShareKey, ShareState]:
        """As `read` with a leader epoch of -1, without batches."""


class ShareGroupSettings(NamedTuple):
    """What a share group's partitions go by; of a group without settings of its own, the
    broker's."""

    #: share.record.lock.duration.ms
    record_lock_duration_ms: int = 30_000
    #: share.delivery.count.limit
    delivery_count_limit: int = 5
    #: share.partition.max.record.locks
    partition_max_record_locks: int = 2_000
    #: share.auto.offset.reset: «latest», «earliest», or «by_duration:» and an ISO-8601 duration.
    auto_offset_reset: str = "latest"
    #: share.isolation.level: whether it is read_committed.
    reads_committed: bool = False
    #: share.renew.acknowledge.enable
    renew_acknowledge_enable: bool = True


class ShareGroups(Protocol):
    """What the leader of a partition can know of a share group. Plain memory: it may be asked for
    each request. The group's coordinator may be another broker."""

    def settings(self, group_id: str, /) -> ShareGroupSettings:
        """As they are in force now. The same object as long as none was changed."""

    def is_member(self, group_id: str, member_id: str, /) -> bool | None:
        """None: this broker does not coordinate the group, or has not loaded it yet. What is not
        stored yet counts."""
