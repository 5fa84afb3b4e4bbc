"""Clients that log in by signed tokens (OAUTHBEARER), whose keys the server gets by https."""

import json
import re
import ssl
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from harness import servers, tools
from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError
from kafka.net.sasl.oauth import AbstractTokenProvider

pytestmark = pytest.mark.skipif(
    servers.target() == "control", reason="the control is started with one listener"
)
PACKAGE = "org.apache.kafka.common.security.oauthbearer"
MODULE = f"{PACKAGE}.OAuthBearerLoginModule"
ISSUER = "https://id.example.org"
COUNT = 300


class Issuer:
    """Signs tokens, and tells everybody by which keys."""

    def __init__(self, folder):
        self.keys = {}
        self.asked = 0
        self.certificate = folder / "keys.pem"
        key = folder / "keys-key.pem"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
             "-nodes", "-keyout", key, "-out", self.certificate, "-subj", "/CN=keys", "-days", "2",
             "-addext", f"subjectAltName=IP:{servers.HOST}"],
            check=True, capture_output=True,
        )  # fmt: skip
        self.add("rsa", RSAKey.generate_key(2048), "RS256")
        self._server = ThreadingHTTPServer((servers.HOST, 0), self._handler())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"https://{servers.HOST}:{self._server.server_address[1]}/keys"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def _handler(issuer):  # `self` is the handler
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                issuer.asked += 1
                keys = [
                    {**key.as_dict(private=False), "kid": kid, "use": "sig"}
                    for kid, (key, _) in issuer.keys.items()
                ]
                body = json.dumps({"keys": keys}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        return Handler

    def add(self, kid, key, algorithm):
        self.keys[kid] = (key, algorithm)

    def token(self, user="alice", seconds=600, kid="rsa", **more):
        now = int(time.time())
        claims = {
            "iss": ISSUER,
            "aud": "logs",
            "sub": user,
            "iat": now,
            "exp": now + seconds,
            "scope": "all",
            **more,
        }
        key, algorithm = self.keys[kid]
        return jwt.encode({"alg": algorithm, "kid": kid}, claims, key, algorithms=[algorithm])

    def stop(self):
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(scope="module")
def oauth(scratch):
    """(server, address of its listener, issuer)"""
    folder = scratch / "issuer"
    folder.mkdir()
    issuer = Issuer(folder)
    port = servers.free_port()
    one = servers.make_server(scratch / "oauth")
    listeners = f"PLAINTEXT://{one.bootstrap},CLIENTS://{servers.HOST}:{port}"
    mine = "listener.name.clients.oauthbearer"
    one.settings |= {
        "listeners": listeners,
        "advertised.listeners": listeners,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
        "listener.name.clients.sasl.enabled.mechanisms": "OAUTHBEARER",
        f"{mine}.sasl.oauthbearer.jwks.endpoint.url": issuer.url,
        f"{mine}.sasl.oauthbearer.expected.issuer": ISSUER,
        f"{mine}.sasl.oauthbearer.expected.audience": "logs",
        f"{mine}.sasl.server.callback.handler.class": f"{PACKAGE}"
        ".OAuthBearerValidatorCallbackHandler",
        f"{mine}.sasl.jaas.config": f"{MODULE} required"
        f' ssl.truststore.location="{issuer.certificate}" ssl.truststore.type="PEM";',
        f"{mine}.connections.max.reauth.ms": "10000",
    }
    one.start()
    yield one, f"{servers.HOST}:{port}", issuer
    one.discard()
    issuer.stop()


def librdkafka(address, make_token, seconds=600, **more):
    """`make_token` is called whenever the client wants one."""

    def wanted(_):
        return make_token(), time.time() + seconds, "alice", {"pool": "one"}

    return {
        "bootstrap.servers": address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": wanted,
        **more,
    }


def test_librdkafka_writes_and_reads_while_tokens_end(oauth, topic):
    """Its tokens last eight seconds, which a busy machine needs, and it writes for ten."""
    server, address, issuer = oauth
    options = librdkafka(address, lambda: issuer.token(seconds=8), seconds=8)
    failed = []
    producer = Producer({**options, "enable.idempotence": True})
    for number in range(COUNT):
        producer.produce(topic, str(number), callback=lambda e, _: failed.append(e) if e else None)
        producer.poll(10 / COUNT)
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
    assert "session_expired" not in server.log_since_start()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"aud": "other"}, "for another audience"),
        ({"iss": "https://evil"}, "another issuer"),
        ({"exp": 1, "iat": 0}, "expired"),
    ],
)
def test_librdkafka_is_refused(oauth, change, reason):
    server, address, issuer = oauth
    token = issuer.token(user="mallory", **change)
    errors = []
    producer = Producer(librdkafka(address, lambda: token, error_cb=errors.append))
    with pytest.raises(KafkaException):
        producer.list_topics(timeout=2)
    producer.poll(0)
    assert any("uthentication" in error.str() for error in errors)
    said = server.log_since_start()
    assert re.search(rf'authentication_failed .*reason="?{reason}"? user=mallory', said), said
    assert token.split(".")[2] not in said


