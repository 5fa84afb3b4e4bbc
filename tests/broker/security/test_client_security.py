"""Java's settings of a client: what they make, and what is said of those that make nothing. Who is
let in by them: tests/quire/tools/groups/test_security.py."""

import ssl

import pytest

from broker.security.client_security import ClientSecurity, security_of
from runtime.config import ConfigError
from tests.broker.security.tls.conftest import Authority

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
LOGIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.jaas.config": f'{MODULE} required username="bob" password="of bob";',
}


def test_nothing_is_said():
    found = security_of({"bootstrap.servers": "x:1", "group.id": "g"})
    assert found == ClientSecurity()
    assert str(found) == "a client without a login (PLAINTEXT)"


def test_a_login():
    found = security_of(LOGIN)
    assert found.context is None
    assert str(found) == "'bob' by PLAIN (SASL_PLAINTEXT)"
    assert "of bob" not in repr(found)


def test_tls_believes_whom_the_system_does_and_looks_at_names():
    found = security_of({"security.protocol": "ssl"})
    assert (found.account, found.protocol) == (None, "SSL")
    assert found.context.verify_mode is ssl.CERT_REQUIRED
    assert found.context.check_hostname
    algorithm = "ssl.endpoint.identification.algorithm"
    assert not security_of({"security.protocol": "SSL", algorithm: ""}).context.check_hostname


@pytest.mark.parametrize("kind", [{"ssl.truststore.type": "PEM"}, {}])
def test_authorities_in_a_file_are_the_only_ones(tmp_path, kind):
    """A file of PEM is known without its type."""
    path = tmp_path / "ca.pem"
    path.write_bytes(Authority().pem)
    said = {"security.protocol": "SSL", "ssl.truststore.location": str(path), **kind}
    assert len(security_of(said).context.get_ca_certs()) == 1


def test_a_key_without_authorities(tmp_path):
    path = tmp_path / "client.pem"
    path.write_bytes(Authority().made("CN=client").pem)
    path.chmod(0o600)
    said = {"security.protocol": "SSL", "ssl.keystore.location": str(path)}
    with pytest.raises(ConfigError, match=r"ssl\.truststore\.location must be set"):
        security_of(said)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"ssl.truststore.type": "BKS"}, r"ssl\.truststore\.type=BKS: expected one of"),
        ({"ssl.truststore.type": "PKCS12"}, r"ssl\.truststore\.location: "),
    ],
)
def test_a_type_that_the_file_is_not(tmp_path, said, words):
    path = tmp_path / "ca.pem"
    path.write_bytes(Authority().pem)
    more = {"security.protocol": "SSL", "ssl.truststore.location": str(path)}
    with pytest.raises(ConfigError, match=words):
        security_of(said | more)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sasl.mechanism": "GSSAPI"}, r"^sasl\.mechanism=GSSAPI is not served, PLAIN, "),
        ({"sasl.mechanism": "SCRAM-SHA-256"}, "is not ScramLoginModule, which SCRAM-SHA-256 needs"),
        ({"sasl.jaas.config": f"{MODULE} required;"}, "must have a username and a password"),
        (
            {"sasl.jaas.config": f'{MODULE} required username="a" password="of bob" user_c="d";'},
            "PlainLoginModule has no option user_c here",
        ),
        ({"security.protocol": "TLS"}, r"^security\.protocol=TLS: expected one of"),
        ({"sasl.login.class": "x"}, r"^sasl\.login\.class is not served"),
    ],
    ids=str,
)
def test_what_nobody_gets_in_by_is_named(change, words):
    with pytest.raises(ConfigError, match=words) as caught:
        security_of(LOGIN | change)
    assert "of bob" not in str(caught.value)
