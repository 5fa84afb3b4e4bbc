"""What a placement is asked, and what it knows of bookies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Collection

    from ledger.bookie_client import BookieId

#: Where a bookie is whose place nobody knows, as BookKeeper has it.
DEFAULT_REGION = "/default-region"
DEFAULT_LOCATION = f"{DEFAULT_REGION}/default-rack"


class TooFewBookiesError(Exception):
    """Raised by a placement; the caller, who knows the ledger, makes NotEnoughBookiesError."""


@dataclass(slots=True, frozen=True)
class Candidate:
    """A bookie as it is known now."""

    bookie: BookieId
    #: `/region/rack`; a rack's name is the whole of it.
    location: str = DEFAULT_LOCATION
    is_writable: bool = True
    #: None if it was not told.
    free_bytes: int | None = None

    @property
    def region(self) -> str:
        """The first part; a location of one part only is in no region that has a name."""
        parts = self.location.split("/")
        return f"/{parts[1]}" if len(parts) > 2 else DEFAULT_REGION


class Placement(Protocol):
    async def new_ensemble(
        self,
        ensemble_size: int,
        write_quorum_size: int,
        ack_quorum_size: int,
        excluded: Collection[BookieId] = (),
    ) -> tuple[BookieId, ...]:
        """Different writable bookies, none of `excluded`, in ensemble order. TooFewBookiesError."""

    async def replace(
        self,
        ensemble: tuple[BookieId, ...],
        failed_indexes: Collection[int],
        write_quorum_size: int,
        ack_quorum_size: int,
        excluded: Collection[BookieId],
    ) -> tuple[BookieId, ...]:
        """The ensemble with other bookies at `failed_indexes`, all else in its place; none of
        `excluded`. TooFewBookiesError."""
