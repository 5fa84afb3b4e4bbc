"""The hunt for one mutation: seeds until one finds it, and its named tests.

A seed finds it when its run fails, whatever the reason: without the mutation all of them pass. So
does a run that takes CASE_SECONDS of the processor, or whose process ends.
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sim.batch import Batch, WorkerError
from sim.case import Case
from sim.mutations.mutation import ROOT
from sim.runner import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sim.mutations.mutation import Mutation

FIRST_SEED = 1
#: A seed takes two to five.
CASE_SECONDS = 90
TEST_SECONDS = 900
#: pytest's exit code when tests ran and some failed: all else is no finding.
TESTS_FAILED = 1


@dataclass(frozen=True, slots=True)
class Finding:
    name: str
    #: Seeds until it was found, FIRST_SEED being the first; None: not within `tried`.
    seeds: int | None
    tried: int
    #: What the seed said, in a few words.
    words: str
    #: The named test that failed, "" if none did.
    test: str
    seconds: float

    @property
    def is_found(self) -> bool:
        return self.seeds is not None or bool(self.test)


def _cases(count: int, shape: tuple[tuple[str, int], ...]) -> Iterator[Case]:
    for seed in range(FIRST_SEED, FIRST_SEED + count):
        yield Case(seed, shape=shape)


def brief(story: str) -> str:
    """`Violation('lost: ...') in ...` -> `lost`; `CrashError("bookie-1 ended by X(...)...` ->
    `ended by X`; a name of an error otherwise."""
    kind, _, rest = story.partition("(")
    if kind == "Violation":
        return rest.strip("'\"").partition(":")[0]
    if " ended by " in rest:
        return "ended by " + rest.partition(" ended by ")[2].partition("(")[0]
    if kind == "LivenessError":
        return rest.strip("'\"").partition(":")[0]
    return kind


def seeds_needed(
    mutation: Mutation, count: int, jobs: int, shape: tuple[tuple[str, int], ...] = ()
) -> tuple[int | None, str]:
    """How many, and what was found; None and "" if `count` found nothing."""
    program = ("sim.mutations.mutant", mutation.name, "sim.worker", str(CASE_SECONDS))
    batch = Batch(_cases(count, shape), jobs=jobs, program=program)
    done = 0
    try:
        for case, summary in batch:
            done += 1
            if summary.outcome is not Outcome.FINE:
                return case.seed - FIRST_SEED + 1, brief(summary.story)
    except WorkerError:
        return done + 1, "the process ended"
    return None, ""


def failing_test(mutation: Mutation) -> str:
    """The first of its named tests that fails; "" if all pass."""
    for test in mutation.tests:
        command = [sys.executable, "-m", "sim.mutations.mutant", mutation.name, "pytest"]
        command += ["-x", "-q", "-m", "not slow", "--hypothesis-profile=fast"]
        command += ["-p", "no:cacheprovider", "--no-header", test]
        try:
            done = subprocess.run(
                command, cwd=ROOT, capture_output=True, text=True, timeout=TEST_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return f"{test} (no end)"
        if done.returncode == TESTS_FAILED:
            failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED ")]
            return failed[0].split()[1] if failed else test
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stdout}{done.stderr}")
    return ""


def hunt(
    mutation: Mutation,
    count: int,
    jobs: int,
    shape: tuple[tuple[str, int], ...] = (),
    *,
    always_tests: bool = False,
) -> Finding:
    """The tests only if no seed finds it, unless `always_tests`."""
    start = time.monotonic()
    # One that is not there any more fails here, and loudly.
    mutation.sources()
    seeds, words = seeds_needed(mutation, count, jobs, shape)
    finding = Finding(mutation.name, seeds, count if seeds is None else seeds, words, "", 0.0)
    if seeds is not None and not always_tests:
        return replace(finding, seconds=round(time.monotonic() - start, 1))
    return replace(finding, test=failing_test(mutation), seconds=round(time.monotonic() - start, 1))
