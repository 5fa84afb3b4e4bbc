"""Side by side: three bookies of Apache BookKeeper's and three of ours, under the same clients.

    python -m bench.bookies [--rounds 3] [--seconds 3] [--clients v2,v3,quire] [--only TEXT]

Java's client with both of its protocols, and ours; E3 Qw3 Qa2, CRC32C, fsync on both sides, all
data on one disk. Both clusters are up all the time; each case runs on one of them at a time, in
turn within each round. The table has medians over the rounds. CPU is that of the three bookies, for
each add. Java's bookies run with their defaults in a heap of 1 GB. Both collect garbage every 20
seconds.
"""

import itertools
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from bench import rounds
from bench.peers import Cluster, JavaBookie, LedgerTool, QuireBookie
from bench.rounds import Figure, Table
from bench.servers import cpu_seconds_of

JVM = ("-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=1g", "-server")
KINDS = {"java": JavaBookie, "quire": QuireBookie}
#: All that is written is deleted again, some hundred GB: a full disk makes bookies read-only.
SPACE = {
    "java": {"gcWaitTime": "20000", "journalMaxBackups": "1"},  # of up to 2 GB each
    "quire": {"gcWaitTime": "20000"},
}
READ_COUNT = 50_000
WRITE_TRIES = 3
WARM_UP_SECONDS = 3
RECOVERED_LEDGERS = 20
RECOVERED_ENTRIES = 200
QUORUMS = {"e": 3, "qw": 3, "qa": 2}


@dataclass
class Side:
    """Three bookies and the clients that talk to them."""

    name: str
    cluster: Cluster
    tools: dict[str, LedgerTool] = field(default_factory=dict)

    def cpu_seconds(self) -> float:
        return sum(cpu_seconds_of(bookie.process.pid) for bookie in self.cluster.bookies)

    def discard(self) -> None:
        self.cluster.discard()

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
            rounds.note(f"{what}: {done['failed']} adds failed ({done['code']})")
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
    made = _written(tool)
    for mode, what in (("entries", "sequential read"), ("batch", "batched read")):
        if mode == "batch" and tool.client == "v3":
            continue  # Java's client has it in v2 only
        words = {"handle": made["handle"], "last": READ_COUNT - 1, "batch": 1000, "mode": mode}
        read = tool.bench_read(**words)
        assert (read["count"], read["bytes"]) == (READ_COUNT, READ_COUNT * 1000), read
        yield f"{what}, warm, 1 kB", "entries/s", read["count"] / read["seconds"]
    tool.close(handle=made["handle"])
    tool.delete(ledger=made["ledger"])


def _written(tool: LedgerTool) -> dict[str, int]:
    """Java's bookies once refused adds in a burst of v2, which ends the ledger: then another."""
    for _ in range(WRITE_TRIES - 1):
        try:
            return tool.write(READ_COUNT, 1000, **QUORUMS)
        except AssertionError as error:
            rounds.note(f"a ledger to be read was not written: {error}")
    return tool.write(READ_COUNT, 1000, **QUORUMS)


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


def warm_up(side: Side, clients: list[str]) -> None:
    """Neither a JIT compiler nor a cold file is to be measured."""
    side.cluster.start(*[KINDS[side.name]] * 3, **SPACE[side.name])
    for client in clients:
        tool = side.tools[client] = side.cluster.ledger_tool(client)
        made = tool.create(**QUORUMS)
        tool.bench_add(handle=made["handle"], size=1000, window=200, seconds=WARM_UP_SECONDS)
        tool.delete(ledger=made["ledger"])


def main() -> None:
    parser = rounds.options_of(__doc__, KINDS)
    parser.add_argument("--clients", default="v2,v3,quire")
    parser.add_argument("--only", default="", help="cases whose name contains it")
    options = parser.parse_args()
    rounds.choose(parser, options, KINDS)
    cases = {name: case for name, case in CASES.items() if options.only in name}
    if not cases:
        parser.error(f"--only {options.only}: none of {', '.join(CASES)}")
    clients = options.clients.split(",")
    with rounds.workspace("bookies") as directory:
        sides = [Side(name, Cluster(directory / name, JVM)) for name in options.servers.split(",")]
        table = Table([f"{client} → {side.name}" for client in clients for side in sides])
        with rounds.running(table, sides, lambda side: warm_up(side, clients)):
            for _ in range(options.rounds):
                for measure, client, side in itertools.product(cases.values(), clients, sides):
                    for figure in measure(side, side.tools[client], options.seconds):
                        table.add(f"{client} → {side.name}", figure)


if __name__ == "__main__":
    main()
