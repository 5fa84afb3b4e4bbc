"""KernelAio: fdatasync that the kernel makes by itself, and tells of by an eventfd.

Linux's native asynchronous I/O (io_submit with IOCB_CMD_FDSYNC, since 4.18): no thread of ours, so
no fight for the interpreter's lock, and the loop goes on with the next burst meanwhile. Measured
for 4 KiB, written and synced: 111 us, against 98 us for fdatasync on the loop's own thread and
250-290 us by way of a worker thread. The C library has no wrappers, hence the numbers of calls.

`KernelAio.open()` gives None where the kernel or its policy does not offer it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    AioDone = Callable[[OSError | None], None]

#: io_setup, io_destroy, io_submit, io_getevents by machine (asm/unistd.h).
_CALLS = {"x86_64": (206, 207, 209, 208), "aarch64": (0, 1, 2, 4)}

_COMMAND_FDSYNC = 3
_FLAG_EVENTFD = 1
#: Syncs under way at most: one per file, and few files are synced at a time.
DEPTH = 64


class _ControlBlock(ctypes.Structure):
    """struct iocb (linux/aio_abi.h), little-endian."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("key", ctypes.c_uint32),
        ("rw_flags", ctypes.c_int32),
        ("opcode", ctypes.c_uint16),
        ("priority", ctypes.c_int16),
        ("file", ctypes.c_uint32),
        ("buffer", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("offset", ctypes.c_int64),
        ("reserved", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("eventfd", ctypes.c_uint32),
    )


class _Event(ctypes.Structure):
    """struct io_event."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("control_block", ctypes.c_uint64),
        ("result", ctypes.c_int64),
        ("result2", ctypes.c_int64),
    )


class KernelAio:
    def __init__(self, call: Callable[..., int], context: ctypes.c_ulong, machine: str) -> None:
        self._call = call
        self._context = context
        _, destroy, submit, getevents = _CALLS[machine]
        self._destroy = ctypes.c_long(destroy)
        self._submit = ctypes.c_long(submit)
        self._getevents = ctypes.c_long(getevents)
        self._events = (_Event * DEPTH)()
        self._waiting: dict[int, tuple[AioDone, _ControlBlock]] = {}
        self._serial = 0
        #: Readable when syncs have finished.
        self.eventfd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    @classmethod
    def open(cls) -> KernelAio | None:
        machine = platform.machine()
        if machine not in _CALLS or os.name != "posix":
            return None
        call = ctypes.CDLL(None, use_errno=True).syscall
        call.restype = ctypes.c_long
        context = ctypes.c_ulong(0)
        setup = ctypes.c_long(_CALLS[machine][0])
        if call(setup, ctypes.c_long(DEPTH), ctypes.byref(context)) != 0:
            return None
        return cls(call, context, machine)

    @property
    def under_way(self) -> int:
        return len(self._waiting)

    def fdatasync(self, fd: int, done: AioDone) -> bool:
        """Starts a sync; `done(None)` or `done(error)` comes from `reap`. False, and no `done`, if
        the kernel does not take it (too many, or not for this file system)."""
        self._serial += 1
        block = _ControlBlock(
            data=self._serial,
            opcode=_COMMAND_FDSYNC,
            file=fd,
            flags=_FLAG_EVENTFD,
            eventfd=self.eventfd,
        )
        blocks = (ctypes.POINTER(_ControlBlock) * 1)(ctypes.pointer(block))
        if self._call(self._submit, self._context, ctypes.c_long(1), blocks) != 1:
            return False
        self._waiting[self._serial] = done, block
        return True

    def reap(self, *, wait: bool = False) -> None:
        """Calls `done` for every sync that has finished; with `wait`, for all of them."""
        while self._waiting:
            count = self._call(
                self._getevents,
                self._context,
                ctypes.c_long(1 if wait else 0),
                ctypes.c_long(DEPTH),
                self._events,
                None,
            )
            if count < 0 and ctypes.get_errno() == errno.EINTR:
                continue
            if count <= 0:
                return
            finished = [(event.data, event.result) for event in self._events[:count]]
            for serial, result in finished:
                done, _ = self._waiting.pop(serial)
                done(OSError(-result, os.strerror(-result)) if result < 0 else None)

    def on_ready(self, _events: int) -> None:
        """The eventfd is readable."""
        try:
            os.eventfd_read(self.eventfd)
        except BlockingIOError:
            return
        self.reap()

    def close(self) -> None:
        """Waits for what is under way."""
        self.reap(wait=True)
        self._call(self._destroy, self._context)
        os.close(self.eventfd)
