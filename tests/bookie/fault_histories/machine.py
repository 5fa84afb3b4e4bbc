"""Machine: the disk and the index that outlive each life of a bookie, and how its lives end."""

import random
import re

from tests.bookie.conftest import tiny_config
from tests.bookie.fault_histories.disk import FaultDisk
from tests.bookie.fault_histories.index import FaultIndex

#: At any operation, or at a sync: there are far more of journals than of entry logs, and few are of
#: directories.
CRASHES = (None, None, re.compile("/"), re.compile("/ledgers/"), re.compile(".*/current$"))
#: As good as without an end.
ROOM_BYTES = 1 << 40


class Machine:
    def __init__(self, rng, *, kill_share, **config):
        """`kill_share`: how often it is the process that ends, and not the power that fails."""
        self.rng = rng
        self.disk = FaultDisk(rng, self.crash)
        self.index = FaultIndex(random.Random(rng.random()))
        self.config = tiny_config(**config)
        #: How the life ended without notice; empty while it goes on.
        self.crashed = ""
        self._kill_share = kill_share

    def crash(self):
        """Ends the life now, wherever it is. What is left of it can change nothing any more."""
        if self.rng.random() < self._kill_share:
            self.crashed = "kill"
            self.disk.kill()
            self.index.kill()
        else:
            self.crashed = "power"
            self.disk.crash()
            self.index.crash()

    def crash_after(self, operations):
        """At one of the disk's, in this life."""
        self.disk.operations_until_crash = operations
        self.disk.crash_at_sync = self.rng.choice(CRASHES)

    def turn_on(self):
        """For the next life, once all tasks of the last one have ended."""
        self.crashed = ""
        self.disk.is_off = self.index.is_off = False

    def make_room(self):
        """What was to find no space once, at some operation, still is to."""
        self.disk.faults.capacity_bytes = ROOM_BYTES
        self.index.full_share = self.index.full_sync_share = 0.0

    def end_faults(self):
        """Nothing finds no space from now on, and no operation ends a life."""
        self.make_room()
        self.disk.operations_until_full = self.index.operations_until_full = None
        self.disk.operations_until_crash = None
        self.disk.last_mark_full_share = 0.0
