"""FaultDisk: a simulated disk of which single operations find no space, alone or in bursts, and
which ends the life of its bookie at a chosen operation."""

import errno
import os
import random

from runtime.sim_disk import SimDisk


class FaultDisk(SimDisk):
    """Each life is to see it through a `DiskLife`, which fails once the life has ended."""

    def __init__(self, rng, end_life):
        """`end_life()` crashes or kills this disk, whichever it chooses."""
        super().__init__(rng, observe=self._observe)
        #: So many operations from now the first finds no space; None: none does.
        self.operations_until_full = None
        #: So many more find none soon after it.
        self.burst = 0
        #: So many operations from now the life ends, before the last of them is done.
        self.operations_until_crash = None
        #: If it is not None, the life ends before the next sync whose path it matches instead, when
        #: there is something to be made durable.
        self.crash_at_sync = None
        #: How often the checkpoint's second file finds no space, which its first one found.
        self.last_mark_full_share = 0.0
        #: From the end of a life until all its tasks have ended, too.
        self.is_off = False
        self._end_life = end_life
        self._fault_rng = random.Random(rng.random())
        #: What the write that is about to be made finds free.
        self._free_bytes = None

    def crash(self):
        super().crash()
        self.is_off = True

    def kill(self):
        super().kill()
        self.is_off = True

    def free_bytes(self):
        free = super().free_bytes()
        if self._free_bytes is not None:
            free, self._free_bytes = min(free, self._free_bytes), None
        return free

    def open(self, path, *, create=False, exclusive=False):
        if (create or exclusive) and not self.exists(path):
            self._before(path, takes_space=True)
        return super().open(path, create=create, exclusive=exclusive)

    def link(self, source, target):
        self._before(target, takes_space=True)
        super().link(source, target)

    def rename(self, source, target):
        self._before(target, takes_space=True)
        super().rename(source, target)

    def remove(self, path):
        self._before(path, takes_space=False)
        super().remove(path)

    def sync_directory(self, path):
        self._before(path, takes_space=False, is_sync=True)
        super().sync_directory(path)

    def write_file(self, path, data):
        """Its parts come by here one by one: any of them may be the last."""
        if path.endswith("/lastMark") and self._fault_rng.random() < self.last_mark_full_share:
            raise _error(errno.ENOSPC, path)
        super().write_file(path, data)

    def _observe(self, event, detail):
        """Of files that are open. The names' operations are told as well, by `DiskLife`; but those
        that `write_file` is made of are not, so all of them are counted where they are done."""
        if event not in ("write", "truncate", "sync"):
            return
        self._count_to_crash(detail, is_sync=event == "sync")
        if event == "write" and self._finds_no_space():
            # A part of the data may have its place; all of it, if that was there before.
            self._free_bytes = self._fault_rng.choice([0, self._fault_rng.randrange(3000)])

    def _before(self, path, *, takes_space, is_sync=False):
        self._count_to_crash(path, is_sync=is_sync)
        if takes_space and self._finds_no_space():
            raise _error(errno.ENOSPC, path)

    def _count_to_crash(self, path, *, is_sync):
        """EBADF if the life has ended, or ends here: what it was about to do is not done, and
        neither is what it would tidy up behind that."""
        if not self.is_off and self.operations_until_crash is not None:
            self.operations_until_crash -= 1
            is_due = self.operations_until_crash <= 0
            wanted = self.crash_at_sync
            if is_due and (wanted is None or (is_sync and wanted.match(path))):
                self.operations_until_crash = None
                self._end_life()
        if self.is_off:
            raise _error(errno.EBADF, path)

    def _finds_no_space(self):
        if self.operations_until_full is None:
            return False
        self.operations_until_full -= 1
        if self.operations_until_full > 0:
            return False
        if self.burst > 0:
            self.burst -= 1
            self.operations_until_full = self._fault_rng.choice([1, 1, 1, 2, 3])
        else:
            self.operations_until_full = None
        return True


def _error(number, path):
    return OSError(number, os.strerror(number), path)
