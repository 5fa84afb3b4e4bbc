"""A real PostgreSQL server of a test's own, from the binaries that peers.sh fetched.

What it has written stays when it is killed, as the kernel has it: so it need not sync.

It refuses to run as root, so for root another user runs it: `nobody`, in a folder of his.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from harness import paths, tools

START_SECONDS = 60
#: Of `nobody` on Linux.
OTHER_USER = 65534


class Postgres:
    """`conninfo` is for libpq; the server listens on a Unix socket alone."""

    def __init__(self) -> None:
        # Not below pytest's folders, which are closed to others; and a socket's path is short.
        self._folder = Path(tempfile.mkdtemp(prefix="quire-pg-"))
        self._process: subprocess.Popen | None = None
        self.conninfo = f"host={self._folder} user=bank dbname=postgres"
        self._as_other = (
            ["setpriv", f"--reuid={OTHER_USER}", f"--regid={OTHER_USER}", "--clear-groups"]
            if os.getuid() == 0
            else []
        )
        if self._as_other:
            os.chown(self._folder, OTHER_USER, OTHER_USER)
        self._binaries = self._readable(paths.needed(paths.cache_dir() / "postgres", "postgres"))
        self._run("initdb", "-D", str(self._data), "-U", "bank", "-A", "trust", "-E", "UTF8", "-N")

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    def _readable(self, cached: Path) -> Path:
        """Of what another user may run: the cache lies in a home that is closed to him."""
        if not self._as_other:
            return cached
        copied = self._folder / "postgres"
        shutil.copytree(cached, copied, symlinks=True)
        return copied

    def _command(self, program: str, *arguments: str) -> list[str]:
        return [*self._as_other, str(self._binaries / "bin" / program), *arguments]

    def _run(self, program: str, *arguments: str) -> None:
        tools.run(self._command(program, *arguments), cwd=self._folder, environment={"LC_ALL": "C"})

    def start(self) -> "Postgres":
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command(
                    "postgres", "-D", str(self._data), "-k", str(self._folder), "-h", "",
                    "-c", "fsync=off", "-c", "shared_buffers=16MB",
                ),
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env={**os.environ, "LC_ALL": "C"},
            )  # fmt: skip
        self._wait_until_up()
        return self

    def _wait_until_up(self) -> None:
        import psycopg

        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                psycopg.connect(self.conninfo).close()
                return
            except psycopg.OperationalError as error:
                ended = self._process.poll() is not None
                if ended or time.monotonic() > deadline:
                    said = (self._folder / "log").read_text(errors="replace")
                    raise AssertionError(f"PostgreSQL does not start:\n{said}") from error
            time.sleep(0.1)

    def stop(self) -> None:
        """At once, as a crash: it recovers when it starts again."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(START_SECONDS)

    def discard(self) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)
