"""A certificate's subject as Java prints it (`X500Principal.getName`, RFC 2253).

Names and rules of Kafka's users have this text, character by character, so it is made of the bytes
and not of what a library understands: the last RDN first, no blanks; nine types of attributes have
a word, all others are `OID=#` and the value's DER in lower case hexadecimals. `,=+<>#;"\\` are
escaped wherever they stand, NUL is `\\00`, and blanks at either end are escaped.
tests/broker/security/tls/subjects.json has what Java 25 makes of subjects; Java 17 differs for
texts beyond ASCII whose type is not UTF8String: it takes them for UTF-8, too.
"""

from __future__ import annotations

import re

#: OID, as DER -> word (`sun.security.x509.AVAKeyword`, those of RFC 2253).
_WORDS = {
    bytes.fromhex("550403"): "CN",
    bytes.fromhex("550406"): "C",
    bytes.fromhex("550407"): "L",
    bytes.fromhex("550408"): "ST",
    bytes.fromhex("550409"): "STREET",
    bytes.fromhex("55040a"): "O",
    bytes.fromhex("55040b"): "OU",
    bytes.fromhex("0992268993f22c640101"): "UID",
    bytes.fromhex("0992268993f22c640119"): "DC",
}
_SEQUENCE, _SET, _OID, _INTEGER, _EXPLICIT_VERSION = 0x30, 0x31, 0x06, 0x02, 0xA0
#: UTF8String, PrintableString, T61String, IA5String, GeneralString, BMPString: how they are read.
_UTF8 = "utf-8"
_LATIN = "latin-1"
_TEXTS = {0x0C: _UTF8, 0x13: _LATIN, 0x14: _LATIN, 0x16: _LATIN, 0x1B: _LATIN, 0x1E: "utf-16-be"}
#: Half of a character beyond the basic plane, in UTF-8, is one fault for Java.
_HALF = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")
_ESCAPED = frozenset(',=+<>#;"\\')
_BLANKS = " \r"
#: A longer name is nobody's: some thousand attributes, or one number of 14 KB, take 10 ms and more.
NAME_BYTES_MAX = 4096


def subject_of(certificate: bytes) -> str:
    """Of a certificate in DER; "" if it has none. ValueError."""
    _, body, _ = _element(certificate, 0, _SEQUENCE)
    _, signed, _ = _element(body, 0, _SEQUENCE)
    at = 0
    if signed[:1] == bytes([_EXPLICIT_VERSION]):
        _, _, at = _element(signed, at, _EXPLICIT_VERSION)
    _, _, at = _element(signed, at, _INTEGER)
    for _ in range(3):  # the algorithm, the issuer, the time
        _, _, at = _element(signed, at, _SEQUENCE)
    _, name, _ = _element(signed, at, _SEQUENCE)
    if len(name) > NAME_BYTES_MAX:
        raise ValueError(f"it has {len(name)} bytes")
    return rfc2253(name)


def rfc2253(name: bytes) -> str:
    """`name`: what is in the SEQUENCE of RDNs. ValueError."""
    return ",".join(
        "+".join(_attribute(attribute) for attribute in _elements(rdn, _SEQUENCE))
        for rdn in reversed(list(_elements(name, _SET)))
    )


def _attribute(attribute: bytes) -> str:
    _, oid, at = _element(attribute, 0, _OID)
    tag, value, end = _element(attribute, at, None)
    word = _WORDS.get(oid)
    if word is None or tag not in _TEXTS:
        return f"{word or _dotted(oid)}=#{attribute[at:end].hex()}"
    if _TEXTS[tag] == _UTF8:
        value = _HALF.sub("\ufffd".encode(), value)
    return f"{word}={_escaped(value.decode(_TEXTS[tag], 'replace'))}"


def _escaped(text: str) -> str:
    parts = ["\\00" if one == "\0" else f"\\{one}" if one in _ESCAPED else one for one in text]
    # As Java: blanks are looked for in what was escaped, and all of them are at the start if there
    # is nothing else.
    escaped = "".join(parts)
    body = escaped.strip(_BLANKS)
    if not body:
        return "".join(f"\\{one}" for one in escaped)
    start = escaped.index(body[0]) if escaped[0] in _BLANKS else 0
    end = start + len(body)
    first = "".join(f"\\{one}" for one in escaped[:start])
    last = "".join(f"\\{one}" for one in escaped[end:])
    return first + escaped[start:end] + last


def _dotted(oid: bytes) -> str:
    numbers, value = [], 0
    for byte in oid:
        value = value << 7 | byte & 0x7F
        if byte < 0x80:  # the number's last byte
            numbers.append(value)
            value = 0
    if not numbers:
        raise ValueError("an OID without numbers")
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _elements(data: bytes, tag: int) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        _, content, at = _element(data, at, tag)
        found.append(content)
    return found


def _element(data: bytes, at: int, tag: int | None) -> tuple[int, bytes, int]:
    """(tag, content, where the next one begins) of a DER element. ValueError."""
    if at + 2 > len(data):
        raise ValueError("a certificate that is cut off")
    found, size, start = data[at], data[at + 1], at + 2
    if size & 0x80:
        count = size & 0x7F
        size = int.from_bytes(data[start : start + count], "big")
        start += count
    if start + size > len(data) or (tag is not None and found != tag):
        raise ValueError("a certificate of another form")
    return found, data[start : start + size], start + size
