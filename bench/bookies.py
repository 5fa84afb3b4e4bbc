"""Side by side: three bookies of Apache BookKeeper's and three of ours, under the same clients.

    python -m bench.bookies [--rounds 3] [--seconds 3] [--clients v2,v3,quire] [--only TEXT]

Java's client with both of its protocols, and ours; E3 Qw3 Qa2, CRC32C, fsync on both sides, all
data on one disk. Both clusters are up all the time; each case runs on one of them at a time, in
turn within each round. The table has medians over the rounds. CPU is that of the three bookies, for
each add. Java's bookies run with their defaults in a heap of 1 GB.
"""

import argparse
import itertools
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench.servers import TICKS_PER_SECOND

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "compat_tests"))

from harness.bookkeeper import (  # noqa: E402
    Cluster,
    JavaBookie,
    LedgerTool,
    QuireBookie,
)

JVM = ("-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=1g", "-server")
KINDS = {"java": JavaBookie, "quire": QuireBookie}
READ_COUNT = 50_000
WARM_UP_SECONDS = 3
RECOVERED_LEDGERS = 20
RECOVERED_ENTRIES = 200
QUORUMS = {"e": 3, "qw": 3, "qa": 2}

#: (what, unit, value) as a case yields them.
Figure = tuple[str, str, float]


@dataclass
class Side:
    """Three bookies and the clients that talk to them."""

    name: str
    cluster: Cluster
    tools: dict[str, LedgerTool] = field(default_factory=dict)

    def cpu_seconds(self) -> float:
        total = 0.0
        for bookie in self.cluster.bookies:
            # The command's name may hold spaces and brackets: fields count from the last bracket.
            stat = Path(f"/proc/{bookie.process.pid}/stat").read_text().rpartition(")")[2].split()
            total += (int(stat[11]) + int(stat[12])) / TICKS_PER_SECOND
        return total

    def memory_mb(self) -> float:
        return statistics.mean(bookie.rss_bytes() for bookie in self.cluster.bookies) / 1e6


Measure = Callable[[Side, LedgerTool, float], Iterator[Figure]]


def adds(size: int, window: int) -> Measure:
    """Adds of `size` bytes, `window` in flight."""

    def measure(side: Side, tool: LedgerTool, seconds: float) -> Iterator[Figure]:
        made = tool.create(**QUORUMS)
        before = side.cpu_seconds()
        done = tool.bench_add(handle=made["handle"], size=size, window=window, seconds=seconds)
        cpu = side.cpu_seconds() - before
        what = f"{_size(size)}, {window} in flight"
        if done["failed"]:
            print(f"  {what}: {done['failed']} adds failed ({done['code']})", file=sys.stderr)
            yield f"{what}, adds that failed", "", done["failed"]
        elif window == 1:
            yield what, "p50 ms", done["p50_ms"]
            yield what, "p99 ms", done["p99_ms"]
        elif size > 1000:
            yield what, "MB/s", done["count"] * size / done["seconds"] / 1e6
        else:
            yield what, "adds/s", done["count"] / done["seconds"]
            yield what, "CPU us per add", cpu / done["count"] * 1e6
        if not done["failed"]:
            tool.close(handle=made["handle"])
        tool.delete(ledger=made["ledger"])

    return measure


def _size(size: int) -> str:
    names = {1000: "1 kB", 65_536: "64 KiB", 1 << 20: "1 MiB"}
    return names[size]


def reads(side: Side, tool: LedgerTool, seconds: float) -> Iterator[Figure]:
    """All of a ledger that was just written, by single reads and by batches."""
    made = tool.write(READ_COUNT, 1000, **QUORUMS)
    for mode, what in (("entries", "sequential read"), ("batch", "batched read")):
        if mode == "batch" and tool.client == "v3":
            continue  # Java's client has it in v2 only
        words = {"handle": made["handle"], "last": READ_COUNT - 1, "batch": 1000, "mode": mode}
        read = tool.bench_read(**words)
        assert (read["count"], read["bytes"]) == (READ_COUNT, READ_COUNT * 1000), read
        yield f"{what}, warm, 1 kB", "entries/s", read["count"] / read["seconds"]
    tool.close(handle=made["handle"])
    tool.delete(ledger=made["ledger"])


