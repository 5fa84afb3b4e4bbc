"""What all who write or read in a run have in common, and the writer of ledgers. Kafka's clients
are in kafka_writers.py and kafka_groups.py."""

import bisect
import contextlib
import itertools
import json
import re
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness import paths
from harness.servers import die_with_parent

#: As long after the last acknowledgement a fault may strike, and still be the stall's cause.
JUST_BEFORE_S = 0.2
SCRIPT = paths.COMPAT / "chaos" / "ledger_process.py"


@dataclass
class LedgerHistory:
    """What was told of one ledger."""

    ledger_id: int
    last_acked: int = -1
    #: When its writer handed in the last entry that was acked.
    last_sent_at: float = 0.0
    #: The end that its writer was told at the close.
    closed_at: int | None = None
    #: The end that another client's recovery found, and when it had.
    recovered_at: int | None = None
    fenced_at: float = 0.0
    #: How often its writer said that it was fenced.
    fence_count: int = 0


@dataclass
class Gaps:
    """Moments of acknowledgements. A gap in which the writer itself was replaced (`breaks`) is the
    start of two processes, and no stall."""

    moments: list[float] = field(default_factory=list)
    breaks: list[float] = field(default_factory=list)

    def _ms(self, moments: list[float], over_breaks: bool = False) -> list[float]:
        return [
            1000 * (after - before)
            for before, after in itertools.pairwise(moments)
            if any(before <= each <= after for each in self.breaks) == over_breaks
        ]

    def longest(self, count: int = 5) -> list[tuple[float, float]]:
        """(when it began, ms), of the longest gaps of either kind."""
        pairs = itertools.pairwise(self.moments)
        gaps = [(before, 1000 * (after - before)) for before, after in pairs]
        return sorted(gaps, key=lambda gap: -gap[1])[:count]

    def over_breaks_ms(self) -> list[float]:
        return sorted(self._ms(self.moments, over_breaks=True))

    def all_ms(self) -> list[float]:
        return sorted(self._ms(self.moments))

    def longest_ms(self, since: float, until: float) -> float:
        """The longest time without an acknowledgement that began in the time given, or just
        before."""
        first = bisect.bisect_left(self.moments, since - JUST_BEFORE_S)
        last = bisect.bisect_right(self.moments, until) + 1
        return max(self._ms(self.moments[first:last]), default=0.0)


class Workload(ABC):
    """Clients that write or read through the faults and note what they were told. A class in
    itself: one that begins, goes on alone, and is judged at the end."""

    name = ""
    #: How long without a word it may be and still counts as at work.
    silent_s = 2.0

    def __init__(self, world) -> None:
        self.world = world
        #: By what can stall alone: a partition, or the whole.
        self.gaps: dict[int, Gaps] = {0: Gaps()}
        self.wrong: list[str] = []

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def finish(self) -> None:
        """Stops, and waits for what is under way."""

    @abstractmethod
    def close(self) -> None:
        """Ends its processes, whatever happened before."""

    def look_after(self, struck: Sequence[object], say) -> None:  # noqa: B027 - not all need it
        """Called again and again; `struck`: what a fault has hold of."""

    def state(self) -> str:
        """For whoever looks for the cause of a silence: what its client says of itself."""
        return ""

    def is_writing(self) -> bool:
        """All of it, just now."""
        now = time.monotonic()
        return all(
            bool(each.moments) and now - each.moments[-1] < self.silent_s
            for each in self.gaps.values()
        )

    def longest_ms(self, since: float, until: float) -> float:
        return max(each.longest_ms(since, until) for each in self.gaps.values())


class LedgerProcess:
    """One process of ledger_process.py; `on_line` gets each of its lines, on a thread, from
    `listen` on."""

    def __init__(self, uri: str, words: list[str], log: Path, on_line) -> None:
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, str(SCRIPT), uri, *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                cwd=paths.ROOT,
                preexec_fn=die_with_parent,
            )
        #: The last that it made.
        self.ledger_id = -1
        self._on_line = on_line
        self._thread = threading.Thread(target=self._read, daemon=True)

    def listen(self) -> "LedgerProcess":
        self._thread.start()
        return self

    def _read(self) -> None:
        for line in self.process.stdout:
            if line.endswith("\n"):  # else it was killed in the middle of it
                self._on_line(self, json.loads(line))

    def wait(self, timeout_s: float) -> int:
        code = self.process.wait(timeout_s)
        self._thread.join(10)
        for pipe in (self.process.stdin, self.process.stdout):
            # What was still to be written is nobody's any more.
            with contextlib.suppress(OSError):
                pipe.close()
        return code

    def kill(self) -> None:
        self.process.kill()
        self.wait(10)


def holders(world, ledger_ids: Iterable[int]) -> dict[int, dict]:
    """Of each ledger: the bookies that have anything of it (`having`), and those that did not say
    (`silent`). `world` has a uri, a directory and bookies."""
    found: dict[int, dict] = {}

    def on_line(_, line: dict) -> None:
        found[line["ledger"]] = line

    words = ["holders", *(bookie.id for bookie in world.bookies)]
    log = world.directory / "ledger_process.log"
    process = LedgerProcess(world.uri, words, log, on_line).listen()
    for ledger_id in ledger_ids:
        process.process.stdin.write(f"{ledger_id}\n")
    process.process.stdin.close()
    code = process.wait(300)
    assert code == 0, log.read_text(errors="replace")[-1500:]
    return found


