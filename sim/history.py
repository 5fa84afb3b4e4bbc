"""History: what clients were told, and what must never be true of it.

Checked while it is made:
- *diverging*: two reads of one offset differ, or a read differs from what the ack of that offset
  said;
- *backwards*: the high watermark that one client sees, or a partition's epoch, log start, or the
  end of a closed ledger in metadata goes back; two owners write one epoch;
- *phantom*: a value is read that nobody sent, or that was sent to another partition.
At the end, from one last read of everything:
- *lost*: an acknowledged record is not at its offset (unless it is below the log start);
- *duplicated*: a value is there twice, of a producer that is idempotent or sent it once;
- *reordered*: an idempotent producer's records are not in the order in which it sent them;
- *gap*: offsets are missing between the log start and the end;
- *unseen*: a group's committed offset is behind a record that no member of it ever read.
Of groups, *backwards* also says that a commit, or what a member is told of the last one, is before
one that was acknowledged. *wrong time*: an offset looked up by time is not the first since then.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from broker.log.life.chain import Chain

Partition = tuple[str, int]


class Violation(Exception):
    """The history cannot be: the code is wrong. `kind` is one of the module's words."""

    def __init__(self, kind: str, story: str) -> None:
        super().__init__(f"{kind}: {story}")
        self.kind = kind


@dataclass(slots=True)
class _Sent:
    partition: Partition
    producer: str
    number: int


