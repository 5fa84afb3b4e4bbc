"""Processes of ours that run ours: a child that never outlives its parent.

Two things end a child whose parent died, however it did: the kernel sends it SIGKILL
(PR_SET_PDEATHSIG), and its standard input, a pipe of the parent's, ends. The first is at once; the
second also covers a parent whose starting thread ended. Linux's signal is tied to the *thread* that
started the child, so a child is started on the loop's thread and never on a worker's.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import signal
import subprocess
from typing import IO, TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1
_STANDARD_INPUT = 0


def user_name() -> str:
    """Of the user that this process runs as; its number if it has no name."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


class ChildProcess:
    """Started by the constructor, which blocks for the milliseconds that takes. OSError.

    Its standard error is ours, or `errors`; its standard output is nobody's. It is in a process
    group of its own: a Ctrl-C at the terminal is for the parent, which then ends its children in
    order."""

    def __init__(self, command: Sequence[str], *, errors: IO[str] | None = None) -> None:
        self._popen = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            process_group=0,
        )
        self.pid = self._popen.pid
        # Who waits must not miss the end, and must not hit another process of the same number.
        self._handle = os.pidfd_open(self.pid)
        self._code: int | None = None

    async def wait(self) -> int:
        """The exit code; minus a signal's number if that ended it. For one task at a time."""
        if self._code is None:
            await trio.lowlevel.wait_readable(self._handle)
            self._code = self._popen.wait()
            os.close(self._handle)
            assert self._popen.stdin is not None
            self._popen.stdin.close()
        return self._code

    def terminate(self) -> None:
        """Asks it to end (SIGTERM)."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def resume(self) -> None:
        """If it was stopped (SIGSTOP), it goes on."""
        self._send(signal.SIGCONT)

    def _send(self, number: signal.Signals) -> None:
        if self._code is None:
            signal.pidfd_send_signal(self._handle, number)


def die_with_parent(parent_pid: int) -> None:
    """In the child, first of all: from here on the kernel ends it when its parent dies. If the
    parent died before, this ends the process."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)


async def wait_for_end_of_input() -> None:
    """Returns when the other end of standard input is closed; what comes is dropped."""
    os.set_blocking(_STANDARD_INPUT, False)
    while True:
        await trio.lowlevel.wait_readable(_STANDARD_INPUT)
        try:
            if not os.read(_STANDARD_INPUT, 4096):
                return
        except BlockingIOError:
            continue
