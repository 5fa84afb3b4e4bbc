"""Whom the coordinator knows: the first batch of a transaction in a partition waits for its word.

Nothing is appended to a transaction that its coordinator does not know of, since nobody would ever
end it, and its first offset would hold back all readers of the partition (KIP-890; «hanging
transactions»). So before the first batch of a transaction the coordinator is asked, through
TransactionVerifier: to add the partition to the transaction (Produce from version 12 on), or
whether that was done (before). While the answer is awaited the batch is *parked* here, and what
comes behind it of the same producer, too, so that it is not overtaken; others pass.

A question has a *guard*. It becomes void with a marker of the producer: what was asked was about
the transaction that the marker has ended. Otherwise a batch could be appended behind the marker of
its own transaction (KAFKA-14884). One guard stays: of Produce 12 and later, if the marker has the
epoch that the guard is for. Then the marker is that of the transaction before, which arrives while
the next one asks (KAFKA-18575).

The coordinator of groups writes batches of transactions, too. It asks here before it has one
(`ask_ahead`), since who may commit is looked at when the answer has come (KAFKA-15784). What it
asks has a guard like any other, which is void when its batch is numbered, or is not.

Bounded: PARKED_COUNT_MAX batches and PARKED_BYTES_MAX of each producer (one batch may be larger),
and as many bytes as `ParkingRoom` has for the broker. What finds no place is refused with
NOT_ENOUGH_REPLICAS, which all clients retry, and so is all that comes behind it until the question
is answered.

A question is of one transactional id. What waits behind it under another one is not refused with
it, but asks for itself: else anybody could have a producer told that its id is a stranger's.

Deviation: of two questions for one producer Kafka answers the older one with NETWORK_EXCEPTION, and
batches that come while one is open with OUT_OF_ORDER_SEQUENCE_NUMBER.

Owner: the event loop's thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from broker.log.append.queue import CallbackAppend
from broker.log.transactions.origin import IMPLICIT_ADD_VERSION, VERIFIED, Guard, Origin
from wire.kafka.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from broker.log.append.queue import Append
    from broker.log.append.validation import Checked
    from wire.kafka.records.batch import BatchHeader

    Parked = tuple[Append, Checked]

PARKED_COUNT_MAX = 5
PARKED_BYTES_MAX = 1 << 20
ROOM_BYTES_MAX = 64 << 20
#: From this one on a client knows TRANSACTION_ABORTABLE.
ABORTABLE_VERSION = 11


class CoordinatorAppend(CallbackAppend):
    """A batch of one of our coordinators: what belongs to a transaction was asked about, `origin`
    tells under which guard."""

    __slots__ = ("origin",)

    def __init__(
        self, records: memoryview, done: Callable[[Append], None], origin: Origin | None = VERIFIED
    ) -> None:
        super().__init__(records, done)
        self.origin = origin


class TransactionVerifier(Protocol):
    """Asks the coordinators of transactions, on this broker or others."""

    def ask(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[tuple[str, int]],
        *,
        adds: bool,
        done: Callable[[ErrorCode], None],
    ) -> None:
        """Adds `partitions` (topic name, number) to the transaction, or asks whether they are part
        of it. `done(error)` is called exactly once, possibly before this returns: NONE, or what the
        coordinator answered; if it could not be asked, NETWORK_EXCEPTION. That a transaction's last
        end is still under way (CONCURRENT_TRANSACTIONS) is waited for here, for as long as
        add.partitions.to.txn.retry.backoff.max.ms allows, before it is told. Without
        transaction.partition.verification.enable the answer to what does not add is NONE."""


class ParkingRoom:
    """Bytes of all batches that a broker has parked."""

    __slots__ = ("bytes", "bytes_max")

    def __init__(self, bytes_max: int = ROOM_BYTES_MAX) -> None:
        self.bytes = 0
        self.bytes_max = bytes_max


class TransactionGate:
    """Of one partition. `admit(append, checked)` is called with each batch that may pass: its
    origin has the guard, and `is_valid` tells when it is numbered whether that still holds.
    `refuse` is called with each other one."""

    def __init__(
        self,
        verifier: TransactionVerifier,
        topic: str,
        partition: int,
        room: ParkingRoom,
        *,
        admit: Callable[[Append, Checked], None],
        refuse: Callable[[Append, Checked, KafkaError], None],
    ) -> None:
        self._verifier = verifier
        self._partitions = ((topic, partition),)
        self._room = room
        self._admit = admit
        self._refuse = refuse
        self._guards: dict[int, Guard[Parked]] = {}

    @property
    def parked_count(self) -> int:
        """For tests: the batches that wait for a coordinator."""
        return sum(len(guard.parked) for guard in self._guards.values())

    def is_asking(self, header: BatchHeader) -> bool:
        """Whether the batch has to wait behind another one of its producer."""
        guard = self._guards.get(header.producer_id)
        return guard is not None and guard.is_open and guard.producer_epoch >= header.producer_epoch

    def park_behind(self, append: Append, checked: Checked) -> None:
        """Behind the one that `is_asking`."""
        header = checked.header
        guard = self._guards[header.producer_id]
        if header.producer_epoch < guard.producer_epoch:
            fenced = f"producer {header.producer_id} began epoch {guard.producer_epoch}"
            self._refuse(append, checked, KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, fenced))
        else:
            self._park(guard, append, checked)

    def ask(self, append: Append, checked: Checked) -> None:
        """Parks the first batch of what may be a transaction until the coordinator has answered."""
        header, origin = checked.header, append.origin
        assert origin is not None
        before = self._guards.get(header.producer_id)
        if before is not None:
            self._give_up(
                before, ErrorCode.INVALID_PRODUCER_EPOCH, f"epoch {header.producer_epoch} began"
            )
        guard: Guard[Parked] = Guard(header.producer_id, header.producer_epoch, origin)
        if not self._park(guard, append, checked):
            return
        self._guards[header.producer_id] = guard
        self._send(guard)

    def ask_ahead(
        self,
        origin: Origin,
        producer_id: int,
        producer_epoch: int,
        *,
        is_open: bool,
        done: Callable[[ErrorCode], None],
    ) -> None:
        """As `ask`, when there is no batch yet. `done(NONE)`: a batch of `origin` may be submitted,
        or the origin must be given back (`settled`). Else what the coordinator answered, or what
        made the question void. `is_open`: the transaction is, so nobody is asked; the batch is
        refused all the same if it has ended until that is numbered."""
        guard = self._guards.get(producer_id)
        if is_open:
            guard = Guard(producer_id, producer_epoch, origin)
            guard.is_open = False
            self._let_pass(guard, origin, done)
        elif guard is None or guard.producer_epoch < producer_epoch:
            if guard is not None:
                self._give_up(
                    guard, ErrorCode.INVALID_PRODUCER_EPOCH, f"epoch {producer_epoch} began"
                )
            guard = Guard(producer_id, producer_epoch, origin)
            guard.asking.append((origin, done))
            self._guards[producer_id] = guard
            self._send(guard)
        elif guard.producer_epoch > producer_epoch:
            done(ErrorCode.INVALID_PRODUCER_EPOCH)
        elif guard.is_open:
            guard.asking.append((origin, done))
        else:
            self._let_pass(guard, origin, done)

    def is_valid(self, guard: Guard[Parked]) -> bool:
        """Whether a batch that passed with that guard may be numbered."""
        return self._guards.get(guard.producer_id) is guard

    def settled(self, guard: Guard[Parked], *, is_numbered: bool) -> None:
        """A batch that passed was numbered, which opened the transaction, or refused."""
        guard.waiting -= 1
        if (is_numbered or not guard.waiting) and self.is_valid(guard):
            del self._guards[guard.producer_id]

    def marker_appended(self, producer_id: int, producer_epoch: int) -> None:
        """What was asked for the producer is void, unless the marker is that of the transaction
        before."""
        guard = self._guards.get(producer_id)
        if guard is None or (guard.origin.adds and guard.producer_epoch == producer_epoch):
            return
        self._give_up(guard, ErrorCode.INVALID_TXN_STATE, "the transaction has ended meanwhile")

    def close(self) -> list[Append]:
        """The partition went offline: gives back what is parked. Answers change nothing any
        more."""
        lost = []
        guards = list(self._guards.values())
        self._guards.clear()
        for guard in guards:
            lost += [append for append, _ in self._unpark(guard)]
            self._tell_asking(guard, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return lost

    def _send(self, guard: Guard[Parked]) -> None:
        self._verifier.ask(
            guard.origin.transactional_id,
            guard.producer_id,
            guard.producer_epoch,
            self._partitions,
            adds=guard.origin.adds,
            done=lambda error: self._answered(guard, error),
        )

    @staticmethod
    def _let_pass(guard: Guard[Parked], origin: Origin, done: Callable[[ErrorCode], None]) -> None:
        origin.guard = guard
        guard.waiting += 1
        done(ErrorCode.NONE)

    @staticmethod
    def _tell_asking(guard: Guard[Parked], error: ErrorCode) -> None:
        asking, guard.asking = guard.asking, []
        for _, done in asking:
            done(error)

    def _park(self, guard: Guard[Parked], append: Append, checked: Checked) -> bool:
        size = len(append.records)
        room = self._room
        if (
            guard.is_full
            or len(guard.parked) >= PARKED_COUNT_MAX
            or (guard.parked and guard.bytes + size > PARKED_BYTES_MAX)
            or room.bytes + size > room.bytes_max
        ):
            guard.is_full = True  # what is smaller would overtake it
            full = f"too much waits for the coordinator of producer {guard.producer_id}"
            self._refuse(append, checked, KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, full))
            return False
        guard.parked.append((append, checked))
        guard.bytes += size
        room.bytes += size
        return True

    def _take_strangers(self, guard: Guard[Parked]) -> list[Parked]:
        """Takes out what names another transactional id than the question: whoever sends the
        producer's id under a wrong name has only himself refused."""
        name = guard.origin.transactional_id
        own: list[Parked] = []
        strangers: list[Parked] = []
        for append, checked in guard.parked:
            assert append.origin is not None
            is_own = append.origin.transactional_id == name
            (own if is_own else strangers).append((append, checked))
        guard.parked = own
        size = sum(len(append.records) for append, _ in strangers)
        guard.bytes -= size
        self._room.bytes -= size
        return strangers

    def _unpark(self, guard: Guard[Parked]) -> list[tuple[Append, Checked]]:
        """All that waits behind the question, which is over."""
        guard.is_open = False
        parked, guard.parked = guard.parked, []
        self._room.bytes -= guard.bytes
        guard.bytes = 0
        assert self._room.bytes >= 0, "what is taken out was put in"
        return parked

    def _give_up(self, guard: Guard[Parked], code: ErrorCode, why: str) -> None:
        if self.is_valid(guard):
            del self._guards[guard.producer_id]
        for append, checked in self._unpark(guard):
            self._refuse(append, checked, KafkaError(code, why))
        self._tell_asking(guard, code)

    def _answered(self, guard: Guard[Parked], error: ErrorCode) -> None:
        if not guard.is_open or not self.is_valid(guard):
            return  # it was given up, and all that waited was told
        asking, guard.asking = guard.asking, []
        if error:
            name = guard.origin.transactional_id
            strangers = self._take_strangers(guard)
            code = produce_error(error, guard.origin.produce_version)
            self._give_up(guard, code, f"the coordinator of transactions: {error.name}")
            for origin, done in asking:  # who has an API of its own tells it in its own way
                if origin.transactional_id == name:
                    done(error)
                else:
                    who = guard.producer_id, guard.producer_epoch
                    self.ask_ahead(origin, *who, is_open=False, done=done)
            for append, checked in strangers:
                if self.is_asking(checked.header):
                    self.park_behind(append, checked)
                else:
                    self.ask(append, checked)
            return
        passing = self._unpark(guard)
        guard.waiting = len(passing) + len(asking)
        for append, checked in passing:
            assert append.origin is not None
            append.origin.guard = guard
            self._admit(append, checked)
        for origin, done in asking:
            origin.guard = guard
            done(ErrorCode.NONE)


def produce_error(error: ErrorCode, produce_version: int) -> ErrorCode:
    """What a producer is told of a coordinator's refusal (KIP-890; Kafka's ReplicaManager).

    Whoever may try again hears NOT_ENOUGH_REPLICAS, which clients of any age retry without asking
    for metadata."""
    if error in _RETRIED or (
        error is ErrorCode.CONCURRENT_TRANSACTIONS and produce_version < IMPLICIT_ADD_VERSION
    ):
        return ErrorCode.NOT_ENOUGH_REPLICAS
    if error is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error is ErrorCode.TRANSACTION_ABORTABLE and produce_version < ABORTABLE_VERSION:
        return ErrorCode.INVALID_TXN_STATE
    return error


_RETRIED = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
