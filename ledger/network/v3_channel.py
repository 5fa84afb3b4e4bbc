"""One bookie in protocol v3: long polls, forces, explicit LACs, bookie info, lists of entries, and
adds that are answered before their sync. Beside the v2 channel, which has the ordinary traffic.

Every request has a transaction id, which its answer repeats.

A bookie that restarts may have lost what it acked before a sync, and would still answer a force
with EOK. So a force whose acks came over an earlier connection is answered EIO here.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import trio

from ledger.network.connection import BookieConnection
from runtime.logs import kv
from wire.bookkeeper import v3
from wire.bookkeeper.frames import Protocol
from wire.bookkeeper.requests import ForceLedgerRequest
from wire.bookkeeper.responses import AddResponse, ErrorResponse
from wire.bookkeeper.status import WRITE_FLAG_DEFERRED_SYNC, Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.bookie_client import AddDone
    from ledger.network.config import NetworkConfig
    from ledger.network.connection import Resolve
    from runtime.env import Env
    from runtime.net import Transport
    from runtime.receive import ReceiveChunks
    from runtime.tls import Tls
    from wire.bookkeeper.requests import AddRequest, Request
    from wire.bookkeeper.responses import Response

logger = logging.getLogger(__name__)


class _Question:
    """A request under way that a task waits for; `answer` is set when it is done."""

    __slots__ = ("answer", "event")

    def __init__(self) -> None:
        self.event = trio.Event()
        self.answer: Response | None = None


class _Unforced:
    """Acks of one ledger's deferred adds since the last force."""

    __slots__ = ("connection_number", "count")

    def __init__(self, connection_number: int) -> None:
        #: The connection that the first of them came over.
        self.connection_number = connection_number
        self.count = 0


class V3Channel(BookieConnection):
    """A v3 connection."""

    protocol = Protocol.V3

    def __init__(
        self,
        bookie: str,
        resolve: Resolve,
        env: Env,
        chunks: ReceiveChunks,
        config: NetworkConfig,
        spawn: Callable[[BookieConnection], bool],
        tls: Tls | None = None,
    ) -> None:
        super().__init__(bookie, resolve, env, chunks, config, spawn, tls)
        self._last_transaction_id = 0
        self._questions: dict[int, _Question] = {}
        #: In the order of sending.
        self._adds: dict[int, tuple[AddRequest, AddDone, float]] = {}
        self._unforced: dict[int, _Unforced] = {}
        self._connection_number = 0
        self._answers = 0

    @property
    def pending_count(self) -> int:
        return len(self._questions) + len(self._adds)

    async def ask(self, request: Request, *, patience_ms: int = 0) -> Response | None:
        """The answer; None if none came within `patience_ms` and the read time-out. `request` is
        given its transaction id here. An ErrorResponse may answer whatever was asked."""
        self._last_transaction_id += 1
        transaction_id = self._last_transaction_id
        question = self._questions[transaction_id] = _Question()
        answers_before = self._answers
        timeout_ms = self._config.read_timeout_ms + patience_ms
        try:
            if not self._send(v3.encode_request(replace(request, transaction_id=transaction_id))):
                return None
            with trio.move_on_after(timeout_ms / 1000) as scope:
                await question.event.wait()
        finally:
            self._questions.pop(transaction_id, None)
        if scope.cancelled_caught and answers_before == self._answers:
            # Nothing at all came in that time: the connection is as good as broken.
            logger.warning("bookie_silent", kv(bookie=self.bookie))
            self.close()
        return question.answer

    async def force(self, ledger_id: int) -> Status:
        unforced = self._unforced.get(ledger_id)
        count = 0
        if unforced is not None:
            if unforced.connection_number != self._connection_number:
                return Status.EIO
            count = unforced.count
        answer = await self.ask(ForceLedgerRequest(ledger_id))
        if answer is None:
            return Status.EIO
        if answer.status is not Status.EOK:
            return answer.status
        if unforced is not None:
            if unforced.connection_number != self._connection_number:
                return Status.EIO
            unforced.count -= count
            if unforced.count <= 0:
                self._unforced.pop(ledger_id, None)
        return Status.EOK

    def _connected(self, transport: Transport) -> BookieConnection:
        self._connection_number += 1
        return super()._connected(transport)

    def add(self, request: AddRequest, done: AddDone, now: float) -> None:
        """`request` is given its transaction id here."""
        self._last_transaction_id += 1
        request.transaction_id = transaction_id = self._last_transaction_id
        self._adds[transaction_id] = (request, done, now)
        if not self._send(v3.encode_request(request)):
            self._adds.pop(transaction_id, None)
            done(Status.EIO)

    def _on_frame(self, frame: memoryview) -> bool:
        self._answers += 1
        answer = v3.decode_response(frame)
        transaction_id = answer.transaction_id
        question = self._questions.pop(transaction_id, None)
        if question is not None:
            question.answer = answer
            question.event.set()
            return self._transport is not None
        add = self._adds.pop(transaction_id, None)
        if add is not None and isinstance(answer, AddResponse | ErrorResponse):
            request, done, _ = add
            if answer.status is Status.EOK and request.write_flags & WRITE_FLAG_DEFERRED_SYNC:
                unforced = self._unforced.get(request.ledger_id)
                if unforced is None:
                    unforced = _Unforced(self._connection_number)
                    self._unforced[request.ledger_id] = unforced
                unforced.count += 1
            done(answer.status)
        return self._transport is not None

    def _fail_all(self) -> None:
        self._forget_unsent()
        questions, self._questions = self._questions, {}
        adds, self._adds = self._adds, {}
        for _, done, _ in adds.values():
            done(Status.EIO)
        for question in questions.values():
            question.event.set()

    def give_up_before(self, time: float) -> None:
        late = []
        for transaction_id, (_, _, sent_at) in self._adds.items():
            if sent_at > time:
                break
            late.append(transaction_id)
        if late:
            logger.warning("adds_timed_out", kv(bookie=self.bookie, count=len(late)))
        for transaction_id in late:
            add = self._adds.pop(transaction_id, None)
            if add is not None:
                add[1](Status.EIO)
