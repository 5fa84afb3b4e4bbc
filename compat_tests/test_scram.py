"""Clients that log in by SCRAM, as users whom Java's kafka-configs makes."""

import asyncio

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from harness import paths, servers, tools
from harness.brokers import Broker, BrokerCluster, wait_for
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError

pytestmark = pytest.mark.skipif(
    servers.target() == "control", reason="the control is started with one listener"
)
MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
#: By user: of SCRAM-SHA-256, and of SCRAM-SHA-512.
PASSWORDS = {"alice": ("wonder land", "looking,glass"), "eve,=": ("apple", "snake")}
COUNT = 300
SECRET = "of all brokers"
SESSION_MS = 1500


@pytest.fixture(scope="module")
def scram(scratch):
    """The server, and the address of its listener with SCRAM; kafka-configs goes by the other."""
    port = servers.free_port()
    one = servers.make_server(scratch / "scram")
    listeners = f"PLAINTEXT://{one.bootstrap},CLIENTS://{servers.HOST}:{port}"
    one.settings |= {
        "listeners": listeners,
        "advertised.listeners": listeners,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
        "listener.name.clients.sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "listener.name.clients.scram-sha-512.sasl.jaas.config": f"{MODULE} required;",
        "delegation.token.secret.key": SECRET,
        "listener.name.clients.scram-sha-512.connections.max.reauth.ms": str(SESSION_MS),
    }
    one.start()
    for user, passwords in PASSWORDS.items():
        set_credentials(one, user, passwords)
    yield one, f"{servers.HOST}:{port}"
    one.discard()


def configs(server, *arguments, **options):
    return tools.java(
        "kafka-configs", "--bootstrap-server", server.bootstrap, *arguments, **options
    )


def set_credentials(server, user, passwords):
    pairs = zip(MECHANISMS, passwords, strict=True)
    given = ",".join(f"{name}=[iterations=4096,password={one}]" for name, one in pairs)
    return configs(
        server, "--alter", "--add-config", given, "--entity-type", "users", "--entity-name", user
    )


def librdkafka(address, user, mechanism, password=None):
    return {
        "bootstrap.servers": address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password or PASSWORDS[user][MECHANISMS.index(mechanism)],
    }


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_writes_and_reads(scram, mechanism, topic):
    _, address = scram
    options = librdkafka(address, "eve,=", mechanism)
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
    "who",
    [
        ("alice", "SCRAM-SHA-512", "wonder land"),
        ("alice", "SCRAM-SHA-256", "looking,glass"),
        ("nobody", "SCRAM-SHA-256", "wonder land"),
    ],
)
def test_librdkafka_is_refused(scram, who):
    """A password of the other mechanism is as wrong as any."""
    server, address = scram
    errors = []
    producer = Producer({**librdkafka(address, *who), "error_cb": errors.append})
    with pytest.raises(KafkaException):
        producer.list_topics(timeout=1.5)
    producer.poll(0)
    assert any("uthentication" in error.str() for error in errors)
    said = server.log_since_start()
    assert f"user={who[0]}" in said, "the log names who it was"
    assert not [one for pair in PASSWORDS.values() for one in pair if one in said]


def client_config(directory, mechanism, user, password, **options):
    """A file for Java's tools."""
    more = "".join(f' {name}="{value}"' for name, value in options.items())
    path = directory / f"{mechanism}-{user}.properties"
    path.write_text(
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\n"
        f'sasl.jaas.config={MODULE} required username="{user}" password="{password}"{more};\n'
    )
    return path


def test_javas_tools_log_in_and_anew(scram, topic, tmp_path):
    """A producer that lives longer than its session logs in anew (KIP-368)."""
    server, address = scram
    config = client_config(tmp_path, "SCRAM-SHA-512", "alice", "looking,glass")
    said = tools.java(
        "kafka-producer-perf-test",
        *("--topic", topic, "--num-records", "300", "--record-size", "100"),
        *("--throughput", "100", "--bootstrap-server", address, "--command-config", str(config)),
    )
    assert "300 records sent" in said, said
    assert "session_expired" not in server.log_since_start()


def test_javas_delegation_tokens(scram, topic, tmp_path):
    """Made with kafka-delegation-tokens, logged in by, listed, renewed, and ended."""
    server, address = scram
    owner = client_config(tmp_path, "SCRAM-SHA-256", "alice", "wonder land")

    def tokens(*arguments):
        where = ("--bootstrap-server", address, "--command-config", str(owner))
        return tools.java("kafka-delegation-tokens", *where, *arguments)

    said = tokens("--create", "--max-life-time-period", "600000", "--renewer-principal", "User:eve")
    row = [line for line in said.splitlines() if "User:alice" in line][-1].split()
    token_id, token_hmac = row[0], row[1]
    by_token = client_config(tmp_path, "SCRAM-SHA-512", token_id, token_hmac, tokenauth="true")
    where = ("--bootstrap-server", address, "--command-config", str(by_token))
    assert topic in tools.java("kafka-topics", *where, "--create", "--topic", topic)
    assert token_id in tokens("--describe", "--owner-principal", "User:alice")
    assert "expiry" in tokens("--renew", "--hmac", token_hmac, "--renew-time-period", "-1").lower()
    tokens("--expire", "--hmac", token_hmac, "--expiry-time-period", "-1")
    assert "Authentication failed" in tools.java("kafka-topics", *where, "--list", code=1)
    said = server.log_since_start()
    assert f"user={token_id}" in said
    assert token_hmac not in said
    assert SECRET not in said


