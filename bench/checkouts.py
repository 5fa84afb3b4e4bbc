"""What a produce request costs in this checkout and in another, in turn.

    python -m bench.checkouts ../before --rounds 5 --only "1 kB"
    python -m bench.checkouts ../before --rounds 5 --only librdkafka

Both are servers of their own, with this environment's packages; the other checkout has to have its
compiled modules beside its sources (`make setup` there, or a copy of them). Processor time of the
server's process for each request, and the ratio round by round. On a machine that does other work
too, `chrt -r 1` in front has both servers and the load go before it.
"""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench import clients, load, rounds
from bench.compare import CLIENT_RECORDS, measure_produce
from bench.rounds import Figure
from bench.servers import Quire, Server

MAIN = "from quire.entry import main; main()"


class Checkout(Quire):
    """`quire standalone` of a directory."""

    def __init__(self, directory: Path, name: str, root: Path) -> None:
        super().__init__(directory)
        self.name, self._root = name, root.resolve()

    def command(self) -> list[str]:
        _, *arguments = super().command()
        return ["env", f"PYTHONPATH={self._root}", sys.executable, "-c", MAIN, *arguments]


def warm_up(server: Server) -> None:
    server.start()
    clients.create_topic(server, "warm-up", 1)
    for name in load.CASES:
        if "32 connections" in name and "16" not in name:
            load.CASES[name][1](server.address, "warm-up", 0.5)


def costs(name: str, seconds: float) -> rounds.Measure:
    measure = measure_produce(name, seconds, per_request=True)

    def wanted(server: Server, number: int) -> Iterator[Figure]:
        units = "us/request", "requests/s", "MB/s"
        return (figure for figure in measure(server, number) if figure[1] in units)

    return wanted


def client_costs(server: Server, number: int) -> Iterator[Figure]:
    """Of librdkafka with 1 kB records, whose batches are as large as they come."""
    topic = f"librdkafka-{number}-{time.monotonic_ns()}"
    clients.create_topic(server, topic, 4)
    gigabytes = CLIENT_RECORDS * len(clients.RECORD) / 1e9
    for what, run in (
        ("librdkafka produces", clients.librdkafka_produce),
        ("librdkafka consumes", clients.librdkafka_consume),
    ):
        cpu = server.cpu_seconds()
        yield what, "MB/s", run(server, topic, CLIENT_RECORDS)
        yield f"{what}: CPU", "s/GB", (server.cpu_seconds() - cpu) / gigabytes
    clients.delete_topic(server, topic)


def main() -> None:
    parser = rounds.options_of(__doc__, (), count=5, seconds=1.5)
    parser.add_argument("other", type=Path, help="the other checkout")
    parser.add_argument("--only", default="1 kB", help="cases whose names have this in them")
    options = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    kinds = [
        lambda directory: Checkout(directory, "before", options.other),
        lambda directory: Checkout(directory, "quire", Path(__file__).parent.parent),
    ]
    cases = {name: costs(name, options.seconds) for name in load.CASES if options.only in name}
    if options.only in "librdkafka":
        cases["librdkafka"] = client_costs
    rounds.side_by_side("checkouts", kinds, warm_up, (cases, options.rounds))


if __name__ == "__main__":
    main()
