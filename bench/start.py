"""What a cold start costs: the command until its line `ready`, on a new data directory each time.

    python -m bench.start                         this tree
    python -m bench.start ../before . --rounds 9  trees in turn, each of which was compiled before

Prints for each tree the processor's time (all threads, user and system, until it was killed at that
line), the wall clock's, and the processor's time of the imports alone: the least and the median.
The wall clock says something only where nothing else runs, and includes the disk's: a first journal
is written whole. The packages are those of the Python that runs this.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

READY = b"ready listen="
START = "from quire.entry import main; main()"
#: As quire/entry.py has it.
IMPORTS = "from quire import entry; import gc; gc.set_threshold(*entry.THRESHOLDS);"
IMPORTS += "import quire.cli, quire.standalone; print('ready listen=')"


def measured(tree: Path, code: str, *arguments: str) -> tuple[float, float]:
    """Seconds of the processor and of the wall clock until the line. RuntimeError without it."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    began = time.monotonic()
    command = [sys.executable, "-c", code, *arguments]
    with subprocess.Popen(
        command, cwd=tree, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        line = process.stdout.readline()
        wall = time.monotonic() - began
        process.kill()
        _, _, usage = os.wait4(process.pid, 0)
        process.returncode = 0  # waited for here, for its usage
    if not line.startswith(READY):
        raise RuntimeError(f"{tree}: ended without its line")
    return usage.ru_utime + usage.ru_stime, wall


def start(tree: Path) -> tuple[float, float]:
    with tempfile.TemporaryDirectory() as directory:
        data = ["--data-dir", directory]
        return measured(tree, START, "standalone", *data, "--listen", "127.0.0.1:0")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("trees", nargs="*", type=Path, default=[Path()])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    trees = [tree.resolve() for tree in options.trees]
    found = {tree: ([], [], []) for tree in trees}
    for tree in trees:
        start(tree)  # its byte code is there now
    for _ in range(options.rounds):
        for tree, (cpu, wall, imports) in found.items():
            used, passed = start(tree)
            cpu.append(used)
            wall.append(passed)
            imports.append(measured(tree, IMPORTS)[0])
    for tree, columns in found.items():
        words = zip(("processor", "wall clock", "imports"), columns, strict=True)
        told = (f"{word} {min(of):.2f} {statistics.median(of):.2f}" for word, of in words)
        print(f"{tree}: seconds, least and median: {'; '.join(told)}")


if __name__ == "__main__":
    main()
