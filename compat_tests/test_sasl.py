"""Clients that log in by PLAIN, on a listener of their own beside the one without a login."""

import re

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from harness import servers, tools
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError

pytestmark = pytest.mark.skipif(
    servers.target() == "control", reason="the control is started with one listener"
)
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
PASSWORDS = {"alice": "wonder land", "bob": 'build"er'}
COUNT = 500


def jaas(**options):
    quoted = {key: value.replace('"', '\\"') for key, value in options.items()}
    return " ".join([MODULE, "required", *(f'{key}="{quoted[key]}"' for key in quoted)]) + ";"


@pytest.fixture(scope="module")
def sasl(scratch):
    port = servers.free_port()
    one = servers.make_server(scratch / "sasl")
    listeners = f"PLAINTEXT://{one.bootstrap},CLIENTS://{servers.HOST}:{port}"
    users = {f"user_{name}": password for name, password in PASSWORDS.items()}
    one.settings |= {
        "listeners": listeners,
        "advertised.listeners": listeners,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
        "listener.name.clients.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.clients.plain.sasl.jaas.config": jaas(**users),
        "listener.name.clients.plain.connections.max.reauth.ms": "3000",
    }
    one.start()
    yield one, f"{servers.HOST}:{port}"
    one.discard()


def librdkafka(address, user, password, **more):
    return {
        "bootstrap.servers": address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": password,
        **more,
    }


@pytest.mark.parametrize("user", PASSWORDS)
def test_librdkafka_writes_and_reads(sasl, user, topic):
    _, address = sasl
    options = librdkafka(address, user, PASSWORDS[user])
    failed = []
    producer = Producer({**options, "enable.idempotence": True})
    for number in range(COUNT):
        producer.produce(topic, str(number), callback=lambda e, _: failed.append(e) if e else None)
    assert producer.flush(30) == 0
    assert not failed
    more = {"group.id": topic, "auto.offset.reset": "earliest"}
    consumer = Consumer({**options, **more})
    consumer.subscribe([topic])
    got = []
    while len(got) < COUNT:
        message = consumer.poll(30)
        assert message is not None
        assert message.error() is None
        got.append(int(message.value()))
    consumer.close()
    assert sorted(got) == list(range(COUNT))


@pytest.mark.parametrize(
    "who", [("alice", "wrong"), ("carol", "wonder land"), ("alice", 'build"er')]
)
def test_librdkafka_is_refused(sasl, who):
    server, address = sasl
    errors = []
    producer = Producer(librdkafka(address, *who, error_cb=errors.append))
    with pytest.raises(KafkaException):
        producer.list_topics(timeout=3)
    producer.poll(0)
    assert any("uthentication" in error.str() for error in errors)
    said = server.log_since_start()
    assert f"user={who[0]}" in said, "the log names who it was"
    assert not [password for password in PASSWORDS.values() if password in said]


def test_kafka_python_writes_and_reads(sasl, topic):
    _, address = sasl
    options = {
        "bootstrap_servers": address,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "alice",
    }
    right = {**options, "sasl_plain_password": PASSWORDS["alice"]}
    producer = KafkaProducer(**right)
    for number in range(COUNT):
        producer.send(topic, str(number).encode())
    producer.flush(30)
    producer.close()
    consumer = KafkaConsumer(
        topic, auto_offset_reset="earliest", consumer_timeout_ms=10_000, **right
    )
    got = [int(next(consumer).value) for _ in range(COUNT)]
    consumer.close()
    assert sorted(got) == list(range(COUNT))
    with pytest.raises(KafkaError):
        KafkaProducer(**options, sasl_plain_password="wrong", bootstrap_timeout_ms=3000)


def test_javas_tools_log_in_and_anew(sasl, topic, tmp_path):
    """A producer of six seconds, while sessions last three: it logs in anew (KIP-368)."""
    server, address = sasl
    config = tmp_path / "client.properties"
    config.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f"sasl.jaas.config={jaas(username='alice', password=PASSWORDS['alice'])}\n"
    )
    where = ("--bootstrap-server", address, "--command-config", str(config))
    tools.java("kafka-topics", *where, "--create", "--topic", topic)
    said = tools.java(
        "kafka-producer-perf-test",
        *("--topic", topic, "--num-records", "600", "--record-size", "100"),
        *("--throughput", "100", "--bootstrap-server", address, "--command-config", str(config)),
    )
    assert re.search(r"^600 records sent", said, re.M), said
    assert topic in tools.java("kafka-topics", *where, "--list").split()
    assert "session_expired" not in server.log_since_start()
    bad = tmp_path / "bad.properties"
    bad.write_text(config.read_text().replace(PASSWORDS["alice"], "wrong"))
    where = (*where[:2], "--command-config", str(bad))
    said = tools.java("kafka-topics", *where, "--list", code=1)
    assert "Authentication failed" in said, said


def test_who_does_not_log_in_is_not_heard(sasl):
    _, address = sasl
    admin = AdminClient({"bootstrap.servers": address})
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=4)
