"""python -m quire.tools.cluster.java_child PARENT-PID PROGRAM ARGUMENTS: becomes the program,
which the kernel then ends when the parent dies (runtime/processes.py). For programs that are not
ours and cannot ask for that themselves; the wish outlives the exec."""

from __future__ import annotations

import os
import sys

from runtime.processes import die_with_parent


def main() -> None:
    die_with_parent(int(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
