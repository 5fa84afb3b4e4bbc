"""Runs parts, keeps what came of each, and leaves out what has passed for the same code.

The results are in a file outside the tree, by code: a hash of all files but of those that people
read. They are written before each part and after it, so whatever ends a run, the next one goes on
behind what has ended, and a part that was cut off has not passed.

A part runs in a session of its own, led by a guard (guard.py). One that takes too long is
interrupted as by Ctrl-C, so that tests take down what they have started; then the whole group is
ended, then killed, by its id. If this process dies, the guard kills the group.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from compat_tests.long.parts import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from compat_tests.long.parts import Part

PASSED, FAILED, TIMED_OUT, NOT_ENDED = "passed", "failed", "timed out", "not ended"
GUARD = (sys.executable, str(Path(__file__).with_name("guard.py")))
#: Of the closing words; a run with many failures names them all.
CLOSING_CHARACTERS_MAX = 1000
#: What no part reads: pages, among them the table.
PAGES = (":(exclude)docs", ":(exclude,glob)**/*.md")
#: What a part has after each signal to end by itself.
GRACE_SECONDS = 30.0
#: Names the folder for what a part wants to be looked at after it.
LOGS = "QUIRE_CHAOS_LOGS"
LOOK_SECONDS = 0.05


@dataclass(frozen=True)
class Outcome:
    part: str
    #: PASSED, FAILED with the exit code, TIMED_OUT, or NOT_ENDED: begun, then cut off.
    result: str
    seconds: float
    date: str
    log: str
    #: What the log says in the end: counts of what passed, failed, was lost.
    closing: str
    commit: str


def cache_directory() -> Path:
    """QUIRE_CACHE, else `quire` in the user's cache folder."""
    if configured := os.environ.get("QUIRE_CACHE"):
        return Path(configured)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quire"


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout


def commit_of(root: Path) -> str:
    """In short; says so if the code is not quite the commit's. no-commit outside a work tree."""
    commit = _git(root, "rev-parse", "--short=9", "HEAD").strip() or "no-commit"
    is_changed = _git(root, "status", "--porcelain", "--", ".", *PAGES)
    return f"{commit} with changes" if is_changed else commit


def code_of(root: Path) -> str:
    """A hash of the names and contents of all files, also of those that are not committed; without
    pages, and what git ignores. no-commit outside a work tree."""
    names = _git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard", ".", *PAGES)
    if not names:
        return "no-commit"
    sum_so_far = hashlib.blake2b(digest_size=6)
    for name in sorted(set(names.split("\0"))):
        path = root / name
        if path.is_file():
            content = path.read_bytes()
            sum_so_far.update(f"{name}\0{len(content)}\0".encode() + content)
    return sum_so_far.hexdigest()


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
        # Interrupted is only the leader, who hands it on: the command ends its own, in its order.
        os.kill(process.pid, signal.SIGINT)
        if not _has_ended(process, grace_seconds):
            os.killpg(process.pid, signal.SIGTERM)
            _has_ended(process, grace_seconds)
    with contextlib.suppress(PermissionError):  # nobody but the ended leader is in it
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


def closing_of(text: str, telling: str) -> str:
    """The lines of a log in which the expression `telling` is found, and the last one."""
    lines = [line.strip(" =\r") for line in text.splitlines()]
    lines = [line for line in lines if line]
    told = [line for line in lines if telling and re.search(telling, line)]
    if lines and lines[-1] not in told:
        told.append(lines[-1])
    return "; ".join(dict.fromkeys(told))[-CLOSING_CHARACTERS_MAX:]


def begun(part: Part, directory: Path, commit: str = "") -> Outcome:
    """What is known of a part that has begun, and stays so if it is cut off."""
    today = datetime.now(UTC).date().isoformat()
    log = str(directory / f"{part.name}.log")
    return Outcome(part.name, NOT_ENDED, 0.0, today, log, "", commit)


def run(
    part: Part, directory: Path, commit: str = "", grace_seconds: float = GRACE_SECONDS
) -> Outcome:
    """Its output goes to a file in `directory`, and logs of its servers, of a chaos run, into a
    folder beside it. KeyboardInterrupt and SystemExit end it, too."""
    directory.mkdir(parents=True, exist_ok=True)
    outcome = begun(part, directory, commit)
    log = Path(outcome.log)
    shutil.rmtree(directory / part.name, ignore_errors=True)
    start = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            (*GUARD, *part.command),
            cwd=part.directory,
            env={**os.environ, LOGS: str(directory / part.name), **part.environment},
            stdin=subprocess.PIPE,
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
    return replace(
        outcome,
        result=TIMED_OUT if is_late else PASSED if code == 0 else f"{FAILED} ({code})",
        seconds=round(time.monotonic() - start, 1),
        closing=closing_of(log.read_text(encoding="utf-8", errors="replace"), part.telling),
    )


def command_of(part: Part) -> str:
    """As one types it in a shell, in the part's directory."""
    words = ["python" if word == sys.executable else word for word in part.command]
    where = part.directory.relative_to(ROOT) if part.directory.is_relative_to(ROOT) else Path()
    folder = [] if where == Path() else [f"cd {where} &&"]
    environment = [f"{name}={shlex.quote(value)}" for name, value in part.environment.items()]
    return " ".join(" ".join([*folder, *environment, shlex.join(words)]).split())


def table(parts: Iterable[Part], state: State) -> str:
    """Markdown: a line for each part."""
    lines = [
        "| part | result | closing line | seconds | date | commit | command |",
        "|---|---|---|---|---|---|---|",
    ]
    for part in parts:
        outcome = state.outcomes.get(part.name)
        words = ["-", "-", "-", "-", "-"]
        if outcome is not None:
            words = [
                *(outcome.result, outcome.closing or "-", f"{outcome.seconds:.0f}"),
                *(outcome.date, outcome.commit or "-"),
            ]
        cells = (part.name, *words, f"`{command_of(part)}`")
        lines.append("".join(f"| {cell.replace('|', '/')} " for cell in cells) + "|")
    return "\n".join(lines) + "\n"


def page(parts: Iterable[Part], state: State) -> str:
    parts = tuple(parts)
    minutes = sum(outcome.seconds for outcome in state.outcomes.values()) / 60
    passed = sum(state.has_passed(part.name) for part in parts)
    return (
        "# Long tests\n\n"
        "What `make test-long` did last: parts that take too long for `make test`. Written by\n"
        "`python -m compat_tests.long --write docs/long-tests.md`. What runs still longer:\n"
        "testing.md.\n\n"
        f"{passed} of {len(parts)} parts have passed, in {minutes:.0f} minutes.\n\n"
        f"{table(parts, state)}"
    )
