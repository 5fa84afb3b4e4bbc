"""What must not outlive a session of the metadata: offices and locks are ephemeral nodes.

A nursery puts the metadata's errors into groups, which `except MetadataError` does not catch.
`as_record_error` makes one error of them; otherwise a lost ZooKeeper would end the process instead
of one round of work.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import trio

from metadata.store import MetadataError, SessionState
from wire.bookkeeper.ledger_metadata import MetadataFormatError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from metadata.store import MetadataStore


@asynccontextmanager
async def within_session(store: MetadataStore) -> AsyncIterator[None]:
    """The block is cancelled, and left without an error, when the session is lost. A connection
    that is lost is not a session's end: operations wait."""
    with trio.CancelScope() as scope:

        def changed(state: SessionState) -> None:
            if state is SessionState.LOST:
                scope.cancel()

        unsubscribe = store.subscribe(changed)
        try:
            yield
        finally:
            unsubscribe()


class RecordError(Exception):
    """The store failed, or holds something else than it should: to be tried again later."""


@contextmanager
def as_record_error() -> Iterator[None]:
    """RecordError for what the metadata does to the block, also if it comes in groups."""
    known = (MetadataError, MetadataFormatError)
    try:
        yield
    except known as error:
        raise RecordError(str(error)) from error
    except ExceptionGroup as group:
        found, rest = group.split(known)
        if rest is not None or found is None:
            raise
        raise RecordError("; ".join(dict.fromkeys(map(str, _leaves(found))))) from group


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
