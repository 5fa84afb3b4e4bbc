"""What a consumer group (KIP-848) and a share group (KIP-932) were told, and what is wrong with it;
and with what a streams group (KIP-1071) has counted.

Times are seconds of the machine's monotonic clock, taken by the members themselves.
"""

import itertools
from collections import Counter, defaultdict
from dataclasses import dataclass, field

#: A broker that was frozen hands out what it had acquired before, when it is thawed; and a member
#: may have had it in hand when another had it settled. For longer than this neither can be.
LATE_S = 30.0
#: A commit that took longer, or had no answer, may be carried out after a later one.
SLOW_COMMIT_S = 1.0
NAMED_MAX = 5
#: A member that its client takes for the wrong one may be given a record, and once more after its
#: lock, until its broker and its client agree on what it is to have. Not so often.
MISLED_MAX = 2
MISLED = "NotLeaderOrFollowerException"
#: Exceptions after which an acknowledgement is known not to have counted. After any other it may.
REFUSED = {"InvalidRecordStateException"}
SETTLING = {"ACCEPT", "REJECT"}

Rows = dict[int, list[tuple[int, bytes]]]


@dataclass
class Commits:
    """Of one partition of a consumer group."""

    #: (when it was acknowledged, offset)
    told: list[tuple[float, int]] = field(default_factory=list)
    doubtful: set[int] = field(default_factory=set)

    def floor(self, at: float) -> int:
        """The highest that had been acknowledged by then."""
        return max((offset for when, offset in self.told if when < at), default=0)


class ConsumerGroupHistory:
    """Events of all members, of each in its order."""

    def __init__(self) -> None:
        self.commits: dict[int, Commits] = defaultdict(Commits)
        #: [first, end) of each partition, and by member: where it is, and since when it has it.
        self.ranges: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self._at: dict[tuple[int, int], tuple[float, int | None]] = {}
        #: (member, partition, when it got it, the first offset that it read then)
        self.beginnings: list[tuple[int, int, float, int]] = []
        self.wrong: list[str] = []
        self.counts: Counter[str] = Counter()

    def note(self, member: int, event: dict) -> None:
        kind = event["event"]
        if kind == "assigned":
            self.counts["assignments"] += len(event["partitions"])
            for partition in event["partitions"]:
                self._at[member, partition] = event["at"], None
        elif kind in ("revoked", "lost"):
            for partition in event["partitions"]:
                self._at.pop((member, partition), None)
        elif kind == "read":
            self._read(member, event)
        elif kind == "committed":
            self.counts["commits"] += 1
            for partition, offset in event["offsets"]:
                commits = self.commits[partition]
                commits.told.append((event["at"], offset))
                if event["at"] - event["since"] > SLOW_COMMIT_S:
                    commits.doubtful.add(offset)
        elif kind == "uncommitted":
            self.counts[f"commits failed {event['what']}"] += 1
            for partition, offset in event["offsets"]:
                self.commits[partition].doubtful.add(offset)

    def _read(self, member: int, event: dict) -> None:
        partition, first, end = event["partition"], event["first"], event["end"]
        where = f"member {member}, partition {partition}"
        if event["count"] != end - first:
            self.wrong.append(f"gap: {where}: {event}")
        self.ranges[partition].append((first, end))
        if (member, partition) not in self._at:
            self.wrong.append(f"not its own: {where}: reads {first} of what it was not given")
            return
        since, position = self._at[member, partition]
        if position is None:
            self.beginnings.append((member, partition, since, first))
        elif first < position:
            self.wrong.append(f"non-monotonic poll: {where}: {first} comes when {position} is next")
        self._at[member, partition] = since, end

    def position(self, partition: int) -> int:
        """Everything before it was read."""
        position = 0
        for first, end in sorted(self.ranges[partition]):
            if first > position:
                break
            position = max(position, end)
        return position

    def floor(self, partition: int) -> int:
        return self.commits[partition].floor(float("inf"))

    def judge(self, rows: Rows, committed: dict[int, int]) -> list[str]:
        """`committed`: what is, in the end."""
        wrong = list(self.wrong)
        for member, partition, since, first in self.beginnings:
            floor = self.commits[partition].floor(since)
            if first < floor and first not in self.commits[partition].doubtful:
                wrong.append(
                    f"backwards: member {member} begins partition {partition} at {first}, and"
                    f" {floor} was committed before"
                )
        for partition, row in rows.items():
            position = self.position(partition)
            if position != len(row):
                wrong.append(
                    f"unseen: partition {partition} was read up to {position} of {len(row)}"
                )
            if committed.get(partition, 0) != len(row):
                wrong.append(
                    f"lag: of partition {partition} {committed.get(partition, 0)} is committed, and"
                    f" the end is {len(row)}"
                )
        return wrong


