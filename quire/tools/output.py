"""What operators see: lists and single things, the rows of a dump, and progress.

- `show`, `show_one`, `Rows`: rows of one kind. JSON if that is asked for; else a table on a
  terminal, and columns with tabs in a pipe.
- `make_row_output`: rows of several kinds, as a dump meets them. A row is a type, and fields with
  values that JSON knows, and bytes. As JSON it is one object per line, the type in `type`, bytes as
  hex (or base64), nothing cut. Else it is lines of text (quire/tools/dump/rows.py), of which, if
  stdout is a terminal, rows of one type that follow each other become a table, at most
  `TABLE_ROWS_MAX` at a time. Damage is a row too, where it was found, and a line on stderr.
- `progress`, `told_progress`: how far work is that a person waits for. It goes to stderr.
"""

from __future__ import annotations

import base64
import json
import sys
from abc import ABC, abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import click

from runtime.env import RealClock

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import TextIO

    from rich.console import Console
    from rich.progress import Progress

    from runtime.env import Clock

UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")

BUFFER_SIZE_CHARACTERS = 64 * 1024
TABLE_ROWS_MAX = 200
#: A table of fewer is harder to read than lines.
TABLE_ROWS_MIN = 3

SHOW_AFTER_SECONDS = 2.0
REDRAW_INTERVAL_SECONDS = 0.1
TELL_SECONDS = 10.0
#: Ids and reasons that a line of `told_progress` names at most.
NAMED_MAX = 5


# -- rows of one kind ------------------------------------------------------------------------------


def show(rows: Sequence[Mapping[str, object]], *, as_json: bool) -> None:
    """All rows have the first one's fields. JSON: a list of objects, numbers as they are; else
    fields whose names end in `_bytes` are shown in binary units on a terminal."""
    if as_json:
        click.echo(json.dumps(list(rows), indent=2))
    elif rows and sys.stdout.isatty():
        _table(rows)
    else:
        columns = Rows(as_json=False)
        for row in rows:
            columns.add({name: row[name] for name in rows[0]})
        columns.end()


def show_one(fields: Mapping[str, object], *, as_json: bool) -> None:
    """One thing: a JSON object, or a line for each of its fields."""
    if as_json:
        click.echo(json.dumps(dict(fields), indent=2))
    else:
        show(
            [{"what": name, "value": _text(value)} for name, value in fields.items()], as_json=False
        )


