"""Changes of many tasks in few requests: what is asked for while a request is under way shares the
next one, as one multi.

When a broker's partitions move to another one, ten thousand tasks each make four changes, one after
the other; to send, answer and log each of them by itself is more work than what they are for.

Each change is all or nothing by itself, and so is what they share. If metadata refuses that, for
the sake of whichever, nothing was done, and each is sent anew by itself, to hear its own refusal.
An answer that is lost is lost for all of them. Who asks must therefore be able to recognise his own
work, as after any MetadataUnknownOutcomeError.

Owner of the state: whoever made it, on the event loop; there is no task of its own.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import TYPE_CHECKING

import trio

from metadata.store import (
    MetadataError,
    MetadataUnavailableError,
    MetadataUnknownOutcomeError,
    PutOp,
)
from runtime.slices import Slices

if TYPE_CHECKING:
    from collections.abc import Sequence

    from metadata.store import MetadataStore, Node, Op

#: That share a request. ZooKeeper refuses one above 1 MiB, and to put one together takes the loop
#: 1.5 ms for 256 changes of two operations.
CHANGES_MAX = 256
BYTES_MAX = 512 << 10
TOLD_PER_TURN = 25


class SharedWrites:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        #: In order, without those in the request under way. Ten thousand may be cancelled at once.
        self._asked: OrderedDict[_Change, None] = OrderedDict()
        self._is_writing = False

    async def get(self, path: str) -> Node:
        """As `MetadataStore.get`."""
        return await self._store.get(path)

    async def put(self, path: str, data: bytes, version: int) -> int:
        """As `MetadataStore.put`, of a given version. MetadataUnknownOutcomeError also if the task
        that sent it was cancelled."""
        assert version >= 0
        await self.multi([PutOp(path, data, version)])
        return version + 1

    async def multi(self, ops: Sequence[Op]) -> None:
        """As `MetadataStore.multi`; MetadataUnknownOutcomeError as `put`."""
        assert ops
        change = _Change(ops)
        self._asked[change] = None
        try:
            if not self._is_writing:
                await trio.lowlevel.checkpoint()  # others that start now come along
            while change.is_open:
                if self._is_writing:
                    await change.woken.wait()
                else:
                    await self._write()
        finally:
            if change in self._asked:  # it is cancelled
                del self._asked[change]
                self._wake_next()
        if change.is_refused:
            await self._send(change)
        elif change.error is not None:
            raise change.error

    async def _write(self) -> None:
        """One request for as many as it takes, by one of those who wait."""
        assert not self._is_writing, "one request at a time"
        some = self._take_some()
        self._is_writing = True
        try:
            try:
                await self._send_all(some)
            finally:
                for change in some:
                    if change.is_open:  # this task is cancelled; the request may have been sent
                        words = "the task that sent it was cancelled"
                        change.end(MetadataUnknownOutcomeError(change.path, words))
                self._is_writing = False
                self._wake_next()
            slices = Slices(TOLD_PER_TURN)  # each wakes a task, which may have much to do
            for change in some:
                if slices.due():
                    await slices.turn()
                change.woken.set()
        finally:
            for change in some:
                change.woken.set()

    async def _send_all(self, some: Sequence[_Change]) -> None:
        try:
            if len(some) == 1:
                await self._send(some[0])
            else:
                await self._store.multi([op for change in some for op in change.ops])
            for change in some:
                change.end(None)
        except (MetadataUnavailableError, MetadataUnknownOutcomeError) as error:
            for change in some:
                change.end(type(error)(change.path, str(error)))
        except MetadataError as error:
            if len(some) == 1:
                some[0].end(error)
            else:
                for change in some:
                    change.is_refused = True

    async def _send(self, change: _Change) -> None:
        if len(change.ops) == 1 and isinstance(op := change.ops[0], PutOp):
            await self._store.put(op.path, op.data, op.version)
        else:
            await self._store.multi(change.ops)

    def _take_some(self) -> list[_Change]:
        """The first ones; one at least."""
        assert self._asked, "who writes has asked"
        some: list[_Change] = []
        size_bytes = 0
        for change in islice(self._asked, CHANGES_MAX):
            size_bytes += change.size_bytes
            if some and size_bytes > BYTES_MAX:
                break
            some.append(change)
        for change in some:
            del self._asked[change]
        return some

    def _wake_next(self) -> None:
        """Somebody has to write for those who are left."""
        if self._asked and not self._is_writing:
            next(iter(self._asked)).wake()


class _Change:
    __slots__ = ("_is_done", "error", "is_refused", "ops", "size_bytes", "woken")

    def __init__(self, ops: Sequence[Op]) -> None:
        self.ops = ops
        self.size_bytes = sum(len(getattr(op, "data", b"")) + len(op.path) for op in ops)
        self.woken = trio.Event()
        self.error: MetadataError | None = None
        #: What it shared a request with was refused: it is to be sent by itself.
        self.is_refused = False
        self._is_done = False

    @property
    def path(self) -> str:
        return self.ops[0].path

    @property
    def is_open(self) -> bool:
        return not self._is_done and not self.is_refused

    def end(self, error: MetadataError | None) -> None:
        self.error, self._is_done = error, True

    def wake(self) -> None:
        """To look again, and to wait anew if others were quicker."""
        self.woken.set()
        self.woken = trio.Event()
