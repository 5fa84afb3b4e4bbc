"""`quire-spark`: the jobs as commands. What does the work is imported when a command runs."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spark_jobs.options import EXIT_FOUND, EXIT_NOT_ALL, job_options, tells_errors, where_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark_quire.connection import Where
    from spark_jobs.audit import AuditReport
    from spark_jobs.runner import Run


@click.group()
def main() -> None:
    """Jobs over the data of a quire cluster, which read ledgers where they lie."""


@main.command()
@job_options
@click.option(
    "--html",
    "html_path",
    type=click.Path(dir_okay=False, writable=True),
    help="Also as one page with plots, in this file.",
)
@tells_errors
def report(
    metadata: str,
    bookkeeper: tuple[str, ...],
    master: str | None,
    topics: tuple[str, ...],
    as_json: bool,
    html_path: str | None,
) -> None:
    """What the cluster holds: sizes, growth, small ledgers, bookies, what groups are behind."""
    from spark_jobs.report import make_report
    from spark_jobs.report_page import page
    from spark_jobs.runner import runner

    where = where_of(metadata, bookkeeper)
    with runner(master, "report") as run:
        made = make_report(where, run, topics)
    if html_path is not None:
        Path(html_path).write_text(page(made), encoding="utf-8")
    if as_json:
        click.echo(json.dumps(made, indent=2))
    else:
        _show_tables(made)


def _show_tables(made: dict[str, Any]) -> None:
    from quire.tools.output import printable, show

    for name, rows in made.items():
        if isinstance(rows, list) and name != "problems":
            click.echo(f"\n{name.replace('_', ' ')}")
            show(rows, as_json=False)
    for words in made["problems"]:
        click.echo(printable(words), err=True)


@main.command()
@job_options
@click.option("--ledger", "ledgers", type=click.IntRange(0), multiple=True, help="Only this one.")
@click.option(
    "--piece-mb",
    type=click.IntRange(1),
    default=256,
    show_default=True,
    help="What a task looks at, in MB of one copy.",
)
@click.option(
    "--mb-per-second",
    type=click.IntRange(0),
    default=0,
    help="What a task reads at most of all bookies together; 0 is no limit.",
)
@tells_errors
def audit(
    metadata: str,
    bookkeeper: tuple[str, ...],
    master: str | None,
    topics: tuple[str, ...],
    as_json: bool,
    ledgers: tuple[int, ...],
    piece_mb: int,
    mb_per_second: int,
) -> None:
    """Reads every copy of every entry, and tells which are missing, damaged or differ.

    Exit code 1 if a copy is bad, 3 if none is, but not all bookies answered."""
    from quire.tools.output import progress
    from spark_jobs.audit import AuditOptions, make_audit
    from spark_jobs.runner import runner

    where = where_of(metadata, bookkeeper)
    options = AuditOptions(topics, ledgers, piece_mb * 1_000_000, mb_per_second * 1_000_000)
    with ExitStack() as stack:
        run = stack.enter_context(runner(master, "audit"))

        def start(entries: int) -> Callable[[int], None]:
            return stack.enter_context(progress("entries", entries, is_bytes=False))

        found = make_audit(where, run, options, start)
    _show_audit(found, as_json=as_json)
    if found.has_faults:
        raise SystemExit(EXIT_FOUND)
    if not found.is_whole:
        raise SystemExit(EXIT_NOT_ALL)


def _show_audit(found: AuditReport, *, as_json: bool) -> None:
    from quire.tools.output import show

    rows = [each.row() for each in found.findings]
    counts = {"ledgers": found.ledgers, "entries": found.entries, "copies": found.copies,
              "bytes": found.bytes}  # fmt: skip
    if as_json:
        told = {"findings": rows, "unreadable": found.unreadable, "problems": found.problems}
        click.echo(json.dumps({**counts, **told}, indent=2))
        return
    if rows:
        show(rows, as_json=False)
    for words in found.problems:
        click.echo(f"not looked at: {words}", err=True)
    for ledger_id, reason in found.unreadable.items():
        click.echo(f"ledger {ledger_id} was not looked at: {reason}", err=True)
    words = ", ".join(f"{count} {name}" for name, count in counts.items())
    click.echo(f"{words}: {len(rows)} findings", err=True)


@main.command()
@job_options
@click.option(
    "--to",
    "archive_path",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="A directory that every executor sees under this name.",
)
@click.option(
    "--isolation-level",
    type=click.Choice(["read_uncommitted", "read_committed"]),
    default="read_uncommitted",
    show_default=True,
    help="read_committed leaves aborted transactions out, and waits for open ones.",
)
@click.option(
    "--accept-gaps",
    is_flag=True,
    help="Go on where records were deleted before they were archived.",
)
@click.option("--verify", is_flag=True, help="Archive nothing; read all files, and compare.")
@tells_errors
def archive(
    metadata: str,
    bookkeeper: tuple[str, ...],
    master: str | None,
    topics: tuple[str, ...],
    as_json: bool,
    archive_path: Path,
    isolation_level: str,
    accept_gaps: bool,
    verify: bool,
) -> None:
    """Copies closed ledgers to Parquet files, each once, and tells the cluster how far it is.

    With --verify exit code 1 if a file is not what was written."""
    from spark_jobs.runner import runner

    where = where_of(metadata, bookkeeper)
    with ExitStack() as stack:
        run = stack.enter_context(runner(master, "archive"))
        if verify:
            _verify(archive_path, run, topics, as_json=as_json)
            return
        if not topics:
            raise click.UsageError("--topic: which topics are to be archived?")
        _archive(
            *(where, run, stack, as_json),
            topics=topics,
            archive=archive_path.absolute(),
            read_committed=isolation_level == "read_committed",
            accepts_gaps=accept_gaps,
        )


def _archive(
    where: Where,
    run: Run,
    stack: ExitStack,
    as_json: bool,
    **options: Any,  # noqa: ANN401  # of ArchiveOptions
) -> None:
    from quire.tools.output import progress, show
    from spark_jobs.archive import ArchiveOptions, make_archive

    def start(ledgers: int) -> Callable[[int], None]:
        return stack.enter_context(progress("ledgers", ledgers, is_bytes=False))

    made = make_archive(where, run, ArchiveOptions(**options), start)
    if as_json:
        click.echo(json.dumps(asdict(made), indent=2))
        return
    show([row | {"gaps": len(row["gaps"])} for row in made.partitions], as_json=False)
    click.echo(f"{made.ledgers} ledgers, {made.rows} records, {made.bytes} bytes", err=True)


def _verify(path: Path, run: Run, topics: tuple[str, ...], *, as_json: bool) -> None:
    from spark_jobs.archive import verify_archive

    files, faults = verify_archive(path, run, topics)
    if as_json:
        click.echo(json.dumps({"files": files, "faults": faults}, indent=2))
    else:
        for fault in faults:
            click.echo(fault)
        click.echo(f"{files} files: {len(faults)} faults", err=True)
    if faults:
        raise SystemExit(EXIT_FOUND)
