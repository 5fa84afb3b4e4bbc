"""One bookie in protocol v3: long polls, forces, explicit LACs, bookie info, lists of entries, and
adds that are answered before their sync. Beside the v2 channel, which has the ordinary traffic.

Every request has a transaction id, which its answer repeats.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import trio

from ledger.network.connection import BookieConnection
from runtime.logs import kv
from wire.bookkeeper import v3
from wire.bookkeeper.requests import AddRequest
from wire.bookkeeper.responses import AddResponse, ErrorResponse
from wire.bookkeeper.status import Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.bookie_client import AddDone
    from ledger.network.config import NetworkConfig
    from ledger.network.connection import Resolve
    from runtime.env import Env
    from runtime.receive import ReceiveChunks
    from wire.bookkeeper.requests import Request
    from wire.bookkeeper.responses import Response

logger = logging.getLogger(__name__)


class _Question:
    """A request under way that a task waits for; `answer` is set when it is done."""

    __slots__ = ("answer", "event")

    def __init__(self) -> None:
        self.event = trio.Event()
        self.answer: Response | None = None


class V3Channel(BookieConnection):
    """A v3 connection."""

    def __init__(
        self,
        bookie: str,
        resolve: Resolve,
        env: Env,
        chunks: ReceiveChunks,
        config: NetworkConfig,
        spawn: Callable[[BookieConnection], bool],
    ) -> None:
        super().__init__(bookie, resolve, env, chunks, config, spawn)
        self._last_transaction_id = 0
        self._questions: dict[int, _Question] = {}
        #: In the order of sending.
        self._adds: dict[int, tuple[AddDone, float]] = {}
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

    def add(self, request: AddRequest, done: AddDone, now: float) -> None:
        """`request` is given its transaction id here."""
        self._last_transaction_id += 1
        request.transaction_id = transaction_id = self._last_transaction_id
        self._adds[transaction_id] = (done, now)
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
            add[0](answer.status)
        return self._transport is not None

    def _fail_all(self) -> None:
        self._unsent.clear()
        questions, self._questions = self._questions, {}
        adds, self._adds = self._adds, {}
        for done, _ in adds.values():
            done(Status.EIO)
        for question in questions.values():
            question.event.set()

    def give_up_before(self, time: float) -> None:
        late = []
        for transaction_id, (_, sent_at) in self._adds.items():
            if sent_at > time:
                break
            late.append(transaction_id)
        if late:
            logger.warning("adds_timed_out", kv(bookie=self.bookie, count=len(late)))
        for transaction_id in late:
            add = self._adds.pop(transaction_id, None)
            if add is not None:
                add[0](Status.EIO)
