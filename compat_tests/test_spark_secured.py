"""Spark and a cluster all of whose links are secured: SASL_SSL to the brokers, TLS and passwords to
bookies and ZooKeeper, an authorizer. Both sources: who is let in reads; who is not is told why, and
no secret is in what anybody sees.
"""

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AclOperation, AdminClient, NewTopic, ResourceType
from harness import servers
from harness.certificates import Authority
from harness.secured import MECHANISM, PASSWORDS, SecuredCluster, write_secret
from harness.spark_session import SparkFailed, running_spark
from test_secured_cluster import allow

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(servers.target() != "quire", reason="about our own ledgers"),
    pytest.mark.timeout(300),
]

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
MODULES = {"PLAIN": PLAIN_MODULE, MECHANISM: SCRAM_MODULE}
WRONG = "another secret"
SECRETS = (*PASSWORDS.values(), WRONG, "a secret", "of the bookies")


@pytest.fixture(scope="module")
def cluster(scratch):
    users = " ".join(f'user_{user}="{password}"' for user, password in PASSWORDS.items())
    made = SecuredCluster(
        scratch / "spark-secured",
        **{
            "sasl.enabled.mechanisms": f"{MECHANISM},PLAIN",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": f"{PLAIN_MODULE} required {users};",
            "default.replication.factor": "1",
            "min.insync.replicas": "1",
            "offsets.topic.replication.factor": "1",
        },
    )
    try:
        yield made.start(1, 1)
    finally:
        made.discard()


@pytest.fixture(scope="module")
def spark(scratch):
    """Nothing that Spark, or a worker of it, writes has a secret: looked at when all is done."""
    home = scratch / "spark-secured-session"
    with running_spark(home) as call:
        yield call
    log = (home / "spark.log").read_text(errors="replace")
    assert len(log) > 1000
    told = [secret for secret in SECRETS if secret in log]
    assert not told, f"in Spark's log: {told}"


@pytest.fixture(scope="module")
def topic(cluster):
    """Alice may read it, and bob nothing."""
    admin = AdminClient(cluster.client("admin", log_level=0))
    admin.create_topics([NewTopic("secured", 2, 1, config={"segment.ms": "200"})])[
        "secured"
    ].result(60)
    allow(admin, ResourceType.TOPIC, "secured", AclOperation.READ, AclOperation.DESCRIBE)
    allow(admin, ResourceType.GROUP, "spark-kafka", AclOperation.READ)
    producer = Producer(cluster.client("admin", log_level=0))
    for number in range(200):
        producer.produce("secured", b"value %d" % number, partition=number % 2)
    assert producer.flush(60) == 0
    return "secured"


def login(cluster, user="alice", mechanism=MECHANISM, password=None, **more):
    """What both sources are told of the brokers."""
    words = f'username="{user}" password="{password or PASSWORDS[user]}"'
    return {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": str(cluster.authority.pem),
        "kafka.sasl.mechanism": mechanism,
        "kafka.sasl.jaas.config": f"{MODULES[mechanism]} required {words};",
        **more,
    }


def storage(cluster, **more):
    """What ours is told of bookies and ZooKeeper: files, which have the secrets."""
    settings = {
        "zookeeper.client.secure": "true",
        "zookeeper.ssl.trustStore.location": str(cluster.zookeeper.ca_file),
        "quire.zookeeper.digest.path": str(cluster.digest),
        "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
        "clientTrustStore": str(cluster.authority.pem),
        "clientAuthProviderFactoryClass": ("org.apache.bookkeeper.sasl.SASLClientProviderFactory"),
        "java.security.auth.login.config": str(cluster.jaas),
        "zookeeper.ssl.keyStore.location": str(cluster.pem),
        **more,
    }
    return {f"bookkeeper.{key}": text for key, text in settings.items() if text is not None}


def compared(spark, cluster, topic, options, **of_storage):
    return spark(
        "compare",
        bootstrap=cluster.bootstrap,
        metadata=cluster.uri,
        options={"subscribe": topic, **options},
        more=storage(cluster, **of_storage),
    )


def without_secrets(*texts):
    for text in texts:
        assert text, "no text"
        assert [secret for secret in SECRETS if secret in text] == [], text
    return texts