class Rows:
    """Rows that are shown as they come: a JSON list with a row a line, or columns with tabs."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self.count = 0

    def add(self, row: Mapping[str, object]) -> None:
        if self._as_json:
            click.echo(("[\n  " if not self.count else ",\n  ") + json.dumps(row), nl=False)
        else:
            if not self.count:
                click.echo("\t".join(row))
            click.echo("\t".join(printable(_text(value)) for value in row.values()))
        self.count += 1

    def end(self) -> None:
        if self._as_json:
            click.echo("\n]" if self.count else "[]")
        elif not self.count:
            click.echo("nothing", err=True)


def _table(rows: Sequence[Mapping[str, object]]) -> None:
    from rich.console import Console  # slow to import, and of use on a terminal only
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for name, value in rows[0].items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        table.add_column(name.removesuffix("_bytes"), justify="right" if is_number else "left")
    for row in rows:
        cells = [
            readable_size(value)
            if name.endswith("_bytes") and isinstance(value, int)
            else _text(value)
            for name, value in row.items()
        ]
        table.add_row(*(Text(printable(cell)) for cell in cells))
    Console().print(table)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict | list):
        return json.dumps(value)
    return str(value)


def readable_size(size: int) -> str:
    value, index = float(size), 0
    while value >= 1024 and index < len(UNITS) - 1:
        value /= 1024
        index += 1
    return f"{size} B" if index == 0 else f"{value:.1f} {UNITS[index]}"


# -- rows of several kinds -------------------------------------------------------------------------


class Output(Protocol):
    """Where rows go. `failed` turns true with the first damage or error."""

    failed: bool

    def row(self, kind: str, fields: Mapping[str, Any], level: int = 0) -> None: ...

    def damage(self, file: str, offset: int | None, reason: str, level: int = 0) -> None:
        """Something on disk is not what it should be. What shows it goes on."""

    def flush(self) -> None: ...


class RowText(Protocol):
    """How rows read that are not JSON."""

    def lines(self, kind: str, fields: Mapping[str, Any], level: int) -> Iterator[str]: ...

    def value(self, value: object) -> str:
        """In a cell of a table."""

    def fits_table(self, kind: str, rows: Sequence[Mapping[str, Any]]) -> bool: ...


def make_row_output(text: RowText, *, as_json: bool, bytes_as: str) -> Output:
    """`bytes_as`: in JSON, "hex" or "base64"."""
    stream = sys.stdout
    if as_json:
        return _JsonOutput(stream, bytes_as)
    return _TableOutput(stream, text) if stream.isatty() else _TextOutput(stream, text)


def printable(text: str) -> str:
    """As it is if it shows as one word or sentence; else quoted and escaped."""
    return text if text.isprintable() else json.dumps(text)


class _Stream(ABC):
    """Collects lines; damage goes to stderr behind all that came before it."""

    __slots__ = ("_lines", "_size", "_stream", "failed")

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lines: list[str] = []
        self._size = 0
        self.failed = False

    @abstractmethod
    def row(self, kind: str, fields: Mapping[str, Any], level: int = 0) -> None: ...

    def damage(self, file: str, offset: int | None, reason: str, level: int = 0) -> None:
        self.row("damage", {"file": file, "offset": offset, "reason": reason}, level)
        self.failed = True
        self.flush()
        where = "" if offset is None else f" offset {offset}:"
        sys.stderr.write(f"Error: {printable(file)}:{where} {printable(reason)}\n")
        sys.stderr.flush()

    def flush(self) -> None:
        self._write()
        self._stream.flush()

    def _line(self, text: str) -> None:
        self._lines.append(text)
        self._size += len(text)
        if self._size >= BUFFER_SIZE_CHARACTERS:
            self._write()

    def _write(self) -> None:
        lines, self._lines, self._size = self._lines, [], 0
        if not lines:
            return
        text = "\n".join([*lines, ""])
        try:
            self._stream.write(text)
        except UnicodeEncodeError:  # a terminal that does not know all characters
            encoding = self._stream.encoding or "ascii"
            self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding))


class _JsonOutput(_Stream):
    __slots__ = ("_bytes_as", "_encoder")

    def __init__(self, stream: TextIO, bytes_as: str) -> None:
        super().__init__(stream)
        self._bytes_as = bytes_as
        self._encoder = json.JSONEncoder(separators=(",", ":"), default=self._encode_other)

    def row(self, kind: str, fields: Mapping[str, Any], level: int = 0) -> None:
        self._line(self._encoder.encode({"type": kind, **fields}))

    def _encode_other(self, value: object) -> object:
        if isinstance(value, bytes | bytearray | memoryview):
            data = bytes(value)
            if self._bytes_as == "base64":
                return base64.b64encode(data).decode("ascii")
            return data.hex()
        return str(value)


class _TextOutput(_Stream):
    __slots__ = ("_text",)

    def __init__(self, stream: TextIO, text: RowText) -> None:
        super().__init__(stream)
        self._text = text

    def row(self, kind: str, fields: Mapping[str, Any], level: int = 0) -> None:
        for line in self._text.lines(kind, fields, level):
            self._line(line)


class _TableOutput(_TextOutput):
    __slots__ = ("_console", "_pending", "_pending_kind")

    def __init__(self, stream: TextIO, text: RowText) -> None:
        from rich.console import Console

        super().__init__(stream, text)
        self._console: Console = Console(file=stream, highlight=False)
        self._pending: list[Mapping[str, Any]] = []
        self._pending_kind: tuple[str, int, tuple[str, ...]] = ("", 0, ())

    def row(self, kind: str, fields: Mapping[str, Any], level: int = 0) -> None:
        group = (kind, level, tuple(fields))
        if group != self._pending_kind or len(self._pending) >= TABLE_ROWS_MAX:
            self._write_pending()
            self._pending_kind = group
        self._pending.append(fields)

    def flush(self) -> None:
        self._write_pending()
        super().flush()

    def _write_pending(self) -> None:
        rows, self._pending = self._pending, []
        kind, level, names = self._pending_kind
        if len(rows) < TABLE_ROWS_MIN or not self._text.fits_table(kind, rows):
            for row in rows:
                super().row(kind, row, level)
            return
        self._write()
        self._write_table(kind, level, names, rows)

    def _write_table(
        self, kind: str, level: int, names: tuple[str, ...], rows: list[Mapping[str, Any]]
    ) -> None:
        from rich import box
        from rich.padding import Padding
        from rich.table import Table
        from rich.text import Text

        table = Table(title=kind, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        for name in names:
            numbers = all(isinstance(row[name], int | None) for row in rows)
            table.add_column(name, justify="right" if numbers else "left", overflow="fold")
        for row in rows:
            table.add_row(*(Text(self._text.value(row[name])) for name in names))
        self._console.print(Padding(table, (0, 0, 0, 2 * level)))


# -- progress --------------------------------------------------------------------------------------
# A bar appears only if stderr is a terminal, and only after two seconds: what is quick, and what a
# script runs, shows nothing. It is drawn by the calls of `step` themselves, at most ten times a
# second and without a thread, so work that takes no step for long shows none either.


class Step(Protocol):
    """Says that `count` more of the total is done: bytes, or whatever the total counts."""

    def __call__(self, count: int, /) -> None: ...


class _Bar:
    __slots__ = (
        "_bytes",
        "_clock",
        "_description",
        "_done",
        "_next_at",
        "_progress",
        "_stream",
        "_total",
    )

    def __init__(
        self, description: str, total: int | None, stream: TextIO, clock: Clock, is_bytes: bool
    ) -> None:
        self._description = description
        self._total = total
        self._stream = stream
        self._clock = clock
        self._bytes = is_bytes
        self._done = 0
        self._progress: Progress | None = None
        self._next_at = clock.monotonic() + SHOW_AFTER_SECONDS

    def step(self, count: int, /) -> None:
        self._done += count
        now = self._clock.monotonic()
        if now < self._next_at:
            return
        self._next_at = now + REDRAW_INTERVAL_SECONDS
        if self._progress is None:
            self._progress = self._start()
        self._progress.update(self._progress.task_ids[0], completed=self._done, refresh=True)

    def _start(self) -> Progress:
        from rich.console import Console  # of no use to most commands, and slow to import
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            ProgressColumn,
            TextColumn,
            TimeRemainingColumn,
        )
        from rich.progress import Progress as RichProgress

        amount: ProgressColumn = DownloadColumn() if self._bytes else MofNCompleteColumn()
        progress = RichProgress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            amount,
            TimeRemainingColumn(),
            console=Console(file=self._stream),
            transient=True,
            auto_refresh=False,
        )
        progress.add_task(self._description, total=self._total)
        progress.start()
        return progress

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()


def _no_step(count: int, /) -> None:
    return


@contextmanager
def progress(
    description: str,
    total: int | None,
    *,
    is_bytes: bool = True,
    enabled: bool = True,
    stream: TextIO | None = None,
    clock: Clock | None = None,
) -> Iterator[Step]:
    """`with progress("replay", total_bytes) as step: ... step(n)`.

    `total` None: not known. `is_bytes` False: it counts things. `enabled` False where the bar
    would get in the way of the output, as when that goes to the same terminal."""
    stream = sys.stderr if stream is None else stream
    if not enabled or not stream.isatty():
        yield _no_step
        return
    bar = _Bar(description, total, stream, RealClock() if clock is None else clock, is_bytes)
    try:
        yield bar.step
    finally:
        bar.close()


class ToldProgress:
    def __init__(self, what: str, sizes: Mapping[int, int], step: Step, clock: Clock) -> None:
        self._what = what
        self._sizes = sizes
        self._step = step
        self._clock = clock
        self._copied: dict[int, int] = {}
        self._done_count = 0
        self._done_bytes = 0
        self._tell_at = clock.monotonic() + TELL_SECONDS
        #: Ledger -> why it is not done.
        self.problems: dict[int, str] = {}

    def step(self, ledger_id: int, entries: int, size_bytes: int) -> None:
        """So much more of that ledger was copied."""
        del entries
        self._copied[ledger_id] = self._copied.get(ledger_id, 0) + size_bytes
        self._step(size_bytes)
        self.tell()

    def finish(self, ledger_id: int) -> None:
        """That ledger is done."""
        copied = self._copied.pop(ledger_id, 0)
        self._done_count += 1
        self._done_bytes += self._sizes[ledger_id]
        self._step(max(0, self._sizes[ledger_id] - copied))
        self.tell()

    def tell(self) -> None:
        """A line, if it is time for one and there is no bar."""
        now = self._clock.monotonic()
        if now >= self._tell_at and not sys.stderr.isatty():
            self._tell_at = now + TELL_SECONDS
            click.echo(self.line(), err=True)

    def line(self) -> str:
        done_bytes = self._done_bytes + sum(self._copied.values())
        line = (
            f"{self._what}: {self._done_count} of {len(self._sizes)} ledgers, "
            f"{done_bytes / 1e6:.1f} of {sum(self._sizes.values()) / 1e6:.1f} MB"
        )
        if self._copied:
            line += f"; under way: {', '.join(map(str, list(self._copied)[:NAMED_MAX]))}"
        for ledger_id in list(self.problems)[:NAMED_MAX]:
            line += f"; ledger {ledger_id}: {self.problems[ledger_id]}"
        return line


@contextmanager
def told_progress(
    what: str, sizes: Mapping[int, int], clock: Clock | None = None
) -> Iterator[ToldProgress]:
    """`sizes`: ledger -> bytes that are to be copied, as far as is known."""
    clock = RealClock() if clock is None else clock
    with progress(f"{what} {len(sizes)} ledgers", sum(sizes.values()), clock=clock) as step:
        yield ToldProgress(what, sizes, step, clock)
