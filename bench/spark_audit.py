"""How many MB a second `quire-spark audit` looks at, beside what the disk gives to one reader.

    python -m bench.spark_audit --records 2000000 --size 1000 --rounds 3

A standalone server with one bookie; the audit is one process without a Spark, and its processor
time is told beside the bookie's (which sends what is asked for). «read» is one sequential reader of
the entry logs in the same round, warm as they are for the audit; both are from the page cache if
that has room, and then the disk's pace is not what bounds them.
"""

import json
import resource
import subprocess
import sys
import time
from pathlib import Path

from bench.spark_server import ListeningServer, filled, options_of

BLOCK_BYTES = 4 << 20


def read_logs(directory: Path) -> tuple[int, float]:
    """Bytes of all entry logs, and seconds to read them one after the other."""
    started, size = time.monotonic(), 0
    for path in sorted(directory.rglob("*.log")):
        with path.open("rb", buffering=0) as log:
            while block := log.read(BLOCK_BYTES):
                size += len(block)
    return size, time.monotonic() - started


def audit(metadata: str) -> tuple[dict[str, object], float, float]:
    """What it told; seconds; seconds of its processor time."""
    program = Path(sys.executable).with_name("quire-spark")
    command = [str(program), "audit", "--metadata", metadata, "--json"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds = time.monotonic() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return json.loads(done.stdout), seconds, cpu


def main(arguments: list[str]) -> None:
    parser = options_of(__doc__, records=2_000_000, size=1000, partitions=8)
    options = parser.parse_args(arguments)
    with filled(options) as (server, _):
        for _ in range(options.rounds):
            measure(server)


def measure(server: ListeningServer) -> None:
    size, read_seconds = read_logs(server.data_dir)
    before = server.cpu_seconds()
    report, seconds, cpu = audit(server.metadata)
    megabytes = report["bytes"] / 1e6
    print(
        f"audit of {megabytes:.0f} MB, {report['entries']} entries:"
        f" {seconds:.2f} s, {megabytes / seconds:.0f} MB/s;"
        f" {cpu:.2f} s of its processor time, {megabytes / cpu:.0f} MB/s per core;"
        f" the bookie's {server.cpu_seconds() - before:.2f} s;"
        f" read alone {size / 1e6 / read_seconds:.0f} MB/s",
        flush=True,
    )


if __name__ == "__main__":
    main(sys.argv[1:])
