"""`python -m compat_tests.long`: the long tests, part by part.

What has passed for this very code is left out; `--again` runs it all the same. Ctrl-C and SIGTERM
end the part that runs, with all its processes. Exit codes: 0 all wanted parts have passed, 1 not
all.
"""

from __future__ import annotations

import argparse
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from compat_tests.long.parts import PARTS, ROOT
from compat_tests.long.runner import (
    State,
    begun,
    cache_directory,
    code_of,
    commit_of,
    page,
    run,
    table,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compat_tests.long.parts import Part


def main(
    arguments: list[str] | None = None,
    parts: Sequence[Part] = PARTS,
    root: Path = ROOT,
) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m compat_tests.long",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [part.name for part in parts]
    parser.add_argument("--only", help=f"comma-separated, of {', '.join(names)}")
    parser.add_argument("--again", action="store_true", help="also what has passed before")
    parser.add_argument("--list", action="store_true", help="what is known; nothing is run")
    parser.add_argument("--write", type=Path, help="the table becomes this page")
    parser.add_argument(
        "--limits",
        type=float,
        default=1.0,
        metavar="TIMES",
        help="limits so many times as long: for a machine slower than that of the figures, or busy",
    )
    options = parser.parse_args(arguments)
    if not 1.0 <= options.limits <= 10.0:
        parser.error(f"--limits: {options.limits:g} is not from 1 to 10")
    wanted = names if options.only is None else options.only.split(",")
    if unknown := set(wanted) - set(names):
        parser.error(f"--only: unknown {', '.join(sorted(unknown))}")
    state, commit = State(cache_directory(), code_of(root)), commit_of(root)
    logs = state.directory / state.code
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for each in parts:
            part = replace(each, seconds=each.seconds * options.limits)
            if options.list or part.name not in wanted:
                continue
            if state.has_passed(part.name) and not options.again:
                print(f"{part.name}: passed before", flush=True)
                continue
            print(f"{part.name}: {part.seconds / 60:.0f} minutes at most", flush=True)
            state.keep(begun(part, logs, commit))
            outcome = run(part, logs, commit)
            state.keep(outcome)
            print(f"{part.name}: {outcome.result}, {outcome.seconds:.0f} s, {outcome.log}")
            print(f"  {outcome.closing}", flush=True)
    except KeyboardInterrupt:
        print("interrupted")
    finally:
        signal.signal(signal.SIGTERM, before)
    print(table(parts, state), end="")
    if options.write is not None:
        options.write.write_text(page(parts, state), encoding="utf-8")
    return 0 if all(state.has_passed(name) for name in wanted) else 1


if __name__ == "__main__":
    sys.exit(main())
