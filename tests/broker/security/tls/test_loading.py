"""What of TLS's settings acts, and what ends the start: nobody finds out at his first handshake."""

import ssl
from pathlib import Path

import pytest

from bookie.config_definitions import BOOKIE_CONFIGS
from broker.cluster.config_file import load as load_file
from broker.cluster.config_listener import ListenerSettings
from broker.security.tls.composition import tls_server
from broker.security.tls.loading import load
from runtime.config import ConfigError
from runtime.spread import Spread
from runtime.timers import Timers
from runtime.turn import Turn
from tests.broker.security.tls.conftest import rsa_key

STORES = Path(__file__).parent / "stores"
PREFIX = "listener.name.clients."


@pytest.fixture
def settings(authority, write):
    """settings({name: text}): of listener CLIENTS, beside a PEM key store; None takes one away."""
    pem = write("server.pem", authority.made("CN=server").pem)
    base = {
        "listeners": "CLIENTS://127.0.0.1:0",
        "listener.security.protocol.map": "CLIENTS:SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": pem,
    }

    def make(more):
        texts = {name: text for name, text in {**base, **more}.items() if text is not None}
        node = load_file("", texts, BOOKIE_CONFIGS)
        others = [name for name in more if name.startswith("listener.name.others.")]
        assert [note.partition(" ")[0] for note in node.notes] == others
        return ListenerSettings("CLIENTS", {**node.broker_texts, **node.listener_texts})

    return make


def test_the_listeners_own_setting_wins(settings, authority, write):
    own = write("own.pem", authority.made("CN=own").pem)
    loaded = load(settings({f"{PREFIX}ssl.keystore.location": own}), has_sasl=False)
    assert loaded.certificate.subject.rfc4514_string() == "CN=own"
    of_another = {"listener.name.others.ssl.keystore.location": own}
    loaded = load(settings(of_another), has_sasl=False)
    assert loaded.certificate.subject.rfc4514_string() == "CN=server"


def test_pem_in_the_settings_themselves(settings, authority):
    made = authority.made("CN=inline")
    texts = {
        "ssl.keystore.location": None,
        "ssl.keystore.key": made.key_pem.decode(),
        "ssl.keystore.certificate.chain": made.chain_pem.decode(),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": authority.pem.decode(),
        "ssl.client.auth": "required",
    }
    loaded = load(settings(texts), has_sasl=False)
    assert loaded.certificate == made.certificate
    assert loaded.context.verify_mode is ssl.CERT_REQUIRED
    assert len(loaded.context.get_ca_certs()) == 1
    assert "PRIVATE KEY" not in repr(loaded)
    assert "PRIVATE KEY" not in repr(settings(texts).tls())


def test_stores_of_java(settings, write):
    key = write("server.jks", (STORES / "server.jks").read_bytes())
    texts = {
        "ssl.keystore.type": None,  # JKS
        "ssl.keystore.location": key,
        "ssl.keystore.password": "store pass",
        "ssl.truststore.location": str(STORES / "trust.p12"),
        "ssl.truststore.password": "store pass",
        "ssl.client.auth": "requested",
    }
    loaded = load(settings(texts), has_sasl=False)
    assert loaded.certificate.subject.rfc4514_string() == "CN=server,O=Example"
    assert loaded.context.verify_mode is ssl.CERT_OPTIONAL
    assert set(loaded.files) == {key, str(STORES / "trust.p12")}


@pytest.mark.parametrize(
    ("texts", "lowest", "highest"),
    [
        ({}, "TLSv1_2", "TLSv1_3"),
        ({"ssl.enabled.protocols": "TLSv1.3"}, "TLSv1_3", "TLSv1_3"),
        ({"ssl.protocol": "TLSv1.2"}, "TLSv1_2", "TLSv1_2"),
        ({"ssl.protocol": "TLS"}, "TLSv1_2", "TLSv1_3"),
        (
            {"ssl.cipher.suites": "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"},
            "TLSv1_2",
            "TLSv1_2",
        ),
        (
            {
                "ssl.cipher.suites": "TLS_AES_256_GCM_SHA384,TLS_CHACHA20_POLY1305_SHA256,"
                "TLS_AES_128_GCM_SHA256"
            },
            "TLSv1_3",
            "TLSv1_3",
        ),
    ],
)
def test_versions(settings, texts, lowest, highest):
    context = load(settings(texts), has_sasl=False).context
    assert (context.minimum_version.name, context.maximum_version.name) == (lowest, highest)


