"""Ids of new ledgers, taken from ZooKeeper's counter many at once (docs/formats.md).

An id is the number of a sequence node below `/ledgers/idgen`, as BookKeeper's ZkLedgerIdGenerator
has it: whoever makes such a node, a Java client among them, is given a number that nobody else ever
gets. Those who want an id while others are being taken share the next request: a thousand first
writes cost a few transactions, and none is taken before somebody wants it. One that its asker does
not use any more, as it was cancelled or has died, is lost; there are 2^31.

Owner of the state: the LedgerManager, on the event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from metadata.store import NUMBERS_MAX, MetadataError
from runtime.slices import Slices

if TYPE_CHECKING:
    from metadata.store import MetadataStore


TOLD_PER_TURN = 25


class LedgerIds:
    def __init__(self, store: MetadataStore, root: str) -> None:
        self._store = store
        self._prefix = f"{root}/idgen/ID-"
        #: In order; those that were asked for in the request under way are not among them.
        self._asked: list[_Question] = []
        self._is_taking = False

    async def take(self) -> int:
        """One that nobody else gets. MetadataError, for all that share the request."""
        question = _Question()
        self._asked.append(question)
        try:
            await trio.lowlevel.checkpoint()  # others that start now come along
            while question.is_open:
                if self._is_taking:
                    await question.woken.wait()
                else:
                    await self._take_for_all()
        finally:
            if question in self._asked:  # it is cancelled
                self._asked.remove(question)
                self._wake_next()
        if question.error is not None:
            raise question.error
        return question.ledger_id

    async def _take_for_all(self) -> None:
        """By one of those who wait. If that one is cancelled another does it anew."""
        assert not self._is_taking, "one request at a time"
        assert self._asked, "who takes has asked"
        some, self._asked = self._asked[:NUMBERS_MAX], self._asked[NUMBERS_MAX:]
        self._is_taking = True
        try:
            numbers = await self._store.take_numbers(self._prefix, len(some))
            for question, number in zip(some, numbers, strict=True):
                question.ledger_id = number
        except MetadataError as error:
            for question in some:
                question.error = type(error)(error.path, str(error))
        finally:
            self._is_taking = False
            self._asked[:0] = [question for question in some if question.is_open]
            self._wake_next()
        slices = Slices(TOLD_PER_TURN)  # each wakes a task, which goes on to make a ledger
        try:
            for question in some:
                if slices.due():
                    await slices.turn()
                question.woken.set()
        finally:
            for question in some:
                question.woken.set()

    def _wake_next(self) -> None:
        """Somebody has to take for those who are left."""
        if self._asked and not self._is_taking:
            self._asked[0].wake()


class _Question:
    __slots__ = ("error", "ledger_id", "woken")

    def __init__(self) -> None:
        self.woken = trio.Event()
        self.ledger_id = -1
        self.error: MetadataError | None = None

    @property
    def is_open(self) -> bool:
        return self.ledger_id < 0 and self.error is None

    def wake(self) -> None:
        """To look again, and to wait anew if others were quicker."""
        self.woken.set()
        self.woken = trio.Event()