def python_options(address, mechanism, password=None):
    """Of kafka-python and aiokafka, which do not escape what stands in a name."""
    return {
        "bootstrap_servers": address,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "alice",
        "sasl_plain_password": password or PASSWORDS["alice"][MECHANISMS.index(mechanism)],
    }


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python_and_aiokafka(scram, mechanism, topic):
    _, address = scram
    options = python_options(address, mechanism)

    async def send():
        async with AIOKafkaProducer(**options) as producer:
            await producer.send_and_wait(topic, b"aiokafka")

    asyncio.run(send())
    producer = KafkaProducer(**options)
    producer.send(topic, b"kafka-python").get(30)
    producer.close()
    consumer = KafkaConsumer(
        topic, auto_offset_reset="earliest", consumer_timeout_ms=10_000, **options
    )
    got = [next(consumer).value for _ in range(2)]
    consumer.close()
    assert sorted(got) == [b"aiokafka", b"kafka-python"]
    wrong = python_options(address, mechanism, password="wrong")
    with pytest.raises(KafkaError):
        KafkaProducer(**wrong, bootstrap_timeout_ms=1500)


def test_kafka_configs_shows_removes_and_is_told_what_is_not_right(scram):
    server, address = scram
    of_user = ("--entity-type", "users", "--entity-name", "gone")
    set_credentials(server, "gone", ("one", "two"))
    said = configs(server, "--describe", *of_user)
    assert "SCRAM-SHA-256=iterations=4096" in said, said
    assert "SCRAM-SHA-512=iterations=4096" in said, said
    producer = Producer(librdkafka(address, "gone", "SCRAM-SHA-256", "one"))
    assert producer.list_topics(timeout=10).topics is not None
    configs(server, "--alter", "--delete-config", "SCRAM-SHA-256", *of_user)
    late = Producer(librdkafka(address, "gone", "SCRAM-SHA-256", "one"))
    with pytest.raises(KafkaException):
        late.list_topics(timeout=2)
    other = Producer(librdkafka(address, "gone", "SCRAM-SHA-512", "two"))
    assert other.list_topics(timeout=10).topics is not None
    assert producer.list_topics(timeout=10).topics is not None, "its session stays"
    said = configs(server, "--describe", *of_user)
    assert "SCRAM-SHA-256" not in said
    many = "SCRAM-SHA-256=[iterations=16385,password=x]"
    said = configs(server, "--alter", "--add-config", many, *of_user, code=1)
    assert "Too many iterations" in said, said


@pytest.fixture
def cluster(scratch):
    """Two brokers, each with a listener for those who log in."""
    made = BrokerCluster(scratch / "scram-cluster")
    try:
        made.start(brokers=0, bookies=1)
        clients = []
        for node_id in (1, 2):
            port = servers.free_port()
            one = Broker(made.directory / f"broker-{node_id}", node_id, made.storage.uri)
            # What a broker says that it serves is its last listener.
            one.settings |= {
                "listeners": f"CLIENTS://{servers.HOST}:{port},PLAINTEXT://{one.bootstrap}",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
                "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            }
            made.brokers.append(one)
            one.start(30)
            clients.append(f"{servers.HOST}:{port}")
        yield made.storage.uri, clients
    finally:
        made.discard()


def test_a_user_made_at_one_broker_logs_in_at_another(cluster):
    """Credentials in ZooKeeper; the first user is made by an operator, while brokers run."""
    reset = [str(paths.python_script("quire")), "user", "reset", "root", "--password-file", "-"]
    uri, (one, two) = cluster
    tools.run([*reset, "-u", uri], input_text="of the operator\n")
    root = librdkafka(one, "root", "SCRAM-SHA-512", "of the operator")

    def logs_in(address, user, password):
        options = librdkafka(address, user, "SCRAM-SHA-512", password)
        try:
            AdminClient({**options, "log_level": 0}).list_topics(timeout=1)
        except KafkaException:
            return False
        return True

    wait_for(lambda: logs_in(one, "root", "of the operator"), 10, "root is not known")
    change = UserScramCredentialUpsertion(
        "alice", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), b"wonder land"
    )
    admin = AdminClient(root)
    admin.alter_user_scram_credentials([change])["alice"].result(10)
    assert logs_in(one, "alice", "wonder land"), "in force where it was made"
    wait_for(lambda: logs_in(two, "alice", "wonder land"), 10, "alice is not known elsewhere")
    assert not logs_in(two, "alice", "wonder")
    told = AdminClient(librdkafka(two, "alice", "SCRAM-SHA-512", "wonder land"))
    described = told.describe_user_scram_credentials(["alice"])["alice"].result(10)
    assert [one.iterations for one in described.scram_credential_infos] == [4096]
