"""OpenTelemetry messages as bytes, made field by field."""

import struct


def varint(value):
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def message(number, *parts):
    body = b"".join(parts)
    return varint(number << 3 | 2) + varint(len(body)) + body


def text(number, value):
    return message(number, value.encode())


def double(number, value):
    return varint(number << 3 | 1) + struct.pack("<d", value)


def fixed(number, value):
    return varint(number << 3 | 1) + struct.pack("<q", value)


def number(field, value):
    return varint(field << 3) + varint(value)


def label(key, value, field=7):
    return message(field, text(1, key), message(2, value))


def gauge(name, value, *labels):
    return message(2, text(1, name), message(5, message(1, double(4, value), *labels)))


def total(name, value, *labels, temporality=2):
    point = message(1, fixed(6, value), *labels)
    return message(2, text(1, name), message(7, point, number(2, temporality), number(3, 1)))


def histogram(name, count, value):
    point = message(1, fixed(4, count), double(5, value))
    return message(2, text(1, name), message(9, point, number(2, 2)))


def metrics(*each):
    """A MetricsData."""
    scope = message(2, message(1, text(1, "scope")), *each)
    return message(1, message(1, b""), scope)
