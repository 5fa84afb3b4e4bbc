"""How rows are shown: as JSON, as text, or in tables.

A structure is dumped as rows: a type, and fields with values that JSON knows, and bytes. They are

- JSON: one object per line, the type in `type`, bytes as hex (or base64), nothing cut;
- text: one line per row, `type field=value ...`, indented below the row that it belongs to. Bytes
  that are readable text stand in quotes, others as 0x and hex; both are cut at a size. So do names
  with spaces. What goes without saying is left out (`_UNSAID`). It depends on nothing but the rows,
  so it can be piped and compared;
- tables, if stdout is a terminal: the same text, but rows of one type that follow each other
  become a table, at most `TABLE_ROWS_MAX` at a time.

Damage is a row too, where it was found, and a line on stderr; it makes the exit code 1.
"""

from __future__ import annotations

import base64
import json
import sys
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import TextIO

    from rich.console import Console

    from quire.tools.dump.options import OutputOptions
    from wire.buffers import Buffer

BUFFER_SIZE_CHARACTERS = 64 * 1024
TABLE_ROWS_MAX = 200
#: A table of fewer is harder to read than lines; and so is a tree of names in pieces.
TABLE_ROWS_MIN = 3
NEVER_TABLES = frozenset(("node",))

#: So that rows stand below each other: the least width of a value, by field.
_WIDTHS = {
    "offset": 9,
    "sequence": 6,
    "durable": 6,
    "ledger": 5,
    "entry": 6,
    "size": 7,
    "records": 4,
    "bytes": 9,
    "lac": 5,
    "length": 9,
    "digest": 3,
    "base_offset": 8,
    "last_offset": 8,
    "count": 5,
    "position": 9,
    "timestamp": 13,
    "crc": 3,
    "log": 3,
    "version": 3,
}

#: What goes without saying in text: of each type of row, fields with these values; and everywhere
#: what is not there (None) or not so (False).
_UNSAID: dict[str, dict[str, object]] = {
    "batch": {
        "base_sequence": -1,
        "last_sequence": -1,
        "producer_id": -1,
        "producer_epoch": -1,
        "timestamp_type": "create_time",
        "magic": 2,
    },
    "record": {"sequence": -1, "headers": []},
}
_NOTHING: dict[str, object] = {}


class Output(Protocol):
    """Where rows go. `failed` turns true with the first damage or error."""

    failed: bool

    def row(self, kind: str, fields: Mapping[str, Any], level: int = 0) -> None: ...

    def damage(self, file: str, offset: int | None, reason: str, level: int = 0) -> None:
        """Something on disk is not what it should be. The dump goes on."""

    def flush(self) -> None: ...


def make_output(options: OutputOptions) -> Output:
    stream = sys.stdout
    if options.json:
        return _JsonOutput(stream, options)
    return _TableOutput(stream, options) if stream.isatty() else _TextOutput(stream, options)


def hexed(data: Buffer) -> str:
    return bytes(data).hex()


class _Stream:
    """Collects lines; damage goes to stderr behind all that came before it."""

    __slots__ = ("_lines", "_options", "_size", "_stream", "failed")

    def __init__(self, stream: TextIO, options: OutputOptions) -> None:
        self._stream = stream
        self._options = options
        self._lines: list[str] = []
        self._size = 0
        self.failed = False

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

    def flush(self) -> None:
        self._write()
        self._stream.flush()

    def _complain(self, file: str, offset: int | None, reason: str) -> None:
        self.failed = True
        self.flush()
        where = "" if offset is None else f" offset {offset}:"
        sys.stderr.write(f"Error: {printable(file)}:{where} {printable(reason)}\n")
        sys.stderr.flush()


def _damage_fields(file: str, offset: int | None, reason: str) -> dict[str, Any]:
    return {"file": file, "offset": offset, "reason": reason}


class _JsonOutput(_Stream):
    __slots__ = ("_encoder",)

    def __init__(self, stream: TextIO, options: OutputOptions) -> None:
        super().__init__(stream, options)
        self._encoder = json.JSONEncoder(separators=(",", ":"), default=self._encode_other)

    def row(self, kind: str, fields: Mapping[str, Any], level: int = 0) -> None:
        self._line(self._encoder.encode({"type": kind, **fields}))

    def damage(self, file: str, offset: int | None, reason: str, level: int = 0) -> None:
        self.row("damage", _damage_fields(file, offset, reason))
        self._complain(file, offset, reason)

    def _encode_other(self, value: object) -> object:
        if isinstance(value, bytes | bytearray | memoryview):
            data = bytes(value)
            if self._options.bytes_as == "base64":
                return base64.b64encode(data).decode("ascii")
            return data.hex()
        return str(value)


