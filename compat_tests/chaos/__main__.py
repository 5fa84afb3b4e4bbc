"""The command line. Exit code 1 if anything is wrong."""

import argparse
import logging
import os
import signal
import sys
import tempfile
from pathlib import Path

from compat_tests.long.runner import LOGS

from . import network
from .run import Run
from .world import Options


def parse(arguments: list[str]) -> Options:
    parser = argparse.ArgumentParser(prog="python -m compat_tests.chaos", description=__doc__)
    parser.add_argument("scenario", choices=["bookies", "cluster", "transactions", "groups"])
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bookies", type=int, help="5; 4 with brokers")
    parser.add_argument("--java", type=int, default=0, help="so many of the bookies are Java's")
    parser.add_argument("--brokers", type=int, help="0 with bookies, else 3")
    parser.add_argument("--rate", type=int, default=300, help="entries or records per second")
    parser.add_argument("--network", action="store_true", help="servers in network namespaces")
    parser.add_argument("--network-if-possible", action="store_true",
                        help="the same, or without them if this machine has none")  # fmt: skip
    parser.add_argument("--lag", action="store_true",
                        help="three ZooKeeper servers, and bookies on one that lags")  # fmt: skip
    parser.add_argument("--absent-seconds", type=float, metavar="S",
                        help="collect what is missing for so long; 60 as it is")  # fmt: skip
    parser.add_argument("--believe", action="store_true",
                        help="bookies collect without asking ZooKeeper to catch up")  # fmt: skip
    parser.add_argument("--keep", default=os.environ.get(LOGS, ""),
                        help=f"where to put logs that stay after the run (${LOGS})")  # fmt: skip
    parser.add_argument("--fault", action="append", default=[], metavar="NAME",
                        help="this one, then the next of them; not --minutes of any")  # fmt: skip
    parser.add_argument("--recovery", action="store_true", help="autorecovery with --fault, too")
    parsed = parser.parse_args(arguments)
    is_cluster = parsed.scenario != "bookies"
    has_network = parsed.network
    if parsed.network_if_possible:
        # Who is inside was asked outside.
        has_network = network.INSIDE in os.environ or network.why_not() is None
    return Options(
        seed=parsed.seed,
        minutes=parsed.minutes,
        scenario=parsed.scenario,
        bookies=parsed.bookies or (4 if is_cluster else 5),
        java_bookies=parsed.java,
        brokers=parsed.brokers or (3 if is_cluster else 0),
        rate=parsed.rate,
        is_networked=has_network,
        kept=parsed.keep,
        is_lagging=parsed.lag,
        absent_s=parsed.absent_seconds,
        is_believing=parsed.believe,
        has_recovery=is_cluster and (not parsed.fault or parsed.recovery),
        faults=tuple(parsed.fault),
    )


def end_in_order(*_: object) -> None:
    raise SystemExit("ended by SIGTERM")


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    # kazoo tells of every connection that breaks, and here they all do.
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    if options.is_networked and network.INSIDE not in os.environ:
        reason = network.why_not()
        if reason is not None:
            print(f"skipped: {reason}")
            return 0
        return network.enter(arguments)
    signal.signal(signal.SIGTERM, end_in_order)
    with tempfile.TemporaryDirectory(prefix="quire-chaos-") as directory:
        report = Run(Path(directory) / "run", options, say)()
    print(f"seed {options.seed}, {options.minutes:g} minutes, {len(report.strikes)} faults")
    for line in report.lines:
        print(line)
    for words in report.wrong:
        print(f"WRONG: {words}")
    print("all promises kept" if not report.wrong else f"{len(report.wrong)} wrong")
    return bool(report.wrong)


def say(words: str) -> None:
    print(words, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
