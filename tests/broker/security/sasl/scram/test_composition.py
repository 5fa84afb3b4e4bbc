"""What a listener's settings may say of SCRAM, and what ends the start."""

import random

import pytest

from bookie.config_definitions import BOOKIE_CONFIGS
from broker.cluster.config_file import load
from broker.cluster.config_listener import ListenerSettings
from broker.security.sasl.composition import SaslServices, sasl_layer
from broker.security.sasl.scram.composition import scram_mechanism
from broker.security.sasl.scram.hashes import BY_NAME
from runtime.config import ConfigError

MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
JAAS = "listener.name.clients.scram-sha-256.sasl.jaas.config"
TEXTS = {
    "listeners": "CLIENTS://127.0.0.1:0",
    "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "sasl.enabled.mechanisms": "SCRAM-SHA-512,SCRAM-SHA-256",
}


def layer(**texts):
    node = load("", TEXTS | texts, BOOKIE_CONFIGS)
    settings = ListenerSettings("CLIENTS", {**node.broker_texts, **node.listener_texts})
    makers = {
        name: scram_mechanism(kind, None, None, b"secret", random.Random(0))
        for name, kind in BY_NAME.items()
    }
    return node, sasl_layer(settings, SaslServices(node.broker, None, None, makers))


@pytest.mark.parametrize("text", [None, f"{MODULE} required;"])
def test_users_need_no_setting_and_kafkas_module_is_taken(text, caplog):
    node, made = layer(**({} if text is None else {JAAS: text}))
    assert list(made.mechanisms) == ["SCRAM-SHA-512", "SCRAM-SHA-256"]
    assert {one.name for one in made.mechanisms.values()} == set(BY_NAME)
    assert node.notes == ()
    assert not caplog.records


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("com.example.PlainLoginModule required;", "com.example.PlainLoginModule is not Scram"),
        (f'{MODULE} required user_a="hidden away";', "has no option user_a"),
        (f'{MODULE} required tokenauth="true";', "has no option tokenauth"),
        ("", "expected a login module"),
    ],
)
def test_what_ends_the_start(text, match):
    with pytest.raises(ConfigError, match=match) as raised:
        layer(**{JAAS: text})
    assert raised.value.name == JAAS
    assert "hidden away" not in str(raised.value)
