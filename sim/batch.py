"""Many seeds, in several processes, until their number or the time is up."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from sim.worker import Summary, decode_summary, encode_case

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sim.case import Case


class WorkerError(Exception):
    """A worker's process ended; says on which case."""


class Batch:
    """`for case, summary in Batch(cases, jobs=2): ...`, in the order in which they are done.

    Each process runs one case at a time. After `seconds` no further case is begun; those that run
    are finished. `close` ends it earlier."""

    def __init__(
        self,
        cases: Iterable[Case],
        *,
        jobs: int = 1,
        seconds: float | None = None,
        hash_seed: int | None = None,
        program: Sequence[str] = ("sim.worker",),
    ) -> None:
        """`hash_seed`: the processes' PYTHONHASHSEED; None: as it comes. `program`: what each runs
        as `python -m`."""
        self._program = program
        self._cases = iter(cases)
        self._lock = threading.Lock()
        self._end = None if seconds is None else time.monotonic() + seconds
        self._hash_seed = hash_seed
        #: None is a process that has nothing more to do.
        self._done: queue.SimpleQueue[tuple[Case, Summary] | WorkerError | None] = (
            queue.SimpleQueue()
        )
        self._processes: deque[subprocess.Popen[str]] = deque()
        self._is_closed = False
        self._threads = [
            threading.Thread(target=self._serve, name=f"sim-{number}", daemon=True)
            for number in range(jobs)
        ]

    def __iter__(self) -> Iterator[tuple[Case, Summary]]:
        """WorkerError."""
        for thread in self._threads:
            thread.start()
        ended_count = 0
        try:
            while ended_count < len(self._threads):
                done = self._done.get()
                if done is None:
                    ended_count += 1
                elif isinstance(done, WorkerError):
                    raise done
                else:
                    yield done
        finally:
            self.close()

    def close(self) -> None:
        """Ends all processes, now."""
        with self._lock:
            self._is_closed = True
            for process in self._processes:
                process.kill()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _next(self) -> Case | None:
        with self._lock:
            is_late = self._end is not None and time.monotonic() >= self._end
            return None if is_late or self._is_closed else next(self._cases, None)

    def _start(self) -> subprocess.Popen[str] | None:
        environment = dict(os.environ)
        if self._hash_seed is not None:
            environment["PYTHONHASHSEED"] = str(self._hash_seed)
        with self._lock:
            if self._is_closed:
                return None
            process = subprocess.Popen(
                [sys.executable, "-m", *self._program],
                cwd=Path(__file__).parents[1],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            self._processes.append(process)
            return process

    def _serve(self) -> None:
        """In a thread: one process."""
        process = self._start()
        if process is None:
            self._done.put(None)
            return
        assert process.stdin is not None
        assert process.stdout is not None
        # One that was ended with a case on its way: closing its pipe would send the rest.
        with suppress(BrokenPipeError), process:
            while (case := self._next()) is not None:
                try:
                    process.stdin.write(encode_case(case) + "\n")
                    process.stdin.flush()
                    answer = process.stdout.readline()
                except OSError:
                    answer = ""
                if not answer:
                    if not self._is_closed:
                        words = f"the process that ran it ended: {case.command}"
                        self._done.put(WorkerError(words))
                    break
                self._done.put((case, decode_summary(answer)))
        self._done.put(None)
