"""What the other brokers of one server are started with: theirs to the port, else the same."""

import socket
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from broker.cluster.config import BrokerConfig
from quire.broker_processes import (
    BrokerProcesses,
    BrokerProcessesConfig,
    check_node_ids,
    check_ports,
    shifted_port,
)
from runtime.config import ConfigError, parse_properties

HOST = "127.0.0.1"
SECRET = 'org.example.Module required password="a\\b";'


class Members:
    def __init__(self, *live):
        self.live = dict.fromkeys(live)
        self.listeners = []

    def subscribe(self, listener):
        self.listeners.append(listener)


def config_of(tmp_path, count=3, metrics=None, **settings):
    texts = {name.replace("_", "."): text for name, text in settings.items()}
    broker = BrokerConfig.parse({"node.id": "4", **texts})
    return BrokerProcessesConfig(str(tmp_path), count, broker, texts, "warning", metrics)


def processes_of(config, *live):
    return BrokerProcesses(config, SimpleNamespace(), Members(*live))


def prepared(config, name):
    processes_of(config).prepare(name)
    path = f"{config.data_directory}/{name}/server.properties"
    with open(path, encoding="utf-8") as file:
        return parse_properties(file.read())


def test_ids_ports_and_metadata_are_its_own_and_all_else_is_the_same(tmp_path):
    config = config_of(
        tmp_path,
        listeners="IN://[::1]:9000,OUT://127.0.0.1:9100",
        advertised_listeners="IN://[::1]:9000,OUT://kafka.example.org:443",
        listener_security_protocol_map="IN:PLAINTEXT,OUT:SASL_SSL",
        inter_broker_listener_name="IN",
        super_users="User:root",
        sasl_jaas_config=SECRET,
    )
    found = prepared(config, "broker-6")
    assert found == {
        **config.settings,
        "node.id": "6",
        "listeners": "IN://[::1]:9002,OUT://127.0.0.1:9102",
        "advertised.listeners": "IN://[::1]:9002,OUT://kafka.example.org:445",
        "metadataServiceUri": f"quire+unix://{tmp_path}/metadata.sock",
        "zkTimeout": "6000",
    }
    assert found["sasl.jaas.config"] == SECRET


def test_only_the_owner_reads_the_settings_also_of_an_earlier_start(tmp_path):
    path = tmp_path / "broker-5" / "server.properties"
    path.parent.mkdir()
    path.write_text("of somebody")
    path.chmod(0o644)
    prepared(config_of(tmp_path), "broker-5")
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_free_port_stays_one(tmp_path):
    config = config_of(tmp_path, listeners="PLAINTEXT://127.0.0.1:0")
    check_ports(config)
    assert prepared(config, "broker-5")["listeners"] == "PLAINTEXT://127.0.0.1:0"


def test_metrics_have_a_port_each(tmp_path):
    processes = processes_of(config_of(tmp_path, metrics=("::1", 9600)))
    command = processes.command("broker-6")
    assert command[command.index("--metrics") + 1] == "[::1]:9602"
    assert command[command.index("--data-dir") + 1] == str(tmp_path)
    assert "--metrics" not in processes_of(config_of(tmp_path)).command("broker-6")


@pytest.mark.parametrize(
    ("settings", "metrics", "words"),
    [
        (
            {
                "listeners": "A://127.0.0.1:19001,B://127.0.0.1:19002",
                "listener_security_protocol_map": "A:PLAINTEXT,B:PLAINTEXT",
                "inter_broker_listener_name": "A",
            },
            None,
            "process 2 would listen on 19002, which process 1 has: leave 2 ports free after each",
        ),
        ({"listeners": "PLAINTEXT://127.0.0.1:65534"}, None, "there is no port 65536"),
        ({"listeners": "PLAINTEXT://127.0.0.1:19001"}, (HOST, 19002), "would listen on 19002"),
    ],
)
def test_ports_that_cannot_be(tmp_path, settings, metrics, words):
    with pytest.raises(ConfigError, match=words):
        check_ports(config_of(tmp_path, metrics=metrics, **settings))


@contextmanager
def somebody_beside_a_free_port():
    """The port that is taken; the one before it is free."""
    for _ in range(100):
        with socket.create_server((HOST, 0)) as other:
            port = other.getsockname()[1]
            try:
                socket.create_server((HOST, port - 1)).close()
            except OSError:
                continue
            yield port
            return
    raise AssertionError("no two ports side by side")


def test_a_port_that_somebody_has(tmp_path):
    with somebody_beside_a_free_port() as port:
        config = config_of(tmp_path, 2, listeners=f"PLAINTEXT://127.0.0.1:{port - 1}")
        with pytest.raises(OSError, match=rf"127\.0\.0\.1:{port}, for process 2: "):
            check_ports(config)


@pytest.mark.parametrize(("port", "index", "wanted"), [(0, 3, 0), (1, 3, 4), (65535, 0, 65535)])
def test_ports_go_up(port, index, wanted):
    assert shifted_port(port, index) == wanted


def test_who_is_missing(tmp_path):
    assert processes_of(config_of(tmp_path), 4, 6).missing() == ["broker-5"]
    assert processes_of(config_of(tmp_path), 4, 5, 6).missing() == []


def test_the_last_ones_id_is_a_brokers():
    largest = (1 << 30) - 1  # from there on they are bookies'
    check_node_ids(largest - 2, 3)
    check_node_ids(largest + 5, 1)
    with pytest.raises(ConfigError, match=f"would be {largest + 1}; the largest is {largest}"):
        check_node_ids(largest - 1, 3)
