"""Repair: MB/s of copies, and what it costs a writer beside it.

    python -m bench.repair_bench [--rounds 1] [--megabytes 200] [--cases quire-quire,java-java]

Four bookies, ledgers of 1 kB entries (E3 Qw3 Qa2), closed; one bookie is killed. Timed is from the
first lock of a worker until no ledger is marked any more. A case is WORKER-BOOKIES[-LIMIT, MB/s]:
`java-quire` is Java's AutoRecoveryMain over our bookies. Beside it a writer (Java's client, v2,
one entry of 1 kB in flight, on ledgers over the bookies that are left) tells its p99, as it does
before, when nothing is copied.
"""

import argparse
import statistics
import time
from pathlib import Path

from bench import rounds
from bench.peers import (
    AutoRecovery,
    Cluster,
    JavaBookie,
    LedgerTool,
    QuireAutoRecovery,
    QuireBookie,
    wait_for,
)

BOOKIES = {"java": JavaBookie, "quire": QuireBookie}
WORKERS = {"java": AutoRecovery, "quire": QuireAutoRecovery}
LEDGER_ENTRIES = 20_000
ENTRY_SIZE = 1000
QUORUMS = {"e": 3, "qw": 3, "qa": 2}
#: The writer's latencies are taken over so long at a time.
WRITER_SECONDS = 1.0
REPAIR_SECONDS_MAX = 300.0


def latencies(tool: LedgerTool) -> tuple[float, float]:
    """p50 and p99, ms, of adds one after the other."""
    made = tool.create(**QUORUMS)
    done = tool.bench_add(handle=made["handle"], size=ENTRY_SIZE, window=1, seconds=WRITER_SECONDS)
    assert not done["failed"], done
    tool.close(handle=made["handle"])
    return done["p50_ms"], done["p99_ms"]


def measure(case: str, megabytes: int, directory: Path) -> dict[str, float]:
    worker, bookies, *limit = case.split("-")
    cluster = Cluster(directory / case)
    try:
        cluster.start(*[BOOKIES[bookies]] * 4)
        tool = cluster.ledger_tool("v2")
        tool.wait_for_bookies(4)
        ledgers = []
        for _ in range(-(-megabytes * 1_000_000 // (LEDGER_ENTRIES * ENTRY_SIZE))):
            made = tool.write(LEDGER_ENTRIES, ENTRY_SIZE, **QUORUMS)
            tool.close(handle=made["handle"])
            ledgers.append(made["ledger"])
        settings = {"zkTimeout": "15000", "rereplicationEntryBatchSize": "256"}
        if limit:
            settings["replicationRateByBytes"] = str(int(limit[0]) * 1_000_000)
        before = [latencies(tool) for _ in range(4)][1:]
        held = {ledger: tool.metadata(ledger=ledger)["segments"][0][1] for ledger in ledgers}
        lost = held[ledgers[0]][0]
        size = LEDGER_ENTRIES * ENTRY_SIZE * sum(lost in each for each in held.values())
        cluster.start(WORKERS[worker], **settings)
        cluster.bookie(lost).kill()
        cluster.wait_until_gone(lost)
        wait_for(
            lambda: cluster.children("underreplication/locks"), "nobody repairs", REPAIR_SECONDS_MAX
        )
        started = time.monotonic()
        during = []
        while cluster.under_replicated():
            during.append(latencies(tool))
            assert time.monotonic() - started < REPAIR_SECONDS_MAX, "it takes too long"
        took = time.monotonic() - started
        for ledger in ledgers:
            assert lost not in tool.metadata(ledger=ledger)["segments"][0][1], ledger
        return {
            "copied MB": size / 1e6,
            "MB/s": size / 1e6 / took,
            "p50 before, ms": statistics.median(p50 for p50, _ in before),
            "p50 beside, ms": statistics.median(p50 for p50, _ in during),
            "p99 before, ms": statistics.median(p99 for _, p99 in before),
            "p99 beside, ms": statistics.median(p99 for _, p99 in during),
        }
    finally:
        cluster.discard()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=200, help="of data, copies not counted")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--cases", default="quire-quire,quire-quire-10,quire-java,java-java")
    arguments = parser.parse_args()
    cases = arguments.cases.split(",")
    found: dict[str, dict[str, list[float]]] = {case: {} for case in cases}
    with rounds.workspace("repair") as directory:
        for number in range(arguments.rounds):
            for case in cases:
                figures = measure(case, arguments.megabytes, directory / str(number))
                rounds.note(f"{case}: {figures}")
                for what, value in figures.items():
                    found[case].setdefault(what, []).append(value)
    names = list(found[cases[0]])
    lines = [["worker-bookies", *names], ["---"] * (len(names) + 1)]
    lines += [[case, *map(rounds.cell, found[case].values())] for case in cases]
    print(rounds.markdown(lines))


if __name__ == "__main__":
    main()
