"""Rows for a person or a program: a table on a terminal, columns with tabs in a pipe, or JSON."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def show(rows: Sequence[Mapping[str, object]], *, as_json: bool) -> None:
    """All rows have the first one's fields. JSON: a list of objects, numbers as they are; else
    fields whose names end in `_bytes` are shown in binary units on a terminal."""
    if as_json:
        click.echo(json.dumps(list(rows), indent=2))
    elif not rows:
        click.echo("nothing", err=True)
    elif sys.stdout.isatty():
        _table(rows)
    else:
        _columns(rows)


def show_one(fields: Mapping[str, object], *, as_json: bool) -> None:
    """One thing: a JSON object, or a line for each of its fields."""
    if as_json:
        click.echo(json.dumps(dict(fields), indent=2))
    else:
        show(
            [{"what": name, "value": _text(value)} for name, value in fields.items()], as_json=False
        )


def _columns(rows: Iterable[Mapping[str, object]]) -> None:
    names: Sequence[str] | None = None
    for row in rows:
        if names is None:
            names = list(row)
            click.echo("\t".join(names))
        click.echo("\t".join(_text(row[name]) for name in names))


def _table(rows: Sequence[Mapping[str, object]]) -> None:
    from rich.console import Console  # slow to import, and of use on a terminal only
    from rich.table import Table

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
        table.add_row(*(cell.replace("[", "\\[") for cell in cells))
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
