"""Trace: what happened, one line per event, and a hash of all lines.

A line is virtual time, node, event, detail. The hash is always made, the lines are kept only where
somebody wants to read them (`python -m sim --trace FILE`). Log records of the code under test may
be put between the lines; they are not part of the hash.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter, deque
from contextvars import ContextVar
from typing import TYPE_CHECKING

import trio

from sim.describe import readable

if TYPE_CHECKING:
    from typing import TextIO

#: The last lines, which a failure's report shows.
RECENT_MAX = 40
#: Events that may be counted for the coverage.
COUNTED = frozenset({"write", "write file", "rename", "crash", "reset"})
#: Whose task it is.
OWNER: ContextVar[str] = ContextVar("OWNER", default="")


def counted(node: str, event: str, detail: str) -> str | None:
    """The name under which an event of the trace is counted; None for most."""
    if event == "write":
        is_new_log = detail.endswith(".log 0+1024")
        return "entry logs begun" if is_new_log else None
    if event == "write file":
        return "checkpoints" if detail.endswith("/lastMark") else None
    if event == "rename":
        return "journal files retired" if ".txn" in detail.partition(" ")[0] else None
    if event == "crash":
        return f"{node.rpartition('-')[0]} crashes: {detail}"
    return "connections reset" if event == "reset" else None


class Trace:
    def __init__(self, file: TextIO | None = None) -> None:
        self._file = file
        self._hash = hashlib.blake2b(digest_size=12)
        self.counts: Counter[str] = Counter()
        self.event_count = 0
        #: The run is judged, or has failed: what is left of the world is taken down.
        self.is_over = False
        self.recent: deque[str] = deque(maxlen=RECENT_MAX)
        #: Whose burst of input is served, "" between bursts: for log records.
        self.node = ""

    def event(self, node: str, event: str, detail: str = "") -> None:
        if self.is_over:
            return
        line = f"{trio.current_time():12.6f} {node:<10} {event:<14} {detail}\n"
        self._hash.update(line.encode())
        self.event_count += 1
        if event in COUNTED:
            what = counted(node, event, detail)
            if what is not None:
                self.counts[what] += 1
        self.recent.append(line)
        if self._file is not None:
            self._file.write(readable(line))

    def count(self, what: str, times: int = 1) -> None:
        """What a seed reached; not an event of its own."""
        if not self.is_over:
            self.counts[what] += times

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()


class LogLines(logging.Handler):
    """Puts the code's own log between the trace's lines."""

    def __init__(self, trace: Trace, file: TextIO) -> None:
        super().__init__(logging.INFO)
        self._trace = trace
        self._file = file

    def emit(self, record: logging.LogRecord) -> None:
        try:
            now = trio.current_time()
        except RuntimeError:  # before or after the run
            return
        module = record.name.rpartition(".")[2]
        node = self._trace.node or OWNER.get()
        message = f"{record.levelname.lower()} {module}: {record.getMessage()}"
        self._file.write(f"{now:12.6f} {node:<10} log            {message}\n")
