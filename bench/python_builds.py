"""What a request costs under another build of Python, in turn with the one that runs this.

    python -m bench.python_builds /usr/bin/python3.11 --rounds 6

The other one takes the packages of this one's environment, so it has to be of the same version;
both are servers of their own. Processor time of the server's process for each request of 1 kB, 50
in flight; the ratio round by round.
"""

import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from bench import clients, load, rounds
from bench.compare import measure_produce
from bench.rounds import Figure
from bench.servers import Quire, Server

CASE = "produce 1 kB, 50 in flight, 1 connection"
MAIN = "from quire.entry import main; main()"


class Build(Quire):
    """`quire standalone` under a Python."""

    def __init__(self, directory: Path, name: str, python: str) -> None:
        super().__init__(directory)
        self.name, self._python = name, python

    def command(self) -> list[str]:
        _, *arguments = super().command()
        return [self._python, "-c", MAIN, *arguments]


def warm_up(server: Server) -> None:
    server.start()
    clients.create_topic(server, "warm-up", 1)
    load.CASES[CASE][1](server.address, "warm-up", 1.0)


def costs(seconds: float) -> rounds.Measure:
    measure = measure_produce(CASE, seconds, per_request=True)

    def only_costs(server: Server, number: int) -> Iterator[Figure]:
        return (figure for figure in measure(server, number) if figure[1] == "us/request")

    return only_costs


def main() -> None:
    parser = rounds.options_of(__doc__, (), count=6, seconds=1.5)
    parser.add_argument("other", help="the other Python")
    options = parser.parse_args()
    root = str(Path(__file__).parent.parent)
    os.environ["PYTHONPATH"] = os.pathsep.join([root, sysconfig.get_path("purelib")])
    kinds = [
        lambda directory: Build(directory, options.other, options.other),
        lambda directory: Build(directory, "quire", sys.executable),
    ]
    rounds.side_by_side(
        "python-builds", kinds, warm_up, ({CASE: costs(options.seconds)}, options.rounds)
    )


if __name__ == "__main__":
    main()
