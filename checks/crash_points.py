"""Crashes of a bookie at every operation on its disk and its index, one after the other.

    python -m checks.crash_points [--quick]

A scripted life (checks/crash_scenario.py) runs once, and before each operation that changes the
disk or the index the state of both is kept. For each of these points, and for each choice of what
survives of what was not durable, a bookie starts from what is left, and everything that was
acknowledged is looked for; then the collector has to bring the space back. Starts are recorded and
crashed at each of their operations too, and the starts after that once more in a short life.

The table: by step, the points; the crashes (a point, times what may survive); how many of them left
a state that none before had left; and of these, acknowledged things that were lost, deleted or
never added ones that were there, starts that were refused, starts or checks that failed otherwise,
and those after which space did not come back.
"""

from __future__ import annotations

import argparse
import logging
import time
import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import trio
import trio.testing

from bookie.errors import BookieStartError, CorruptionError
from checks.crash_check import NEW_LEDGER_ID, Violation, check, check_space, check_writable
from checks.crash_disk import CrashDisk, CrashIndex, Point, Recorder, choices, thaw
from checks.crash_scenario import (
    SCENARIOS,
    Expectation,
    Life,
    Metadata,
    Scenario,
    Story,
    serving,
)
from checks.crash_steps import REQUIRED, REQUIRED_AT_START

if TYPE_CHECKING:
    from bookie.config import BookieConfig

KINDS = ("lost", "resurrected", "refused", "failed", "space")
STORIES_MAX = 20


@dataclass(slots=True)
class Row:
    points: int = 0
    crashes: int = 0
    states: int = 0
    violations: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))


@dataclass(slots=True)
class Table:
    rows: dict[str, Row] = field(default_factory=dict)
    #: By what survived.
    crashes: dict[str, int] = field(default_factory=dict)
    stories: list[str] = field(default_factory=list)

    def row(self, step: str) -> Row:
        return self.rows.setdefault(step, Row())

    def total(self) -> Row:
        total = Row()
        for row in self.rows.values():
            total.points += row.points
            total.crashes += row.crashes
            total.states += row.states
            for kind in KINDS:
                total.violations[kind] += row.violations[kind]
        return total

    def tell(self, step: str, kind: str, words: str) -> None:
        self.row(step).violations[kind] += 1
        if len(self.stories) < STORIES_MAX:
            self.stories.append(f"{kind}: {words}")

    def lines(self) -> list[str]:
        head = "".join(f"{kind:>12s}" for kind in KINDS)
        lines = [f"{'step':58s} {'points':>7s} {'crashes':>9s} {'states':>8s}{head}"]
        for step, row in [*sorted(self.rows.items()), ("all", self.total())]:
            counts = "".join(f"{row.violations[kind]:12d}" for kind in KINDS)
            lines.append(f"{step:58s} {row.points:7d} {row.crashes:9d} {row.states:8d}{counts}")
        survived = ", ".join(f"{name} {count}" for name, count in sorted(self.crashes.items()))
        return [*lines, f"what was not durable: {survived}", *self.stories]


async def record(scenario: Scenario, forgotten: str | None = None) -> tuple[list[Point], Story]:
    """The points of an undisturbed life, from an empty disk to a clean stop, and of one more start
    and stop without anything to do."""
    recorder = Recorder(is_active=True, forgotten=forgotten)
    story = Story(recorder)
    disk, index = CrashDisk(recorder), CrashIndex(recorder)
    disk.faults.sync_seconds = scenario.sync_seconds
    metadata = Metadata(())
    async with serving(disk, index, metadata, scenario.config) as bookie:
        await scenario.life(Life(bookie, story, metadata))
    async with serving(disk, index, metadata, scenario.config):
        pass
    recorder.end()
    return recorder.points, story


