"""Secrets of a server stay where they were written: log at debug, metrics, pages, answers, dumps,
arguments, errors and files are searched for each of them."""

import http.client
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from quire.tools.admin.routes import ROUTES
from runtime.secret_files import write_secret

QUIRE = Path(sys.executable).parent / "quire"
PASSWORD, WRONG = "wonderful-4711", "guessed-0815"
ADMIN, METRICS = "admin-token-" + "1" * 20, "metrics-token-" + "2" * 20
SECRETS = (PASSWORD, WRONG, ADMIN, METRICS)
JAAS = "listener.name.sasl_plaintext.plain.sasl.jaas.config"
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"
TIMEOUT_SECONDS = 60


class Server:
    def __init__(self, directory):
        self.directory = directory
        self.data = directory / "data"
        self.tokens = {"admin": directory / "admin", "metrics": directory / "metrics"}
        write_secret(str(self.tokens["admin"]), ADMIN)
        write_secret(str(self.tokens["metrics"]), METRICS)
        self.config = directory / "server.properties"
        self.process = None

    def command(self, jaas):
        self.config.write_text(
            "listeners=SASL_PLAINTEXT://127.0.0.1:0\nsasl.enabled.mechanisms=PLAIN\n"
            f"{JAAS}={jaas}\n"
            f"quire.admin.token.file={self.tokens['admin']}\n"
            f"quire.metrics.token.file={self.tokens['metrics']}\n"
            "quire.admin.reads.need.token=true\n"
            "journalMaxSizeMB=16\ndbStorage_writeCacheMaxSizeMb=16\n"
        )
        return [
            *(str(QUIRE), "standalone", "--config", str(self.config), "--log-level", "debug"),
            *("--data-dir", str(self.data), "--metrics", "127.0.0.1:0"),
            *("--set", "offsets.topic.num.partitions=1"),
        ]

    def start(self):
        command = self.command(f'{MODULE} user_alice="{PASSWORD}";')
        self.log = (self.directory / "log").open("w")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True)
        line = self.process.stdout.readline()
        assert line.startswith("ready listen="), (self.directory / "log").read_text()
        return line.removeprefix("ready listen=").strip()

    def ask(self, path, token):
        address = (self.data / "admin.url").read_text().strip().removeprefix("http://")
        connection = http.client.HTTPConnection(address, timeout=20)
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        try:
            return answer.status, answer.read().decode(errors="replace")
        finally:
            connection.close()


@pytest.fixture
def server(tmp_path):
    server = Server(tmp_path)
    yield server
    if server.process is not None:
        server.process.kill()
        server.process.communicate()
        server.log.close()


def admin_of(address, password):
    return AdminClient(
        {
            "bootstrap.servers": address,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "alice",
            "sasl.password": password,
            "log_level": 0,
        }
    )


def described(address):
    """All settings of the broker: their texts, and those that are hidden."""
    admin = admin_of(address, PASSWORD)
    resource = ConfigResource(ResourceType.BROKER, "0")
    (future,) = admin.describe_configs([resource]).values()
    return {name: entry.value for name, entry in future.result(TIMEOUT_SECONDS).items()}


def searched(places):
    """(place, secret) of each that is found."""
    return [
        (place, secret) for place, text in places.items() for secret in SECRETS if secret in text
    ]


def test_no_secret_leaves_by_any_way(server):
    address = server.start()
    configs = described(address)
    assert JAAS in configs
    assert configs[JAAS] is None
    with pytest.raises(KafkaException):
        admin_of(address, WRONG).list_topics(timeout=2)
    places = {"configs": str(configs)}
    for path in (*ROUTES, "/metrics", "/api/v1/quire/groups/g", "/no/such", "/api/v1/no"):
        status, places[path] = server.ask(path, METRICS if path == "/metrics" else ADMIN)
        assert status not in (401, 403, 500), path
        refused, _ = server.ask(path, WRONG)
        assert path == "/metrics" or path.startswith("/api") <= (refused == 401), path
    process = Path(f"/proc/{server.process.pid}")
    places["arguments"] = (process / "cmdline").read_bytes().decode()
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(TIMEOUT_SECONDS) == 0
    places["log"] = (server.directory / "log").read_text()
    assert "alice" in places["log"], "the failed login is told"
    for path in server.data.rglob("*"):
        if path.is_file():
            places[str(path)] = path.read_bytes().decode("latin-1")
    dump = [str(QUIRE), "dump", "metadata", str(server.data / "metadata.db")]
    done = subprocess.run(dump, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    places["dump"] = done.stdout + done.stderr
    assert len(places) > 40
    assert not searched(places)


@pytest.mark.parametrize(
    "jaas",
    [
        f'{MODULE} user_alice="{PASSWORD};',
        f'{MODULE} user_alice="{PASSWORD}" {PASSWORD};',
        f'{PASSWORD} {PASSWORD} user_alice="{PASSWORD}";',
    ],
)
def test_what_is_wrong_with_a_secret_is_said_without_it(server, jaas):
    done = subprocess.run(
        server.command(jaas), capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
    )
    assert done.returncode == 2, done.stderr
    assert JAAS in done.stderr
    assert not searched({"output": done.stdout + done.stderr})