@dataclass
class Delivery:
    """Of one record to one member. `since`: it was fetched after that."""

    member: int
    at: float
    since: float
    count: int
    type: str
    #: When it was told, and "" or the name of the exception; None as long as it is not.
    told_at: float | None = None
    error: str | None = None

    @property
    def is_settled(self) -> bool:
        """For ever: nobody may get this record again."""
        return self.error == "" and self.type in SETTLING

    @property
    def may_be_settled(self) -> bool:
        return self.type in SETTLING and self.error not in REFUSED


class ShareGroupHistory:
    """Events of all members, of each in its order."""

    def __init__(self) -> None:
        self.deliveries: dict[tuple[int, int], list[Delivery]] = defaultdict(list)
        #: By member and place: the last delivery.
        self._last: dict[tuple[int, int, int], Delivery] = {}
        self.counts: Counter[str] = Counter()
        #: By exception: what the first one said.
        self.words: dict[str, str] = {}
        self.late: list[tuple[int, int]] = []

    def note(self, member: int, event: dict) -> None:
        partition = event.get("partition")
        if event["event"] == "got":
            for offset, count, kind in event["records"]:
                made = Delivery(member, event["at"], event["since"], count, kind)
                self.deliveries[partition, offset].append(made)
                self._last[member, partition, offset] = made
                self.counts["deliveries"] += 1
        elif event["event"] == "told":
            name = event["error"] or "acknowledged"
            self.counts[name] += len(event["offsets"])
            if event["error"]:
                self.words.setdefault(name, event["words"])
            for offset in event["offsets"]:
                last = self._last[member, partition, offset]
                last.told_at, last.error = event["at"], event["error"]

    def judge(self, rows: Rows, count_limit: int) -> list[str]:
        """Once the group has no lag any more."""
        wrong: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for partition, row in rows.items():
            for offset, _ in row:
                place = partition, offset
                for words in self._judge_one(place, count_limit):
                    wrong[words].append(place)
        return [
            f"{words}: {len(places)} records, {places[:NAMED_MAX]}: {self.deliveries[places[0]]}"
            for words, places in wrong.items()
        ]

    def _judge_one(self, place: tuple[int, int], count_limit: int) -> set[str]:
        every = self.deliveries[place]
        if not every:
            return {"never delivered"}
        wrong = set()
        if max(each.count for each in every) > count_limit:
            wrong.add(f"delivered more than {count_limit} times")
        if not any(each.may_be_settled or each.count >= count_limit for each in every):
            wrong.add("passed over, though nobody has accepted or rejected it")
        misled = Counter(each.member for each in every if each.error == MISLED)
        if max(misled.values(), default=0) > MISLED_MAX:
            wrong.add("given again and again to a member that cannot acknowledge it")
        for first, other in itertools.permutations(every, 2):
            if not first.is_settled or other.since <= first.told_at:
                continue
            if other.error == "":
                wrong.add("settled, then delivered and acknowledged again")
            elif other.at > first.told_at + LATE_S:
                wrong.add("settled, and delivered later")
            else:
                self.late.append(place)
        return wrong

    def most_delivered(self) -> str:
        """What befell the record with the highest delivery count."""
        if not self.deliveries:
            return "none"
        place, row = max(
            self.deliveries.items(), key=lambda item: max(each.count for each in item[1])
        )
        began = row[0].at
        told = (
            f"{each.at - began:.1f} s: member {each.member}, count {each.count}, {each.type}"
            + (f", told {each.error or 'yes'} at {each.told_at - began:.1f} s"
               if each.told_at is not None else ", told nothing")
            for each in row
        )  # fmt: skip
        return f"{place}, first at {began:.1f}: {'; '.join(told)}"

    def describe(self) -> str:
        again = sum(len(each) > 1 for each in self.deliveries.values())
        most = max((each.count for row in self.deliveries.values() for each in row), default=0)
        told = ", ".join(f"{count} {name}" for name, count in sorted(self.counts.items()))
        return (
            f"{len(self.deliveries)} records; {told}; {again} records more than once, with a"
            f" delivery count of {most} at most; {len(self.late)} that a broker had handed out"
            " before they were settled"
        )


def judge_counts(source: Rows, out: Rows, keys: int) -> list[str]:
    """Values of the source begin with a number and a point, and its key is that, modulo `keys`;
    those of `out` are «key count»."""
    wanted = Counter(
        int(value.partition(b".")[0]) % keys for row in source.values() for _, value in row
    )
    found: dict[int, list[int]] = defaultdict(list)
    for row in out.values():
        for _, value in row:
            key, count = map(int, value.split())
            found[key].append(count)
    wrong = []
    for key in sorted(wanted.keys() | found.keys()):
        counts = found[key]
        if counts == list(range(1, wanted[key] + 1)):
            continue
        odd = next(
            ((n, count) for n, count in enumerate(counts, 1) if n != count), (len(counts), None)
        )
        wrong.append(
            f"key {key}: {len(counts)} counts of {wanted[key]} records, up to"
            f" {max(counts, default=0)}; the first that is not in order: {odd}"
        )
    return wrong
