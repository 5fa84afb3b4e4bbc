"""Runs other people's command line programs, and says clearly what they said when they fail."""

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from harness import class_archives, paths

TIMEOUT_SECONDS = 90
#: For the end of a tool that has said that it is done.
ENDING_SECONDS = 10


class ToolFailed(AssertionError):
    """A program ended with a code that was not expected."""


def run(
    command: list[str],
    *,
    input_text: str | None = None,
    timeout_s: float = TIMEOUT_SECONDS,
    code: int | None = 0,
    environment: dict[str, str] | None = None,
    cwd: Path | None = None,
) -> str:
    """Standard output and error together, in the order written; checks the exit code.

    `code=None` accepts any. Raises ToolFailed with everything that the program wrote.
    """
    done = subprocess.run(
        command,
        input=input_text,
        stdin=subprocess.DEVNULL if input_text is None else None,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=timeout_s,
        env={**os.environ, **(environment or {})},
        cwd=cwd,
        check=False,
    )
    if code is not None and done.returncode != code:
        raise ToolFailed(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def compiled(folder: Path, class_path: str) -> Path:
    """The classes of a folder's Java sources, compiled once for each version of them."""
    sources = sorted(folder.glob("*.java"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    directory = paths.cache_dir() / "java-classes" / digest
    if not directory.exists():
        directory.parent.mkdir(exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=directory.parent))
        run(["javac", "-proc:none", "-cp", class_path, "-d", str(made), *map(str, sources)])
        # Whole or not at all; another run may have been quicker.
        with contextlib.suppress(OSError):
            made.rename(directory)
        shutil.rmtree(made, ignore_errors=True)
    return directory


def java_environment() -> dict[str, str]:
    jvm = " ".join((*class_archives.SMALL_JVM, *class_archives.kafka()))
    return {"KAFKA_JARS": str(paths.jars("kafka")), "KAFKA_JVM_OPTIONS": jvm}


def java_command(name: str, *arguments: str) -> list[str]:
    return [str(paths.COMPAT / "peers" / "kafka-tool"), name, *arguments]


def java(name: str, *arguments: str, **options) -> str:
    """Runs one of Kafka's tools, or a class of org.apache.kafka.tools; options as of `run`."""
    return run(java_command(name, *arguments), environment=java_environment(), **options)


def java_until(pattern: str, name: str, *arguments: str) -> str:
    """For a tool that does its work, says so, and may hang in its own end: what it wrote.

    As `java`, but once it has written what `pattern` matches it may take ENDING_SECONDS to end, and
    is killed then. ToolFailed if it ends, or is not done in time, without having written that."""
    command = java_command(name, *arguments)
    with tempfile.TemporaryFile() as output:

        def said() -> str:
            return os.pread(output.fileno(), 1 << 24, 0).decode(errors="replace")

        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **java_environment()},
        )
        code = None
        try:
            deadline = time.monotonic() + TIMEOUT_SECONDS
            while process.poll() is None and not re.search(pattern, said()):
                if time.monotonic() > deadline:
                    break
                time.sleep(0.1)
            else:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    code = process.wait(ENDING_SECONDS)
        finally:
            process.kill()
            process.wait()
        if code or not re.search(pattern, said()):
            ended = "was killed" if code is None else f"ended with {code}"
            raise ToolFailed(f"{' '.join(command)}\n{ended}:\n{said()}")
        return said()


def kafka_path(directory: Path) -> Path:
    """A folder that looks like a Kafka installation to whoever calls bin/kafka-topics.sh there."""
    script = paths.COMPAT / "peers" / "kafka-tool"
    (directory / "bin").mkdir(parents=True, exist_ok=True)
    for name in re.findall(r"^(kafka-[a-z0-9-]+)\)", script.read_text(), re.M):
        # Two test processes may make one folder.
        with contextlib.suppress(FileExistsError):
            (directory / "bin" / f"{name}.sh").symlink_to(script)
    return directory