class _TextOutput(_Stream):
    __slots__ = ()

    def row(self, kind: str, fields: Mapping[str, Any], level: int = 0) -> None:
        for line in self._text_lines(kind, fields, level):
            self._line(line)

    def damage(self, file: str, offset: int | None, reason: str, level: int = 0) -> None:
        self.row("damage", _damage_fields(file, offset, reason), level)
        self._complain(file, offset, reason)

    def _text_lines(self, kind: str, fields: Mapping[str, Any], level: int) -> Iterator[str]:
        indent = "  " * level
        pairs, nested = [], []
        unsaid = _UNSAID.get(kind, _NOTHING)
        for name, value in fields.items():
            if value is None or value is False or (name in unsaid and value == unsaid[name]):
                continue
            if _is_nested(value):
                nested.append((name, value))
            else:
                text = self._value_text(value)
                pairs.append(f"{name}={text.ljust(_WIDTHS.get(name, 0))}")
        yield f"{indent}{kind:<8} {' '.join(pairs)}".rstrip()
        for name, value in nested:
            yield from self._nested_lines(name, value, indent + "    ")

    def _nested_lines(self, name: str, value: object, indent: str) -> Iterator[str]:
        if not _is_nested(value):
            yield f"{indent}{name}: {self._value_text(value)}"
            return
        if isinstance(value, dict):
            flat = [(key, each) for key, each in value.items() if not _is_nested(each)]
            pairs = "".join(
                f" {printable(str(key))}={self._value_text(each)}" for key, each in flat
            )
            yield f"{indent}{name}{'' if name == '-' else ':'}{pairs}"
            for key, each in value.items():
                if _is_nested(each):
                    yield from self._nested_lines(printable(str(key)), each, indent + "  ")
            return
        yield f"{indent}{name}:"
        assert isinstance(value, list)
        for item in value:
            yield from self._nested_lines("-", item, indent + "  ")

    def _value_text(self, value: object) -> str:
        if type(value) is int:
            return str(value)
        if value is None:
            return "-"
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, bytes | bytearray | memoryview):
            return self._bytes_text(value)
        if isinstance(value, list | tuple):
            return "[" + ", ".join(map(self._value_text, value)) + "]"
        text = str(value)
        plain = text and text.isprintable() and " " not in text
        return text if plain else json.dumps(text)

    def _bytes_text(self, value: Buffer) -> str:
        limit = self._options.value_size_max
        cut = limit and len(value) > limit
        data = bytes(value[:limit] if cut else value)
        rest = f"... ({len(value)} bytes)" if cut else ""
        try:
            # A character that the cut went through must not turn text into hex.
            text = data.decode("utf-8") if not cut else _decode_cut(data)
        except UnicodeDecodeError:
            return f"0x{data.hex()}{rest}"
        return f"{json.dumps(text, ensure_ascii=not text.isprintable())}{rest}"


def _decode_cut(data: bytes) -> str:
    for size in range(len(data), max(len(data) - 4, 0), -1):
        try:
            return data[:size].decode("utf-8")
        except UnicodeDecodeError as error:
            if error.start < len(data) - 4:
                raise
    return data.decode("utf-8")


def _is_nested(value: object) -> bool:
    if isinstance(value, dict):
        return bool(value)
    return isinstance(value, list) and any(isinstance(item, dict) for item in value)


def printable(text: str) -> str:
    """As it is if it shows as one word or sentence; else quoted and escaped."""
    return text if text.isprintable() else json.dumps(text)


class _TableOutput(_TextOutput):
    __slots__ = ("_console", "_names", "_pending", "_pending_kind")

    def __init__(self, stream: TextIO, options: OutputOptions) -> None:
        from rich.console import Console

        super().__init__(stream, options)
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
        nested = any(_is_nested(value) for row in rows for value in row.values())
        if len(rows) < TABLE_ROWS_MIN or nested or kind in NEVER_TABLES:
            for row in rows:
                for line in self._text_lines(kind, row, level):
                    self._line(line)
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
            table.add_row(*(Text(self._value_text(row[name])) for name in names))
        self._console.print(Padding(table, (0, 0, 0, 2 * level)))
