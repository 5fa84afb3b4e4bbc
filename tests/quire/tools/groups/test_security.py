"""`quire groups why --command-config FILE`: into a server whose listeners are secured, and what
is said of a file by which nobody gets in."""

import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from quire.cli import main
from quire.tools.groups.security import read_command_config
from tests.broker.security.tls.conftest import Authority

QUIRE = Path(sys.executable).parent / "quire"
SECURITY = "org.apache.kafka.common.security"
PLAIN, SCRAM = f"{SECURITY}.plain.PlainLoginModule", f"{SECURITY}.scram.ScramLoginModule"


@pytest.fixture(scope="module")
def secured(tmp_path_factory):
    """(address of a SASL_SSL listener, the folder with ca.pem): root by SCRAM, bob by PLAIN."""
    folder = tmp_path_factory.mktemp("secured")
    authority = Authority()
    key = folder / "server.pem"
    key.write_bytes(authority.made("CN=server", hosts=("127.0.0.1",)).pem)
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
        f'listener.name.sasl_ssl.plain.sasl.jaas.config={PLAIN} required user_bob="builder";\n'
        "ssl.keystore.type=PEM\n"
        f"ssl.keystore.location={key}\n"
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


def lines(folder, module, user, password, mechanism, **more):
    found = {
        "security.protocol": "SASL_SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "ca.pem"),
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f'{module} required username="{user}" password="{password}";',
        **more,
    }
    return "".join(f"{name}={text}\n" for name, text in found.items())


def why(address, tmp_path, text):
    path = tmp_path / "client.properties"
    path.write_text(text)
    arguments = ["--bootstrap-server", address, "--command-config", str(path)]
    arguments += ["--data-dir", str(tmp_path / "nothing"), "--json"]
    return CliRunner().invoke(main, ["groups", "why", "g", *arguments])


@pytest.mark.parametrize(
    ("module", "user", "password", "mechanism"),
    [(SCRAM, "root", "of root", "SCRAM-SHA-256"), (PLAIN, "bob", "builder", "PLAIN")],
)
def test_a_command_logs_in(secured, tmp_path, module, user, password, mechanism):
    address, folder = secured
    result = why(address, tmp_path, lines(folder, module, user, password, mechanism))
    assert result.exit_code == 1, result.output
    assert "there is no group g of consumers" in result.output


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sasl.jaas.config": f'{SCRAM} required username="root" password="x";'},
         "lets nobody in so: SASL_AUTHENTICATION_FAILED for User:root by SCRAM-SHA-256"),
        ({"sasl.mechanism": "SCRAM-SHA-512"}, "UNSUPPORTED_SASL_MECHANISM"),
        ({"security.protocol": "PLAINTEXT"}, "does not answer"),
        ({"security.protocol": "SSL"}, "does not answer"),
    ],
)  # fmt: skip
def test_who_is_not_let_in_is_told_so(secured, tmp_path, change, words):
    address, folder = secured
    text = lines(folder, SCRAM, "root", "of root", "SCRAM-SHA-256", **change)
    result = why(address, tmp_path, text)
    assert result.exit_code == 1
    assert words in result.output
    assert "of root" not in result.output


def test_a_strange_authority_is_not_believed(secured, tmp_path):
    address, folder = secured
    more = {"ssl.truststore.location": str(folder / "other.pem")}
    text = lines(folder, SCRAM, "root", "of root", "SCRAM-SHA-256", **more)
    result = why(address, tmp_path, text)
    assert result.exit_code == 1
    assert "certificate verify failed" in result.output


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("security.protocol=TLS", "security.protocol=TLS: expected one of"),
        ("security.protocol=SASL_PLAINTEXT", "sasl.mechanism=GSSAPI is not served"),
        ("sasl.mechanism=PLAIN\nsecurity.protocol=SASL_SSL", "sasl.jaas.config must be set"),
        ("sasl.login.class=x", "sasl.login.class is not served by"),
        ("ssl.cipher.suites=x", "ssl.cipher.suites is not served by"),
        ("security.protocol=SSL\nssl.truststore.location=/nowhere", "ssl.truststore.location: "),
        ("security.protocol=SSL\nssl.keystore.location=/nowhere", "ssl.keystore.location: "),
        (
            f"security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.jaas.config={SCRAM} required;",
            f"{SCRAM} is not PlainLoginModule",
        ),
        (
            "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n"
            f'sasl.jaas.config={PLAIN} required username="a";',
            "must have a username and a password",
        ),
    ],
)
def test_a_file_by_which_nobody_gets_in(tmp_path, text, words):
    path = tmp_path / "client.properties"
    path.write_text(text)
    with pytest.raises(click.UsageError, match="--command-config") as raised:
        read_command_config(str(path))
    assert words in raised.value.message


def test_other_settings_of_a_client_are_passed_over(tmp_path):
    path = tmp_path / "client.properties"
    path.write_text("bootstrap.servers=x:1\ngroup.id=g\nsecurity.protocol=PLAINTEXT\n")
    assert read_command_config(str(path)) == read_command_config(None)
