"""OpenTelemetry's metrics as clients push them (KIP-714): bytes to points. Pure.

The protobuf messages of opentelemetry/proto/metrics/v1 (MetricsData down to NumberDataPoint and
HistogramDataPoint), as far as a number with a name and labels needs them: gauges, sums, and of
histograms their counts and sums. What is not known is passed over, as protobuf has it.

Names are given as Prometheus has them: `org.apache.kafka.producer.x.y` is
`kafka_client_producer_x_y`; two that only differ in what stands between words are one.

Who pushes may send what he likes: the number of points, of labels and their lengths are bounded,
and the depth is that of the messages.
"""

from __future__ import annotations

import re
from struct import Struct, error
from typing import TYPE_CHECKING

from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

POINTS_MAX = 2000
LABELS_MAX = 10
TEXT_LENGTH_MAX = 200

_PREFIX = "org.apache.kafka."
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_]")
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_DOUBLE, _INT64, _UINT64 = Struct("<d"), Struct("<q"), Struct("<Q")
_DELTA = 1

Value = int | memoryview
Labels = tuple[tuple[str, str], ...]


@dataclass(slots=True, frozen=True)
class Point:
    """`is_delta`: what came since the last push, and not in all."""

    name: str
    labels: Labels
    value: float
    is_delta: bool = False


def points_of(data: bytes) -> list[Point]:
    """Of a MetricsData. ValueError if it is none, or has more than POINTS_MAX."""
    points: list[Point] = []
    try:
        for resource in _messages(memoryview(data), 1):
            for scope in _messages(resource, 2):
                for metric in _messages(scope, 2):
                    for point in _metric(metric):
                        if len(points) == POINTS_MAX:
                            raise ValueError(f"more than {POINTS_MAX} points")
                        points.append(point)
    except error as wrong:
        raise ValueError(f"not an OpenTelemetry message: {wrong}") from None
    return points


def _fields(data: memoryview) -> Iterator[tuple[int, int, Value]]:
    """(field's number, wire type, value: a number, or the bytes of anything longer)."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, position = _varint(data, position)
            yield number, kind, value
            continue
        if kind == _BYTES:
            size, position = _varint(data, position)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {kind} is none of protobuf's")
        end = position + size
        if end > len(data):
            raise ValueError("a field ends behind its message")
        yield number, kind, data[position:end]
        position = end


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if position >= len(data) or shift > 63:
            raise ValueError("a number has no end")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def _messages(data: memoryview, wanted: int) -> Iterator[memoryview]:
    for number, _, value in _fields(data):
        if number == wanted:
            if isinstance(value, int):
                raise ValueError(f"field {number} is no message")
            yield value


def _metric(data: memoryview) -> Iterator[Point]:
    name = ""
    bodies: list[tuple[int, memoryview]] = []
    for number, _, value in _fields(data):
        if isinstance(value, int):
            continue
        if number == 1:
            name = metric_name(_text(value))
        elif number in (5, 7, 9):
            bodies.append((number, value))
    for number, body in bodies:
        yield from _histogram(name, body) if number == 9 else _numbers(name, body)


def _is_delta(body: memoryview) -> bool:
    return any(number == 2 and value == _DELTA for number, _, value in _fields(body))


def _numbers(name: str, body: memoryview) -> Iterator[Point]:
    """Of a gauge or a sum. A gauge has no field 2."""
    is_delta = _is_delta(body)
    for point in _messages(body, 1):
        value, labels = 0.0, _Labels()
        for number, kind, field in _fields(point):
            if isinstance(field, int):
                continue
            if number == 4 and kind == _FIXED64:
                (value,) = _DOUBLE.unpack(field)
            elif number == 6 and kind == _FIXED64:
                value = float(_INT64.unpack(field)[0])
            elif number == 7:
                labels.add(field)
        yield Point(name, labels.sorted(), value, is_delta)


def _histogram(name: str, body: memoryview) -> Iterator[Point]:
    is_delta = _is_delta(body)
    for point in _messages(body, 1):
        count, total, labels = 0.0, 0.0, _Labels()
        for number, kind, field in _fields(point):
            if isinstance(field, int):
                continue
            if number == 4 and kind == _FIXED64:
                count = float(_UINT64.unpack(field)[0])
            elif number == 5 and kind == _FIXED64:
                (total,) = _DOUBLE.unpack(field)
            elif number == 9:
                labels.add(field)
        yield Point(f"{name}_count", labels.sorted(), count, is_delta)
        yield Point(f"{name}_sum", labels.sorted(), total, is_delta)


def metric_name(name: str) -> str:
    return "kafka_client_" + _NOT_IN_NAMES.sub("_", name.removeprefix(_PREFIX))


def label_name(name: str) -> str:
    shown = _NOT_IN_NAMES.sub("_", name)
    return shown if shown and not shown[0].isdigit() else f"_{shown}"


class _Labels:
    def __init__(self) -> None:
        self._pairs: dict[str, str] = {}

    def add(self, pair: memoryview) -> None:
        """A KeyValue. ValueError if there are too many."""
        if len(self._pairs) == LABELS_MAX:
            raise ValueError(f"a point with more than {LABELS_MAX} labels")
        key = shown = ""
        for number, _, field in _fields(pair):
            if isinstance(field, int):
                continue
            if number == 1:
                key = _text(field)
            elif number == 2:
                shown = _any_value(field)
        self._pairs[label_name(key)] = shown

    def sorted(self) -> Labels:
        return tuple(sorted(self._pairs.items()))


def _any_value(data: memoryview) -> str:
    """A text, truth, number or fraction; of what has parts nothing."""
    for number, kind, value in _fields(data):
        if number == 1 and not isinstance(value, int):
            return _text(value)
        if number == 2 and isinstance(value, int):
            return "true" if value else "false"
        if number == 3 and isinstance(value, int):
            return str(value if value < 1 << 63 else value - (1 << 64))
        if number == 4 and kind == _FIXED64 and not isinstance(value, int):
            return repr(_DOUBLE.unpack(value)[0])
    return ""


def _text(data: memoryview) -> str:
    if len(data) > TEXT_LENGTH_MAX:
        raise ValueError(f"a text of {len(data)} bytes; {TEXT_LENGTH_MAX} are allowed")
    return bytes(data).decode()  # UnicodeDecodeError is a ValueError
