"""Java's settings of a client, as Spark's `kafka` source takes them: who is let in, and what is
said of who is not, and of settings by which nobody is."""

import ssl
import subprocess

import pytest

from broker.security.client_security import ClientSecurity
from pyspark_quire.connection import UnreachableError
from pyspark_quire.leader_client import LeadersRefuseError
from pyspark_quire.leader_ends import leader_ends
from pyspark_quire.leader_login import login_of
from runtime.config import ConfigError
from tests.broker.security.tls.conftest import Authority
from tests.pyspark_quire.conftest import QUIRE

SECURITY = "org.apache.kafka.common.security"
MODULES = {
    "PLAIN": f"{SECURITY}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{SECURITY}.scram.ScramLoginModule",
}


@pytest.fixture(scope="module")
def secured(tmp_path_factory):
    """(address of a SASL_SSL listener, the folder with ca.pem): root by SCRAM, bob by PLAIN."""
    folder = tmp_path_factory.mktemp("secured")
    authority = Authority()
    for name in ("server", "client"):
        key = folder / f"{name}.pem"
        key.write_bytes(authority.made(f"CN={name}", hosts=("127.0.0.1",)).pem)
        key.chmod(0o600)
    (folder / "ca.pem").write_bytes(authority.pem)
    (folder / "other.pem").write_bytes(Authority("CN=other").pem)
    secret = folder / "password"
    secret.write_text("of root\n")
    secret.chmod(0o600)
    config = folder / "server.properties"
    config.write_text(
        "listeners=SASL_SSL://127.0.0.1:0\n"
        "inter.broker.listener.name=SASL_SSL\n"
        "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256\n"
        "listener.name.sasl_ssl.plain.sasl.jaas.config="
        f'{MODULES["PLAIN"]} required user_bob="builder";\n'
        "ssl.keystore.type=PEM\n"
        f"ssl.keystore.location={folder / 'server.pem'}\n"
        "offsets.topic.num.partitions=1\njournalMaxSizeMB=14\njournalMaxBackups=1\n"
    )
    config.chmod(0o600)
    command = [str(QUIRE), "standalone", "--config", str(config)]
    command += ["--data-dir", str(folder / "data"), "--admin", "root"]
    command += ["--admin-password-file", str(secret)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        assert line.startswith("ready listen="), line + process.stderr.read()
        yield line.removeprefix("ready listen=").strip(), folder
    finally:
        process.kill()
        process.communicate()


def given(secured, user="root", password="of root", mechanism="SCRAM-SHA-256", **more):
    address, folder = secured
    login = f'username="{user}" password="{password}"'
    return {
        "bootstrap.servers": address,
        "security.protocol": "SASL_SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "ca.pem"),
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f"{MODULES[mechanism]} required {login};",
        **more,
    }


def asked(settings, topic="t", timeout_ms=20_000):
    return leader_ends(settings, [(topic, 0)], read_committed=False, timeout_ms=timeout_ms)


@pytest.mark.parametrize(
    ("user", "password", "mechanism"),
    [("root", "of root", "SCRAM-SHA-256"), ("bob", "builder", "PLAIN")],
)
def test_who_is_let_in_is_answered(secured, user, password, mechanism):
    """Of a topic that is not there: that it is not."""
    own = {"ssl.keystore.location": str(secured[1] / "client.pem"), "ssl.keystore.type": "PEM"}
    for more in ({}, own):
        with pytest.raises(UnreachableError, match=r"where t-0 end.*UNKNOWN_TOPIC_OR_PARTITION"):
            asked(given(secured, user, password, mechanism, **more), timeout_ms=2000)


@pytest.mark.parametrize("mechanism", MODULES)
def test_a_wrong_password_ends_it_at_once_and_is_not_told(secured, mechanism):
    settings = given(secured, "bob", "not his", mechanism)
    words = f"does not let in 'bob' by {mechanism} .SASL_SSL.: SASL_AUTHENTICATION_FAILED"
    with pytest.raises(LeadersRefuseError, match=words) as caught:
        asked(settings, timeout_ms=10**9)
    assert "not his" not in str(caught.value)


def test_a_broker_that_another_authority_signed_is_refused(secured):
    other = str(secured[1] / "other.pem")
    with pytest.raises(LeadersRefuseError, match="certificate verify failed"):
        asked(given(secured, **{"ssl.truststore.location": other}), timeout_ms=10**9)


def test_nobody_there_is_told_in_time(secured):
    settings = given(secured, **{"bootstrap.servers": "127.0.0.1:1,[::1]:1"})
    words = r"within 1 s by brokers at 127\.0\.0\.1:1.*does not answer: .*refused"
    with pytest.raises(UnreachableError, match=words):
        asked(settings, timeout_ms=1000)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sasl.mechanism": "GSSAPI"}, r"kafka\.sasl\.mechanism=GSSAPI is not served"),
        ({"sasl.mechanism": "PLAIN"}, r"ScramLoginModule is not PlainLoginModule"),
        ({"sasl.jaas.config": "x.ScramLoginModule required;"}, "must have a username and"),
        ({"sasl.jaas.config": 'x.ScramLoginModule required username="a" secret'}, "expected '='"),
        ({"security.protocol": "TLS"}, r"kafka\.security\.protocol=TLS: expected one of"),
        ({"ssl.truststore.location": "/nothing"}, r"kafka\.ssl\.truststore\.location: "),
        ({"sasl.login.class": "x"}, r"kafka\.sasl\.login\.class is not served"),
    ],
    ids=str,
)
def test_what_nobody_gets_in_by_is_named(secured, change, words):
    with pytest.raises(ConfigError, match=words) as caught:
        login_of(given(secured, **change))
    assert "of root" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_without_security_there_is_no_login():
    assert login_of({"bootstrap.servers": "x:1", "group.id": "g"}) == ClientSecurity()
    made = login_of({"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": ""})
    assert made.context.verify_mode is ssl.CERT_REQUIRED
    assert not made.context.check_hostname


@pytest.mark.parametrize("text", ["nothing", "x:0", ":1", "x:99999", ","])
def test_what_is_no_address_is_named(text):
    with pytest.raises(ConfigError, match=r"kafka\.bootstrap\.servers: "):
        asked({"bootstrap.servers": text})


def test_no_repr_has_a_password(secured):
    assert "of root" not in repr(login_of(given(secured)))
