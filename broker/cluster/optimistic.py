"""The one loop of optimistic concurrency: decide on what is known, compare-and-set, look again.

What a broker knows of metadata may be old, as every broker changes it. So a change is decided on
what is known, and written only if that is still what is stored. Another broker was quicker → look
again and decide again. The answer to the write is lost → nobody knows whether it was done: look,
too, and see (invariant W9). Otherwise a change is given up that was made, or is made twice.

Users: broker/cluster/catalog.py (topics), registry.py (configurations), assigned.py (assignments).
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, TypeVar

from metadata.store import (
    BadVersionError,
    MetadataUnavailableError,
    MetadataUnknownOutcomeError,
    NodeExistsError,
    NoNodeError,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

#: What is known, and what it is to become.
V = TypeVar("V")
D = TypeVar("D")

#: What a store says to a compare-and-set when something else is stored by now.
CONFLICTS = (BadVersionError, NoNodeError, NodeExistsError)
#: Compare-and-sets that are lost in a row before it is called an outage.
ATTEMPTS_MAX = 50


async def change(
    known: Callable[[], V],
    decide: Callable[[V], D | None],
    write: Callable[[V, D], Awaitable[object]],
    *,
    look_again: Callable[[V], Awaitable[object]],
    recognise: Callable[[V], Awaitable[bool]] | None,
    attempts_max: int | None = None,
) -> D | None:
    """Writes `decide(known())`, and gives it; None, and nothing is written, if that was None.

    `decide` is a pure function: it is called again with something newer when others were quicker.
    `write(known, decided)` is refused if something else than `known` is stored. `look_again(known)`
    makes `known()` newer than that, or raises if there is nothing newer to be seen.

    `recognise(known)` is asked when the answer to a write is lost. It looks, and says that the
    change was made (True), or that it is to be decided again (False: so `decide` must know its own
    work, which it may find), or raises, as one does who cannot tell. None: the loss is the caller's
    (MetadataUnknownOutcomeError).

    Raises what these raise; MetadataUnavailableError after `attempts_max` writes without success,
    if that is given."""
    for attempt_number in count(1):
        before = known()
        decided = decide(before)
        if decided is None:
            return None
        path = ""
        try:
            await write(before, decided)
        except CONFLICTS as error:
            path = error.path
            await look_again(before)
        except MetadataUnknownOutcomeError as error:
            if recognise is None:
                raise
            path = error.path
            if await recognise(before):
                return decided
        else:
            return decided
        if attempt_number == attempts_max:
            raise MetadataUnavailableError(path, f"was changed {attempts_max} times meanwhile")
    raise AssertionError("count() does not end")


async def attempt(write: Awaitable[object]) -> bool:
    """One compare-and-set. False: it was refused, or the answer is lost; whoever looks sees."""
    try:
        await write
    except (*CONFLICTS, MetadataUnknownOutcomeError):
        return False
    return True
