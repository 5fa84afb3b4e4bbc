"""What the side-by-side benchmarks share: who runs when, and the table at the end.

All servers are up at once with their data on the same disk; each case runs on one of them at a
time, the servers in turn within each round, so that a slow minute of the machine hits all of them.
"""

import argparse
import contextlib
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException

BUILD = Path(__file__).parent.parent / "build"

#: (what, unit, value) as a case yields them.
Figure = tuple[str, str, float]
#: Takes a server and the round's number.
Measure = Callable[[Any, int], Iterator[Figure]]


@dataclass
class Table:
    """Figures by (what, unit) and column, in the order in which they came: one for each round, or
    several. With `mine`, a column's name, there are ratios of it to the others."""

    columns: list[str]
    mine: str | None = None
    rows: dict[tuple[str, str], dict[str, list[float]]] = field(default_factory=dict)

    def add(self, column: str, figure: Figure) -> None:
        what, unit, value = figure
        self.rows.setdefault((what, unit), {}).setdefault(column, []).append(value)
        note(f"{column}: {what}: {value:,.2f} {unit}")

    def markdown(self) -> str:
        """Medians, and least and most where there are several values; of the ratios too."""
        mine = self.mine if self.mine in self.columns else None
        others = [name for name in self.columns if mine and name != mine]
        head = ["case", "unit", *self.columns, *(f"{mine} / {name}" for name in others)]
        lines = [head, ["---"] * len(head)]
        for (what, unit), values in self.rows.items():
            cells = [cell(values.get(name)) for name in self.columns]
            for name in others:
                cells.append(ratio_cell(ratios(values.get(str(mine)), values.get(name))))
            lines.append([what, unit, *cells])
        return markdown(lines)


def ratios(mine: list[float] | None, others: list[float] | None) -> list[float]:
    """Round by round, since a slow minute of the machine hits both; that of the medians where the
    two did not come equally often; empty if there is none."""
    if not mine or not others:
        return []
    if len(mine) != len(others):
        mine, others = [statistics.median(mine)], [statistics.median(others)]
    return [a / b for a, b in zip(mine, others, strict=True)] if all(others) else []


def markdown(lines: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(values: list[float] | None) -> str:
    """The median, and least and most of several."""
    if not values:
        return ""
    median = _number(statistics.median(values))
    if len(values) == 1:
        return median
    return f"{median} ({_number(min(values))}-{_number(max(values))})"


def ratio_cell(found: list[float]) -> str:
    """As `cell`, always with two places."""
    if not found:
        return ""
    median = f"{statistics.median(found):.2f}"
    return median if len(found) == 1 else f"{median} ({min(found):.2f}-{max(found):.2f})"


def _number(value: float) -> str:
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def options_of(
    doc: str, servers: Iterable[str], count: int = 3, seconds: float | None = 3.0
) -> argparse.ArgumentParser:
    """--servers, which `choose` reads, --rounds, and --seconds where cases take a time."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--servers", default=",".join(servers))
    parser.add_argument("--rounds", type=int, default=count)
    if seconds is not None:
        parser.add_argument("--seconds", type=float, default=seconds, help="of each case")
    return parser


def choose(
    parser: argparse.ArgumentParser, options: argparse.Namespace, servers: Mapping[str, Any]
) -> list[Any]:
    """The servers that the options name; ends the program at an unknown name."""
    names = options.servers.split(",")
    unknown = [name for name in names if name not in servers]
    if unknown:
        parser.error(f"no server named {', '.join(unknown)}; there are {', '.join(servers)}")
    return [servers[name] for name in names]


@contextlib.contextmanager
def workspace(name: str, base: Path = BUILD) -> Iterator[Path]:
    """A directory, on the checkout's disk if none is told, gone at the end."""
    base.mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=base))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def running(table: Table, servers: list[Any], start: Callable[[Any], None]) -> Iterator[None]:
    """Starts all, and ends all; the table is printed in any case: half of one is better than none,
    so it is printed after a SIGTERM as well."""
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    began = time.monotonic()
    try:
        for server in servers:
            start(server)
            note(f"{server.name} is up, {time.monotonic() - began:.0f} s after the start")
        yield
    finally:
        for server in servers:
            server.discard()
        print(table.markdown(), flush=True)
        load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
        note(f"{time.monotonic() - began:.0f} s in all; load average at the end {load}")
        signal.signal(signal.SIGTERM, before)


def side_by_side(
    name: str,
    kinds: Iterable[Callable[[Path], Any]],
    start: Callable[[Any], None],
    *stages: tuple[dict[str, Measure], int],
    mine: str = "quire",
    base: Path = BUILD,
) -> Table:
    """A server of each kind in a directory of its own; then the stages, each cases and how many
    rounds of them. Ratios are those of `mine`. Prints the table, and gives it."""
    with workspace(name, base) as directory:
        servers = [kind(directory / str(number)) for number, kind in enumerate(kinds)]
        table = Table([server.name for server in servers], mine)
        with running(table, servers, start):
            for cases, count in stages:
                run_rounds(table, servers, cases, count)
    return table


def run_rounds(table: Table, servers: list[Any], cases: dict[str, Measure], rounds: int) -> None:
    """A case that fails on a server is told, and left out for it from then on."""
    failed: set[tuple[str, str]] = set()
    for number in range(rounds):
        for name, measure in cases.items():
            for server in servers:
                if (server.name, name) in failed:
                    continue
                try:
                    for figure in measure(server, number):
                        table.add(server.name, figure)
                except (RuntimeError, OSError, KafkaException) as error:
                    failed.add((server.name, name))
                    note(f"FAILED {server.name}: {name}: {error}")


def note(words: str) -> None:
    print(time.strftime("%H:%M:%S"), words, file=sys.stderr, flush=True)
