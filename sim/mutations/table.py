"""What was found, kept in a file outside the tree and printed as a table.

The file is named after the code (sim/code_seed.py) and the way of looking, so that what was found
for other code is never taken for this one's, and a hunt that was interrupted goes on.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from sim.mutations.hunt import Finding
from sim.mutations.mutation import ROOT
from sim.mutations.rules import MUTATIONS

if TYPE_CHECKING:
    from collections.abc import Iterable

BEGIN, END = "<!-- mutations: begin -->", "<!-- mutations: end -->"


def cache_directory() -> Path:
    """QUIRE_CACHE, else `quire` in the user's cache folder."""
    if configured := os.environ.get("QUIRE_CACHE"):
        return Path(configured)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quire"


def together(one: Finding, other: Finding) -> Finding:
    """What both looks for one mutation found: the seeds of the one that found it by fewer, or else
    tried more, and whichever named test there is."""
    order = sorted((one, other), key=lambda each: (each.seeds or 1 << 31, -each.tried))
    return replace(order[0], test=one.test or other.test)


class Findings:
    def __init__(self, path: Path) -> None:
        self._path = path
        self.known: dict[str, Finding] = {}
        if path.exists():
            for values in json.loads(path.read_text(encoding="utf-8")):
                finding = Finding(**values)
                self.known[finding.name] = finding

    def keep(self, finding: Finding) -> None:
        self.known[finding.name] = finding
        self._path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps([asdict(each) for each in self.known.values()], indent=1)
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text(text + "\n", encoding="utf-8")
        temporary.replace(self._path)


def commit() -> str:
    """Of the tree, short; with a + if it was changed since."""
    words = ["git", "describe", "--always", "--abbrev=9", "--dirty=+", "--exclude=*"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "no commit"


def found_by(finding: Finding) -> str:
    ways = [finding.words] if finding.seeds is not None else []
    ways += [f"`{finding.test.rpartition('/')[2]}`"] if finding.test else []
    return "; ".join(ways) if ways else "**nothing**"


def row(finding: Finding) -> str:
    """`name | what is broken | found by | seeds needed`; «-» if no seed was tried."""
    seeds = f"> {finding.tried}" if finding.tried else "-"
    if finding.seeds is not None:
        seeds = str(finding.seeds)
    story = MUTATIONS[finding.name].story
    return f"| {finding.name} | {story} | {found_by(finding)} | {seeds} |"


def markdown(findings: Iterable[Finding]) -> str:
    today = datetime.now(UTC).date().isoformat()
    lines = [
        f"Commit {commit()}, {today}, `python -m sim.mutations`:",
        "",
        "| mutation | what the code does then | found by | seeds |",
        "|---|---|---|---|",
        *(row(finding) for finding in findings),
    ]
    return "\n".join(lines) + "\n"


def write_into(path: Path, text: str) -> None:
    """Between the marks in a page; ValueError if it has none."""
    page = path.read_text(encoding="utf-8")
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{path} has no {BEGIN} ... {END}")
    path.write_text(f"{head}{BEGIN}\n{text}{END}{tail}", encoding="utf-8")
