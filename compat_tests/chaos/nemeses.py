"""What breaks things. A nemesis strikes one victim and mends it again. Here are bookies, ZooKeeper
and ledger writers; broker_nemeses.py has the rest, catalogue.py says which can be had where."""

import random
import shutil
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path

from .workloads import LedgerWriting
from .world import ChaosBookie

#: Of a file system's free bytes, what a filler leaves.
LEFT_BYTES = 64 * 1024


class Nemesis(ABC):
    """`victim` is what nobody else may strike until this is mended."""

    name = ""
    #: Least and most seconds between strike and mend.
    hold_s = (0.3, 4.0)
    #: How likely it is chosen, beside others.
    weight = 2
    #: Whether it needs lines that can be made slow.
    needs_delay = False

    def __init__(self, world, workloads, rng: random.Random) -> None:
        self.world, self.workloads, self.rng = world, workloads, rng
        self.victim: object = None
        #: What went wrong with the nemesis itself, or was not as it must be.
        self.wrong: list[str] = []

    @abstractmethod
    def victims(self) -> list[object]: ...

    @property
    def struck(self) -> list[object]:
        """What it has hold of."""
        return [self.victim]

    @property
    def may_mend(self) -> bool:
        """Whether `mend` would not wait."""
        return True

    @abstractmethod
    def strike(self) -> None: ...

    @abstractmethod
    def mend(self) -> None: ...


def launch(server) -> None:
    """Without a wait: what comes next may be that ZooKeeper is gone."""
    if server.process is not None and server.process.poll() is not None:
        server.kill()
    if server.process is None:
        # It cannot start without ZooKeeper; the run starts it again then.
        with suppress(RuntimeError):
            server.launch()


class BookieNemesis(Nemesis):
    def victims(self) -> list[object]:
        return list(self.world.bookies)

    def launch(self) -> None:
        launch(self.victim)


class KillBookie(BookieNemesis):
    name = "bookie SIGKILL"
    weight = 4

    def strike(self) -> None:
        self.victim.kill()

    def mend(self) -> None:
        self.launch()


class FreezeBookie(BookieNemesis):
    name = "bookie SIGSTOP"
    hold_s = (0.5, 9.0)
    weight = 4

    def strike(self) -> None:
        self.victim.freeze()

    def mend(self) -> None:
        self.victim.thaw()


class OurBookieNemesis(BookieNemesis):
    def victims(self) -> list[object]:
        return [bookie for bookie in self.world.bookies if isinstance(bookie, ChaosBookie)]


class WipeBookie(OurBookieNemesis):
    """Its disk comes back empty: the cookie must refuse."""

    name = "bookie wiped"
    hold_s = (4.0, 6.0)
    weight = 1

    def victims(self) -> list[object]:
        # The file system of the one that has its own is no directory to move.
        return [each for each in super().victims() if each.data_directories[0].parent
                == each.directory]  # fmt: skip

    def strike(self) -> None:
        self.victim.kill()
        self._kept = self.victim.directory / "kept"
        self._kept.mkdir()
        for directory in self.victim.data_directories:
            shutil.move(directory, self._kept / directory.name)
        self._offset = self.victim.log_path.stat().st_size
        self.launch()

    def mend(self) -> None:
        process = self.victim.process
        code = None
        if process is not None:
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(20)
        self.victim.kill()
        text = self.victim.log_path.read_bytes()[self._offset :].decode(errors="replace")
        # Without ZooKeeper it ends for another reason.
        if process is not None and (code == 0 or "ready listen=" in text):
            self.wrong.append(f"{self.victim.id} came back without its data: {code}: {text[-500:]}")
        for directory in self.victim.data_directories:
            shutil.rmtree(directory, ignore_errors=True)
            shutil.move(self._kept / directory.name, directory)
        self._kept.rmdir()
        self.launch()


class FailSyncs(OurBookieNemesis):
    """fsync gives EIO: the bookie must end, and never answer for what was not synced."""

    name = "bookie fsync fails"
    hold_s = (2.5, 4.0)
    weight = 1

    def strike(self) -> None:
        directory = self.rng.choice(self.victim.data_directories)
        self.victim.flag.write_text(str(directory))

    def mend(self) -> None:
        self.victim.flag.unlink()
        self.launch()


class FillDisk(OurBookieNemesis):
    """No space for anything: the bookie is read-only until there is some again."""

    name = "bookie disk full"
    hold_s = (3.0, 6.0)

    @property
    def filler(self) -> Path:
        return self.world.disk / "filler"

    def victims(self) -> list[object]:
        return super().victims()[:1]

    def strike(self) -> None:
        free = shutil.disk_usage(self.world.disk).free
        with suppress(OSError), self.filler.open("wb") as file:
            left = free - LEFT_BYTES
            while left > 0:
                left -= file.write(bytes(min(left, 1 << 20)))
                file.flush()

    def mend(self) -> None:
        self.filler.unlink()
        self.launch()


class KillZooKeeper(Nemesis):
    name = "ZooKeeper SIGKILL"

    def victims(self) -> list[object]:
        return list(self.world.zookeepers)

    def strike(self) -> None:
        self.victim.kill()

    def mend(self) -> None:
        self.victim.start()


class FreezeZooKeeper(KillZooKeeper):
    name = "ZooKeeper SIGSTOP"
    hold_s = (0.5, 6.0)

    def strike(self) -> None:
        self.victim.freeze()

    def mend(self) -> None:
        self.victim.thaw()


class WriterNemesis(Nemesis):
    hold_s = (0.0, 0.2)

    def victims(self) -> list[object]:
        return [each for each in self.workloads if isinstance(each, LedgerWriting)]

    def mend(self) -> None:
        """The strike is the whole of it."""


class KillWriter(WriterNemesis):
    """Its ledger is recovered by the next one, which goes on."""

    name = "writer SIGKILL"

    def strike(self) -> None:
        self.victim.replace(kill=True)


class FenceWriter(WriterNemesis):
    """Another recovers the ledger that it writes to; it must find out."""

    name = "writer fenced"

    def strike(self) -> None:
        self.victim.replace(kill=False)


class FreezeAndFenceWriter(WriterNemesis):
    """As one whose machine slept while another took its place."""

    name = "writer SIGSTOP, fenced"

    def strike(self) -> None:
        stopped = self.victim.writer.process
        stopped.send_signal(signal.SIGSTOP)
        try:
            time.sleep(self.rng.uniform(0.1, 1.0))
            self.victim.replace(kill=False)
        finally:
            stopped.send_signal(signal.SIGCONT)
