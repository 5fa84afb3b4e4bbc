"""What our rooms log in Spark's Python workers: as lines with all their pairs, on stderr, which
Spark keeps; and which bookies let nobody in, so that the error which comes of it says so.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Self

from ledger.errors import LedgerError, UnauthorizedError
from runtime.logs import KeyValueFormatter

if TYPE_CHECKING:
    from types import TracebackType

_ROOMS = ("pyspark_quire", "ledger", "metadata", "runtime")
_CONNECTIONS = "ledger.network.connection"
_REFUSED = "not_authenticated"


def log_to_stderr() -> None:
    """Warnings, unless somebody has arranged for logs already."""
    if logging.getLogger().handlers:
        return
    for room in _ROOMS:
        logger = logging.getLogger(room)
        if not logger.handlers:
            handler = logging.StreamHandler()
            handler.setLevel(logging.WARNING)
            handler.setFormatter(KeyValueFormatter())
            logger.addHandler(handler)


class Refusals(logging.Handler):
    """Bookies that refuse a login while this is entered; `told(error)` adds it to an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._reasons: dict[str, str] = {}

    def __enter__(self) -> Self:
        logging.getLogger(_CONNECTIONS).addHandler(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        logging.getLogger(_CONNECTIONS).removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg == _REFUSED and isinstance(record.args, dict):
            self._reasons[str(record.args["bookie"])] = str(record.args["error"])

    def told(self, error: BaseException) -> BaseException:
        if isinstance(error, LedgerError):
            for bookie, reason in self._reasons.items():
                error.add_note(f"bookie {bookie} does not let us in: {reason}")
            if isinstance(error, UnauthorizedError):
                error.add_note(
                    "A bookie that wants a login says the same:"
                    " bookkeeper.clientAuthProviderFactoryClass and"
                    " bookkeeper.java.security.auth.login.config tell which it is"
                )
        return error