class LedgerWriting(Workload):
    """A writer process at a time; a killed one's ledger is recovered by the next."""

    name = "ledgers"

    def __init__(self, world) -> None:
        super().__init__(world)
        self.ledgers: dict[int, LedgerHistory] = {}
        self.failures: dict[str, int] = {}
        self.recovery_s: list[float] = []
        self.writer: LedgerProcess | None = None
        self.is_finished = False
        #: The ledger that is written to.
        self.current = -1
        #: Writers that were replaced, and the ledger whose recovery they had to notice.
        self.zombies: list[tuple[LedgerProcess, int]] = []

    def start(self) -> None:
        words = [str(each) for each in (*self.world.options.ensemble, self.world.options.rate)]
        self.writer = self._process(["write", *words])
        # Not before: its lines are told from those of one that was replaced.
        self.writer.listen()

    def _process(self, words: list[str]) -> LedgerProcess:
        log = self.world.directory / "ledger_process.log"
        return LedgerProcess(self.world.uri, words, log, self._on_line)

    def _on_line(self, process: LedgerProcess, line: dict) -> None:
        if "acked" in line:
            first, last = line["acked"]
            ledger = self.ledgers[line["ledger"]]
            if first != ledger.last_acked + 1:
                self.wrong.append(f"{ledger}: acked {first}-{last}: out of order")
            ledger.last_acked, ledger.last_sent_at = last, line["sent_at"]
            if process is self.writer:
                self.gaps[0].moments += line["at"]
        elif "created" in line:
            process.ledger_id = line["created"]
            self.ledgers[line["created"]] = LedgerHistory(line["created"])
            if process is self.writer:
                self.current = line["created"]
        elif "closed" in line:
            self.ledgers[line["closed"]].closed_at = line["last"]
        elif "fenced" in line:
            self.ledgers[line["fenced"]].fence_count += 1
        elif "recovered" in line:
            ledger = self.ledgers[line["recovered"]]
            ledger.recovered_at, ledger.fenced_at = line["last"], line["at"]
            self.recovery_s.append(line["seconds"])
        elif "failed" in line:
            who = "the writer" if process is self.writer else "one that was replaced"
            kind = f"{who}, {line['failed']}: {re.sub('[0-9]+', 'N', line['words'])}"
            self.failures[kind] = self.failures.get(kind, 0) + 1

    def log_end(self) -> str:
        log = self.world.directory / "ledger_process.log"
        return log.read_text(errors="replace")[-1500:]

    def recover_current(self, timeout_s: float = 90) -> None:
        """Another client fences and recovers what is written to now."""
        if self.current >= 0:
            code = self._process(["recover", str(self.current)]).listen().wait(timeout_s)
            if code:
                self.wrong.append(f"ledger {self.current}: not recovered: exit code {code}")

    def replace(self, *, kill: bool) -> None:
        """The writer is killed, or left to find out that it was fenced; another goes on."""
        old, ledger_id = self.writer, self.current
        self.gaps[0].breaks.append(time.monotonic())
        if kill:
            old.kill()
        else:
            self.zombies.append((old, ledger_id))
        self.current = ledger_id
        self.recover_current()
        self.start()
        # The old one may have gone on up to here, if it was at its next ledger already.
        self.gaps[0].breaks.append(time.monotonic())

    def look_after(self, struck: Sequence[object], say) -> None:
        if self.is_finished or self in struck or self.writer.process.poll() is None:
            return
        if self.writer.ledger_id < 0:
            code = self.writer.process.returncode
            say(f"a ledger writer did not start ({code}); another is started")
        else:
            self.wrong.append(f"the ledger writer ended by itself: {self.log_end()}")
        self.start()

    def close(self) -> None:
        if self.writer is not None:
            self.writer.kill()

    def finish(self) -> None:
        self.is_finished = True
        self.writer.kill()
        for zombie, ledger_id in self.zombies:
            # It may have gone on to its next ledger just before: then nobody fenced it.
            if zombie.ledger_id == ledger_id:
                try:
                    zombie.wait(20)
                except subprocess.TimeoutExpired:
                    self.wrong.append(f"the writer of ledger {ledger_id} does not notice the fence")
            zombie.kill()

    def verify(self) -> dict[int, dict]:
        """What a new client reads of every ledger."""
        found: dict[int, dict] = {}

        def on_line(_, line: dict) -> None:
            found[line["verified"]] = line

        log = self.world.directory / "ledger_process.log"
        process = LedgerProcess(self.world.uri, ["verify"], log, on_line).listen()
        for ledger_id in sorted(self.ledgers):
            process.process.stdin.write(f"{ledger_id}\n")
        process.process.stdin.close()
        code = process.wait(600)
        if code:
            self.wrong.append(f"reading back ended with exit code {code}: {self.log_end()}")
        return found
