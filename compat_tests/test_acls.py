"""Rights of clients: ACLs made with Kafka's own tool, and what clients of users may then do."""

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from harness import servers, tools

pytestmark = pytest.mark.skipif(
    servers.target() == "control", reason="the control is started with one listener"
)
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
USERS = ("admin", "alice", "bob")
OF_EVERYBODY = AclBinding(
    ResourceType.TOPIC, "*", ResourcePatternType.LITERAL, "User:*", "*", AclOperation.ALL,
    AclPermissionType.ALLOW,
)  # fmt: skip
STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


@pytest.fixture(scope="module")
def guarded(scratch):
    port = servers.free_port()
    one = servers.make_server(scratch / "acls")
    listeners = f"PLAINTEXT://{one.bootstrap},CLIENTS://{servers.HOST}:{port}"
    users = " ".join(f'user_{user}="{user}"' for user in USERS)
    one.settings |= {
        "listeners": listeners,
        "advertised.listeners": listeners,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
        "listener.name.clients.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.clients.plain.sasl.jaas.config": f"{MODULE} required {users};",
        "authorizer.class.name": STANDARD,
        "super.users": "User:admin",
    }
    one.start()
    yield one, f"{servers.HOST}:{port}"
    one.discard()


def librdkafka(address, user, **more):
    return {
        "bootstrap.servers": address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": user,
        **more,
    }


@pytest.fixture(scope="module")
def config_of(tmp_path_factory):
    """config_of(user) -> a file of client settings."""
    folder = tmp_path_factory.mktemp("clients")

    def config(user):
        path = folder / f"{user}.properties"
        path.write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
            f'sasl.jaas.config={MODULE} required username="{user}" password="{user}";\n'
        )
        return str(path)

    return config


@pytest.fixture
def acls(guarded, config_of):
    """acls(option, ..., user="admin", code=0) -> what kafka-acls says."""
    _, address = guarded

    def run(*options, user="admin", code=0):
        where = ("--bootstrap-server", address, "--command-config", config_of(user))
        return tools.java("kafka-acls", *where, *options, code=code)

    return run


def entries(said):
    return [line.strip() for line in said.splitlines() if line.strip().startswith("(principal=")]


def test_kafka_acls_adds_lists_and_removes(acls):
    """By prefix and by principal, as its manual shows it."""
    acls("--add", "--allow-principal", "User:carol", "--producer", "--topic", "orders")
    acls(
        *("--add", "--allow-principal", "User:dave", "--operation", "Read"),
        *("--topic", "ord", "--resource-pattern-type", "prefixed"),
    )
    acls("--add", "--deny-principal", "User:dave", "--operation", "All", "--group", "*")
    listed = acls("--list", "--topic", "orders", "--resource-pattern-type", "match")
    assert "ResourcePattern(resourceType=TOPIC, name=orders, patternType=LITERAL)" in listed
    assert "ResourcePattern(resourceType=TOPIC, name=ord, patternType=PREFIXED)" in listed
    assert len(entries(listed)) == 4, listed  # WRITE, DESCRIBE and CREATE of a producer
    of_dave = acls("--list", "--principal", "User:dave")
    assert "resourceType=GROUP, name=*" in of_dave
    assert "permissionType=DENY" in of_dave
    removed = ("--remove", "--force", "--topic", "ord", "--resource-pattern-type", "prefixed")
    acls(*removed)
    acls("--remove", "--force", "--topic", "orders")
    acls("--remove", "--force", "--group", "*")
    assert entries(acls("--list")) == []


def test_who_has_no_right_to_acls_gives_himself_none(acls):
    """Attack 46."""
    said = acls(
        *("--add", "--allow-principal", "User:bob", "--operation", "All", "--topic", "*"),
        user="bob",
        code=1,
    )
    assert "ClusterAuthorizationException" in said, said
    assert "ClusterAuthorizationException" in acls("--list", user="bob", code=1)


def test_librdkafka_is_refused_and_then_allowed(guarded, acls, topic):
    server, address = guarded
    admin = AdminClient(librdkafka(address, "admin"))
    admin.create_topics([NewTopic(topic, 1)])[topic].result(30)
    failed = []
    alice = Producer(librdkafka(address, "alice", **{"enable.idempotence": False}))

    def told(error, _):
        failed.append(error and error.name())

    alice.produce(topic, b"x", callback=told)
    assert alice.flush(30) == 0
    assert failed == ["TOPIC_AUTHORIZATION_FAILED"]
    assert f"resource=Topic:LITERAL:{topic}" in server.log_since_start()
    acls("--add", "--allow-principal", "User:alice", "--producer", "--topic", topic)
    acls(
        *("--add", "--allow-principal", "User:bob", "--consumer", "--topic", topic),
        *("--group", topic),
    )
    alice = Producer(librdkafka(address, "alice", **{"enable.idempotence": True}))
    failed.clear()
    alice.produce(topic, b"x", callback=told)
    assert alice.flush(30) == 0
    assert failed == [None]
    bob = Consumer(
        librdkafka(address, "bob", **{"group.id": topic, "auto.offset.reset": "earliest"})
    )
    bob.subscribe([topic])
    message = bob.poll(30)
    assert message is not None
    assert (message.error(), message.value()) == (None, b"x")
    bob.close()
    other = Consumer(librdkafka(address, "bob", **{"group.id": "another"}))
    other.subscribe([topic])
    message = other.poll(30)
    assert message is not None
    assert message.error().name() == "GROUP_AUTHORIZATION_FAILED"
    other.close()
    assert list(AdminClient(librdkafka(address, "bob")).list_topics(timeout=10).topics) == [topic]


def test_javas_clients_are_refused_and_allowed(guarded, acls, config_of, topic):
    _, address = guarded
    where = ("--bootstrap-server", address)
    as_alice = ("--command-config", config_of("alice"))
    said = tools.java("kafka-topics", *where, *as_alice, "--create", "--topic", topic, code=1)
    assert "TopicAuthorizationException" in said, said
    acls("--add", "--allow-principal", "User:alice", "--operation", "All", "--topic", topic)
    tools.java("kafka-topics", *where, *as_alice, "--create", "--topic", topic)
    listed = tools.java("kafka-topics", *where, *as_alice, "--list").split()
    assert topic in listed
    assert "__consumer_offsets" not in listed
    said = tools.java(
        "kafka-producer-perf-test",
        *("--topic", topic, "--num-records", "100", "--record-size", "10", "--throughput", "-1"),
        *(*where, *as_alice),
    )
    assert "100 records sent" in said, said


def test_who_did_not_log_in_sees_nothing(guarded):
    """The listener without a login is there for brokers: its clients are User:ANONYMOUS."""
    server, _ = guarded
    anonymous = AdminClient({"bootstrap.servers": server.bootstrap})
    assert list(anonymous.list_topics(timeout=10).topics) == []
    with pytest.raises(KafkaException) as refused:
        anonymous.create_acls([OF_EVERYBODY])[OF_EVERYBODY].result(10)
    assert refused.value.args[0].name() == "CLUSTER_AUTHORIZATION_FAILED"
