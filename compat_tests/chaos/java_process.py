"""A program of java/kafka/ beside the run: it prints lines of JSON, and ends with its input."""

import contextlib
import json
import subprocess
import threading
from collections.abc import Callable

from harness import kafka_java
from harness.servers import die_with_parent

from .kafka_writers import end, events


class JavaProcess(threading.Thread):
    """`listen(number, event)` gets each of its lines, on this thread."""

    def __init__(
        self, main: str, number: int, world, options: dict, listen: Callable[[int, dict], None]
    ) -> None:
        super().__init__(name=f"{main} {number}", daemon=True)
        self.number, self._listen = number, listen
        self.is_leaving = False
        self.log_path = world.directory / f"{main}-{number}.log"
        path = kafka_java.class_path(world.directory / "java")
        words = [f"-Djava.io.tmpdir={world.directory}", "-cp", path, main, json.dumps(options)]
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                ["java", *kafka_java.SMALL_JVM, *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                preexec_fn=die_with_parent,
            )
        self.start()

    def run(self) -> None:
        for event in events(self.process):
            self._listen(self.number, event)

    def leave(self) -> None:
        """In order."""
        self.is_leaving = True
        with contextlib.suppress(OSError):
            self.process.stdin.close()

    def kill(self) -> None:
        self.is_leaving = True
        end(self.process)

    def has_left(self, timeout_s: float) -> bool:
        """Waits for the end, and kills it if that takes too long."""
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            end(self.process)
            return False
        self.join(10)
        return True

    def log_end(self) -> str:
        return self.log_path.read_text(errors="replace")[-2000:]
