"""What of SASL's settings acts, and what ends the start: nobody finds out at his first login."""

import pytest

from bookie.config_definitions import BOOKIE_CONFIGS
from broker.cluster.config import BrokerConfig
from broker.cluster.config_file import load
from broker.cluster.config_listener import ListenerSettings
from broker.security.sasl.composition import SaslServices, sasl_layer
from runtime.config import ConfigError

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
JAAS = "listener.name.clients.plain.sasl.jaas.config"
TEXTS = {
    "listeners": "CLIENTS://127.0.0.1:0",
    "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    JAAS: f'{MODULE} required user_alice="hidden away";',
}


def layer(**texts):
    """Of the listener CLIENTS; a value of None takes a setting away."""
    given = {name.replace("__", "."): text for name, text in texts.items()}
    merged = {name: text for name, text in (TEXTS | given).items() if text is not None}
    node = load("", merged, BOOKIE_CONFIGS)
    settings = ListenerSettings("CLIENTS", {**node.broker_texts, **node.listener_texts})
    return node, sasl_layer(settings, SaslServices(node.broker, None, None))


def test_what_acts_is_no_setting_without_effect():
    node, made = layer(listener__name__clients__sasl__server__max__receive__size="9000")
    assert node.notes == ()
    assert list(made.mechanisms) == ["PLAIN"]
    assert made.limits.receive_bytes_max == 9000
    assert "hidden away" not in repr(node)


def test_the_mechanisms_own_setting_wins_over_the_listeners_and_that_over_the_brokers():
    def reauthentication(**texts):
        return layer(**texts)[1].limits.reauthentication_ms

    name = "connections__max__reauth__ms"
    assert reauthentication(**{name: "5"}) == {"PLAIN": 5}
    of_listener = {name: "5", f"listener__name__clients__{name}": "6"}
    assert reauthentication(**of_listener) == {"PLAIN": 6}
    of_mechanism = {**of_listener, f"listener__name__clients__plain__{name}": "7"}
    assert reauthentication(**of_mechanism) == {"PLAIN": 7}
    of_another = {**of_listener, f"listener__name__others__plain__{name}": "8"}
    assert reauthentication(**of_another) == {"PLAIN": 6}


@pytest.mark.parametrize(
    ("texts", "match"),
    [
        (
            {"sasl.enabled.mechanisms": None},
            r"^sasl\.enabled\.mechanisms: GSSAPI \(Kerberos\), for listener CLIENTS, is not served",
        ),
        (
            {"listener.name.clients.sasl.enabled.mechanisms": "PLAIN,GSSAPI"},
            r"^listener\.name\.clients\.sasl\.enabled\.mechanisms: GSSAPI \(Kerberos\), for list",
        ),
        ({"sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256"}, "SCRAM-SHA-256.*is not served"),
        ({"sasl.enabled.mechanisms": "plain"}, "plain, for listener CLIENTS, is not served"),
        ({"sasl.enabled.mechanisms": ""}, "nobody could log in"),
        ({JAAS: None}, f"{JAAS}: must have the users of PLAIN"),
        ({JAAS: ""}, "expected a login module"),
        ({JAAS: f"{MODULE} required;"}, "no user_NAME"),
        ({JAAS: f'{MODULE} required user_bob="";'}, "user bob has no password"),
        ({JAAS: f'{MODULE} required user_bob="hidden away'}, "a quote that does not end"),
        ({JAAS: f'{MODULE} maybe user_bob="hidden away";'}, "expected required, requisite"),
        ({JAAS: f"{TEXTS[JAAS]} {TEXTS[JAAS]}"}, "more than one login module"),
        ({JAAS: 'com.example.Krb5LoginModule required user_a="hidden away";'}, "is not Plain"),
        ({"listener.name.clients.connections.max.reauth.ms": "soon"}, "'soon' is not allowed"),
    ],
)
def test_what_ends_the_start(texts, match):
    with pytest.raises(ConfigError, match=match) as raised:
        layer(**texts)
    assert "hidden away" not in str(raised.value)


def test_brokers_meet_where_the_protocol_says():
    config = BrokerConfig.parse(
        {
            "listeners": "SASL_SSL://127.0.0.1:0,PLAINTEXT://127.0.0.1:1",
            "security.inter.broker.protocol": "SASL_SSL",
        }
    )
    assert config.listener_for_brokers == "SASL_SSL"


@pytest.mark.parametrize(
    ("texts", "match"),
    [
        ({"security.inter.broker.protocol": "SASL_PLAINTEXT"}, "there is no listener SASL_PLAIN"),
        ({"security.inter.broker.protocol": "TLS"}, "security.inter.broker.protocol"),
        (
            {"security.inter.broker.protocol": "SSL", "inter.broker.listener.name": "SSL"},
            "only one of it and inter.broker.listener.name",
        ),
        (
            {
                "security.inter.broker.protocol": "SSL",
                "listener.security.protocol.map": "SSL:SASL_SSL",
            },
            "no listener SSL of this protocol",
        ),
    ],
)
def test_a_protocol_between_brokers_that_no_listener_has(texts, match):
    with pytest.raises(ConfigError, match=match):
        BrokerConfig.parse({"listeners": "SSL://127.0.0.1:0", **texts})
