"""Runs parts, keeps what came of each, and leaves out what has passed for the same code.

The results are in a file outside the tree, by code: the commit, and a hash of what was changed
since. They are written after each part, so whatever ends a run, the next one goes on behind it.

A part runs in a session of its own. One that takes too long is interrupted as by Ctrl-C, so that
tests take down what they have started; then the whole session is ended, then killed, by its id.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from compat_tests.long.parts import Part

PASSED, FAILED, TIMED_OUT = "passed", "failed", "timed out"
#: What a part has after each signal to end by itself.
GRACE_SECONDS = 30.0
LOOK_SECONDS = 0.05


@dataclass(frozen=True)
class Outcome:
    part: str
    #: PASSED, FAILED with the exit code, or TIMED_OUT.
    result: str
    seconds: float
    date: str
    log: str


def cache_directory() -> Path:
    """QUIRE_CACHE, else `quire` in the user's cache folder."""
    if configured := os.environ.get("QUIRE_CACHE"):
        return Path(configured)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quire"


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout


def code_of(root: Path) -> str:
    """The commit; with a hash of what differs from it, if anything does."""
    commit = _git(root, "rev-parse", "--short=9", "HEAD").strip() or "no-commit"
    changes = _git(root, "diff", "HEAD") + _git(root, "status", "--porcelain")
    if not changes:
        return commit
    return f"{commit}+{hashlib.blake2b(changes.encode(), digest_size=4).hexdigest()}"


class State:
    """What came of the parts of one code."""

    def __init__(self, directory: Path, code: str) -> None:
        self.directory = directory / "long"
        self.code = code
        self._path = self.directory / f"{code}.json"
        self.outcomes: dict[str, Outcome] = {}
        if self._path.exists():
            for values in json.loads(self._path.read_text(encoding="utf-8")):
                self.outcomes[values["part"]] = Outcome(**values)

    def has_passed(self, part: str) -> bool:
        outcome = self.outcomes.get(part)
        return outcome is not None and outcome.result == PASSED

    def keep(self, outcome: Outcome) -> None:
        self.outcomes[outcome.part] = outcome
        self.directory.mkdir(parents=True, exist_ok=True)
        text = json.dumps([asdict(each) for each in self.outcomes.values()], indent=1)
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text(text + "\n", encoding="utf-8")
        temporary.replace(self._path)


def _has_ended(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Within so long. The ended process is left to be waited for: until then its id, which is its
    group's, is nobody else's."""
    deadline = time.monotonic() + seconds
    options = os.WEXITED | os.WNOWAIT | os.WNOHANG
    while os.waitid(os.P_PID, process.pid, options) is None:
        if time.monotonic() >= deadline:
            return False
        time.sleep(LOOK_SECONDS)
    return True


def end(process: subprocess.Popen[bytes], grace_seconds: float) -> None:
    """Ends it, and all of its group."""
    if not _has_ended(process, 0.0):
        # Interrupted is only the leader: it ends its own, in its order.
        os.kill(process.pid, signal.SIGINT)
        if not _has_ended(process, grace_seconds):
            os.killpg(process.pid, signal.SIGTERM)
            _has_ended(process, grace_seconds)
    with contextlib.suppress(PermissionError):  # nobody but the ended leader is in it
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run(part: Part, directory: Path, grace_seconds: float = GRACE_SECONDS) -> Outcome:
    """Its output goes to a file in `directory`. KeyboardInterrupt ends it, too."""
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / f"{part.name}.log"
    start = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            part.command,
            cwd=part.directory,
            env={**os.environ, **part.environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            is_late = not _has_ended(process, part.seconds)
        finally:
            # Also of a part that ended by itself: what it left in its group goes.
            end(process, grace_seconds)
    code = process.returncode
    result = TIMED_OUT if is_late else PASSED if code == 0 else f"{FAILED} ({code})"
    seconds = round(time.monotonic() - start, 1)
    today = datetime.now(UTC).date().isoformat()
    return Outcome(part.name, result, seconds, today, str(log))


def table(parts: Iterable[Part], state: State) -> str:
    lines = ["| part | result | seconds | date |", "|---|---|---|---|"]
    for part in parts:
        outcome = state.outcomes.get(part.name)
        words = ("-", "-", "-")
        if outcome is not None:
            words = (outcome.result, f"{outcome.seconds:.0f}", outcome.date)
        lines.append(f"| {part.name} | {' | '.join(words)} |")
    return "\n".join(lines) + "\n"


def page(parts: Iterable[Part], state: State) -> str:
    return (
        "# Long tests\n\n"
        "What `make test-long` did last: parts that take too long for `make test`. Written by\n"
        f"`python -m compat_tests.long --write docs/long-tests.md`, commit {state.code}.\n\n"
        f"{table(parts, state)}"
    )
