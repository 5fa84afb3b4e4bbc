"""What the decoder's and the encoder's generators share: source with a map of lines to fields.

A coder is one function of straight-line Python per (class, version). Its source knows which line
belongs to which field, so that an error finds its field by the traceback's line number and the
fast path carries nothing for it.
"""

from __future__ import annotations

from contextlib import contextmanager
from struct import Struct as PackedStruct
from typing import TYPE_CHECKING, Any

from wire.kafka.message import Array, Message, Primitive, fields_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wire.kafka.message import FieldSpec, FieldType
    from wire.kafka.structs import Struct

#: struct format characters of the types with a fixed size. A uuid is 16 raw bytes.
FORMATS = {
    Primitive.BOOL: "?",
    Primitive.INT8: "b",
    Primitive.INT16: "h",
    Primitive.UINT16: "H",
    Primitive.INT32: "i",
    Primitive.INT64: "q",
    Primitive.FLOAT64: "d",
    Primitive.UUID: "16s",
}


class Source:
    """Lines of Python under construction, and the names that they use."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {}
        self.path: list[str] = []
        self._lines: list[str] = []
        self._places: list[str] = []
        self._depth = 0
        self._serial = 0

    def add(self, line: str) -> None:
        self._lines.append("    " * self._depth + line)
        self._places.append(".".join(self.path))

    @contextmanager
    def block(self, line: str) -> Iterator[None]:
        self.add(line)
        self._depth += 1
        yield
        self._depth -= 1

    @contextmanager
    def place(self, name: str) -> Iterator[None]:
        """Lines added inside belong to the field `name` of what is being built."""
        self.path.append(name)
        yield
        self.path.pop()

    def fresh(self, prefix: str) -> str:
        """A variable that no other line uses."""
        self._serial += 1
        return f"{prefix}{self._serial}"

    def bind(self, prefix: str, value: object) -> str:
        """A name for `value` in the function's globals; one name per value."""
        for name, bound in self.names.items():
            if bound is value:
                return name
        name = self.fresh(prefix)
        self.names[name] = value
        return name

    def packed(self, formats: str, method: str) -> str:
        """A name for `Struct(formats).<method>`, big-endian."""
        name = f"{method}_{formats.replace('?', 'o')}"
        if name not in self.names:
            self.names[name] = getattr(PackedStruct(">" + formats), method)
        return name

    def compile(self, function: str, title: str) -> tuple[Any, list[str]]:
        """The named function, and the field of each of its lines (index 0 is line 1)."""
        code = compile("\n".join(self._lines), f"<{title}>", "exec")
        # Only declarations of this repository are in the source; nothing of a peer's ever is.
        exec(code, self.names)
        return self.names[function], self._places


def carried_fields(cls: type[Struct], version: int) -> list[tuple[str, FieldSpec]]:
    """Fields that `version` has in its ordinary sequence, in wire order."""
    return [
        (name, spec)
        for name, spec in fields_of(cls)
        if spec.versions.covers(version) and not spec.tagged.covers(version)
    ]


def tagged_fields(cls: type[Struct], version: int) -> list[tuple[str, FieldSpec]]:
    """Fields that `version` carries as tagged fields, by ascending tag (KIP-482's order)."""
    tagged = [
        (name, spec)
        for name, spec in fields_of(cls)
        if spec.versions.covers(version) and spec.tagged.covers(version)
    ]
    return sorted(tagged, key=lambda item: item[1].tag or 0)


def absent_fields(cls: type[Struct], version: int) -> list[tuple[str, FieldSpec]]:
    """Fields that `version` does not have at all."""
    return [(n, spec) for n, spec in fields_of(cls) if not spec.versions.covers(version)]


def size_min(kind: FieldType, version: int, *, flexible: bool, nullable: bool = False) -> int:
    """The fewest bytes that a value takes: what bounds an array's count before allocation."""
    if isinstance(kind, Array):
        return 1 if flexible else 4
    if isinstance(kind, Primitive):
        if kind in FORMATS:
            return PackedStruct(">" + FORMATS[kind]).size
        if flexible:
            return 1
        return 2 if kind is Primitive.STRING else 4
    if nullable:
        return 1
    total = sum(
        size_min(spec.kind, version, flexible=flexible, nullable=spec.nullable.covers(version))
        for _, spec in carried_fields(kind, version)
    )
    return total + flexible


def carries_records(cls: type[Struct], version: int) -> bool:
    """Whether a `records` field is anywhere in the layout: it is what travels by reference."""
    for _, spec in fields_of(cls):
        kind = spec.kind.element if isinstance(spec.kind, Array) else spec.kind
        if not spec.versions.covers(version):
            continue
        if kind is Primitive.RECORDS:
            return True
        if not isinstance(kind, Primitive) and carries_records(kind, version):
            return True
    return False


def describe(cls: type[Message], version: int, place: str) -> str:
    """«ProduceRequest v9, field topic_data.name», for errors."""
    return f"{cls.__name__} v{version}" + (f", field {place}" if place else "")
