"""How the rows of a dump read as text.

One line per row, `type field=value ...`, indented below the row that it belongs to. Bytes that are
readable text stand in quotes, others as 0x and hex; both are cut at a size. So do names with
spaces. What goes without saying is left out (`_UNSAID`). It depends on nothing but the rows, so it
can be piped and compared. Where rows go is in quire/tools/output.py.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from quire.tools.output import make_row_output, printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from quire.tools.dump.options import OutputOptions
    from quire.tools.output import Output
    from wire.buffers import Buffer

#: A tree of names is harder to read in pieces.
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


def make_output(options: OutputOptions) -> Output:
    """Where a dump's rows go: to stdout, in the form that is asked for."""
    text = RowText(options.value_size_max)
    return make_row_output(text, as_json=options.json, bytes_as=options.bytes_as)


class RowText:
    __slots__ = ("_value_size_max",)

    def __init__(self, value_size_max: int) -> None:
        """Bytes and texts are cut there; 0: not at all."""
        self._value_size_max = value_size_max

    def fits_table(self, kind: str, rows: Sequence[Mapping[str, Any]]) -> bool:
        nested = any(_is_nested(value) for row in rows for value in row.values())
        return not nested and kind not in NEVER_TABLES

    def lines(self, kind: str, fields: Mapping[str, Any], level: int) -> Iterator[str]:
        indent = "  " * level
        pairs, nested = [], []
        unsaid = _UNSAID.get(kind, _NOTHING)
        for name, value in fields.items():
            if value is None or value is False or (name in unsaid and value == unsaid[name]):
                continue
            if _is_nested(value):
                nested.append((name, value))
            else:
                text = self.value(value)
                pairs.append(f"{name}={text.ljust(_WIDTHS.get(name, 0))}")
        yield f"{indent}{kind:<8} {' '.join(pairs)}".rstrip()
        for name, value in nested:
            yield from self._nested_lines(name, value, indent + "    ")

    def _nested_lines(self, name: str, value: object, indent: str) -> Iterator[str]:
        if not _is_nested(value):
            yield f"{indent}{name}: {self.value(value)}"
            return
        if isinstance(value, dict):
            flat = [(key, each) for key, each in value.items() if not _is_nested(each)]
            pairs = "".join(f" {printable(str(key))}={self.value(each)}" for key, each in flat)
            yield f"{indent}{name}{'' if name == '-' else ':'}{pairs}"
            for key, each in value.items():
                if _is_nested(each):
                    yield from self._nested_lines(printable(str(key)), each, indent + "  ")
            return
        yield f"{indent}{name}:"
        assert isinstance(value, list)
        for item in value:
            yield from self._nested_lines("-", item, indent + "  ")

    def value(self, value: object) -> str:
        if type(value) is int:
            return str(value)
        if value is None:
            return "-"
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, bytes | bytearray | memoryview):
            return self._bytes_text(value)
        if isinstance(value, list | tuple):
            return "[" + ", ".join(map(self.value, value)) + "]"
        text = str(value)
        plain = text and text.isprintable() and " " not in text
        return text if plain else json.dumps(text)

    def _bytes_text(self, value: Buffer) -> str:
        limit = self._value_size_max
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
