"""What clients of transactions were told, and what must never be true of it.

A transaction may be read by who reads what is committed once its commit was asked for, and not if
it was told to be aborted. Checked while it is made:
- *dirty*: a record was read of a transaction whose commit nobody had asked for, or that was told to
  be aborted;
- *diverging*: two reads of an offset differ, or a read and an ack;
- *phantom*: a value is read that nobody sent there;
- *backwards*: the last stable offset that one broker tells one client goes back, is ahead of the
  high watermark, or below the log start; it is less in a later leader epoch than in one before; a
  group's offset goes back;
- *contradicted*: a transaction was told to be committed, and then aborted, or the reverse.
At the end, from one last reading of the whole log by its markers alone (sim/transactions/decided):
- *open*: a transaction that no marker ends;
- *torn*: a transaction that is committed in one partition and aborted in another; or that is
  committed, and an acknowledged record of it is gone;
- *lost*: it was told to be committed, and is not; or an acknowledged record is gone;
- *undead*: it was told to be aborted, or nobody asked for its commit, and it is committed;
- *duplicated*, *reordered*: a value is there twice; a producer's are not in the order in which it
  sent them;
- *stale marker*: of a coordinator that is older than one before it, for the same producer;
- *hidden*, *shown*: what one fetch gave to who reads what is committed lacks a record between where
  it began and where it ended, or has one too many;
- *wrong offset*: a group's offset is not that of the last committed transaction that had one.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from sim.history import Violation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sim.history import Partition
    from sim.transactions.decided import Decided


@dataclass(slots=True, eq=False)
class Txn:
    """One transaction, as its producer knows it."""

    transactional_id: str
    number: int
    #: Value -> its partition; in the order of sending.
    values: dict[bytes, Partition] = field(default_factory=dict)
    acked: set[bytes] = field(default_factory=set)
    #: What the group of this transactional id has got to with it.
    offset: int | None = None
    is_asked: bool = False
    #: Whether it is committed, as somebody said; None: nobody did.
    told: bool | None = None

    def __str__(self) -> str:
        words = {True: "told committed", False: "told aborted", None: "untold"}[self.told]
        asked = "asked for" if self.is_asked else "never asked for"
        return f"{self.transactional_id} #{self.number} ({asked}, {words})"


class Fetched(NamedTuple):
    """What one fetch of who reads what is committed gave: from the position to where it ended."""

    reader: str
    start: int
    end: int
    offsets: frozenset[int]


@dataclass(slots=True)
class TxnHistory:
    txns: list[Txn] = field(default_factory=list)
    #: Of all values: their transaction; of those without one, None.
    sent: dict[bytes, tuple[Partition, Txn | None, int]] = field(default_factory=dict)
    known: dict[Partition, dict[int, bytes]] = field(default_factory=lambda: defaultdict(dict))
    acked: dict[Partition, dict[int, bytes]] = field(default_factory=lambda: defaultdict(dict))
    fetched: dict[Partition, list[Fetched]] = field(default_factory=lambda: defaultdict(list))
    committed_count: int = 0
    #: Of what was acknowledged.
    _owners: dict[tuple[Partition, int], Txn | None] = field(default_factory=dict)
    _stable: dict[tuple[str, Partition], int] = field(default_factory=dict)
    #: Leader epoch -> the least and the most that its owner has told.
    _by_epoch: dict[Partition, dict[int, tuple[int, int]]] = field(
        default_factory=lambda: defaultdict(dict)
    )

    # While it is made.

    def begin(self, transactional_id: str) -> Txn:
        """Numbers rise with the epochs that were told: of two transactions of one id that are both
        committed the later number is the later one."""
        txn = Txn(transactional_id, len(self.txns))
        self.txns.append(txn)
        return txn

    def send(self, txn: Txn | None, partition: Partition, values: Sequence[bytes]) -> None:
        for value in values:
            self.sent[value] = (partition, txn, len(self.sent))
            if txn is not None:
                txn.values[value] = partition

    def ack(
        self,
        txn: Txn | None,
        partition: Partition,
        base_offset: int,
        values: Sequence[bytes | None],
    ) -> None:
        """-1: they are there, nobody knows where. None is a tombstone."""
        for offset, value in enumerate(values, base_offset):
            if value is not None and txn is not None:
                txn.acked.add(value)
            if base_offset >= 0:
                self._owners[partition, offset] = txn
                if value is not None:
                    self._learn(partition, offset, value)
                    self.acked[partition][offset] = value

    def ask(self, txn: Txn) -> None:
        """Its commit is about to be asked for."""
        txn.is_asked = True

    def tell(self, txn: Txn, *, is_committed: bool) -> None:
        if txn.told is not None and txn.told != is_committed:
            raise Violation("contradicted", f"{txn}: now {is_committed}")
        assert txn.is_asked or not is_committed
        txn.told = is_committed
        self.committed_count += is_committed

    def see(self, partition: Partition, offset: int, value: bytes, *, committed: bool) -> None:
        """`committed`: by who reads only that."""
        self._learn(partition, offset, value)
        if committed:
            self.read(partition, offset, value)

    def read(self, partition: Partition, offset: int, value: bytes | None) -> None:
        """By who reads only what is committed; `value` may be another client's, or a tombstone."""
        txn = self._owners.get((partition, offset))
        if txn is None and value is not None and value in self.sent:
            txn = self.sent[value][1]
        if txn is not None and (not txn.is_asked or txn.told is False):
            raise Violation("dirty", f"{partition} offset {offset}: {value!r} of {txn} was read")

    def _learn(self, partition: Partition, offset: int, value: bytes) -> None:
        sent = self.sent.get(value)
        if sent is None or sent[0] != partition:
            raise Violation("phantom", f"{partition} offset {offset} has {value!r}, sent: {sent}")
        other = self.known[partition].setdefault(offset, value)
        if other != value:
            raise Violation(
                "diverging", f"{partition} offset {offset} was {other!r}, and is {value!r}"
            )

    def stable(
        self,
        teller: str,
        partition: Partition,
        stable: int,
        high_watermark: int,
        log_start: int,
        epoch: int = -1,
    ) -> None:
        """What a fetch was told; `teller`: a client and a broker. `epoch`: that of the tenure which
        answered, if it is certain; who owns the partition later knows as much, whoever it is."""
        story = f"{partition}: {teller} told stable {stable}, high watermark {high_watermark}"
        before = self._stable.get((teller, partition), -1)
        if stable < before:
            raise Violation("backwards", f"{story}, after stable {before}")
        if not log_start <= stable <= high_watermark:
            raise Violation("backwards", f"{story}, log start {log_start}")
        self._stable[teller, partition] = stable
        if epoch < 0:
            return
        told = self._by_epoch[partition]
        for other, (least, most) in told.items():
            if (other < epoch and most > stable) or (other > epoch and least < stable):
                raise Violation(
                    "backwards", f"{story} in epoch {epoch}; {least} to {most} in {other}"
                )
        least, most = told.get(epoch, (stable, stable))
        told[epoch] = min(least, stable), max(most, stable)

    def offset_floor(self, transactional_id: str) -> int:
        """The newest offset that was told to be committed; -1: none."""
        return max(
            (
                each.offset
                for each in self.txns
                if each.transactional_id == transactional_id
                and each.told
                and each.offset is not None
            ),
            default=-1,
        )

    def offset_seen(self, transactional_id: str, offset: int, floor: int) -> None:
        """A group's offset was read, -1: there is none; `floor` as it was before the question."""
        if offset < floor:
            raise Violation(
                "backwards", f"the offset of {transactional_id} is {offset}, and was {floor}"
            )
        txn = next((one for one in self.txns if one.offset == offset), None)
        if offset >= 0 and (txn is None or not txn.is_asked or txn.told is False):
            raise Violation("dirty", f"the offset of {transactional_id} is {offset}, of {txn}")

    # At the end.

    def check(self, logs: Mapping[Partition, Decided]) -> dict[Txn, bool | None]:
        """`logs`: of each partition that is not compacted, all of it. Of each transaction whether
        it is committed; None: nothing is left to tell by."""
        for partition, log in logs.items():
            self._check_log(partition, log)
            for fetched in self.fetched[partition]:
                check_fetched(partition, log, fetched)
        visible: dict[bytes, bool] = {
            value: log.is_visible(offset)
            for log in logs.values()
            for offset, value in log.values.items()
        }
        return {txn: self._fate(txn, visible, logs) for txn in self.txns}

    def _check_log(self, partition: Partition, log: Decided) -> None:
        places: dict[bytes, int] = {}
        last: dict[str, int] = {}
        for offset, value in log.values.items():
            self.see(partition, offset, value, committed=False)
            if log.fates.get(offset, True) is None:
                raise Violation("open", f"{partition} offset {offset}: {self.sent[value][1]}")
            if value in places:
                raise Violation(
                    "duplicated", f"{partition}: {value!r} at {places[value]} and {offset}"
                )
            places[value] = offset
            _, txn, number = self.sent[value]
            if txn is None:
                continue
            # Two producers of one id may send at the same time; of one epoch there is only one.
            one = f"{txn.transactional_id} {log.producers[offset]}"
            if number < last.get(one, -1):
                raise Violation("reordered", f"{partition} offset {offset}: {value!r} of {txn}")
            last[one] = number
        for offset, value in self.acked[partition].items():
            if offset >= log.log_start and log.values.get(offset) != value:
                raise Violation(
                    "lost", f"{partition} offset {offset}: {value!r} was acknowledged, and is gone"
                )
        check_markers(partition, log)

    @staticmethod
    def _fate(
        txn: Txn, visible: Mapping[bytes, bool], logs: Mapping[Partition, Decided]
    ) -> bool | None:
        found = {value: visible[value] for value in txn.values if value in visible}
        if len(set(found.values())) > 1:
            raise Violation("torn", f"{txn}: {found}")
        if not found:
            return txn.told
        is_committed = any(found.values())
        if is_committed and (txn.told is False or not txn.is_asked):
            raise Violation("undead", f"{txn} is committed: {found}")
        if not is_committed and txn.told:
            raise Violation("lost", f"{txn} is aborted: {found}")
        for value in txn.acked - visible.keys() if is_committed else ():
            log = logs.get(txn.values[value])
            if log is not None and log.log_start == 0:
                raise Violation("torn", f"{txn} is committed, and {value!r} is gone")
        return is_committed

    def check_offset(
        self, transactional_id: str, offset: int, fates: Mapping[Txn, bool | None]
    ) -> None:
        """`offset`: the group's, at the very end; -1: it has none."""
        wanted = -1
        possible: list[int] = []
        for txn in self.txns:
            if txn.transactional_id != transactional_id or txn.offset is None:
                continue
            if fates[txn]:
                wanted, possible = txn.offset, []
            elif fates[txn] is None and txn.is_asked:
                possible.append(txn.offset)
        if offset != wanted and offset not in possible:
            raise Violation(
                "wrong offset", f"of {transactional_id} is {offset}, not {wanted} or {possible}"
            )


def check_markers(partition: Partition, log: Decided) -> None:
    """Coordinators follow one another. Violation."""
    newest: dict[int, int] = {}
    for marker in log.markers:
        if marker.coordinator_epoch < newest.get(marker.producer_id, -1):
            raise Violation("stale marker", f"{partition}: {marker}, after {newest}")
        newest[marker.producer_id] = marker.coordinator_epoch


def check_fetched(partition: Partition, log: Decided, fetched: Fetched) -> None:
    """What one fetch gave is what the whole log says of that stretch. Violation."""
    start = max(fetched.start, log.log_start)
    wanted = {each for each in log.values if start <= each < fetched.end and log.is_visible(each)}
    found = {each for each in fetched.offsets if each >= start}
    story = f"{partition}: {fetched.reader} fetched {fetched.start} to {fetched.end}"
    if missing := sorted(wanted - found):
        raise Violation("hidden", f"{story}, without {missing}: {log.values[missing[0]]!r}")
    if surplus := sorted(found - wanted):
        raise Violation("shown", f"{story}, with {surplus}: {log.values.get(surplus[0])!r}")
