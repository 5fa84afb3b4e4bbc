"""What a program is told. All are `LocksError`."""

from __future__ import annotations


class LocksError(Exception):
    """Of this library."""


class OtherLogError(LocksError):
    """The database followed another log: the topic was made anew, it is another cluster, or the
    database or the log was restored. Nothing was done; a person has to decide."""


class HistoryGoneError(LocksError):
    """Records that the database has not applied are deleted from the log. It needs a restore."""


class NotTakenError(LocksError):
    """The broker does not take the record, and never will."""


class UnreachableError(LocksError):
    """A broker could not be asked, for now."""


class TooBusyError(LocksError):
    """More transactions wait than may."""


class StoppedError(LocksError):
    """The client applies no records any more, for what is its cause, and so it writes none either.
    `is_unknown`: as of DeadlineError."""

    def __init__(self, message: str, *, is_unknown: bool) -> None:
        super().__init__(message)
        self.is_unknown = is_unknown


class DeadlineError(LocksError):
    """The transaction's time is over; or it ended in another way after a try that had no answer.
    `is_unknown`: it may have been written, and then every program applies it; else it was not, and
    will not be."""

    def __init__(self, message: str, *, is_unknown: bool) -> None:
        super().__init__(message)
        self.is_unknown = is_unknown


class DatabaseLostError(LocksError):
    """The connection to the database was lost in the middle of a snapshot. The client begins the
    attempt anew."""
