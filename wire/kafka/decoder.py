"""Compiles decoders: bytes to messages, one function per (class, version).

What makes them fast: neighbouring fixed-size fields and the first byte of the length or count that
follows them are one `unpack_from` straight into attributes; strings are sliced from `bytes` (from a
memoryview only where records must stay in place); objects are made without `__init__`; nothing is
called for a varint of one byte or an empty tag section.

What makes them safe: every length and count is compared with what is left before anything is
allocated; nesting is the schema's; what goes wrong leaves as `WireError`.

What keeps them short: elements of arrays, and tagged fields, are counted for the whole message. A
decoder that is given a number and finds more raises ManyElementsError at the array that exceeds it;
the same layout compiled as a generator then decodes it in slices, for as many as are allowed.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from wire.kafka.compiling import (
    FORMATS,
    Source,
    absent_fields,
    carried_fields,
    carries_records,
    describe,
    size_min,
    tagged_fields,
)
from wire.kafka.errors import WireError
from wire.kafka.message import FRESH, Array, Message, Primitive
from wire.kafka.primitives import (
    STRING_SIZE_MAX,
    TAGS_MAX,
    UNLIMITED,
    MalformedError,
    ManyElementsError,
    bad_length,
    many_elements,
    many_tags,
    read_varint,
    skip_tags,
    too_long,
    too_many,
    uuid_of,
    varint_rest,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from wire.buffers import Buffer
    from wire.kafka.message import FieldSpec
    from wire.kafka.structs import Struct

    #: (buffer, offset, elements allowed = UNLIMITED) -> (message, offset after it)
    Decoder = Callable[..., tuple[Any, int]]
    #: (buffer, offset, elements allowed) -> yields after each slice, gives the same
    SlicedDecoder = Callable[[Buffer, int, int], Generator[None, None, tuple[Any, int]]]

#: Elements between two yields of a sliced coder: up to 1.5 ms, and as
#: much again for what the garbage collector does meanwhile.
SLICE_ELEMENTS = 500
#: Numbers of an array take so much less than other elements: 16 count as one.
NUMBERS_PER_ELEMENT_BITS = 4

#: What reading beyond the end or nonsense raises inside a decoder.
EXPECTED = (MalformedError, struct.error, IndexError, UnicodeDecodeError)


def compile_decoder(cls: type[Message], version: int) -> Decoder:
    """The decoder of one version: (buffer, offset, elements allowed = UNLIMITED) -> (message,
    offset after it). ManyElementsError if there are more."""
    return _DecoderGenerator(cls, version, sliced=False).generate()  # type: ignore[no-any-return]


def compile_sliced_decoder(cls: type[Message], version: int) -> SlicedDecoder:
    """The same as a generator that yields after each SLICE_ELEMENTS; WireError if there are more
    elements than allowed."""
    return _DecoderGenerator(cls, version, sliced=True).generate()  # type: ignore[no-any-return]


class _DecoderGenerator:
    """Writes one decoder. In its code: b the buffer, e its end, o the offset, n a length or count,
    left the elements that are still allowed, turn those until the next yield.

    `_pending` holds (format, target, conversion) of fixed-size fields that will be unpacked
    together by the next `_flush`.
    """

    def __init__(self, cls: type[Message], version: int, *, sliced: bool) -> None:
        self._cls = cls
        self._sliced = sliced
        self._version = version
        self._flexible = cls.INFO.flexible.covers(version)
        self._by_reference = carries_records(cls, version)
        self._pending: list[tuple[str, str, str | None]] = []
        self._source = Source()
        self._source.names.update(
            new=object.__new__,
            unpack=struct.unpack_from,
            varint_rest=varint_rest,
            read_varint=read_varint,
            skip_tags=skip_tags,
            uuid_of=uuid_of,
            too_long=too_long,
            too_many=too_many,
            bad_length=bad_length,
            many_elements=many_elements,
            many_tags=many_tags,
            ManyElementsError=ManyElementsError,
            MalformedError=MalformedError,
            EXPECTED=EXPECTED,
        )

    def generate(self) -> Any:  # noqa: ANN401  # a Decoder or a SlicedDecoder
        source = self._source
        cls, version = self._cls, self._version
        places: list[str] = []

        def explain(error: Exception, offset: int) -> WireError:
            trace = error.__traceback__
            place = places[trace.tb_lineno - 1] if trace is not None else ""
            reason = "the message ends too early"
            if isinstance(error, MalformedError | UnicodeDecodeError):
                reason = str(error)
            return WireError(f"{describe(cls, version, place)}, near byte {offset}: {reason}")

        source.names["explain"] = explain
        with source.block(f"def decode(b, o, left={UNLIMITED}):"):
            if self._sliced:
                source.add("allowed = left")
                source.add(f"turn = {SLICE_ELEMENTS}")
                with source.block("if False:"):
                    source.add("yield")  # a generator, even without an array
            if self._by_reference:
                # A view, so that `records` stay where they are.
                with source.block("if type(b) is not memoryview:"):
                    source.add("b = memoryview(b)")
            else:
                # One small copy makes every slice and index below cheaper than a view's.
                with source.block("if type(b) is not bytes:"):
                    source.add("b = bytes(b)")
            source.add("e = len(b)")
            with source.block("try:"):
                target = self._struct(cls)
            with source.block("except EXPECTED as error:"):
                source.add("raise explain(error, o) from None")
            source.add(f"return {target}, o")
        decode, lines = source.compile("decode", f"{cls.__name__} v{version} decoder")
        places.extend(lines)
        return decode

    # -- structs ----------------------------------------------------------------------------

    def _struct(self, cls: type[Struct]) -> str:
        """Code that reads a struct into a fresh variable, which is returned."""
        source = self._source
        target = source.fresh("s")
        # Nothing may be pending here: a loop or a branch has just begun.
        assert not self._pending
        source.add(f"{target} = new({source.bind('C', cls)})")
        for name, spec in absent_fields(cls, self._version):
            source.add(f"{target}.{name} = {self._default(spec)}")
        tagged = tagged_fields(cls, self._version)
        for name, spec in tagged:
            source.add(f"{target}.{name} = {self._default(spec)}")
        for name, spec in carried_fields(cls, self._version):
            with source.place(name):
                self._field(f"{target}.{name}", spec)
        if self._flexible:
            self._tags(target, tagged)
        self._flush()
        return target

    def _default(self, spec: FieldSpec) -> str:
        if spec.default is FRESH:
            if isinstance(spec.kind, Array):
                return "[]"
            return f"{self._source.bind('C', spec.kind)}()"
        if isinstance(spec.default, bool | int | str | bytes | float | None):
            return repr(spec.default)
        return self._source.bind("d", spec.default)

    def _tags(self, target: str, tagged: list[tuple[str, FieldSpec]]) -> None:
        source = self._source
        self._flush("B", "n")
        with source.block("if n:"):
            if not tagged:
                self._count("n")
                source.add("o = skip_tags(b, o, n, e)")
                return
            with source.block("if n > 127:"):
                source.add("n, o = varint_rest(b, o, n)")
                with source.block(f"if n > {TAGS_MAX}:"):
                    source.add("raise many_tags(n)")
            self._count("n")
            end = source.fresh("p")
            with source.block(f"for {source.fresh('i')} in range(n):"):
                source.add("t, o = read_varint(b, o)")
                source.add("n, o = read_varint(b, o)")
                source.add(f"{end} = o + n")
                with source.block(f"if {end} > e:"):
                    source.add("raise too_long(n, e - o)")
                for name, spec in tagged:
                    with source.place(name), source.block(f"if t == {spec.tag}:"):
                        self._field(f"{target}.{name}", spec)
                        self._flush()
                        with source.block(f"if o != {end}:"):
                            source.add("raise MalformedError('a tagged field of another size')")
                        source.add("continue")
                source.add(f"o = {end}")

    def _count(self, elements: str) -> None:
        """Code that takes `elements` from those that are allowed."""
        source = self._source
        source.add(f"left -= {elements}")
        with source.block("if left < 0:"):
            if self._sliced:
                source.add("raise many_elements(allowed)")
            else:
                source.add("raise ManyElementsError")

    def _pause(self) -> None:
        """Code for the front of each element: gives the loop away in time."""
        if self._sliced:
            source = self._source
            source.add("turn -= 1")
            with source.block("if turn < 0:"):
                source.add(f"turn = {SLICE_ELEMENTS}")
                source.add("yield")

    # -- fields -----------------------------------------------------------------------------

    def _field(self, target: str, spec: FieldSpec) -> None:
        nullable = spec.nullable.covers(self._version)
        kind = spec.kind
        if isinstance(kind, Array):
            self._array(target, kind, nullable)
        elif not isinstance(kind, Primitive):
            self._nested(target, kind, nullable)
        elif kind in FORMATS:
            conversion = "uuid_of" if kind is Primitive.UUID else None
            self._pending.append((FORMATS[kind], target, conversion))
        elif kind is Primitive.STRING:
            self._string(target, nullable)
        else:
            self._bytes(target, nullable, kind)

    def _flush(self, last_format: str = "", last_target: str = "") -> None:
        """Unpack what is pending, and one more item if given."""
        source = self._source
        items = self._pending
        self._pending = []
        if last_format:
            items = [*items, (last_format, last_target, None)]
        if not items:
            return
        if len(items) == 1 and items[0][0] == "B":
            source.add(f"{items[0][1]} = b[o]")
            source.add("o += 1")
            return
        formats = "".join(item[0] for item in items)
        targets = ", ".join(item[1] for item in items)
        comma = "," if len(items) == 1 else ""
        source.add(f"{targets}{comma} = {source.packed(formats, 'unpack_from')}(b, o)")
        source.add(f"o += {struct.calcsize('>' + formats)}")
        for _, target, conversion in items:
            if conversion is not None:
                source.add(f"{target} = {conversion}({target})")

    def _nested(self, target: str, kind: type[Struct], nullable: bool) -> None:
        source = self._source
        if not nullable:
            self._flush()
            source.add(f"{target} = {self._struct(kind)}")
            return
        # A struct that may be null is led by one byte: -1 is null (KIP-893).
        self._flush("b", "n")
        with source.block("if n < 0:"):
            source.add(f"{target} = None")
        with source.block("else:"):
            source.add(f"{target} = {self._struct(kind)}")

    def _length(self, legacy_format: str) -> None:
        """Code that leaves in n the length of what follows plus 1; 0 is null, in both layouts."""
        source = self._source
        if self._flexible:
            self._flush("B", "n")
            with source.block("if n > 127:"):
                source.add("n, o = varint_rest(b, o, n)")
        else:
            self._flush(legacy_format, "n")
            source.add("n += 1")

    def _string(self, target: str, nullable: bool) -> None:
        source = self._source
        self._length("h")
        with source.block("if n > 1:"):
            source.add("p = o + n - 1")
            with source.block("if p > e:"):
                source.add("raise too_long(n - 1, e - o)")
            if self._flexible:
                with source.block(f"if n > {STRING_SIZE_MAX + 1}:"):
                    source.add("raise bad_length(n - 1)")
            text = "str(b[o:p], 'utf-8')" if self._by_reference else "b[o:p].decode()"
            source.add(f"{target} = {text}")
            source.add("o = p")
        self._empty_or_null(target, "''", nullable)

    def _bytes(self, target: str, nullable: bool, kind: Primitive) -> None:
        source = self._source
        self._length("i")
        with source.block("if n > 1:"):
            source.add("p = o + n - 1")
            with source.block("if p > e:"):
                source.add("raise too_long(n - 1, e - o)")
            copied = self._by_reference and kind is Primitive.BYTES
            source.add(f"{target} = bytes(b[o:p])" if copied else f"{target} = b[o:p]")
            source.add("o = p")
        empty = "b[o:o]" if kind is Primitive.RECORDS else "b''"
        self._empty_or_null(target, empty, nullable)

    def _empty_or_null(self, target: str, empty: str, nullable: bool) -> None:
        source = self._source
        with source.block("elif n == 1:"):
            source.add(f"{target} = {empty}")
        if nullable:
            with source.block("elif n == 0:"):
                source.add(f"{target} = None")
        with source.block("else:"):
            source.add("raise bad_length(n - 1)")

    # -- arrays -----------------------------------------------------------------------------

    def _array(self, target: str, kind: Array, nullable: bool) -> None:
        source = self._source
        element = kind.element
        width = size_min(element, self._version, flexible=self._flexible)
        assert width > 0, f"elements of {target} may be empty: a count would not be bounded"
        self._length("i")
        with source.block("if n > 1:"):
            with source.block(f"if (n - 1) * {width} > e - o:"):
                source.add("raise too_many(n - 1, e - o)")
            self._count("n")
            if isinstance(element, Primitive) and element in FORMATS:
                self._fixed_elements(target, element, width)
            else:
                self._elements(target, element)
        self._empty_or_null(target, "[]", nullable)

    def _fixed_elements(self, target: str, element: Primitive, width: int) -> None:
        source = self._source
        if self._sliced:
            self._fixed_slices(target, element, width)
            return
        if element is Primitive.UUID:
            source.add(f"p = o + (n - 1) * {width}")
            raw = "bytes(b[i:i + 16])" if self._by_reference else "b[i:i + 16]"
            source.add(f"{target} = [uuid_of({raw}) for i in range(o, p, 16)]")
            source.add("o = p")
            return
        source.add(f"{target} = list(unpack('>%d{FORMATS[element]}' % (n - 1), b, o))")
        source.add(f"o += (n - 1) * {width}")

    def _fixed_slices(self, target: str, element: Primitive, width: int) -> None:
        """A list of a hundred thousand numbers, or many of a few thousand, are a slice too large,
        too. UUIDs become objects, and count as any element."""
        source = self._source
        items, end, until = source.fresh("a"), source.fresh("p"), source.fresh("p")
        is_uuid = element is Primitive.UUID
        bits = 0 if is_uuid else NUMBERS_PER_ELEMENT_BITS
        source.add(f"{items} = {target} = []")
        source.add(f"{end} = o + (n - 1) * {width}")
        with source.block(f"while o < {end}:"):
            source.add(f"{until} = min({end}, o + {(SLICE_ELEMENTS << bits) * width})")
            source.add(f"n = ({until} - o) // {width}")
            if is_uuid:
                raw = "bytes(b[i:i + 16])" if self._by_reference else "b[i:i + 16]"
                source.add(f"{items} += [uuid_of({raw}) for i in range(o, {until}, 16)]")
            else:
                source.add(f"{items} += unpack('>%d{FORMATS[element]}' % n, b, o)")
            source.add(f"o = {until}")
            source.add(f"turn -= n >> {bits}")
            with source.block("if turn < 0:"):
                source.add(f"turn = {SLICE_ELEMENTS}")
                source.add("yield")

    def _elements(self, target: str, element: Primitive | type[Struct]) -> None:
        source = self._source
        items = source.fresh("a")
        source.add(f"{items} = {target} = []")
        with source.block(f"for {source.fresh('i')} in range(n - 1):"):
            self._pause()
            if isinstance(element, Primitive):
                assert element is Primitive.STRING or element is Primitive.BYTES
                if element is Primitive.STRING:
                    self._string("v", nullable=False)
                else:
                    self._bytes("v", nullable=False, kind=element)
                source.add(f"{items}.append(v)")
            else:
                source.add(f"{items}.append({self._struct(element)})")