class Enumeration:
    """All crashes at all points of a life, nested to `depth`."""

    def __init__(
        self,
        table: Table,
        config: BookieConfig,
        *,
        thorough: bool,
        is_first_enough: bool = False,
        forgotten: str | None = None,
        nested_steps: str = "",
    ) -> None:
        """`thorough`: all that may survive the first crash, see `choices`. `is_first_enough`: ends
        with the first violation. `forgotten`: see `Recorder`; in starts. `nested_steps`: starts are
        crashed at the steps only that begin so."""
        self._table = table
        self._config = config
        self._thorough = thorough
        self._is_first_enough = is_first_enough
        self._forgotten = forgotten
        self._nested_steps = nested_steps
        self._seen: set[int] = set()

    async def run(self, points: list[Point], story: Story, depth: int) -> None:
        """`depth`: how often the starts after a crash are crashed too."""
        for point in points:
            expected = story.expectation(point.number, point.event_count)
            await self._crash(point, expected, depth, ())

    async def _crash(
        self, point: Point, expected: Expectation, depth: int, way: tuple[str, ...]
    ) -> None:
        row = self._table.row(point.step)
        row.points += 1
        expected_key = expected.key()
        for choice in choices(point, thorough=self._thorough and not way):
            if self._is_first_enough and self._table.stories:
                return
            row.crashes += 1
            crashes = self._table.crashes
            crashes[choice.name] = crashes.get(choice.name, 0) + 1
            recorder = Recorder(is_active=depth > 0, forgotten=self._forgotten)
            disk, index, digest = thaw(point, choice, recorder)
            key = hash((digest, depth, expected_key))
            if key in self._seen:
                continue
            self._seen.add(key)
            row.states += 1
            this_way = (*way, f"{choice.name} before {point.number} ({point.step})")
            failure = await start_after_crash(disk, index, self._config, expected)
            if failure is not None:
                self._table.tell(point.step, failure[0], f"{'; '.join(this_way)}: {failure[1]}")
            elif depth:
                for nested in recorder.points:
                    if nested.step.startswith(self._nested_steps):
                        await self._crash(nested, expected, depth - 1, this_way)


async def start_after_crash(
    disk: CrashDisk, index: CrashIndex, config: BookieConfig, expected: Expectation
) -> tuple[str, str] | None:
    """Starts a bookie and checks all; what is wrong: (kind, words)."""
    recorder = disk.recorder
    is_started = False
    # The checks add; what is expected at this point stays as it is for other choices.
    expected = expected.copy()
    expected.ledgers.add(NEW_LEDGER_ID)
    metadata = Metadata(expected.ledgers)
    try:
        with trio.fail_after(1000):
            async with serving(disk, index, metadata, config) as bookie:
                is_started = True
                # The first round, which looks at what the crash left, and the next journal.
                await trio.testing.wait_all_tasks_blocked()
                if recorder.is_active:
                    recorder.end()
                await check(bookie, index, expected)
                await check_writable(bookie, expected)
                await check_space(bookie, config, disk, index, expected)
                # A ledger that the metadata does not know is collected, whoever was told.
                expected.deleted |= {key[0] for key in expected.written} - expected.ledgers
                expected.dying |= expected.deleted
                await check(bookie, index, expected)
            async with serving(disk, index, metadata, config) as bookie:
                await check(bookie, index, expected)
    except Exception as error:  # whatever a start ends with is a row of the table
        return _explain(error, is_started=is_started)
    return None


def _explain(error: BaseException, *, is_started: bool) -> tuple[str, str]:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, Violation):
        return error.kind, str(error)
    if isinstance(error, BookieStartError | CorruptionError) and not is_started:
        return "refused", str(error)
    last = traceback.extract_tb(error.__traceback__)[-1]
    return "failed", f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})"


def make_deterministic(seed: int = 0) -> None:
    """Trio wakes the tasks of a moment in an order of its own choosing; from here on it is the same
    in each run."""
    run: Any = trio._core._run
    run._ALLOW_DETERMINISTIC_SCHEDULING = True
    run._r.seed(seed)


async def crash_everywhere(scenario: Scenario, *, thorough: bool) -> Table:
    table = Table()
    points, story = await record(scenario)
    depth = scenario.full_depth if thorough else scenario.quick_depth
    await Enumeration(table, scenario.config, thorough=thorough).run(points, story, depth)
    return table


async def crash_in_all(*, thorough: bool) -> bool:
    """Whether nothing was violated, and each step happened that is to."""
    steps: set[str] = set()
    violations = 0
    for scenario in SCENARIOS:
        start = time.perf_counter()
        table = await crash_everywhere(scenario, thorough=thorough)
        steps.update(table.rows)
        violations += sum(table.total().violations.values())
        depth = scenario.full_depth if thorough else scenario.quick_depth
        print(f"{scenario.name}; crashes in starts after crashes, {depth} deep")
        print("\n".join(table.lines()))
        print(f"{time.perf_counter() - start:.0f} seconds\n", flush=True)
    missing = [step for step in (*REQUIRED, *REQUIRED_AT_START) if step not in steps]
    print("steps that never happened:", ", ".join(missing) or "none")
    return not violations and not missing


def main() -> None:
    """Exit code 1: see `crash_in_all`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="as the tests do it")
    arguments = parser.parse_args()
    # Each bookie tells of its start and of its end.
    logging.disable(logging.CRITICAL)
    make_deterministic()
    clock = trio.testing.MockClock(autojump_threshold=0)
    if not trio.run(lambda: crash_in_all(thorough=not arguments.quick), clock=clock):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