@dataclass(slots=True)
class History:
    sent: dict[bytes, _Sent] = field(default_factory=dict)
    acked: dict[Partition, dict[int, bytes]] = field(default_factory=lambda: defaultdict(dict))
    read: dict[Partition, dict[int, bytes]] = field(default_factory=lambda: defaultdict(dict))
    #: Producers whose retries may be there twice.
    repeating: set[str] = field(default_factory=set)
    ack_count: int = 0
    #: What the metadata said last.
    chains: dict[str, Chain] = field(default_factory=dict)
    #: Up to here records were deleted on purpose.
    log_start: dict[Partition, int] = field(default_factory=dict)
    #: By group and partition: the highest offset whose commit was acknowledged.
    commits: dict[tuple[str, Partition], int] = field(default_factory=dict)
    #: What members of a group have read.
    group_reads: dict[tuple[str, Partition], set[int]] = field(
        default_factory=lambda: defaultdict(set)
    )
    #: Where the group is done, once nobody writes any more.
    group_ends: dict[Partition, int] = field(default_factory=dict)
    #: When each value was sent, by its producer's clock, in milliseconds: its timestamp.
    sent_ms: dict[bytes, int] = field(default_factory=dict)
    _high_watermarks: dict[tuple[str, Partition], int] = field(default_factory=dict)
    #: The highest offset that each broker has acknowledged.
    _told: dict[tuple[str, Partition], int] = field(default_factory=dict)

    # While it is made.

    def send(self, partition: Partition, producer: str, values: Sequence[bytes]) -> None:
        for value in values:
            self.sent[value] = _Sent(partition, producer, len(self.sent))

    def ack(
        self, partition: Partition, base_offset: int, values: Sequence[bytes], teller: str = ""
    ) -> None:
        """`teller`: the broker that said so."""
        self.ack_count += len(values)
        last_offset = base_offset + len(values) - 1
        self._told[teller, partition] = max(last_offset, self._told.get((teller, partition), -1))
        acked = self.acked[partition]
        for offset, value in enumerate(values, base_offset):
            other = acked.setdefault(offset, value)
            if other != value:
                raise Violation(
                    "diverging",
                    f"{partition} offset {offset} was acknowledged for {other!r} and {value!r}",
                )
            self._agree(partition, offset, value)

    def see(self, partition: Partition, offset: int, value: bytes) -> None:
        """A client read it."""
        sent = self.sent.get(value)
        if sent is None or sent.partition != partition:
            raise Violation("phantom", f"{partition} offset {offset} has {value!r}, sent: {sent}")
        other = self.read[partition].setdefault(offset, value)
        if other != value:
            raise Violation(
                "diverging", f"{partition} offset {offset} was {other!r} and now is {value!r}"
            )
        self._agree(partition, offset, value)

    def _agree(self, partition: Partition, offset: int, value: bytes) -> None:
        acked = self.acked[partition].get(offset, value)
        read = self.read[partition].get(offset, value)
        if not acked == read == value:
            raise Violation(
                "diverging",
                f"{partition} offset {offset} was acknowledged for {acked!r} and read as {read!r}",
            )

    def high_watermark(self, client: str, partition: Partition, offset: int) -> None:
        """What one client was told by one broker; it asks one question at a time."""
        before = self._high_watermarks.get((client, partition), -1)
        if offset < before:
            raise Violation(
                "backwards", f"{partition}: {client} saw high watermark {before}, then {offset}"
            )
        self._high_watermarks[client, partition] = offset

    # Groups.

    def committed(self, group: str, partition: Partition) -> int:
        return self.commits.get((group, partition), -1)

    def commit(self, group: str, partition: Partition, offset: int) -> None:
        """It was acknowledged. Generations follow one another, and each goes on from the last."""
        before = self.committed(group, partition)
        if offset < before:
            raise Violation(
                "backwards", f"{group} committed {offset} of {partition}, after {before}"
            )
        self.commits[group, partition] = offset

    def commit_late(self, group: str, partition: Partition, offset: int, floor: int) -> None:
        """It was acknowledged to a member whose partition may have been another's by then, who
        committed more. `floor` was committed before it was asked for; whether it went back behind
        what came since, the one who calls this has to look (`fetched`)."""
        if offset < floor:
            raise Violation(
                "backwards", f"{group} committed {offset} of {partition}, after {floor}"
            )
        self.commits[group, partition] = max(offset, self.committed(group, partition))

    def fetched(self, group: str, partition: Partition, offset: int, floor: int) -> None:
        """A member was told where the group is; `floor` was acknowledged before it asked."""
        if offset < floor:
            raise Violation(
                "backwards", f"{group} is at {offset} of {partition}, and had committed {floor}"
            )

    def consumed(self, group: str, partition: Partition, offsets: Sequence[int]) -> None:
        self.group_reads[group, partition].update(offsets)

    def is_group_done(self, group: str, partitions: Sequence[Partition]) -> bool:
        return all(
            partition in self.group_ends
            and self.committed(group, partition) >= self.group_ends[partition]
            for partition in partitions
        )

    # Time.

    def known_to(self, teller: str, partition: Partition, offsets: Sequence[int]) -> list[int]:
        """Those that a broker must know, also after it was deposed: up to the last that it has
        acknowledged itself."""
        last_offset = self._told.get((teller, partition), -1)
        return [offset for offset in offsets if offset <= last_offset]

    def acked_since(self, partition: Partition, time_ms: int) -> list[int]:
        """Acknowledged offsets of records of that time and later, ascending."""
        return sorted(
            offset
            for offset, value in self.acked[partition].items()
            if self.sent_ms[value] >= time_ms
        )

    def looked_up(
        self,
        partition: Partition,
        time_ms: int,
        answer: tuple[int, int],
        acked: Sequence[int],
        log_start: int,
    ) -> None:
        """`answer`: offset and timestamp of the first record since `time_ms`, or (-1, -1). `acked`
        as `acked_since` said before the question, `log_start` as it was after the answer."""
        offset, timestamp = answer
        story = f"{partition} since {time_ms}: offset {offset} of {timestamp}"
        if offset >= 0 and timestamp < time_ms:
            raise Violation("wrong time", story)
        value = self.acked[partition].get(offset)
        if value is not None and self.sent_ms[value] != timestamp:
            raise Violation("wrong time", f"{story}, sent at {self.sent_ms[value]}")
        for earlier in acked:
            if earlier >= log_start and (offset < 0 or earlier < offset):
                raise Violation("wrong time", f"{story}, but {earlier} was acknowledged before")

    def chain(self, path: str, new: Chain) -> None:
        """A partition's document in metadata is about to become this."""
        old = self.chains.get(path)
        self.chains[path] = new
        if old is None:
            return
        if new.leader_epoch < old.leader_epoch or new.log_start_offset < old.log_start_offset:
            raise Violation("backwards", f"{path}: from {old} to {new}")
        if (
            new.leader_epoch == old.leader_epoch
            and None not in (old.owner, new.owner)
            and new.owner != old.owner
        ):
            raise Violation("backwards", f"{path}: two owners in one epoch, {old} and {new}")
        known = {info.ledger_id: info for info in new.ledgers}
        for info in old.ledgers:
            after = known.get(info.ledger_id)
            if after is not None and not info.is_open and after.last_offset != info.last_offset:
                raise Violation("backwards", f"{path}: a closed ledger changed, {info}, {after}")

    # At the end.

    def check(self, final: Mapping[Partition, tuple[int, Sequence[tuple[int, bytes]]]]) -> None:
        """`final`: of each partition the log start, and all (offset, value) from it on."""
        for partition, (log_start, records) in final.items():
            self._check_dense(partition, log_start, records)
            for offset, value in records:
                self.see(partition, offset, value)
            self._check_acked(partition, log_start, dict(records))
            self._check_order(partition, records)
        self._check_groups(final)

    def _check_groups(
        self, final: Mapping[Partition, tuple[int, Sequence[tuple[int, bytes]]]]
    ) -> None:
        for (group, partition), read in self.group_reads.items():
            for offset, value in final[partition][1]:
                if offset < self.committed(group, partition) and offset not in read:
                    raise Violation(
                        "unseen",
                        f"{group} has passed offset {offset} of {partition}, {value!r}, "
                        "which none of its members ever had",
                    )

    @staticmethod
    def _check_dense(
        partition: Partition, log_start: int, records: Sequence[tuple[int, bytes]]
    ) -> None:
        for expected, (offset, _) in enumerate(records, log_start):
            if offset != expected:
                raise Violation("gap", f"{partition}: offset {expected} is missing, next {offset}")

    def _check_acked(
        self, partition: Partition, log_start: int, records: Mapping[int, bytes]
    ) -> None:
        for offset, value in self.acked[partition].items():
            if offset >= log_start and records.get(offset) != value:
                raise Violation(
                    "lost", f"{partition} offset {offset}: {value!r} was acknowledged, and is gone"
                )

    def _check_order(self, partition: Partition, records: Sequence[tuple[int, bytes]]) -> None:
        last: dict[str, int] = {}
        seen: dict[bytes, int] = {}
        for offset, value in records:
            sent = self.sent[value]
            if sent.producer in self.repeating:
                continue
            if value in seen:
                raise Violation(
                    "duplicated", f"{partition}: {value!r} at {seen[value]} and {offset}"
                )
            seen[value] = offset
            if sent.number < last.get(sent.producer, -1):
                raise Violation("reordered", f"{partition} offset {offset}: {value!r}")
            last[sent.producer] = sent.number
