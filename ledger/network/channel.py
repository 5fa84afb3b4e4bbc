"""One bookie in protocol v2: adds, reads, batch reads and fences; what only v3 can say goes over
`v3_channel`, to the same port.

v2 answers are recognised by operation, ledger and entry. So two reads of one entry are never under
way at a time: a fencing read must not be taken for answered by the answer to a plain one.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING

import trio

from ledger.network.connection import BookieConnection
from runtime.logs import kv
from wire.bookkeeper import v2
from wire.bookkeeper.frames import Protocol
from wire.bookkeeper.requests import BatchReadRequest, ReadRequest
from wire.bookkeeper.responses import BatchReadResponse, ReadResponse
from wire.bookkeeper.status import STATUS_OF_V2, Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.bookie_client import AddDone
    from ledger.network.config import NetworkConfig
    from ledger.network.connection import Resolve
    from runtime.env import Env
    from runtime.receive import ReceiveChunks
    from runtime.tls import Tls
    from wire.buffers import Buffers

logger = logging.getLogger(__name__)

_EMPTY = memoryview(b"")
_NOTHING = (Status.EIO, _EMPTY)


class _Add:
    __slots__ = ("done", "following", "sent_at")

    def __init__(self, done: AddDone, sent_at: float) -> None:
        self.done = done
        self.sent_at = sent_at
        #: The same entry sent again before the answer came (a recovery next to a writer).
        self.following: _Add | None = None


class ReadWaiter:
    """A read under way; `answer` is set when it is done."""

    __slots__ = ("answer", "answers_before", "event", "request")

    def __init__(self, request: ReadRequest | BatchReadRequest, answers_before: int) -> None:
        self.request = request
        #: How many answers the channel had got when this was asked.
        self.answers_before = answers_before
        self.event = trio.Event()
        self.answer: ReadResponse | BatchReadResponse | None = None

    def resolve(self, answer: ReadResponse | BatchReadResponse | None) -> None:
        self.answer = answer
        self.event.set()


class BookieChannel(BookieConnection):
    """A v2 connection."""

    protocol = Protocol.V2

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
        self._adds: dict[tuple[int, int], _Add] = {}
        self._reads: dict[tuple[int, int], deque[ReadWaiter]] = {}
        self._batches: dict[int, ReadWaiter] = {}
        self._last_request_id = 0
        self._answers = 0

    @property
    def pending_count(self) -> int:
        return len(self._adds) + len(self._reads) + len(self._batches)

    # -- asking ----------------------------------------------------------------------------------

    def add(self, ledger_id: int, entry_id: int, frame: Buffers, done: AddDone, now: float) -> None:
        """`frame` is v2.encode_add_request's."""
        add = _Add(done, now)
        key = (ledger_id, entry_id)
        earlier = self._adds.get(key)
        if earlier is None:
            self._adds[key] = add
        else:
            while earlier.following is not None:
                earlier = earlier.following
            earlier.following = add
        transport = self._transport
        if transport is not None:
            transport.write(frame)
        elif not self._queue(frame):
            # Only these: those before it were told when the connection failed.
            self._fail_add(key, add)

    def _fail_add(self, key: tuple[int, int], add: _Add) -> None:
        first = self._adds[key]
        if first is add:
            del self._adds[key]
        else:
            while first.following is not add:
                assert first.following is not None
                first = first.following
            first.following = None
        add.done(Status.EIO)

    async def read(self, request: ReadRequest) -> tuple[Status, memoryview]:
        """One entry. EIO also if no answer comes in time."""
        waiter = ReadWaiter(request, self._answers)
        key = (request.ledger_id, request.entry_id)
        line = self._reads.get(key)
        if line is not None:
            line.append(waiter)
        else:
            line = self._reads[key] = deque([waiter])
            if not self._send(v2.encode_request(request)):
                self._reads.pop(key, None)
                return _NOTHING
        try:
            await self._wait(waiter)
        finally:
            # The first in line stays there until its answer came: that one is not the next one's.
            if waiter in line and line[0] is not waiter:
                line.remove(waiter)
        answer = waiter.answer
        if not isinstance(answer, ReadResponse):
            return _NOTHING
        entry = memoryview(answer.entry) if answer.entry is not None else _EMPTY
        return answer.status, entry

    async def _wait(self, waiter: ReadWaiter) -> None:
        with trio.move_on_after(self._config.read_timeout_ms / 1000) as scope:
            await waiter.event.wait()
        if scope.cancelled_caught and waiter.answers_before == self._answers:
            # Nothing at all came in that time: the connection is as good as broken.
            logger.warning("bookie_silent", kv(bookie=self.bookie))
            self.close()

    async def read_batch(
        self, ledger_id: int, first_entry_id: int, count_max: int, size_max: int
    ) -> tuple[Status, list[memoryview]]:
        """Consecutive entries. EIO also if no answer comes in time."""
        self._last_request_id += 1
        request = BatchReadRequest(
            ledger_id,
            first_entry_id,
            count_max,
            size_max,
            transaction_id=self._last_request_id,
        )
        waiter = ReadWaiter(request, self._answers)
        self._batches[request.transaction_id] = waiter
        try:
            if self._send(v2.encode_request(request)):
                await self._wait(waiter)
        finally:
            self._batches.pop(request.transaction_id, None)
        answer = waiter.answer
        if not isinstance(answer, BatchReadResponse):
            return Status.EIO, []
        return answer.status, [memoryview(entry) for entry in answer.entries]

    def _fail_all(self) -> None:
        self._forget_unsent()
        adds, self._adds = self._adds, {}
        reads, self._reads = self._reads, {}
        batches, self._batches = self._batches, {}
        for first in adds.values():
            add: _Add | None = first
            while add is not None:
                add.done(Status.EIO)
                add = add.following
        for line in reads.values():
            for waiter in line:
                waiter.resolve(None)
        for waiter in batches.values():
            waiter.resolve(None)

    # -- answers ---------------------------------------------------------------------------------

    def _on_frame(self, frame: memoryview) -> bool:
        self._answers += 1
        added = v2.decode_add_answer(frame)
        if added is not None:
            self._on_added(*added)
            return self._transport is not None
        answer = v2.decode_response(frame)
        if type(answer) is ReadResponse:
            self._on_read((answer.ledger_id, answer.entry_id), answer)
        elif type(answer) is BatchReadResponse:
            waiter = self._batches.pop(answer.transaction_id, None)
            if waiter is not None:
                waiter.resolve(answer)
        return self._transport is not None

    def _on_added(self, status: int, ledger_id: int, entry_id: int) -> None:
        key = (ledger_id, entry_id)
        add = self._adds.pop(key, None)
        if add is None:
            return  # it was given up
        if add.following is not None:
            self._adds[key] = add.following
        add.done(STATUS_OF_V2[status])

    def _on_read(self, key: tuple[int, int], answer: ReadResponse) -> None:
        line = self._reads.get(key)
        if not line:
            return
        line.popleft().resolve(answer)
        if not line:
            self._reads.pop(key, None)
            return
        following = line[0].request
        assert isinstance(following, ReadRequest)
        if not self._send(v2.encode_request(following)):
            line.popleft().resolve(None)

    def give_up_before(self, time: float) -> None:
        # Adds are in the order of sending.
        late: list[tuple[tuple[int, int], _Add]] = []
        for key, add in self._adds.items():
            if add.sent_at > time:
                break
            late.append((key, add))
        if late:
            logger.warning("adds_timed_out", kv(bookie=self.bookie, count=len(late)))
        for key, add in late:
            if self._adds.get(key) is add:
                if add.following is None:
                    del self._adds[key]
                else:
                    self._adds[key] = add.following
                add.done(Status.EIO)