@pytest.mark.parametrize("mechanism", MODULES)
def test_who_is_let_in_reads_the_same_by_both_sources(spark, cluster, topic, mechanism):
    found = compared(spark, cluster, topic, login(cluster, mechanism=mechanism))
    assert found.get("equal"), found
    assert found["rows"] == 200


def test_a_stream_is_let_in(spark, cluster, topic, scratch, name):
    options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "150"}
    sizes = spark(
        "stream_to_parquet",
        metadata=cluster.uri,
        bootstrap=cluster.bootstrap,
        checkpoint=str(scratch / name("checkpoint")),
        output=str(scratch / name("out")),
        options={**options, **login(cluster), **storage(cluster)},
    )
    assert sum(sizes) == 200


@pytest.mark.parametrize("mechanism", MODULES)
def test_a_wrong_password_is_named_and_not_told(spark, cluster, topic, mechanism):
    options = login(cluster, mechanism=mechanism, password=WRONG)
    found = compared(spark, cluster, topic, options)
    stock, ours = without_secrets(found["stock_error"], found["error"])
    assert "Authentication failed" in stock
    said = f"does not let in 'alice' by {mechanism} (SASL_SSL): SASL_AUTHENTICATION_FAILED"
    assert f"the broker at {cluster.bootstrap} {said}" in ours


def test_what_a_user_may_not_read_is_refused(spark, cluster, topic):
    found = compared(spark, cluster, topic, login(cluster, "bob"))
    stock, ours = without_secrets(found["stock_error"], found["error"])
    assert "TopicAuthorizationException" in stock
    said = f"do not tell 'bob' by {MECHANISM} (SASL_SSL) where {topic} ends"
    assert f"{said}: TOPIC_AUTHORIZATION_FAILED" in ours


def test_a_broker_of_another_authority_is_not_believed(spark, cluster, topic, scratch, name):
    stranger = Authority(scratch / name("authority"))
    options = login(cluster, **{"kafka.ssl.truststore.location": str(stranger.pem)})
    found = compared(spark, cluster, topic, options)
    stock, ours = without_secrets(found["stock_error"], found["error"])
    assert "SSL handshake failed" in stock
    assert "certificate verify failed" in ours
    assert cluster.brokers[0].bootstrap in ours


def test_bookies_and_zookeeper_ask_who_it_is(spark, cluster, topic, scratch, name):
    """These are the gate of a reader of ledgers; each refusal says which of them it was."""
    options = {"subscribe": topic, "metadataTimeoutMs": "20000", "columns": "offset"}
    wrong = write_secret(
        scratch / name("jaas"),
        cluster.jaas.read_text().replace("of the bookies", WRONG),
    )
    digest = write_secret(scratch / name("digest"), f"quire:{WRONG}\n")

    def refused(words, **of_storage):
        with pytest.raises(SparkFailed, match=words) as caught:
            spark(
                "read_quire",
                metadata=cluster.uri,
                options={**options, **storage(cluster, **of_storage)},
            )
        without_secrets(str(caught.value))

    bookie = cluster.storage.bookies[0].id
    refused(
        f"bookie {bookie} does not let us in: .*AUTH with the password",
        **{"java.security.auth.login.config": str(wrong)},
    )
    refused("A bookie that wants a login says the same", clientAuthProviderFactoryClass=None)
    refused("this login has no permission", **{"quire.zookeeper.digest.path": str(digest)})


def test_plans_and_explanations_have_no_secret(spark, cluster, topic):
    options = {"subscribe": topic, **login(cluster)}
    for form, more in (("kafka", {}), ("quire", storage(cluster))):
        text = spark(
            "explained",
            form=form,
            bootstrap=cluster.bootstrap,
            metadata=cluster.uri,
            options={**options, **more},
        )
        assert topic in text or form in text
        without_secrets(text)


def test_an_option_that_nobody_heeds_is_refused(spark, cluster, topic):
    """One of security, of Java's client, that would be passed over here."""
    options = login(cluster, **{"kafka.ssl.cipher.suites": "TLS_AES_128_GCM_SHA256"})
    with pytest.raises(SparkFailed, match=r"kafka\.ssl\.cipher\.suites is not served"):
        spark(
            "read_quire",
            metadata=cluster.uri,
            bootstrap=cluster.bootstrap,
            options={"subscribe": topic, **options, **storage(cluster)},
        )
