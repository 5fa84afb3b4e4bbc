"""Compiles encoders: messages to bytes, one function per (class, version).

An encoder appends pieces to a list that its caller joins. Neighbouring fixed-size fields and the
length or count that follows them are one `pack`; `records` are appended as they are, and large ones
need never be copied: see `compile_encoder`. Elements are counted as in decoder.py: what has more
than it was allowed is encoded by a generator, in slices.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from wire.kafka.compiling import FORMATS, Source, carried_fields, describe, tagged_fields
from wire.kafka.decoder import SLICE_ELEMENTS
from wire.kafka.errors import EncodeError
from wire.kafka.message import FRESH, Array, Message, Primitive
from wire.kafka.primitives import UNLIMITED, ManyElementsError, string_varint, varint

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from wire.buffers import Buffer
    from wire.kafka.message import FieldSpec, RecordsValue
    from wire.kafka.structs import Struct

    #: (message, pieces, parts or None, elements allowed = UNLIMITED)
    Encoder = Callable[..., None]
    #: (message, pieces, parts) -> yields after each slice
    SlicedEncoder = Callable[[Any, list[Buffer], list[Buffer] | None], Generator[None, None, None]]

#: Records smaller than this are copied with what surrounds them: a buffer of their own in
#: `sendmsg` costs more than the copy.
INLINE_RECORDS_MAX = 2048

#: What a value that does not suit its field raises inside an encoder.
EXPECTED = (struct.error, ValueError, TypeError, AttributeError, OverflowError)


def compile_encoder(cls: type[Message], version: int) -> Encoder:
    """The encoder of one version: (message, pieces, parts) appends to `pieces`.

    With `parts` not None, what is in `pieces` goes there joined, before each records value of
    `INLINE_RECORDS_MAX` bytes or more, and then that value as it is. ManyElementsError if the
    message has more elements than are allowed; `pieces` and `parts` are of no use then.
    """
    return _EncoderGenerator(cls, version, sliced=False).generate()  # type: ignore[no-any-return]


def compile_sliced_encoder(cls: type[Message], version: int) -> SlicedEncoder:
    """The same as a generator that yields after each slice, when all of `pieces` may be taken."""
    return _EncoderGenerator(cls, version, sliced=True).generate()  # type: ignore[no-any-return]


def records_size(value: RecordsValue) -> int:
    """Bytes of a records field that is not null."""
    if type(value) is list or type(value) is tuple:
        return sum(map(len, value))
    assert value is not None
    return len(value)


def explain_unfit(message: Message, version: int, error: Exception) -> EncodeError:
    """The error for a message that could not be encoded.

    One `pack` writes several fields: which of them failed is looked for only now.
    """
    cls = type(message)
    place = _find_unfit(message, version, flexible=cls.INFO.flexible.covers(version))
    return EncodeError(f"{describe(cls, version, place or '')}: {error}")


def _find_unfit(value: Struct, version: int, *, flexible: bool) -> str | None:
    """The path of the first field whose value its layout cannot carry; None if all can."""
    cls = type(value)
    for name, spec in carried_fields(cls, version) + tagged_fields(cls, version):
        each = getattr(value, name)
        if each is None and (spec.nullable.covers(version) or spec.tag is not None):
            continue
        if not isinstance(spec.kind, Array):
            elements = [(name, each, spec.kind)]
        elif isinstance(each, list | tuple):
            kind = spec.kind.element
            elements = [(f"{name}[{index}]", item, kind) for index, item in enumerate(each)]
        else:
            return name
        for label, element, kind in elements:
            try:
                inner = _unfit_inside(element, kind, version, flexible=flexible)
            except EXPECTED:
                return label
            if inner is not None:
                return label + inner
    return None


def _unfit_inside(
    value: Any,  # noqa: ANN401  # whatever was put into a field: this looks for what is wrong
    kind: Primitive | type[Struct],
    version: int,
    *,
    flexible: bool,
) -> str | None:
    """«.field» inside a struct that does not fit; raises one of `EXPECTED` for a bad primitive."""
    if not isinstance(kind, Primitive):
        if not isinstance(value, kind):
            raise TypeError(f"{value!r} is no {kind.__name__}")
        inner = _find_unfit(value, version, flexible=flexible)
        return None if inner is None else f".{inner}"
    if kind in FORMATS:
        struct.pack(">" + FORMATS[kind], value.bytes if kind is Primitive.UUID else value)
    elif kind is Primitive.STRING:
        string_varint(len(value.encode()) + 1)
    elif kind is Primitive.BYTES:
        memoryview(value)
    elif value is not None:
        b"".join(value if isinstance(value, list | tuple) else [value])
    else:
        raise TypeError("null where null is not allowed")
    return None


class _EncoderGenerator:
    """Writes one encoder. In its code: out the pieces, n a length plus one.

    `_pending` holds (format, expression) of fixed-size fields for the next `pack`; `_pieces` holds
    expressions of bytes that the next `_emit` appends. Both are empty wherever control branches.
    """

    def __init__(self, cls: type[Message], version: int, *, sliced: bool) -> None:
        self._cls = cls
        self._sliced = sliced
        self._version = version
        self._flexible = cls.INFO.flexible.covers(version)
        self._pending: list[tuple[str, str]] = []
        self._pieces: list[str] = []
        self._source = Source()
        self._source.names.update(
            varint=varint,
            string_varint=string_varint,
            records_size=records_size,
            pack=struct.pack,
            ManyElementsError=ManyElementsError,
            EXPECTED=EXPECTED,
        )

    def generate(self) -> Any:  # noqa: ANN401  # an Encoder or a SlicedEncoder
        source = self._source
        cls, version = self._cls, self._version
        source.names["explain"] = explain_unfit
        with source.block(f"def encode(m, out, parts, left={UNLIMITED}):"):
            if self._sliced:
                source.add(f"turn = {SLICE_ELEMENTS}")
                with source.block("if False:"):
                    source.add("yield")
            with source.block("try:"):
                self._struct("m", cls)
                source.add("pass")
            with source.block("except EXPECTED as error:"):
                source.add(f"raise explain(m, {version}, error) from error")
        encode, _ = source.compile("encode", f"{cls.__name__} v{version} encoder")
        return encode

    # -- output -----------------------------------------------------------------------------

    def _packed(self, *last: tuple[str, str]) -> str:
        """An expression for the pending fields and `last`; pending is left as it is."""
        items = [*self._pending, *last]
        if not items:
            return "b''"
        if all(expression.isdecimal() for _, expression in items):
            constant = struct.pack(
                ">" + "".join(item[0] for item in items), *(int(item[1]) for item in items)
            )
            return repr(constant)
        formats = "".join(item[0] for item in items)
        arguments = ", ".join(item[1] for item in items)
        return f"{self._source.packed(formats, 'pack')}({arguments})"

    def _flush(self) -> None:
        if self._pending:
            self._pieces.append(self._packed())
            self._pending = []

    def _terminated(self, argument: str, fits: str, otherwise: str) -> None:
        """End the run with one more byte `argument` if `fits`, else with bytes `otherwise`."""
        fast = self._packed(("B", argument))
        slow = f"{self._packed()} + {otherwise}" if self._pending else otherwise
        self._pending = []
        self._pieces.append(f"{fast} if {fits} else {slow}")

    def _emit(self) -> None:
        """Append every piece: called before control branches, and at the end."""
        self._flush()
        if len(self._pieces) == 1:
            self._source.add(f"out.append({self._pieces[0]})")
        elif self._pieces:
            pieces = ", ".join(f"({piece})" if " if " in piece else piece for piece in self._pieces)
            self._source.add(f"out += ({pieces})")
        self._pieces = []

    # -- structs ----------------------------------------------------------------------------

    def _struct(self, target: str, cls: type[Struct]) -> None:
        """Code that writes the struct in the variable `target`."""
        for name, spec in carried_fields(cls, self._version):
            with self._source.place(name):
                self._field(f"{target}.{name}", spec)
        if self._flexible:
            self._tags(target, tagged_fields(cls, self._version))
        self._emit()

    def _tags(self, target: str, tagged: list[tuple[str, FieldSpec]]) -> None:
        if not tagged:
            self._pending.append(("B", "0"))
            return
        source = self._source
        # Tags are rare: they gather in a list of their own, behind one test for «none».
        absent = " and ".join(self._is_default(f"{target}.{n}", spec) for n, spec in tagged)
        self._emit()
        with source.block(f"if {absent}:"):
            source.add("out.append(b'\\0')")
        with source.block("else:"):
            total, outer = source.fresh("k"), source.fresh("outer")
            source.add(f"{total} = 0")
            source.add(f"{outer} = out")
            source.add("out = []")
            for name, spec in tagged:
                value = f"{target}.{name}"
                with source.place(name), source.block(f"if not {self._is_default(value, spec)}:"):
                    inner = source.fresh("inner")
                    source.add(f"{inner} = out")
                    source.add("out = []")
                    self._field(value, spec)
                    self._emit()
                    source.add("v = b''.join(out)")
                    source.add("out = " + inner)
                    source.add(f"out += (varint({spec.tag}), varint(len(v)), v)")
                    source.add(f"{total} += 1")
            source.add(f"{outer}.append(varint({total}))")
            source.add(f"{outer} += out")
            source.add(f"out = {outer}")

    def _is_default(self, value: str, spec: FieldSpec) -> str:
        if spec.default is FRESH:
            return f"(not {value})"
        if spec.default is None:
            if isinstance(spec.kind, Array | Primitive):
                return f"({value} is None)"
            # None and a struct of defaults are the same to a peer, and neither is sent.
            default = self._source.bind("d", spec.kind())
            return f"({value} is None or {value} == {default})"
        if isinstance(spec.default, bool | int | str | bytes | float):
            return f"({value} == {spec.default!r})"
        return f"({value} == {self._source.bind('d', spec.default)})"

    # -- fields -----------------------------------------------------------------------------

    def _field(self, value: str, spec: FieldSpec) -> None:
        nullable = spec.nullable.covers(self._version)
        kind = spec.kind
        if isinstance(kind, Array):
            self._array(value, kind, nullable)
        elif not isinstance(kind, Primitive):
            self._nested(value, kind, nullable)
        elif kind in FORMATS:
            self._pending.append((FORMATS[kind], self._fixed(value, kind)))
        elif kind is Primitive.STRING:
            self._string(value, nullable)
        elif kind is Primitive.BYTES:
            self._bytes(value, nullable)
        else:
            self._records(value, nullable)

    def _fixed(self, value: str, kind: Primitive) -> str:
        return f"{value}.bytes" if kind is Primitive.UUID else value

    def _nested(self, value: str, kind: type[Struct], nullable: bool) -> None:
        source = self._source
        target = source.fresh("s")
        if not nullable:
            # The expressions already pending are evaluated later, and do not read `target`.
            source.add(f"{target} = {value}")
            self._struct(target, kind)
            return
        self._emit()
        source.add(f"{target} = {value}")
        with source.block(f"if {target} is None:"):
            source.add("out.append(b'\\xff')")
        with source.block("else:"):
            self._pending.append(("b", "1"))
            self._struct(target, kind)

    def _length(self, size: str, legacy_format: str, prefix: str = "varint") -> None:
        """End the pending run with a length: `size` is a variable, one more than the length."""
        if self._flexible:
            self._terminated(size, f"{size} < 128", f"{prefix}({size})")
        else:
            self._pending.append((legacy_format, f"{size} - 1"))
            self._flush()

    def _sized(self, value: str, data: str, nullable: bool, size: str, empty: str) -> str:
        """Code that puts a value's data and length plus one in variables; the length's name."""
        source = self._source
        length = source.fresh("n")
        if not nullable:
            source.add(f"{data} = {value}")
            source.add(f"{length} = {size} + 1")
            return length
        bare = value.removesuffix(".encode()")
        source.add(f"{data} = {bare}")
        with source.block(f"if {data} is None:"):
            source.add(f"{data} = {empty}")
            source.add(f"{length} = 0")
        with source.block("else:"):
            if bare != value:
                source.add(f"{data} = {data}.encode()")
            source.add(f"{length} = {size} + 1")
        return length

    def _string(self, value: str, nullable: bool) -> None:
        data = self._source.fresh("t")
        length = self._sized(f"{value}.encode()", data, nullable, f"len({data})", "b''")
        self._length(length, "h", "string_varint")
        self._pieces.append(data)

    def _bytes(self, value: str, nullable: bool) -> None:
        data = self._source.fresh("t")
        length = self._sized(value, data, nullable, f"len({data})", "b''")
        self._length(length, "i")
        self._pieces.append(data)

    def _records(self, value: str, nullable: bool) -> None:
        source = self._source
        data = source.fresh("r")
        length = self._sized(value, data, nullable, f"records_size({data})", "b''")
        self._length(length, "i")
        self._emit()
        with source.block(f"if parts is not None and {length} > {INLINE_RECORDS_MAX}:"):
            source.add("parts.append(b''.join(out))")
            source.add("out.clear()")
            self._append_records("parts", data)
        with source.block("else:"):
            self._append_records("out", data)

    def _append_records(self, target: str, data: str) -> None:
        source = self._source
        with source.block(f"if type({data}) is list or type({data}) is tuple:"):
            source.add(f"{target} += {data}")
        with source.block("else:"):
            source.add(f"{target}.append({data})")

    # -- arrays -----------------------------------------------------------------------------

    def _array(self, value: str, kind: Array, nullable: bool) -> None:
        source = self._source
        items = source.fresh("a")
        length = self._sized(value, items, nullable, f"len({items})", "()")
        self._length(length, "i")
        element = kind.element
        if isinstance(element, Primitive) and element in FORMATS:
            if element is Primitive.UUID:
                self._pieces.append(f"b''.join([u.bytes for u in {items}])")
            else:
                count = f"len({items})"
                self._pieces.append(f"pack('>%d{FORMATS[element]}' % {count}, *{items})")
            return
        self._emit()
        item = source.fresh("s")
        if not self._sliced:
            source.add(f"left -= len({items})")
            with source.block("if left < 0:"):
                source.add("raise ManyElementsError")
        with source.block(f"for {item} in {items}:"):
            if self._sliced:
                source.add("turn -= 1")
                with source.block("if turn < 0:"):
                    source.add(f"turn = {SLICE_ELEMENTS}")
                    source.add("yield")
            if not isinstance(element, Primitive):
                self._struct(item, element)
            elif element is Primitive.STRING:
                self._string(item, nullable=False)
            else:
                self._bytes(item, nullable=False)
            self._emit()
