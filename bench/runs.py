"""A run that is kept: its figures, what it ran on, and the commit, as one JSON document.

    docs/bench-runs/2026-11-27-1745-0123456789ab.json

It has "date" (as 2026-11-27 17:45), "commit", "command", "load_average", "machine" (the fields of
bench/machine.py's), "mine", "columns", and "rows", each {"what", "unit", "values"}: for each column
a value of each round, or several.
"""

import json
import os
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from bench.machine import Machine
from bench.rounds import Table

ROOT = Path(__file__).parent.parent
DIRECTORY = ROOT / "docs" / "bench-runs"


@dataclass(frozen=True, slots=True)
class Run:
    date: str
    commit: str
    command: str
    load_average: float
    machine: Machine
    table: Table

    @property
    def name(self) -> str:
        return f"{self.date} {self.commit}"


def of_now(table: Table, machine: Machine) -> Run:
    """With «-changed» behind the commit if the tree is not what was committed."""
    module = f"bench.{Path(sys.argv[0]).stem}"
    return Run(
        date=time.strftime("%Y-%m-%d %H:%M"),
        commit=_git("rev-parse", "--short=12", "HEAD") + ("-changed" if _is_changed() else ""),
        command=shlex.join(["python", "-m", module, *sys.argv[1:]]),
        load_average=round(os.getloadavg()[0], 2),
        machine=machine,
        table=table,
    )


def save(run: Run, directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    moment = run.date.replace(" ", "-").replace(":", "")
    path = directory / f"{moment}-{run.commit}.json"
    document = {
        "date": run.date,
        "commit": run.commit,
        "command": run.command,
        "load_average": run.load_average,
        "machine": run.machine.as_json(),
        "mine": run.table.mine,
        "columns": run.table.columns,
        "rows": [
            {"what": what, "unit": unit, "values": values}
            for (what, unit), values in run.table.rows.items()
        ],
    }
    # Whole or not there: bench.page refuses a torn one by its name.
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(document, indent=1) + "\n")
    fresh.replace(path)
    return path


def load(path: Path) -> Run:
    """ValueError that names the file, for what is no such document."""
    try:
        document = json.loads(path.read_text())
        rows = {(row["what"], row["unit"]): row["values"] for row in document["rows"]}
        return Run(
            date=document["date"],
            commit=document["commit"],
            command=document["command"],
            load_average=document["load_average"],
            machine=Machine(**document["machine"]),
            table=Table(document["columns"], document["mine"], rows),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: not a kept run: {error!r}") from error


def load_all(directory: Path) -> list[Run]:
    """The oldest first."""
    return sorted((load(path) for path in directory.glob("*.json")), key=lambda run: run.name)


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def _is_changed() -> bool:
    return _git("status", "--porcelain", "--untracked-files=no") != "unknown"
