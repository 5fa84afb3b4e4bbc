"""TLS to other people's clients: Java's tools, librdkafka, kafka-python; who they are by it."""

import dataclasses
import json
import socket
import ssl
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from harness import kafka_java, paths, servers, tools
from harness.certificates import PASSWORD, Authority
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError

pytestmark = pytest.mark.skipif(
    servers.target() == "control", reason="the control is started with one listener"
)
COUNT = 200
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
#: By listener: PEM; PKCS12, certificates required; JKS, TLS 1.2 only; SASL over TLS.
PROTOCOLS = {"OPEN": "SSL", "MUTUAL": "SSL", "OLD": "SSL", "LOGIN": "SASL_SSL"}
VECTORS = paths.ROOT / "tests" / "broker" / "security" / "tls"


@dataclasses.dataclass
class Tls:
    server: servers.Server
    authority: Authority
    other: Authority
    addresses: dict[str, str]


@pytest.fixture(scope="module")
def tls(scratch):
    authority, other = Authority(scratch / "tls"), Authority(scratch / "tls", "other")
    server_pem = authority.signed("server", "/O=Example/CN=server")
    authority.signed("alice", "/O=Example/OU=Ops+UID=7/CN=Alice Liddell")
    authority.signed("expired", "/CN=expired", days=-1)
    other.signed("stranger", "/CN=stranger")
    one = servers.make_server(scratch / "tls-server")
    addresses = {name: f"{servers.HOST}:{servers.free_port()}" for name in PROTOCOLS}
    said = {f"listener.name.old.{name}": text for name, text in _jks(authority).items()}
    said |= {f"listener.name.mutual.{name}": text for name, text in _pkcs12(authority).items()}
    listeners = [f"PLAINTEXT://{one.bootstrap}"]
    listeners += [f"{name}://{address}" for name, address in addresses.items()]
    protocols = {"PLAINTEXT": "PLAINTEXT", **PROTOCOLS}
    one.settings |= {
        "listeners": ",".join(listeners),
        "advertised.listeners": ",".join(listeners),
        "listener.security.protocol.map": ",".join(f"{a}:{b}" for a, b in protocols.items()),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(server_pem),
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.mutual.ssl.principal.mapping.rules": r"RULE:^CN=(\w+) .*$/$1/L,DEFAULT",
        "listener.name.old.ssl.enabled.protocols": "TLSv1.2",
        "listener.name.login.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.login.plain.sasl.jaas.config": f'{MODULE} required user_bob="builder";',
        **said,
    }
    one.start()
    yield Tls(one, authority, other, addresses)
    one.discard()


def _pkcs12(authority):
    return {
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": str(authority.key_store("server", "PKCS12")),
        "ssl.keystore.password": PASSWORD,
        "ssl.truststore.type": "PKCS12",
        "ssl.truststore.location": str(authority.trust_store("PKCS12")),
        "ssl.truststore.password": PASSWORD,
    }


def _jks(authority):
    return {
        "ssl.keystore.type": "JKS",
        "ssl.keystore.location": str(authority.key_store("server", "JKS")),
        "ssl.keystore.password": PASSWORD,
        "ssl.truststore.location": str(authority.trust_store("JKS")),
        "ssl.truststore.password": PASSWORD,
        "ssl.client.auth": "requested",
    }


def librdkafka(tls, listener, who=None, **more):
    options = {
        "bootstrap.servers": tls.addresses[listener],
        "security.protocol": PROTOCOLS[listener],
        "ssl.ca.location": str(tls.authority.pem),
        **more,
    }
    if who is not None:
        folder = tls.authority.folder
        options["ssl.certificate.location"] = str(folder / f"{who}.crt")
        options["ssl.key.location"] = str(folder / f"{who}.key")
    return options


BOB = {"sasl.mechanism": "PLAIN", "sasl.username": "bob", "sasl.password": "builder"}


@pytest.mark.parametrize(
    ("listener", "who", "more"),
    [
        ("OPEN", None, {}),
        ("MUTUAL", "alice", {}),
        ("OLD", None, {}),
        ("OLD", "alice", {}),
        ("LOGIN", None, BOB),
    ],
)
def test_librdkafka_writes_and_reads(tls, topic, listener, who, more):
    options = librdkafka(tls, listener, who, **more)
    failed = []
    producer = Producer({**options, "enable.idempotence": True})
    for number in range(COUNT):
        producer.produce(topic, str(number), callback=lambda e, _: failed.append(e) if e else None)
    assert producer.flush(30) == 0
    assert not failed
    consumer = Consumer({**options, "group.id": topic, "auto.offset.reset": "earliest"})
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
    ("who", "reason"),
    [
        (None, "peer did not return a certificate"),
        ("expired", "certificate has expired"),
        ("stranger", "unable to get local issuer certificate"),
    ],
)
def test_who_shows_no_good_certificate_is_refused(tls, who, reason):
    producer = Producer(librdkafka(tls, "MUTUAL", who, **{"socket.timeout.ms": 2000}))
    with pytest.raises(KafkaException):
        producer.list_topics(timeout=2)
    lines = [line for line in tls.server.log_since_start().splitlines() if "tls_refused" in line]
    assert any("listener=MUTUAL" in line and reason in line for line in lines), lines


