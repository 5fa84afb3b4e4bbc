"""Kafka's Java libraries in processes: programs of java/kafka/, Streams, Connect."""

import contextlib
import re
import signal
import subprocess
import time
from pathlib import Path

from harness import paths, tools
from harness.class_archives import SMALL_JVM
from harness.line_tool import LineTool
from harness.servers import die_with_parent

LOG4J = """<Configuration status="WARN"><Appenders>
  <Console name="out" target="SYSTEM_ERR">
    <PatternLayout pattern="%d %-5level %logger{1} %msg%n"/></Console>
</Appenders><Loggers><Root level="WARN"><AppenderRef ref="out"/></Root></Loggers></Configuration>
"""
#: Kafka clients of 3.x know nothing of transaction.version 2, of 4.x use it where a server has it.
OLD_CLIENT = "kafka-clients-3.9.2.jar"


def class_path(directory: Path, *, is_old: bool = False) -> str:
    """The classes of java/kafka/, with Kafka's jars; `is_old`: its clients of 3.9 before all."""
    (directory / "log4j").mkdir(parents=True, exist_ok=True)
    (directory / "log4j" / "log4j2.xml").write_text(LOG4J)
    jars = [f"{paths.jars('applications')}/*", f"{paths.jars('kafka')}/*"]
    if is_old:
        jars.insert(0, str(paths.needed(paths.jars("spark") / OLD_CLIENT, "jars")))
    classes = tools.compiled(paths.COMPAT / "java" / "kafka", ":".join(jars[-2:]))
    return ":".join([str(directory / "log4j"), str(classes), *jars])


def transaction_tool(directory: Path, bootstrap: str, *, is_old: bool = False) -> LineTool:
    """java/kafka/TransactionTool.java: of Kafka 4.3, or with the clients of 3.9."""
    version = "3.9.2" if is_old else "4.3.1"
    path = class_path(directory, is_old=is_old)
    command = ["java", *SMALL_JVM, "-cp", path, "TransactionTool", bootstrap]
    tool = LineTool(command, directory / f"transaction-tool-{version}.log", f"Java {version}")
    assert tool.started["version"] == version
    return tool


class Program:
    """A Java program that runs beside the test; what it says is in its log file."""

    def __init__(self, directory: Path, name: str, main: str, *arguments: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.name, self.log_path = name, directory / f"{name}.log"
        # What it makes beside its own files is gone with the test.
        options = [*SMALL_JVM, f"-Djava.io.tmpdir={directory}", "-cp", class_path(directory)]
        self.command = ["java", *options, main, *arguments]
        self.directory = directory
        self.process: subprocess.Popen | None = None

    def start(self) -> "Program":
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                preexec_fn=die_with_parent,
            )
        return self

    def said(self) -> str:
        return self.log_path.read_text(errors="replace")

    def wait_for(self, pattern: str, timeout_s: float) -> None:
        """Until its log has it; tools.ToolFailed if it ends or takes too long before."""
        deadline = time.monotonic() + timeout_s
        while True:
            has_ended = self.process.poll() is not None
            if re.search(pattern, self.said(), re.M):
                return
            if has_ended or time.monotonic() > deadline:
                how = f"ended with {self.process.returncode}" if has_ended else "is late"
                raise tools.ToolFailed(
                    f"{self.name} {how} before {pattern}:\n{self.said()[-6000:]}"
                )
            time.sleep(0.1)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self, timeout_s: float = 30) -> None:
        """SIGTERM; killed if it takes too long."""
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout_s)
            self.kill()