def test_a_key_that_the_issuer_made_later(oauth):
    """The first login by it is refused and asks for the keys; the client tries again by itself."""
    _, address, issuer = oauth
    asked = issuer.asked
    issuer.add("later", ECKey.generate_key("P-256"), "ES256")
    producer = Producer(librdkafka(address, lambda: issuer.token(kid="later")))
    assert producer.list_topics(timeout=20).brokers
    assert issuer.asked == asked + 1


class Provider(AbstractTokenProvider):
    def __init__(self, make_token):
        super().__init__()
        self._make_token = make_token

    def token(self):
        return self._make_token()

    def extensions(self):
        return {"pool": "two"}


def test_kafka_python_writes_and_reads(oauth, topic):
    _, address, issuer = oauth

    def options(**more):
        return {
            "bootstrap_servers": address,
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "OAUTHBEARER",
            "sasl_oauth_token_provider": Provider(lambda: issuer.token(**more)),
        }

    producer = KafkaProducer(**options())
    for number in range(COUNT):
        producer.send(topic, str(number).encode())
    producer.flush(30)
    producer.close()
    consumer = KafkaConsumer(
        topic, auto_offset_reset="earliest", consumer_timeout_ms=10_000, **options()
    )
    got = [int(next(consumer).value) for _ in range(COUNT)]
    consumer.close()
    assert sorted(got) == list(range(COUNT))
    with pytest.raises(KafkaError):
        KafkaProducer(**options(aud="other"), bootstrap_timeout_ms=3000)


def test_javas_tools_log_in_and_anew(oauth, topic, tmp_path, monkeypatch):
    """By a token in a file; a producer of twelve seconds, while sessions last ten (KIP-368)."""
    server, address, issuer = oauth
    token = tmp_path / "token.jwt"
    token.write_text(issuer.token())
    # Kafka reads no file that this does not allow.
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=file://{token}"
    files = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.files={token}"
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"{allowed} {files}")
    config = tmp_path / "client.properties"
    config.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\n"
        f"sasl.jaas.config={MODULE} required;\n"
        f"sasl.login.callback.handler.class={PACKAGE}.OAuthBearerLoginCallbackHandler\n"
        f"sasl.oauthbearer.token.endpoint.url=file://{token}\n"
    )
    where = ("--bootstrap-server", address, "--command-config", str(config))
    tools.java("kafka-topics", *where, "--create", "--topic", topic)
    said = tools.java(
        "kafka-producer-perf-test",
        *("--topic", topic, "--num-records", "1200", "--record-size", "100"),
        *("--throughput", "100", "--bootstrap-server", address, "--command-config", str(config)),
    )
    assert re.search(r"^1200 records sent", said, re.M), said
    assert "session_expired" not in server.log_since_start()
    token.write_text(issuer.token(aud="other"))
    said = tools.java("kafka-topics", *where, "--list", code=1)
    assert "invalid_token" in said or "Authentication failed" in said, said