def recovery(side: Side, tool: LedgerTool, seconds: float) -> Iterator[Figure]:
    done = tool.bench_recover(ledgers=RECOVERED_LEDGERS, count=RECOVERED_ENTRIES)
    yield f"recovery of a ledger left open ({RECOVERED_ENTRIES} entries)", "p50 ms", done["p50_ms"]


def memory(side: Side, tool: LedgerTool, seconds: float) -> Iterator[Figure]:
    # The bookies are the same for all clients.
    if tool is next(iter(side.tools.values())):
        yield "memory per bookie", "MB", side.memory_mb()


CASES: dict[str, Measure] = {
    "1 kB, 1 in flight": adds(1000, 1),
    "1 kB, 50 in flight": adds(1000, 50),
    "1 kB, 200 in flight": adds(1000, 200),
    "1 kB, 1000 in flight": adds(1000, 1000),
    "64 KiB, 32 in flight": adds(65_536, 32),
    "1 MiB, 8 in flight": adds(1 << 20, 8),
    "reads": reads,
    "recovery": recovery,
    "memory": memory,
}


def table(figures: dict[tuple[str, str], dict[str, list[float]]], columns: list[str]) -> str:
    lines = [["case", "unit", *columns], ["---"] * (len(columns) + 2)]
    for (what, unit), values in figures.items():
        cells = [
            _number(statistics.median(values[column])) if column in values else ""
            for column in columns
        ]
        lines.append([what, unit, *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}" if value < 10 else f"{value:.1f}"


def run(sides: list[Side], cases: dict[str, Measure], rounds: int, seconds: float) -> str:
    figures: dict[tuple[str, str], dict[str, list[float]]] = {}
    for side in sides:
        for tool in side.tools.values():
            # Neither a JIT compiler nor a cold file is to be measured.
            made = tool.create(**QUORUMS)
            tool.bench_add(handle=made["handle"], size=1000, window=200, seconds=WARM_UP_SECONDS)
            tool.delete(ledger=made["ledger"])
    for number in range(rounds):
        for (name, measure), client in itertools.product(cases.items(), sides[0].tools):
            for side in sides:
                column = f"{client} → {side.name}"
                started = time.monotonic()
                for what, unit, value in measure(side, side.tools[client], seconds):
                    figures.setdefault((what, unit), {}).setdefault(column, []).append(value)
                    print(f"  {column}: {what}: {value:,.2f} {unit}", file=sys.stderr, flush=True)
                took = time.monotonic() - started
                print(f"{number + 1}: {name}, {column}: {took:.1f} s", file=sys.stderr)
    columns = [f"{client} → {side.name}" for client in sides[0].tools for side in sides]
    return table(figures, columns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3, help="of each case of adds")
    parser.add_argument("--clients", default="v2,v3,quire")
    parser.add_argument("--servers", default="java,quire")
    parser.add_argument("--only", default="", help="cases whose name contains it")
    arguments = parser.parse_args()
    cases = {name: case for name, case in CASES.items() if arguments.only in name}
    if not cases:
        parser.error(f"--only {arguments.only}: none of {', '.join(CASES)}")
    parent = ROOT / "build"
    parent.mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="bookies-", dir=parent))
    sides: list[Side] = []
    try:
        for name in arguments.servers.split(","):
            side = Side(name, Cluster(directory / name, JVM))
            sides.append(side)
            side.cluster.start(*[KINDS[name]] * 3)
            for client in arguments.clients.split(","):
                side.tools[client] = side.cluster.ledger_tool(client)
        print(run(sides, cases, arguments.rounds, arguments.seconds))
    finally:
        for side in sides:
            side.cluster.discard()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