def test_a_client_does_not_believe_another_authority(tls):
    options = librdkafka(tls, "OPEN", **{"socket.timeout.ms": 2000})
    producer = Producer({**options, "ssl.ca.location": str(tls.other.pem)})
    with pytest.raises(KafkaException):
        producer.list_topics(timeout=2)


def test_kafka_python_writes_and_reads(tls, topic):
    folder = tls.authority.folder
    options = {
        "bootstrap_servers": tls.addresses["MUTUAL"],
        "security_protocol": "SSL",
        "ssl_cafile": str(tls.authority.pem),
        "ssl_certfile": str(folder / "alice.crt"),
        "ssl_keyfile": str(folder / "alice.key"),
    }
    producer = KafkaProducer(**options)
    for number in range(COUNT):
        producer.send(topic, str(number).encode())
    producer.flush(30)
    producer.close()
    consumer = KafkaConsumer(
        topic, auto_offset_reset="earliest", consumer_timeout_ms=10_000, **options
    )
    got = [int(next(consumer).value) for _ in range(COUNT)]
    consumer.close()
    assert sorted(got) == list(range(COUNT))
    without = {name: text for name, text in options.items() if name != "ssl_certfile"}
    with pytest.raises(KafkaError):
        KafkaProducer(**without, bootstrap_timeout_ms=3000)


def java_client(tls, listener, folder, **more):
    """(where, properties) of Java's tools."""
    trust = {
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(tls.authority.pem),
    }
    properties = {"security.protocol": PROTOCOLS[listener], **trust, **more}
    path = folder / f"{listener}.properties"
    path.write_text("".join(f"{name}={text}\n" for name, text in properties.items()))
    return ("--bootstrap-server", tls.addresses[listener], "--command-config", str(path))


@pytest.mark.parametrize("listener", ["MUTUAL", "OLD", "LOGIN"])
def test_javas_console_tools(tls, topic, tmp_path, listener):
    login = f'{MODULE} required username="bob" password="builder";'
    more = {
        "MUTUAL": {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(tls.authority.folder / "alice.pem"),
            "ssl.enabled.protocols": "TLSv1.3",
        },
        "OLD": {"ssl.protocol": "TLSv1.2", "ssl.enabled.protocols": "TLSv1.2"},
        "LOGIN": {"sasl.mechanism": "PLAIN", "sasl.jaas.config": login},
    }[listener]
    where = java_client(tls, listener, tmp_path, **more)
    values = [f"value {number}" for number in range(20)]
    tools.java("kafka-console-producer", *where, "--topic", topic, input_text="\n".join(values))
    said = tools.java(
        *("kafka-console-consumer", *where, "--topic", topic, "--from-beginning"),
        *("--max-messages", str(len(values)), "--timeout-ms", "20000"),
    )
    assert sorted(line for line in said.splitlines() if line in values) == sorted(values)


def test_plain_bytes_and_tls_where_the_other_is_spoken(tls):
    host, port = tls.addresses["OPEN"].split(":")
    with socket.create_connection((host, int(port)), timeout=5) as plain:
        plain.sendall(b"\0\0\0\x0a\0\x12\0\0\0\0\0\1\0\0")
        assert plain.recv(100) == b""
    said = tls.server.log_since_start()
    assert 'reason="plain bytes where TLS is spoken"' in said
    context = ssl.create_default_context(cafile=str(tls.authority.pem))
    host, port = tls.server.bootstrap.split(":")
    with (
        socket.create_connection((host, int(port)), timeout=5) as plain,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        context.wrap_socket(plain, server_hostname="localhost")
    assert "TLS where plain bytes are spoken" in tls.server.log_since_start()


def test_the_vectors_of_unit_tests_are_what_java_makes(scratch):
    """Of subjects, those for which Java 17 and 25 agree."""
    subjects = json.loads((VECTORS / "subjects.json").read_text())
    rules = json.loads((VECTORS / "rules.json").read_text())
    wanted = {f"name:{der}": text for der, text in subjects.items() if not _is_odd(der)}
    for rule, names in rules.items():
        for subject, name in names.items():
            wanted[f"rule:{rule.encode().hex()}:{subject.encode().hex()}"] = name
    path = kafka_java.class_path(Path(scratch) / "names")
    said = tools.run(["java", *kafka_java.SMALL_JVM, "-cp", path, "Names", *wanted]).splitlines()
    got = [
        one if one.startswith("!") else bytes.fromhex(one).decode() for one in said if one != "log"
    ]
    assert dict(zip(wanted, got, strict=True)) == wanted


def _is_odd(der):
    """One attribute, whose text is neither ASCII nor of type UTF8String."""
    data = bytes.fromhex(der)
    return any(
        data[at : at + 3] == bytes.fromhex("550403") and data[at + 3] != 0x0C
        for at in range(len(data) - 3)
    )
