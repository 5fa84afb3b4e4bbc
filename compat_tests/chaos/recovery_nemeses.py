"""A bookie that loses its disk for good, and who makes the copies again."""

import shutil
import subprocess
import time
from collections.abc import Iterator

from harness import paths
from harness.servers import die_with_parent

from .nemeses import Nemesis, WipeBookie, launch

DECOMMISSIONED_WITHIN_S = 120.0
AGAIN_AFTER_S = 1.0


class LoseDisk(WipeBookie):
    """What it had is gone; it is decommissioned, and comes back as a new one."""

    name = "bookie's disk lost, decommissioned"
    hold_s = (0.0, 0.1)
    weight = 1

    def strike(self) -> None:
        self.victim.kill()
        for directory in self.victim.data_directories:
            shutil.rmtree(directory)
        self.steps = self._decommission()
        self.is_done = False

    def _decommission(self) -> Iterator[None]:
        """Yields while it would wait: until its session has ended it still counts as alive."""
        command = [str(paths.python_script("quire")), "bookie", "decommission", self.victim.id]
        command += ["--metadata-service-uri", self.world.uri]
        until = time.monotonic() + DECOMMISSIONED_WITHIN_S
        log = self.world.directory / "decommission.log"
        code: int | None = 1
        while code and time.monotonic() < until:
            again_at = time.monotonic() + AGAIN_AFTER_S
            with log.open("ab") as file:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    preexec_fn=die_with_parent,
                )
            while (code := process.poll()) is None or (code and time.monotonic() < again_at):
                if time.monotonic() > until:
                    process.kill()
                yield
        if code:
            end = log.read_text(errors="replace")[-1500:]
            self.wrong.append(f"{self.victim.id} cannot be decommissioned: {code}: {end}")

    @property
    def may_mend(self) -> bool:
        self.is_done = self.is_done or next(self.steps, self) is self
        return self.is_done

    def mend(self) -> None:
        launch(self.victim)


class KillRecovery(Nemesis):
    name = "autorecovery SIGKILL"
    hold_s = (0.3, 4.0)
    weight = 1

    def victims(self) -> list[object]:
        return [self.world.recovery]

    def strike(self) -> None:
        self.victim.kill()

    def mend(self) -> None:
        launch(self.victim)
