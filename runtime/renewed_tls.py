"""TLS of a server whose files may change while it runs: `RenewedTls`."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from runtime.config import ConfigError
from runtime.key_files import FileMark, mark_of
from runtime.logs import kv

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Sequence

    Marks = dict[str, FileMark | None]

logger = logging.getLogger(__name__)


class RenewedTls:
    """`context` is for new connections. What does not load changes nothing, and the log says why,
    once for each change of the files."""

    def __init__(
        self, name: str, make: Callable[[], ssl.SSLContext], paths: Sequence[str], check_ms: int
    ) -> None:
        """`name`: whose TLS it is, as events in the log begin. `make` reads the files at `paths`;
        on a worker thread from the second time on. 0 for `check_ms`: they are never looked at
        again. ConfigError, of `make`."""
        self._name = name
        self._make = make
        self._paths = paths
        self._check_seconds = check_ms / 1000
        # Before they are read: what changes meanwhile is seen by the next look.
        self._tried = _marks(paths)
        self.context = make()

    async def run(self) -> None:
        """Looks until cancelled. All who serve with it may run it: only one loads a change."""
        while self._check_seconds:
            await trio.sleep(self._check_seconds)
            marks = await trio.to_thread.run_sync(_marks, self._paths)
            if marks == self._tried:
                continue
            self._tried = marks
            try:
                self.context = await trio.to_thread.run_sync(self._make)
            except ConfigError as error:
                logger.error(f"{self._name}_not_reloaded", kv(reason=str(error)))
            else:
                logger.info(f"{self._name}_reloaded", kv(files=",".join(self._paths)))


def _marks(paths: Sequence[str]) -> Marks:
    return {path: mark_of(path) for path in paths}
