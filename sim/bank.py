"""Tellers of a simulated bank: they follow one partition, and write to it with optimistic locks.

Each has a toy database of his own (sim/bank_history.py), decides by it, sends, and believes what he
reads back. A send without an answer is repeated as it was; a refusal makes him read on and decide
anew, under the same id. Some tellers are idempotent producers. Now and then two orders are decided
by the same state and sent as one batch; if the second tests what the first writes, the broker has
to refuse them, and they are carried out one after the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import trio

from sim.bank_history import ACCOUNTS, LIMIT, Entry, Ledger, Order, account
from sim.client import Unanswered
from sim.fetching import RETRY_SECONDS, fetch_and_tell, records_of
from sim.history import Violation
from sim.names import BANK_PARTITION, BANK_TOPIC
from sim.workload import RECORDS_MAX, RETRIABLE, init_producer_id
from wire.kafka.errors import ErrorCode
from wire.kafka.messages import ProduceRequest, ProduceResponse
from wire.kafka.messages.fetch import FetchPartition
from wire.kafka.messages.produce import PartitionProduceData, TopicProduceData
from wire.kafka.records.batch import build_batch, iter_records, scan_batches
from wire.kafka.records.record import Record

if TYPE_CHECKING:
    from sim.world import World

POSITION, READ, WRITE, APPEND, TXN_ID = (
    "quire.position", "quire.lock.read", "quire.lock.write", "quire.lock.append", "quire.txn.id",
)  # fmt: skip
THINK_SECONDS = 0.15
#: Between looking and sending, in which others write.
DECIDE_SECONDS = 0.05
AMOUNT_MAX = 40
PAIR_SHARE = 0.2
#: What a refusal names as the offset of a conflict between two records of one batch.
IN_BATCH = -1


def bank_configs(seed: int) -> dict[str, str]:
    """A small table, in which locks collide now and then."""
    locks = "required" if seed % 2 else "optional"
    return {"quire.locks": locks, "quire.locks.table.size": "1009", "segment.ms": "1500"}


def headers_of(order: Order, position: int, txn_id: bytes) -> list[tuple[str, bytes | None]]:
    """Each has a WRITE lock, which lets one of two sends in at most."""
    made: list[tuple[str, bytes | None]] = [(POSITION, b"%d" % position), (TXN_ID, txn_id)]
    if order.is_limit:
        made += [(READ, account(number)) for number in range(ACCOUNTS)]
        made.append((WRITE, LIMIT))
    elif order.is_deposit:
        made += [(APPEND, account(order.target)), (WRITE, b"txn/" + txn_id)]
    else:
        made.append((READ, LIMIT))
        made += [(WRITE, account(number)) for number in (order.source, order.target)]
    return made


class Draft(NamedTuple):
    """What one customer wants, and the id of the transaction that does it."""

    order: Order
    purpose: bytes
    txn_id: bytes


class Refusal(NamedTuple):
    """`offset`: at most there a lock of a batch was last written; IN_BATCH."""

    offset: int


def entry_of(offset: int, record: Record) -> Entry:
    assert record.value is not None
    headers = [(name, value or b"") for name, value in record.headers]
    facts = dict(headers)
    return Entry(
        offset,
        record.key or b"",
        facts[TXN_ID],
        int(facts[POSITION]),
        Order.of(record.value),
        frozenset(value for name, value in headers if name in (READ, WRITE)),
        frozenset(value for name, value in headers if name in (WRITE, APPEND)),
    )


class Teller:
    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self.name = name
        self._rng = world.rng_for(name)
        self._client = world.client(name)
        self._ledger = Ledger()
        self._count = 0
        #: His own that he has read, and where.
        self._seen: dict[bytes, int] = {}
        self._is_idempotent = self._rng.random() < 0.5
        self._producer = (-1, -1)
        self._sequence = 0

    async def run(self) -> None:
        world, rng = self._world, self._rng
        if self._is_idempotent:
            self._producer = await init_producer_id(self._client)
        while not world.is_draining:
            await self.read_on()
            drafts = [self._drawn()]
            if rng.random() < PAIR_SHARE:
                drafts.append(self._drawn())
            await self._perform(drafts)
            world.made_progress(self.name)
            await trio.sleep(THINK_SECONDS * rng.random())

    def _drawn(self) -> Draft:
        self._count += 1
        txn_id = b"%s-%d" % (self.name.encode(), self._count)
        return Draft(self._drawn_order(), txn_id, txn_id)

    def _drawn_order(self) -> Order:
        rng = self._rng
        choice, amount = rng.random(), 1 + rng.randrange(AMOUNT_MAX)
        if choice < 0.1:
            return Order(-1, -1, rng.randrange(20))
        if choice < 0.25:
            return Order(-1, rng.randrange(ACCOUNTS), rng.randrange(5))
        source, target = rng.sample(range(ACCOUNTS), 2)
        return Order(source, target, amount)

    # -- out ---------------------------------------------------------------------------------------

    async def _perform(self, drafts: list[Draft], *, is_in_doubt: bool = False) -> None:
        """Until it is certain what became of them, or nobody can say. Several are one batch, and
        wholly in the log or not at all. `is_in_doubt`: an earlier try may be in the log."""
        world, bank = self._world, self._world.bank
        ids = [draft.txn_id for draft in drafts]
        while True:
            position = self._ledger.position
            if not all(self._ledger.allows(draft.order) for draft in drafts):
                if not is_in_doubt:
                    bank.given_up.update(ids)
                world.trace.count("bank: given up", len(ids))
                return
            await trio.sleep(DECIDE_SECONDS * self._rng.random())
            refusal, was_lost = await self._send(drafts, position)
            is_in_doubt |= was_lost
            if refusal is None:
                while ids[-1] not in self._seen:
                    await self.read_on()
            else:
                await self._read_to(refusal.offset + 1)
                if is_in_doubt:  # what he was refused for may be his own
                    await self._read_to(await self._end())
            if ids[-1] in self._seen:
                if refusal is not None and self._is_idempotent:
                    raise Violation("own", f"{ids}, refused for {refusal.offset}: {self._seen}")
                bank.committed.update({txn_id: self._seen[txn_id] for txn_id in ids})
                world.trace.count("bank: committed", len(ids))
                return
            if refusal is not None and refusal.offset == IN_BATCH:
                world.trace.count("bank: conflicts in a batch")
                for draft in drafts:
                    await self._perform([draft], is_in_doubt=is_in_doubt)
                return

    def _request(self, drafts: list[Draft], position: int) -> ProduceRequest:
        producer_id, epoch = self._producer
        batch = build_batch(
            [
                Record(
                    number, 0, draft.purpose, draft.order.to_bytes(),
                    headers_of(draft.order, position, draft.txn_id),
                )
                for number, draft in enumerate(drafts)
            ],
            base_timestamp=self._world.time_ms(),
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=self._sequence if self._is_idempotent else -1,
        )  # fmt: skip
        data = PartitionProduceData(index=BANK_PARTITION[1], records=batch)
        topic = TopicProduceData(name=BANK_TOPIC, partition_data=[data])
        return ProduceRequest(acks=-1, timeout_ms=5000, topic_data=[topic])

    async def _send(self, drafts: list[Draft], position: int) -> tuple[Refusal | None, bool]:
        """(None if all of it is in the log; whether a send had no answer)."""
        world, was_lost = self._world, False
        request = self._request(drafts, position)
        while True:
            try:
                answer = await self._client.ask_leader(*BANK_PARTITION, request, ProduceResponse)
            except Unanswered:
                was_lost = True
                await trio.sleep(RETRY_SECONDS)
                continue
            result = answer.responses[0].partition_responses[0]
            code = ErrorCode(result.error_code)
            if code is ErrorCode.NONE or (
                code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER and self._is_idempotent
            ):
                self._sequence += len(drafts)
                return None, was_lost
            text = result.error_message or ""
            world.trace.count(f"bank: produce {code.name}")
            if code is ErrorCode.INVALID_RECORD and text.startswith("LOCK_CONFLICT"):
                return Refusal(int(text.split("conflict=")[1].split()[0])), was_lost
            if code not in RETRIABLE:
                ids = [draft.txn_id for draft in drafts]
                raise Violation("refused", f"{self.name}: {ids}: {code.name} {text}")
            was_lost |= code is ErrorCode.NOT_LEADER_OR_FOLLOWER
            self._client.forget(*BANK_PARTITION)
            await trio.sleep(RETRY_SECONDS)

    # -- in ----------------------------------------------------------------------------------------

    async def _end(self) -> int:
        """Of what may be read now, as the leader says."""
        while True:
            answer = await self._fetch()
            if answer is not None:
                return answer[1]
            await trio.sleep(RETRY_SECONDS)

    async def _read_to(self, end: int) -> None:
        while self._ledger.position < end:
            await self.read_on()

    async def read_on(self) -> list[Entry]:
        """What comes next, applied; none if there was no answer."""
        answer = await self._fetch()
        if answer is None:
            return []
        for entry in answer[0]:
            if entry.offset != self._ledger.position:
                raise Violation("gap", f"{self.name}: {entry} after {self._ledger.position - 1}")
            self._ledger.apply(entry)
            self._ledger.position += 1
            if entry.txn_id.startswith(self.name.encode() + b"-"):
                self._seen[entry.txn_id] = entry.offset
        self._world.made_progress(self.name)
        return answer[0]

    async def _fetch(self) -> tuple[list[Entry], int] | None:
        """(entries from the position on, the high watermark)."""
        position = self._ledger.position
        data = FetchPartition(
            partition=BANK_PARTITION[1], fetch_offset=position, partition_max_bytes=RECORDS_MAX
        )
        answer = await fetch_and_tell(self._world, self.name, self._client, BANK_PARTITION, data)
        if answer is None:
            return None
        result, code = answer
        if code is not ErrorCode.NONE:
            # One that was deposed and does not know it is behind.
            if code not in RETRIABLE and code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise Violation("refused", f"{self.name}: {code.name}")
            self._client.forget(*BANK_PARTITION)
            await trio.sleep(RETRY_SECONDS)
            return None
        records, at, found = records_of(result), 0, []
        for header in scan_batches(records):
            batch = memoryview(records)[at : at + header.size]
            at += header.size
            for record in iter_records(batch, header, size_max=RECORDS_MAX):
                offset = header.base_offset + record.offset_delta
                if offset >= position:
                    found.append(entry_of(offset, record))
        return found, result.high_watermark


async def judge_bank(world: World) -> None:
    """Reads all of it once more. Violation."""
    reader = Teller(world, "bank-judge")
    end = await reader._end()
    entries: list[Entry] = []
    while len(entries) < end:
        entries += await reader.read_on()
    world.bank.check(entries)
    world.trace.counts["bank: records"] += len(entries)
