"""A real PostgreSQL on loopback, of its own folder, that can crash and start again on its data."""

import os
import signal
import subprocess
import tarfile
import tempfile
import zipfile
from pathlib import Path

import psycopg

from harness import paths
from harness.servers import HOST, Server

#: PostgreSQL does not run as root: then it is nobody, by number, as a bare machine has it.
NOBODY = 65534


class Postgres(Server):
    """`Postgres().start()`; `conninfo` is what clients connect by."""

    name = "postgres"

    def __init__(self) -> None:
        # Not a folder of pytest: those are their owner's alone, and the server may be another.
        super().__init__(Path(tempfile.mkdtemp(prefix="quire-postgres-")))
        self.is_root = os.geteuid() == 0

    @property
    def conninfo(self) -> str:
        return f"host={HOST} port={self.port} user=bank dbname=postgres"

    def prepare(self) -> None:
        (jar,) = paths.jars("postgres").glob("*.jar")
        with (
            zipfile.ZipFile(jar) as whole,
            whole.open("postgres-linux-x86_64.txz") as packed,
            tarfile.open(fileobj=packed, mode="r:xz") as tar,
        ):
            # What is packed there is pinned by its hash. Python has the filter since 3.11.4.
            safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            tar.extractall(self.directory / "server", **safe)
        if self.is_root:
            os.chown(self.directory, NOBODY, NOBODY)
            self.directory.chmod(0o755)
        made = subprocess.run(
            [*self._as_other(), str(self.directory / "server/bin/initdb"), "-D",
             str(self.data_dir), "-U", "bank", "--auth=trust", "--encoding=UTF8", "--no-locale"],
            cwd=self.directory, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert made.returncode == 0, made.stdout + made.stderr

    def command(self) -> list[str]:
        # Its socket in the folder too: the usual one is everybody's.
        return [*self._as_other(), str(self.directory / "server/bin/postgres"), "-D",
                str(self.data_dir), "-h", HOST, "-p", str(self.port), "-k",
                str(self.directory)]  # fmt: skip

    def is_ready(self) -> bool:
        try:
            psycopg.connect(self.conninfo, connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def kill(self) -> None:
        """SIGQUIT: all its processes end at once and write nothing; the next start recovers. After
        a SIGKILL of the first one the others would be there for a while, and forbid that start."""
        if self.process is not None:
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait(30)
            self._reap()

    def _as_other(self) -> list[str]:
        """Another user's process does not inherit that it dies with its parent."""
        if not self.is_root:
            return []
        return ["setpriv", "--pdeathsig", "KILL", f"--reuid={NOBODY}", f"--regid={NOBODY}",
                "--clear-groups", "--"]  # fmt: skip
