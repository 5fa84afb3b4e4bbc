"""Keys and certificates of PEM, PKCS12 and JKS; stores/ has what Java 17's keytool made.

The password of each is «store pass»; of other.jks the key's is «key pass». Both have an RSA key of
2048 bits of CN=server,O=Example and its authority's certificate, trust.jks and trust.p12 that one.
"""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import dsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
)
from hypothesis import given
from hypothesis import strategies as st

from broker.security.tls.jks import JksError, read_jks
from broker.security.tls.stores import (
    StoreError,
    certificates_of_pem,
    key_of_pem,
    key_of_store,
    trusted_of_store,
)
from tests.broker.security.tls.conftest import rsa_key

STORES = Path(__file__).parent / "stores"
PASSWORD = "store pass"


def store(name):
    return (STORES / name).read_bytes()


@pytest.mark.parametrize("name", ["server.jks", "server.p12", "other.jks"])
def test_keytools_key_stores(name):
    made = key_of_store(store(name), PASSWORD, "key pass" if name == "other.jks" else None)
    assert made.certificate.subject.rfc4514_string() == "CN=server,O=Example"
    assert [one.subject.rfc4514_string() for one in made.chain[1:]] == ["CN=authority"]
    assert made.key.key_size == 2048
    again = key_of_pem(made.key_pem(), made.chain_pem(), None)
    assert again.certificate == made.certificate


@pytest.mark.parametrize("name", ["trust.jks", "trust.p12"])
def test_keytools_trust_stores(name):
    (one,) = trusted_of_store(store(name), PASSWORD)
    assert one.subject.rfc4514_string() == "CN=authority"
    if name.endswith("jks"):  # Java reads it without a password, too
        assert trusted_of_store(store(name), None) == (one,)


@pytest.mark.parametrize("name", ["server.jks", "server.p12"])
def test_of_a_key_store_its_own_certificate_is_trusted_as_with_java(name):
    found = trusted_of_store(store(name), PASSWORD)
    assert [one.subject.rfc4514_string() for one in found] == ["CN=server,O=Example"]


@pytest.mark.parametrize(
    ("name", "passwords", "match"),
    [
        ("server.jks", ("wrong", None), "another password, or the file was changed"),
        ("other.jks", (PASSWORD, None), "another password"),
        ("other.jks", (PASSWORD, "wrong"), "another password"),
        ("server.p12", ("wrong", None), "another password"),
        ("trust.jks", (PASSWORD, None), "0 keys"),
        ("trust.p12", (PASSWORD, None), "no key with a certificate"),
    ],
)
def test_a_key_store_says_what_is_wrong(name, passwords, match):
    with pytest.raises(StoreError, match=match) as raised:
        key_of_store(store(name), *passwords)
    assert "wrong" not in str(raised.value)
    assert PASSWORD not in str(raised.value)


def test_a_store_that_was_changed_is_refused():
    data = bytearray(store("server.jks"))
    data[len(data) // 2] ^= 1
    with pytest.raises(StoreError, match="the file was changed"):
        key_of_store(bytes(data), PASSWORD, None)


def test_jceks_says_how_to_convert_it():
    with pytest.raises(StoreError, match="keytool -importkeystore"):
        key_of_store(b"\xce\xce\xce\xce" + store("server.jks")[4:], PASSWORD, None)


@given(st.data())
def test_other_bytes_are_a_jks_error(data):
    whole = store("server.jks")
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    at = data.draw(st.integers(4, 200))
    changed = whole[:at] + data.draw(st.binary(min_size=1, max_size=4)) + whole[at + 4 :]
    with pytest.raises(JksError):
        read_jks(cut, None)
    for password in (None, PASSWORD):
        try:
            read_jks(changed, password)
        except JksError:
            continue
        assert password is None or changed == whole


def test_pem_with_and_without_a_password(authority):
    made = authority.made("CN=server")
    sealed = made.key.private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"key pass")
    )
    whole = made.chain_pem + sealed  # in one file, in any order
    assert key_of_pem(whole, whole, "key pass").certificate == made.certificate
    assert key_of_pem(made.pem, made.pem, "not needed").certificate == made.certificate
    with pytest.raises(StoreError, match=r"ssl\.key\.password is needed"):
        key_of_pem(whole, whole, None)
    with pytest.raises(StoreError, match="another password"):
        key_of_pem(whole, whole, "wrong")


def test_pem_says_what_is_wrong(authority):
    made, other = authority.made("CN=server"), authority.made("CN=other")
    with pytest.raises(StoreError, match="no private key"):
        key_of_pem(made.chain_pem, made.chain_pem, None)
    with pytest.raises(StoreError, match="no certificates"):
        key_of_pem(made.key_pem, made.key_pem, None)
    with pytest.raises(StoreError, match="do not belong together"):
        key_of_pem(made.key_pem, other.chain_pem, None)
    with pytest.raises(StoreError, match="no private key"):  # half of it is written
        key_of_pem(made.pem[:100], made.pem[:100], None)
    with pytest.raises(StoreError, match="no certificates"):
        certificates_of_pem(b"")


def test_keys_that_would_hold_the_loop_or_cannot_serve(authority):
    """A key of 8192 bits takes 22 ms a handshake, and a minute to make: 4104 is one too many."""
    units = {bits: _units(authority, rsa_key(bits)) for bits in (2048, 3072)}
    assert units[2048] < units[3072]
    with pytest.raises(StoreError, match="an RSA key of 4104 bits: 4096 are the most"):
        _units(authority, rsa_key(4104))
    with pytest.raises(StoreError, match="DSA"):
        _units(authority, dsa.generate_private_key(1024))


def _units(authority, key):
    made = authority.made("CN=server", key)
    return key_of_pem(made.pem, made.pem, None).handshake_units
