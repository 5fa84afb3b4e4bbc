"""Keys and certificates out of what Kafka's users have: PEM, PKCS12 and JKS.

A key store gives one key and its chain, a trust store certificates. JKS and PKCS12 are told apart
by their first bytes, whatever the type says, as Java has done since 9.

Bounds that Java has not: RSA keys of RSA_BITS_MAX, as a handshake with a larger one would hold the
loop for longer than anything may (8192 bits: 22 ms); and one key a store, where Java takes any.
A certificate of a PKCS12 trust store is trusted also where Java's own mark of that is missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_der_private_key,
    load_pem_private_key,
    pkcs12,
)

from broker.security.tls.jks import MAGIC as JKS_MAGIC
from broker.security.tls.jks import JksError, read_jks, unprotected
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

RSA_BITS_MAX = 4096
_JCEKS_MAGIC = b"\xce\xce\xce\xce"
#: What a handshake with a key costs the loop, in microseconds about, twice what was measured.
_RSA_UNITS = ((2048, 1_300), (3072, 2_000), (RSA_BITS_MAX, 3_600))
_OTHER_UNITS = 900

ServerKey = (
    rsa.RSAPrivateKey
    | ec.EllipticCurvePrivateKey
    | ed25519.Ed25519PrivateKey
    | ed448.Ed448PrivateKey
)


class StoreError(ValueError):
    """A store that has not what is needed, in words for an operator; no secrets."""


@dataclass(slots=True, frozen=True)
class KeyMaterial:
    """A key, and its certificates, its own first."""

    key: ServerKey
    chain: tuple[x509.Certificate, ...]

    @property
    def certificate(self) -> x509.Certificate:
        return self.chain[0]

    @property
    def handshake_units(self) -> int:
        """Of the turn (runtime/turn.py)."""
        if not isinstance(self.key, rsa.RSAPrivateKey):
            return _OTHER_UNITS
        return next(units for bits, units in _RSA_UNITS if self.key.key_size <= bits)

    def key_pem(self) -> bytes:
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    def chain_pem(self) -> bytes:
        return b"".join(one.public_bytes(Encoding.PEM) for one in self.chain)


def key_of_pem(key: bytes, chain: bytes, password: str | None) -> KeyMaterial:
    """StoreError. `password`: of an encrypted key."""
    secret = None if password is None else password.encode()
    try:
        found = load_pem_private_key(_key_block(key), secret)
    except TypeError:
        # Said of a key that is encrypted and has no password, and of one that is the other way.
        if secret is None:
            raise StoreError("the key is encrypted: ssl.key.password is needed") from None
        found = _plain_key(key)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise StoreError(f"no private key, or another password: {error}") from None
    return _checked(found, certificates_of_pem(chain))


def _key_block(pem: bytes) -> bytes:
    """The key among the certificates of a file."""
    start = pem.find(b"-----BEGIN ")
    while start >= 0:
        label = pem[start + 11 : pem.find(b"-----", start + 11)]
        end = pem.find(b"-----END " + label + b"-----", start)
        if label.endswith(b"PRIVATE KEY") and end >= 0:
            return pem[start : end + len(label) + 14] + b"\n"
        start = pem.find(b"-----BEGIN ", start + 11)
    raise StoreError("no private key")


def _plain_key(key: bytes) -> PrivateKeyTypes:
    """Of one that has no password although one is given, which Java takes, too."""
    try:
        return load_pem_private_key(_key_block(key), None)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise StoreError(f"no private key: {error}") from None


def certificates_of_pem(pem: bytes) -> tuple[x509.Certificate, ...]:
    """StoreError if there are none."""
    try:
        found = tuple(x509.load_pem_x509_certificates(pem))
    except ValueError:  # its words lead to a page about something else
        found = ()
    # The library leaves out a last one that is cut off: a file that is written at this moment.
    if not found or len(found) < pem.count(b"-----BEGIN CERTIFICATE-----"):
        raise StoreError("no certificates in PEM, or one that is cut off")
    return found


def key_of_store(data: bytes, password: str, key_password: str | None) -> KeyMaterial:
    """Of JKS or PKCS12. StoreError."""
    if data.startswith(JKS_MAGIC):
        return _key_of_jks(data, password, key_password)
    found = _pkcs12(data, password)
    if found.key is None or found.cert is None:
        raise StoreError("no key with a certificate")
    others = [one.certificate for one in found.additional_certs]
    return _checked(found.key, (found.cert.certificate, *_above(found.cert.certificate, others)))


def _key_of_jks(data: bytes, password: str, key_password: str | None) -> KeyMaterial:
    try:
        store = read_jks(data, password)
        if len(store.keys) != 1:
            raise StoreError(f"{len(store.keys)} keys: one is needed")
        plain = unprotected(store.keys[0], password if key_password is None else key_password)
        key = load_der_private_key(plain, None)
        chain = tuple(map(x509.load_der_x509_certificate, store.keys[0].chain))
    except (JksError, TypeError, UnsupportedAlgorithm) as error:
        raise StoreError(str(error)) from None
    except ValueError as error:
        raise StoreError(f"what is in it is no key or certificate: {error}") from None
    return _checked(key, chain)


def trusted_of_store(data: bytes, password: str | None) -> tuple[x509.Certificate, ...]:
    """Of JKS or PKCS12: those of authorities, and as with Java the certificate of a key. StoreError
    if there are none."""
    if data.startswith(JKS_MAGIC):
        try:
            store = read_jks(data, password)
            of_keys = [key.chain[0] for key in store.keys if key.chain]
            der = [*store.certificates.values(), *of_keys]
            found = tuple(map(x509.load_der_x509_certificate, der))
        except ValueError as error:
            raise StoreError(str(error)) from None
    else:
        bundle = _pkcs12(data, password)
        others = [one.certificate for one in bundle.additional_certs]
        own = [] if bundle.cert is None else [bundle.cert.certificate]
        for one in own:  # what is its chain is not trusted because of that
            for above in _above(one, others):
                others.remove(above)
        found = (*own, *others)
    if not found:
        raise StoreError("no certificates")
    return found


def _pkcs12(data: bytes, password: str | None) -> pkcs12.PKCS12KeyAndCertificates:
    if data.startswith(_JCEKS_MAGIC):
        raise StoreError(
            "JCEKS is not served; keytool -importkeystore -srcstoretype JCEKS -deststoretype PKCS12"
            " makes a store that is"
        )
    try:
        return pkcs12.load_pkcs12(data, None if password is None else password.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise StoreError(f"no PKCS12 or JKS store, or another password: {error}") from None


def _above(
    certificate: x509.Certificate, others: Iterable[x509.Certificate]
) -> list[x509.Certificate]:
    """Its issuers among the others, upwards; the order in the file says nothing."""
    by_subject = {one.subject: one for one in others}
    chain: list[x509.Certificate] = []
    while certificate.issuer != certificate.subject:
        issuer = by_subject.pop(certificate.issuer, None)
        if issuer is None:
            break
        chain.append(issuer)
        certificate = issuer
    return chain


def _checked(key: PrivateKeyTypes, chain: tuple[x509.Certificate, ...]) -> KeyMaterial:
    if not chain:
        raise StoreError("no certificate of the key")
    if not isinstance(key, ServerKey):
        raise StoreError(f"a key of kind {type(key).__name__.strip('_')} cannot serve TLS")
    if isinstance(key, rsa.RSAPrivateKey) and key.key_size > RSA_BITS_MAX:
        raise StoreError(
            f"an RSA key of {key.key_size} bits: {RSA_BITS_MAX} are the most, as each handshake"
            " would hold all clients up"
        )
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if key.public_key().public_bytes(*form) != chain[0].public_key().public_bytes(*form):
        raise StoreError("the key and the first certificate do not belong together")
    return KeyMaterial(key, chain)
