"""A transactional producer, as applications have them and as they misbehave.

Each transaction writes to some partitions, and has one of these ends: it is committed, or aborted;
its producer dies within it, or right after it has asked for the commit; or it takes longer than its
timeout, and is gone on with. Whatever is refused because this producer's epoch is over makes it
begin anew, as an application that is started again does, or go on as Java's client does: with an
abort, or by naming its id and epoch. What was sent and not answered is sent again. Of version 2 old
requests come late, too, in the midst of the next transaction (Jepsen's delayed EndTxn); with
version 1 that tears transactions, which is the protocol's own fault (KIP-890), so there a producer
that did not hear the answer to an EndTxn begins a new epoch.

A *twin* is a second producer of the same transactional id: each fences the other.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import trio

from sim.fetching import RETRY_SECONDS
from sim.history import Violation
from sim.keyed import KEY_COUNT, TOMBSTONE_SHARE
from sim.names import KEYED_PARTITION
from sim.transactions.protocol import TV2, TxnProtocol
from sim.workload import RETRIABLE
from wire.kafka.api_keys import ApiKey
from wire.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sim.history import Partition
    from sim.transactions.history import Txn
    from sim.transactions.protocol import Pair
    from sim.world import World
    from wire.kafka.messages import EndTxnRequest, ProduceRequest

#: Written in transactions.
THINK_SECONDS = 0.7
#: A second producer of one id leaves the first one some time.
TWIN_SECONDS = 2.0
#: transaction.timeout.ms, drawn for each.
TIMEOUT_MS_MIN, TIMEOUT_MS_MAX = 1_500, 3_000
#: How transactions end, and how often.
ENDS = ("commit", "abort", "die", "vanish", "stall")
END_WEIGHTS = (60, 14, 8, 9, 9)
OFFSET_SHARE, LATE_SHARE, PLAIN_SHARE, NAMED_SHARE = 0.4, 0.3, 0.15, 0.5
LEFT_SHARE = 0.5
#: The producer is to ask again.
PASSING = RETRIABLE | {ErrorCode.CONCURRENT_TRANSACTIONS}
#: Nothing of what was asked was done.
NOTHING_DONE = frozenset(
    {ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
)
#: Its transaction, or its epoch, is over.
OVER = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.TRANSACTION_ABORTABLE,
    }
)


class OverError(Exception):
    """The transaction cannot be gone on with."""


class TxnProducer:
    def __init__(
        self, world: World, name: str, transactional_id: str, version: int, *, is_twin: bool
    ) -> None:
        self._world = world
        self.name = name
        self._rng = world.rng_for(name)
        timeout_ms = self._rng.randrange(TIMEOUT_MS_MIN, TIMEOUT_MS_MAX)
        self._protocol = TxnProtocol(world.client(name), transactional_id, version, timeout_ms)
        self._version = version
        self._is_twin = is_twin
        self._is_ready = False
        self._has_offsets = False
        self._count = 0
        #: What was acknowledged of the compacted partition in this transaction.
        self._keyed: list[tuple[int, list[tuple[bytes, bytes | None]]]] = []
        self._late_end: EndTxnRequest | None = None
        self._late_request: tuple[Partition, ProduceRequest] | None = None

    async def run(self) -> None:
        world, rng = self._world, self._rng
        served = None
        while served is None:
            served = await self._protocol.serves(ApiKey.TXN_OFFSET_COMMIT)
            await trio.sleep(RETRY_SECONDS)
        self._has_offsets = served
        while not world.is_draining:
            if not self._is_ready:
                await self._init()
            if rng.random() < PLAIN_SHARE:
                await self._write_plain()
            await self._transaction()
            world.made_progress(self.name)
            await trio.sleep(THINK_SECONDS * (0.5 + rng.random()))
            if self._is_twin:
                await trio.sleep(TWIN_SECONDS * rng.random())
        if rng.random() < LEFT_SHARE:
            await self._leave_open()

    async def _leave_open(self) -> None:
        """The last one has no end, and nobody comes who would fence it: its time has to be up."""
        if not self._is_ready:
            await self._init()
        txn = self._world.txns.begin(self._protocol.transactional_id)
        with suppress(OverError):  # of a twin, which does the same
            await self._write(txn, self._world.txn_partitions[0])
        self._settle_keyed(txn)
        self._world.trace.count("transactions left open at the end")

    # -- asking ------------------------------------------------------------------------------------

    async def _init(self) -> None:
        """With the transaction version that all brokers serve."""
        protocol = self._protocol
        protocol.version = min(self._version, max(await self._served_version(), 1))
        is_named = protocol.producer_id >= 0 and self._rng.random() < NAMED_SHARE
        while True:
            code = await protocol.init(is_named=is_named)
            if code is ErrorCode.NONE:
                break
            if code in OVER and is_named:
                is_named = False
            elif code is not None and code not in PASSING:
                raise Violation("refused", f"{self.name}: InitProducerId: {code.name}")
            await trio.sleep(RETRY_SECONDS)
        self._is_ready = True
        self._late_end = None
        self._world.trace.count("transactional producers begun")

    async def _served_version(self) -> int:
        while True:
            level = await self._protocol.served_version()
            if level is not None:
                return level
            await trio.sleep(RETRY_SECONDS)

    async def _until_done(self, what: str, ask: Callable[[], Awaitable[ErrorCode | None]]) -> None:
        """OverError."""
        while (code := await ask()) is not ErrorCode.NONE:
            if code in OVER:
                self._world.trace.count(f"{what} {code.name}")
                raise OverError
            if code is not None and code not in PASSING:
                raise Violation("refused", f"{self.name}: {what}: {code.name}")
            await trio.sleep(RETRY_SECONDS)

    # -- one transaction ---------------------------------------------------------------------------

    async def _transaction(self) -> None:
        world, rng = self._world, self._rng
        txn = world.txns.begin(self._protocol.transactional_id)
        self._keyed = []
        [end] = rng.choices(ENDS, END_WEIGHTS)
        some = rng.sample(world.txn_partitions, 1 + rng.randrange(len(world.txn_partitions)))
        world.trace.event(self.name, "begins", f"#{txn.number} {end} {self._protocol.epoch}")
        try:
            for partition in some:
                await self._write(txn, partition)
                await self._come_late()
            if self._has_offsets and rng.random() < OFFSET_SHARE:
                await self._commit_offset(txn)
            if end == "stall":
                await trio.sleep(self._protocol.timeout_ms / 1000 + rng.random())
                await self._write(txn, some[0])
            if end == "die":
                await self._die(txn)
            elif end == "vanish":
                await self._vanish(txn)
            else:
                await self._finish(txn, is_commit=end != "abort")
        except OverError:
            await self._recover(txn)
        self._settle_keyed(txn)
        world.trace.event(self.name, "ends", f"#{txn.number} {txn.told}")
        world.trace.count(f"transactions: {end}, told {txn.told}")

    async def _write(self, txn: Txn, partition: Partition) -> None:
        """One batch, until it is acknowledged. OverError."""
        world, protocol = self._world, self._protocol
        if protocol.version < TV2:
            await self._until_done("add", lambda: protocol.add([partition]))
        pairs = self._pairs(partition)
        values = [value for _, value in pairs if value is not None]
        world.txns.send(txn, partition, values)
        keyed = [(key, value) for key, value in pairs if key is not None]
        if keyed:
            world.keyed.send(keyed)
        now_ms, base_offset = world.time_ms(), -1

        async def produce() -> ErrorCode | None:
            nonlocal base_offset
            code, base_offset = await protocol.produce(partition, pairs, now_ms)
            return code

        try:
            await self._until_done("transactional produce", produce)
        except OverError:
            self._keyed.append((-1, keyed))
            raise
        world.txns.ack(txn, partition, base_offset, [value for _, value in pairs])
        self._keyed.append((base_offset, keyed))

    def _pairs(self, partition: Partition) -> list[Pair]:
        rng = self._rng
        pairs: list[Pair] = []
        for _ in range(1 + rng.randrange(3)):
            value = b"%s-%d-" % (self.name.encode(), self._count) + b"." * rng.randrange(60)
            self._count += 1
            if partition != KEYED_PARTITION:
                pairs.append((None, value))
                continue
            is_tombstone = rng.random() < TOMBSTONE_SHARE
            pairs.append((b"key-%d" % rng.randrange(KEY_COUNT), None if is_tombstone else value))
        return pairs

    async def _commit_offset(self, txn: Txn) -> None:
        """OverError."""
        protocol = self._protocol
        partition = self._world.txn_partitions[0]
        txn.offset = txn.number
        if protocol.version < TV2:
            await self._until_done("add offsets", protocol.add_offsets)
        await self._until_done(
            "offset commit", lambda: protocol.commit_offset(partition, txn.number)
        )
        self._world.trace.count("offsets in transactions")

    async def _come_late(self) -> None:
        """Old requests arrive in the midst of this transaction."""
        protocol, rng = self._protocol, self._rng
        if protocol.version < TV2:
            return
        if self._late_end is not None and rng.random() < LATE_SHARE:
            await protocol.end_late(self._late_end)
            self._late_end = None
            self._world.trace.count("ends that came late")
        if self._late_request is not None and rng.random() < LATE_SHARE:
            await protocol.send(*self._late_request)
            self._late_request = None
            self._world.trace.count("batches that came late")

    # -- its end -----------------------------------------------------------------------------------

    async def _die(self, txn: Txn) -> None:
        """Nobody asks for its end."""
        self._is_ready = False
        self._settle_keyed(txn)
        await trio.sleep(self._protocol.timeout_ms / 1000 * 1.5 * self._rng.random())

    async def _vanish(self, txn: Txn) -> None:
        """The commit is asked for, and nobody hears of it."""
        self._is_ready = False
        self._world.txns.ask(txn)
        await self._protocol.end_unheard(self._protocol.end_request(is_commit=True))

    async def _finish(self, txn: Txn, *, is_commit: bool) -> None:
        """OverError."""
        world, protocol = self._world, self._protocol
        request = protocol.end_request(is_commit=is_commit)
        if is_commit:
            world.txns.ask(txn)
        is_doubtful = False
        while (code := await protocol.end(request)) is not ErrorCode.NONE:
            if code in OVER:
                world.trace.count(f"end {code.name}")
                # With version 2 the refusal of a retry tells that it was aborted meanwhile.
                is_retry = protocol.version >= TV2 and code is ErrorCode.INVALID_TXN_STATE
                if is_commit and (is_retry or not is_doubtful):
                    world.txns.tell(txn, is_committed=False)
                raise OverError
            if code is not None and code not in PASSING:
                raise Violation("refused", f"{self.name}: EndTxn: {code.name}")
            is_doubtful |= code not in NOTHING_DONE
            await trio.sleep(RETRY_SECONDS)
        world.txns.tell(txn, is_committed=is_commit)
        if protocol.version >= TV2:
            self._late_end = request
            self._late_request = protocol.last_request
        elif is_doubtful:
            self._is_ready = False

    async def _recover(self, txn: Txn) -> None:
        """It begins a new epoch; or aborts what it cannot go on with, and goes on."""
        protocol = self._protocol
        if protocol.version >= TV2 and not txn.is_asked and self._rng.random() < NAMED_SHARE:
            code = await protocol.end(protocol.end_request(is_commit=False))
            if code is ErrorCode.NONE:
                self._world.trace.count("transactional producers that went on")
                return
        self._is_ready = False
        if self._is_twin:
            await trio.sleep(TWIN_SECONDS * self._rng.random())

    def _settle_keyed(self, txn: Txn) -> None:
        """What is known now of its records in the compacted partition."""
        keyed, self._keyed = self._keyed, []
        for base_offset, pairs in keyed:
            if txn.told:
                self._world.keyed.ack(base_offset, pairs)
            elif txn.told is False or not txn.is_asked:
                self._world.keyed.withdraw(pairs)

    # -- beside transactions -----------------------------------------------------------------------

    async def _write_plain(self) -> None:
        """A batch that is in no transaction, and is sent once."""
        world = self._world
        partition = world.txn_partitions[0]
        values = [b"%s-plain-%d" % (self.name.encode(), self._count)]
        self._count += 1
        world.txns.send(None, partition, values)
        code, base_offset = await self._protocol.send_plain(partition, values, world.time_ms())
        if code is ErrorCode.NONE:
            world.txns.ack(None, partition, base_offset, values)
        elif code is not None and code not in RETRIABLE:
            raise Violation("refused", f"{self.name}: plain produce: {code.name}")
