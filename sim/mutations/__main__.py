"""`python -m sim.mutations`: breaks each rule on purpose, and says what finds that and how soon.

What was found for this very code is kept in the cache directory, so that a run which was
interrupted goes on. Exit codes: 0 all are found, 1 some are not.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from zlib import crc32

from sim.case import parse_shape
from sim.code_seed import code_seed
from sim.mutations.hunt import hunt
from sim.mutations.rules import MUTATIONS
from sim.mutations.table import Findings, cache_directory, markdown, row, together, write_into


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m sim.mutations",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", help=f"comma-separated, of {', '.join(MUTATIONS)}")
    parser.add_argument("--seeds-max", type=int, default=100, help="then it was not found by seeds")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--shape", default="", help="of all worlds, as in witness=0")
    parser.add_argument(
        "--tests", action="store_true", help="also the named tests of what a seed has found"
    )
    parser.add_argument("--again", action="store_true", help="also what was looked for before")
    parser.add_argument("--json", action="store_true", help="the findings, for programs")
    parser.add_argument("--write", type=Path, help="the table goes into this page, between marks")
    parser.add_argument(
        "--also",
        type=Path,
        nargs="*",
        default=[],
        help="files of findings, of other ways of looking at code of which only tests differ: the"
        " table is of all of them together",
    )
    options = parser.parse_args(arguments)
    options.names = list(MUTATIONS) if options.only is None else options.only.split(",")
    if unknown := [name for name in options.names if name not in MUTATIONS]:
        parser.error(f"--only: unknown {', '.join(unknown)}")
    try:
        options.shape_fields = parse_shape(options.shape)
    except ValueError as error:
        parser.error(f"--shape: {error}")
    return options


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    # Not the shape itself: one that names every client is longer than a file's name may be.
    shape = f"{crc32(options.shape.encode()):08x}" if options.shape else "as-drawn"
    way = f"{options.seeds_max}-{shape}{'-tests' * options.tests}"
    findings = Findings(cache_directory() / f"mutations-{code_seed():08x}-{way}.json")
    for name in options.names:
        if options.again or name not in findings.known:
            mutation = MUTATIONS[name]
            findings.keep(
                hunt(
                    mutation,
                    options.seeds_max,
                    options.jobs,
                    options.shape_fields,
                    always_tests=options.tests,
                )
            )
            if not options.json:
                print(row(findings.known[name]), flush=True)
    wanted = [findings.known[name] for name in options.names]
    for path in options.also:
        known = Findings(path).known
        wanted = [together(each, known.get(each.name, each)) for each in wanted]
    if options.json:
        print(json.dumps([asdict(finding) for finding in wanted], indent=1))
    else:
        print(markdown(wanted), end="")
    if options.write is not None:
        write_into(options.write, markdown(wanted))
    missed = [finding.name for finding in wanted if not finding.is_found]
    if missed:
        print(f"found by nothing: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