def test_suites_of_tls_1_2_are_those_that_are_named(settings):
    name = "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"
    context = load(settings({"ssl.cipher.suites": name}), has_sasl=False).context
    of_1_2 = [one["name"] for one in context.get_ciphers() if one["protocol"] != "TLSv1.3"]
    assert of_1_2 == ["ECDHE-RSA-AES256-GCM-SHA384"]


@pytest.mark.parametrize(
    ("texts", "match"),
    [
        ({"ssl.keystore.location": None}, "ssl.keystore.location.*must be set"),
        ({"ssl.keystore.location": "/none.pem"}, "No such file"),
        ({"ssl.keystore.location": "/"}, "directory"),
        ({"ssl.keystore.type": None}, "ssl.keystore.password.*must be set"),
        (
            {"ssl.keystore.type": None, "ssl.keystore.password": "secret"},
            "is PEM: ssl.keystore.type must say so",
        ),
        ({"ssl.keystore.password": "secret"}, "is not for PEM; ssl.key.password is"),
        ({"ssl.keystore.key": "x"}, "ssl.keystore.certificate.chain go together"),
        (
            {"ssl.keystore.key": "x", "ssl.keystore.certificate.chain": "y"},
            "and ssl.keystore.location are set",
        ),
        ({"ssl.client.auth": "required"}, "nobody is believed"),
        ({"ssl.client.auth": "always"}, "expected one of none, requested, required"),
        ({"ssl.truststore.password": "secret"}, "ssl.truststore.location is not"),
        ({"ssl.truststore.certificates": "x"}, "is for ssl.truststore.type=PEM"),
        (
            {"ssl.truststore.certificates": "x", "ssl.truststore.type": "PEM"},
            "ssl.truststore.certificates.*no certificates",
        ),
        ({"ssl.enabled.protocols": "TLSv1.1"}, "'TLSv1.1' is unknown"),
        ({"ssl.cipher.suites": "TLS_NULL"}, "TLS_NULL is not served; these are"),
        ({"ssl.cipher.suites": "TLS_AES_256_GCM_SHA384"}, "taken or left together"),
        (
            {
                "ssl.cipher.suites": "TLS_RSA_WITH_AES_128_GCM_SHA256",
                "ssl.enabled.protocols": "TLSv1.3",
            },
            "no version of TLS is left",
        ),
        ({f"{PREFIX}ssl.key.password": "secret", "ssl.keystore.location": "/n"}, "No such file"),
    ],
)
def test_what_ends_the_start(settings, texts, match):
    with pytest.raises(ConfigError, match=match) as raised:
        load(settings(texts), has_sasl=False)
    assert "secret" not in str(raised.value)


def test_the_name_in_the_message_is_the_one_that_is_set(settings):
    name = f"{PREFIX}ssl.keystore.location"
    with pytest.raises(ConfigError, match=rf"^{name}, of listener CLIENTS: ") as raised:
        load(settings({name: "/none.pem"}), has_sasl=False)
    assert raised.value.name == name


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o666])
def test_a_key_that_everybody_may_read_is_refused(settings, authority, write, mode):
    path = write("open.pem", authority.made("CN=server").pem, mode)
    with pytest.raises(ConfigError, match=rf"everybody may read it \(mode 0{mode:o}\)"):
        load(settings({"ssl.keystore.location": path}), has_sasl=False)
    path = write("open.pem", authority.made("CN=server").pem, 0o640)
    load(settings({"ssl.keystore.location": path}), has_sasl=False)
    trust = write("trust.pem", authority.pem, mode)
    of_trust = {"ssl.truststore.type": "PEM", "ssl.truststore.location": trust}
    load(settings(of_trust), has_sasl=False)


def test_a_key_that_is_too_weak_for_openssl(settings, authority, write):
    path = write("weak.pem", authority.made("CN=server", rsa_key(1024)).pem)
    with pytest.raises(ConfigError, match=r"OpenSSL does not take it: .*KEY_TOO_SMALL"):
        load(settings({"ssl.keystore.location": path}), has_sasl=False)


def test_a_rule_that_cannot_be_applied_ends_the_start(settings):
    made = settings({f"{PREFIX}ssl.principal.mapping.rules": "RULE:CN=.*/$1/"})
    turn = Turn()
    with pytest.raises(ConfigError, match=f"^{PREFIX}ssl.principal.mapping.rules, of listener"):
        tls_server(made, _broker(), turn, Timers(), has_sasl=False)
    assert Spread(turn, 1)


def _broker():
    return load_file("", {}, BOOKIE_CONFIGS).broker
