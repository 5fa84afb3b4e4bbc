"""Subjects as Java prints them. subjects.json: DER of a Name -> what Java 25 made of it
(compat_tests/java/kafka/Names.java)."""

import contextlib
import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given
from hypothesis import strategies as st

from broker.security.tls.subject import rfc2253, subject_of

VECTORS = json.loads((Path(__file__).parent / "subjects.json").read_text())


@pytest.mark.parametrize("der", VECTORS)
def test_a_name_is_printed_as_java_does(der):
    assert rfc2253(content(bytes.fromhex(der))) == VECTORS[der]


def content(element):
    """Of a DER element."""
    return element[2 + (element[1] & 0x7F if element[1] & 0x80 else 0) :]


def test_a_certificates_subject_and_not_its_issuer(authority):
    made = authority.made("O=Example,OU=Ops,CN=alice")
    der = made.certificate.public_bytes(Encoding.DER)
    assert subject_of(der) == "CN=alice,OU=Ops,O=Example"
    assert subject_of(authority.certificate.public_bytes(Encoding.DER)) == "CN=authority"


def test_a_very_long_name_is_not_read(authority):
    """Who has its authority sign 14 KB of attributes would hold the loop for 10 ms."""
    name = ",".join(f"OU={number:060d}" for number in range(70))
    made = authority.made(name)
    with pytest.raises(ValueError, match=r"it has \d+ bytes"):
        subject_of(made.certificate.public_bytes(Encoding.DER))
    made = authority.made(name[: len(name) // 2])
    assert subject_of(made.certificate.public_bytes(Encoding.DER)).startswith("OU=")


@given(st.binary(max_size=40))
def test_other_bytes_are_an_error_at_most(data):
    for read in (subject_of, rfc2253):
        with contextlib.suppress(ValueError):
            assert isinstance(read(data), str)


def test_a_certificate_that_is_cut_off(authority):
    der = authority.certificate.public_bytes(Encoding.DER)
    for size in range(0, len(der), 7):
        with pytest.raises(ValueError, match="a certificate"):
            subject_of(der[:size])
