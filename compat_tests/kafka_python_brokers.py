"""A plugin of pytest: the brokers that kafka-python's tests start by themselves are quire's.

Its fixtures begin Kafka's scripts with a file of properties. Here each of them is a server of the
harness with the listener that the fixture was asked for: its mechanism and user, or the key store
that the fixture made. Nothing else of the suite changes.
"""

import os
import tempfile
from pathlib import Path

import py
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from harness import servers, tools
from test.integration.fixtures import KafkaFixture

STORE_PASSWORD = "foobar"  # what the fixture's keytool is told
MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def _settings(fixture: KafkaFixture, server: servers.Server) -> dict[str, str]:
    listeners = f"PLAINTEXT://{server.bootstrap},CLIENTS://{servers.HOST}:{fixture.port}"
    said = {
        "listeners": listeners,
        "advertised.listeners": listeners.replace(
            f"CLIENTS://{servers.HOST}", "CLIENTS://localhost"
        ),
        "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,CLIENTS:{fixture.transport}",
        # As the fixture's own template has it.
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    if fixture.sasl_mechanism:
        mine = f"listener.name.clients.{fixture.sasl_mechanism.lower()}"
        user, password = fixture.broker_user, fixture.broker_password
        users = f' user_{user}="{password}"' if fixture.sasl_mechanism == "PLAIN" else ""
        said["listener.name.clients.sasl.enabled.mechanisms"] = fixture.sasl_mechanism
        said[f"{mine}.sasl.jaas.config"] = f"{MODULES[fixture.sasl_mechanism]} required{users};"
    if fixture.ssl_enabled:
        fixture._ssl_config()  # makes the stores
        store = Path(fixture.ssl_dir) / "kafka.server.keystore.jks"
        store.chmod(0o600)
        said["ssl.keystore.location"] = str(store)
        said["ssl.keystore.password"] = said["ssl.key.password"] = STORE_PASSWORD
    return said


def _add_scram_user(fixture: KafkaFixture, bootstrap: str) -> None:
    mechanism = ScramMechanism[fixture.sasl_mechanism.replace("-", "_")]
    info = ScramCredentialInfo(mechanism, 4096)
    wanted = UserScramCredentialUpsertion(
        fixture.broker_user, info, fixture.broker_password.encode()
    )
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.alter_user_scram_credentials([wanted]).values():
        future.result(30)


def _open(fixture: KafkaFixture) -> None:
    if fixture.running:
        return
    if fixture.tmp_dir is None:
        fixture.tmp_dir = py.path.local(tempfile.mkdtemp(prefix="kafka-python-broker-"))
    server = servers.make_server(Path(fixture.tmp_dir.strpath) / "server")
    fixture.port = servers.free_port()
    server.settings |= _settings(fixture, server)
    fixture.child = server.start()
    fixture.running = True
    if (fixture.sasl_mechanism or "").startswith("SCRAM"):
        _add_scram_user(fixture, server.bootstrap)
    # The fixture's own words for what happened, where a test asks for them.
    server.dump_logs = lambda: print(server.log_tail())


def _stop(fixture: KafkaFixture) -> None:
    if fixture.running and not fixture.external:
        fixture.child.discard()
        fixture.running = False


def _get_topic_names(fixture: KafkaFixture) -> list[str]:
    """By Java's kafka-topics, logged in as the fixture's user."""
    config = Path(fixture.tmp_dir.strpath) / "client.properties"
    config.write_text(
        f"security.protocol={fixture.transport}\nsasl.mechanism={fixture.sasl_mechanism}\n"
        f"sasl.jaas.config={MODULES[fixture.sasl_mechanism]} required"
        f' username="{fixture.broker_user}" password="{fixture.broker_password}";\n'
    )
    where = ("--bootstrap-server", fixture.bootstrap_server(), "--command-config", str(config))
    return tools.java("kafka-topics", *where, "--list").splitlines()


def pytest_configure() -> None:
    if "KAFKA_URI" in os.environ:
        raise RuntimeError("with KAFKA_URI no test starts a broker")
    KafkaFixture.open = _open
    KafkaFixture.start = _open
    KafkaFixture.stop = _stop
    KafkaFixture.get_topic_names = _get_topic_names
