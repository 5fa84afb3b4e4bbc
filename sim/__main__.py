"""`python -m sim --seed N`: one world. `--count M`: seeds N to N + M - 1, in `--jobs` processes.

Exit codes: 0 fine, 3 a crash, 4 no progress after the heal, 5 a history that cannot be, 6 a rare
path that no run reached (--require-coverage), 7 two runs of a seed that differ (--twice).
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import time
import traceback
from itertools import count, islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from sim.batch import Batch, WorkerError
from sim.case import STEPS, Case, parse_kinds, parse_shape
from sim.code_seed import code_seed
from sim.coverage import Coverage
from sim.describe import readable
from sim.minimise import minimise
from sim.plan import KINDS
from sim.runner import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sim.worker import Summary

UNREACHED, DIFFERENT = 6, 7
#: PYTHONHASHSEED of the two processes that --twice compares.
HASH_SEEDS = (0, 4242)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m sim",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--seed",
        type=lambda text: code_seed() if text == "code" else int(text),
        help="the first seed; code: one that changes with the code; else one from the clock",
    )
    parser.add_argument("--count", type=int, help="so many seeds; 1, or with --minutes any number")
    parser.add_argument("--minutes", type=float, help="no seed is begun after so long")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--steps", type=int, default=STEPS, help="faults in each run")
    parser.add_argument(
        "--faults", help=f"comma-separated, instead of the seed's own choice: {', '.join(KINDS)}"
    )
    parser.add_argument("--only", help="numbers of the faults that are kept")
    parser.add_argument("--shape", default="", help="as in brokers=2,admins=0")
    parser.add_argument("--trace", type=Path, help="file for one line per event (of one seed)")
    parser.add_argument("--minimise", action="store_true", help="a smaller case that still fails")
    parser.add_argument("--twice", action="store_true", help="in two processes; compare the hashes")
    parser.add_argument("--quiet", action="store_true", help="only seeds that fail, and the end")
    parser.add_argument(
        "--require-coverage", action="store_true", help="what no run reached is an error"
    )
    options = parser.parse_args(arguments)
    if options.jobs < 1:
        parser.error("--jobs: at least one")
    try:
        options.kinds = None if options.faults is None else parse_kinds(options.faults)
    except ValueError as error:
        parser.error(f"--faults: {error}")
    try:
        options.shape = parse_shape(options.shape)
    except ValueError as error:
        parser.error(f"--shape: {error}")
    if options.only is not None:
        options.only = tuple(int(number) for number in options.only.split(",") if number)
    if options.seed is None:
        options.seed = time.time_ns() // 1_000_000 % (1 << 31)
    if options.count is None and options.minutes is None:
        options.count = 1
    options.is_one = options.count == 1 and not options.twice
    if options.trace is not None and not options.is_one:
        parser.error("--trace: of one seed only")
    return options


def cases(options: argparse.Namespace) -> Iterator[Case]:
    for seed in islice(count(options.seed), options.count):
        yield Case(seed, options.steps, options.kinds, options.only, options.shape)


def run_one(case: Case, trace: Path | None) -> int:
    """In this process, with all that is to tell of it. The exit code."""
    with contextlib.ExitStack() as stack:
        file = None
        if trace is not None:
            file = stack.enter_context(trace.open("w", encoding="utf-8"))
        result = case.run(file)
    print(
        f"seed {result.seed} {result.outcome.name} {result.digest} events={result.events} "
        f"virtual={result.virtual_seconds:.1f}s cpu={result.cpu_seconds:.2f}s {result.story}"
    )
    if result.error is not None:
        print("".join(map(readable, result.recent)), end="")
        traceback.print_exception(result.error)
    print(", ".join(f"{name} {count}" for name, count in sorted(result.counts.items())))
    return int(result.outcome)


def print_smaller(case: Case, outcome: Outcome) -> None:
    smaller = minimise(case, outcome, say=lambda words: print(f"  {words}", flush=True))
    print(f"  the same with less: {smaller.command}")
    for fault in smaller.plan:
        print(f"    {fault}")


class Totals:
    """Of all runs of one call."""

    def __init__(self) -> None:
        self.coverage = Coverage()
        self.worst = Outcome.FINE
        self.failed: list[Case] = []
        self.cpu_seconds = self.virtual_seconds = 0.0
        self.event_count = 0
        self._start = time.monotonic()

    def add(self, case: Case, summary: Summary) -> None:
        self.coverage.add(summary.counts)
        self.worst = max(self.worst, summary.outcome)
        self.cpu_seconds += summary.cpu_seconds
        self.virtual_seconds += summary.virtual_seconds
        self.event_count += summary.events
        if summary.outcome is not Outcome.FINE:
            self.failed.append(case)

    def report(self) -> str:
        count, cpu = self.coverage.run_count, max(self.cpu_seconds, 1e-9)
        words = (
            f"{count} runs in {time.monotonic() - self._start:.0f} s, {len(self.failed)} failed; "
            f"{count / cpu * 60:.0f} seeds a minute of processor time, "
            f"{self.event_count / cpu:.0f} events/s, {self.virtual_seconds / cpu:.1f} virtual "
            "seconds in one\n"
        )
        return words + "".join(f"  {case.command}\n" for case in self.failed)


def run_many(options: argparse.Namespace) -> int:
    totals = Totals()
    seconds = None if options.minutes is None else options.minutes * 60
    print(f"seeds from {options.seed} on", flush=True)
    # Whatever ends it, what is known so far is told; in a shell's background only SIGTERM does.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for case, summary in Batch(cases(options), jobs=options.jobs, seconds=seconds):
            totals.add(case, summary)
            is_fine = summary.outcome is Outcome.FINE
            if not (options.quiet and is_fine):
                print(summary.line, flush=True)
            if not is_fine:
                print(f"  again: {case.command}", flush=True)
                if options.minimise:
                    print_smaller(case, summary.outcome)
    except KeyboardInterrupt:
        print("interrupted")
    except WorkerError as error:
        print(error)
        totals.worst = max(totals.worst, Outcome.CRASH)
    finally:
        signal.signal(signal.SIGTERM, before)
    print(totals.coverage.table(), end="")
    missing = totals.coverage.missing() if options.require_coverage else []
    if missing:
        print(f"reached by no run: {', '.join(missing)}")
    print(totals.report(), end="")
    return int(totals.worst) or (UNREACHED if missing else 0)


def run_twice(options: argparse.Namespace) -> int:
    """Each seed in two processes with other hashes of strings."""
    first: dict[int, str] = {}
    second: dict[int, str] = {}
    worst = Outcome.FINE
    jobs = max(options.jobs // 2, 1)
    # Side by side: one after the other would compare two states of the code, if it is edited.
    batches = [Batch(cases(options), jobs=jobs, hash_seed=hash_seed) for hash_seed in HASH_SEEDS]
    for pair in zip_longest(*batches):
        for known, done in zip((first, second), pair, strict=True):
            if done is not None:
                case, summary = done
                known[case.seed] = summary.digest
                worst = max(worst, summary.outcome)
    different = [seed for seed in first if first[seed] != second[seed]]
    for seed in sorted(first):
        words = "DIFFERENT" if seed in different else "the same"
        if not options.quiet or seed in different:
            print(f"seed {seed} {first[seed]} {second[seed]} {words}")
    print(f"{len(first)} seeds twice, {len(different)} different, the worst {worst.name}")
    return DIFFERENT if different else int(worst)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    if options.twice:
        return run_twice(options)
    if not options.is_one:
        return run_many(options)
    (case,) = cases(options)
    code = run_one(case, options.trace)
    if code and options.minimise:
        print_smaller(case, Outcome(code))
    return code


if __name__ == "__main__":
    sys.exit(main())
