"""Programs that answer each line of standard input with one line of JSON on standard output."""

import contextlib
import json
import queue
import subprocess
import threading
from pathlib import Path

from harness import paths
from harness.servers import die_with_parent

ANSWER_TIMEOUT_S = 90.0


class ToolError(AssertionError):
    """What a tool answered instead of an outcome. `code`: BKException's, 0 for others; `cause`:
    the name of what lies below it in Java."""

    def __init__(self, command: str, answer: dict) -> None:
        code = f" ({answer['code']})" if "code" in answer else ""
        super().__init__(f"{command}: {answer['error']}{code}: {answer['message']}")
        self.name, self.code = answer["error"], answer.get("code", 0)
        self.cause = answer.get("cause", "")


class LineTool:
    """A program in a process of its own. `tool.create(e=3)` says `line("create", {"e": 3})` and
    returns the answer; ToolError. What comes unasked is in `events`."""

    def __init__(self, command: list[str], log_path: Path, client: str) -> None:
        """Raises AssertionError if it does not say its first line, which is in `started`."""
        self.client, self.log_path = client, log_path
        self.events: list[dict] = []
        self._answers: queue.Queue[dict | None] = queue.Queue()
        with log_path.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=paths.ROOT,
                preexec_fn=die_with_parent,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.started = self._next("start")

    def line(self, command: str, arguments: dict[str, object]) -> str:
        return json.dumps({"do": command, **arguments})

    def _read(self) -> None:
        for line in self.process.stdout:
            try:
                answer = json.loads(line)
            except ValueError:
                with self.log_path.open("a") as log:
                    log.write(line)
                continue
            if "event" in answer:
                self.events.append(answer)
            else:
                self._answers.put(answer)
        self._answers.put(None)

    def _next(self, command: str) -> dict:
        try:
            answer = self._answers.get(timeout=ANSWER_TIMEOUT_S)
        except queue.Empty:
            answer = None
        if answer is None:
            end = self.log_path.read_text(errors="replace")[-3000:]
            raise AssertionError(f"{self.client}: no answer to «{command}»:\n{end}")
        if "error" in answer:
            raise ToolError(f"{self.client}, {command}", answer)
        return answer

    def tell(self, command: str, **arguments: object) -> None:
        """Says it, without waiting; `answer` then waits. Answers come in order."""
        self.process.stdin.write(self.line(command, arguments) + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict:
        return self._next("(told before)")

    def __getattr__(self, command: str):
        if command.startswith("_"):
            raise AttributeError(command)

        def call(**arguments: object) -> dict:
            self.tell(command, **arguments)
            return self._next(command)

        return call

    def kill(self) -> None:
        """SIGKILL: nothing is closed, connections break."""
        self.process.kill()
        self.process.wait()
        self._reader.join()
        for pipe in (self.process.stdin, self.process.stdout):
            # What was still to be written is nobody's any more.
            with contextlib.suppress(OSError):
                pipe.close()
