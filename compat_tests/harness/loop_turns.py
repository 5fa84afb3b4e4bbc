"""How long the loops of the run's servers were held, as the servers' logs tell it.

A quire process logs `loop_turns` (its turns since it serves, by length) when it stops, and whenever
a turn above 5 ms is in a longer bucket than all before it; `loop_held` is a turn above 50 ms, with
who held the loop. So one that is killed has told its longest turn, but not how many turns it had.
The control's logs have no such lines.
"""

import os
import re
from collections import Counter
from pathlib import Path

_TURNS = re.compile(rb" event=loop_turns pid=(\d+) longest_milliseconds=\S+ by=(.+) turns=(\S*)$")
_HELD = re.compile(
    rb" event=loop_held by=(.+) milliseconds=(\d+) cpu_milliseconds=(\d+) untold=(\d+)$"
)


class ServerLog:
    """A log that processes append to; `news` gives each line of theirs about loops once."""

    def __init__(self, path: Path, offset: int) -> None:
        self._path = path
        self._offset = offset

    def news(self) -> list[bytes]:
        if not self._path.exists():
            return []
        with self._path.open("rb") as log:
            log.seek(self._offset)
            lines = log.read()
        # A line that is being written is read the next time.
        whole = lines.rfind(b"\n") + 1
        self._offset += whole
        return [line for line in lines[:whole].splitlines() if b" event=loop_" in line]


class Tally:
    """Of all processes of a run: `turns` by bucket, `held` by who held the loop."""

    def __init__(self) -> None:
        #: process -> bucket's upper bound in milliseconds -> turns, as it told last.
        self.turns: dict[str, dict[str, int]] = {}
        #: Processes that stopped cleanly, so that all their turns are counted.
        self.stopped: set[str] = set()
        #: name -> [times, longest in milliseconds, processor time in that, the test it was in].
        self.held: dict[str, list] = {}
        #: name -> [bucket's bound in milliseconds, test] of processes' longest turns above 5 ms.
        self.rises: dict[str, list] = {}

    def note(self, lines: list[bytes]) -> None:
        """`lines` of one server, logged since the last call, mostly during the present test."""
        test = os.environ.get("PYTEST_CURRENT_TEST", "?").removesuffix(" (call)")
        for line in lines:
            if found := _TURNS.search(line):
                pid, by, told = (each.decode(errors="replace") for each in found.groups())
                # Runs on several machines, or one after another, may have the same process ids.
                process = f"{os.getpid()}.{pid}"
                turns = dict(each.split(":") for each in told.split(",") if each)
                self.turns[process] = {bound: int(count) for bound, count in turns.items()}
                if by == "none":
                    self.stopped.add(process)
                else:
                    self._note_rise(by, max(map(float, turns)), test)
            elif found := _HELD.search(line):
                name = found[1].decode(errors="replace")
                self._note_held(name, 1 + int(found[4]), int(found[2]), int(found[3]), test)

    def _note_rise(self, name: str, bound_ms: float, test: str) -> None:
        if bound_ms > self.rises.get(name, [0.0])[0]:
            self.rises[name] = [bound_ms, test]

    def _note_held(self, name: str, times: int, longest_ms: int, cpu_ms: int, test: str) -> None:
        known = self.held.setdefault(name, [0, 0, 0, test])
        known[0] += times
        if longest_ms > known[1]:
            known[1:] = [longest_ms, cpu_ms, test]

    def as_plain(self) -> dict:
        """For the way from one of pytest-xdist's processes to its parent."""
        return {
            "turns": self.turns,
            "stopped": sorted(self.stopped),
            "held": self.held,
            "rises": self.rises,
        }

    def add(self, plain: dict) -> None:
        self.turns.update(plain["turns"])
        self.stopped.update(plain["stopped"])
        for name, (times, *longest) in plain["held"].items():
            self._note_held(name, times, *longest)
        for name, (bound_ms, test) in plain["rises"].items():
            self._note_rise(name, bound_ms, test)

    def summary(self) -> list[str]:
        """Lines to print; none if no process told anything."""
        if not self.turns and not self.held:
            return []
        buckets = Counter()
        for turns in self.turns.values():
            buckets.update(turns)
        worst = max(buckets, key=float, default="0")
        silent = len(self.turns) - len(self.stopped)
        lines = [
            f"worst turn: at most {worst} ms; {sum(buckets.values())} turns of {len(self.turns)} "
            f"processes; {silent} of them were killed, and told of turns up to their longest only"
        ]
        lines += [f"{bound:>6} ms: {buckets[bound]}" for bound in sorted(buckets, key=float)]
        by_length = sorted(self.rises.items(), key=lambda each: -each[1][0])
        for name, (bound_ms, test) in by_length:
            lines.append(f"a process's longest: at most {bound_ms:g} ms by {name} in {test}")
        for name, (times, ms, cpu_ms, test) in sorted(
            self.held.items(), key=lambda each: -each[1][1]
        ):
            longest = f"longest {ms} ms, {cpu_ms} of them its own"
            lines.append(f"warned: {name} {times} times, {longest}, in {test}")
        return lines


TALLY = Tally()
