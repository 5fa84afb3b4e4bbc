"""Java's own key stores (JKS), as `sun.security.provider.JavaKeyStore` writes them.

    magic FEEDFEED, version 1 or 2, count, entries, SHA-1 over it all
    entry: tag (1 key, 2 certificate), alias, time, then
      key          protected key, count of certificates, the certificates
      certificate  a certificate
    certificate: its type («X.509»; of version 1 it is not said), its bytes

Numbers are big-endian, names have a length of two bytes, all else one of four. The last 20 bytes
are SHA-1 of the password in UTF-16, of «Mighty Aphrodite» and of the file.

A key is protected by the algorithm of OID 1.3.6.1.4.1.42.2.17.1.1: salt, key xor keystream, check.
The keystream is SHA-1 of password and salt, then of password and the block before; the check is
SHA-1 of password and key. Whoever has the file can try passwords at full speed.
"""

from __future__ import annotations

import hmac
from hashlib import sha1

from wire.dataclass import dataclass

MAGIC = b"\xfe\xed\xfe\xed"
_DIGEST_BYTES = 20
_WHITENER = b"Mighty Aphrodite"
_KEY, _CERTIFICATE = 1, 2
_VERSIONS = (1, 2)
#: Of the algorithm, as DER.
_PROTECTOR = bytes.fromhex("060a2b060104012a02110101")


class JksError(ValueError):
    """A store that cannot be read, or another password."""


@dataclass(slots=True, frozen=True)
class JksKey:
    """`protected`: as it is in the file. `chain`: DER, the key's own first."""

    alias: str
    protected: bytes
    chain: tuple[bytes, ...]


@dataclass(slots=True, frozen=True)
class JksStore:
    keys: tuple[JksKey, ...]
    #: Of trusted authorities, by alias, DER.
    certificates: dict[str, bytes]


def read_jks(data: bytes, password: str | None) -> JksStore:
    """JksError. Without a password nothing tells whether somebody changed the file."""
    reader = _Reader(data[:-_DIGEST_BYTES])
    if reader.take(4) != MAGIC:
        raise JksError("no JKS key store")
    version = reader.number(4)
    if version not in _VERSIONS:
        raise JksError(f"a JKS key store of version {version}")
    if password is not None:
        digest = sha1(_utf16(password) + _WHITENER + data[:-_DIGEST_BYTES]).digest()
        if not hmac.compare_digest(digest, data[-_DIGEST_BYTES:]):
            raise JksError("another password, or the file was changed")
    keys, certificates = [], {}
    for _ in range(reader.number(4)):
        tag, alias, _time = reader.number(4), reader.text(), reader.take(8)
        if tag == _KEY:
            protected = reader.take(reader.number(4))
            count = reader.number(4)
            chain = tuple(reader.certificate(version) for _ in range(count))
            keys.append(JksKey(alias, protected, chain))
        elif tag == _CERTIFICATE:
            certificates[alias] = reader.certificate(version)
        else:
            raise JksError(f"an entry of kind {tag}")
    if not reader.is_at_end:
        raise JksError("bytes behind the last entry")
    return JksStore(tuple(keys), certificates)


def unprotected(key: JksKey, password: str) -> bytes:
    """The key as PKCS#8, DER. JksError for another password."""
    at = key.protected.find(_PROTECTOR)
    # SEQUENCE { SEQUENCE { OID, NULL }, OCTET STRING }: what comes behind the NULL is the last.
    if at < 0 or key.protected[at + len(_PROTECTOR) : at + len(_PROTECTOR) + 2] != b"\x05\x00":
        raise JksError(f"key {key.alias} is not protected as Java's JKS does it")
    sealed = _octets(key.protected[at + len(_PROTECTOR) + 2 :])
    if len(sealed) < 2 * _DIGEST_BYTES:
        raise JksError(f"key {key.alias} is cut off")
    salt, check = sealed[:_DIGEST_BYTES], sealed[-_DIGEST_BYTES:]
    body, secret = sealed[_DIGEST_BYTES:-_DIGEST_BYTES], _utf16(password)
    stream, block = bytearray(), salt
    while len(stream) < len(body):
        block = sha1(secret + block).digest()
        stream += block
    plain = bytes(one ^ other for one, other in zip(body, stream, strict=False))
    if not hmac.compare_digest(sha1(secret + plain).digest(), check):
        raise JksError(f"key {key.alias}: another password")
    return plain


def _utf16(password: str) -> bytes:
    return password.encode("utf-16-be", "surrogatepass")


def _octets(data: bytes) -> bytes:
    """Of a DER OCTET STRING that fills `data`."""
    if len(data) < 2 or data[0] != 0x04:
        raise JksError("a key that is no octet string")
    size, start = data[1], 2
    if size & 0x80:
        count = size & 0x7F
        start += count
        size = int.from_bytes(data[2:start], "big")
    if len(data) - start != size:
        raise JksError("a key of another length than it says")
    return data[start:]


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def is_at_end(self) -> bool:
        return self._at == len(self._data)

    def take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._data):
            raise JksError("the store is cut off")
        data, self._at = self._data[self._at : end], end
        return data

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def text(self) -> str:
        return self.take(self.number(2)).decode("utf-8", "replace")

    def certificate(self, version: int) -> bytes:
        kind = self.text() if version > 1 else "X.509"
        if kind != "X.509":
            raise JksError(f"a certificate of type {kind}")
        return self.take(self.number(4))
