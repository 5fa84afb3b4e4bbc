"""What of OAUTHBEARER's settings acts, and what ends the start."""

import subprocess
import sys
from contextlib import AsyncExitStack

import pytest
import trio

from bookie.config_definitions import BOOKIE_CONFIGS
from broker.cluster.config_file import load
from broker.cluster.config_listener import ListenerSettings
from broker.security.sasl.composition import SaslServices, sasl_layer
from broker.security.sasl.oauth.composition import OAuthParts
from runtime.config import ConfigError
from tests.broker.security.sasl.oauth.conftest import jwks, public

PACKAGE = "org.apache.kafka.common.security.oauthbearer"
MODULE = f"{PACKAGE}.OAuthBearerLoginModule"
MINE = "listener.name.clients.oauthbearer."
URL = "sasl.oauthbearer.jwks.endpoint.url"
TEXTS = {
    "listeners": "CLIENTS://127.0.0.1:0",
    "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "sasl.enabled.mechanisms": "OAUTHBEARER",
    MINE + URL: "https://id.example.org/keys",
}


def made_of(texts):
    """(the node's settings, the mechanism, its parts); None takes a setting away."""
    merged = {name: text for name, text in (TEXTS | texts).items() if text is not None}
    node = load("", merged, BOOKIE_CONFIGS)
    settings = ListenerSettings("CLIENTS", {**node.broker_texts, **node.listener_texts})
    parts = OAuthParts(node.broker, None)
    services = SaslServices(node.broker, None, None, {"OAUTHBEARER": parts.make})
    return node, sasl_layer(settings, services).mechanisms["OAUTHBEARER"], parts


def test_what_acts():
    node, mechanism, _ = made_of(
        {
            MINE + "sasl.server.callback.handler.class": f"{PACKAGE}.OAuthBearerValidator"
            "CallbackHandler",
            "sasl.oauthbearer.jwt.validator.class": f"{PACKAGE}.BrokerJwtValidator",
            MINE + "sasl.jaas.config": f"{MODULE} required;",
            MINE + "sasl.oauthbearer.expected.audience": "a, b",
            "listener.name.clients.sasl.oauthbearer.expected.issuer": "https://issuer",
            "sasl.oauthbearer.sub.claim.name": "email",
            "sasl.oauthbearer.expected.issuer": "https://another",
            "listener.name.clients.sasl.oauthbearer.clock.skew.seconds": "7",
        }
    )
    assert [note for note in node.notes if "jwt.validator.class" not in note] == []
    rules = mechanism._rules
    assert (rules.issuer, rules.audience) == ("https://issuer", {"a", "b"})
    assert (rules.skew_seconds, rules.sub_claim, rules.scope_claim) == (7, "email", "scope")
    assert mechanism.source.name == "https://id.example.org:443/keys"


@pytest.mark.parametrize(
    ("texts", "match"),
    [
        ({MINE + URL: None}, "listener CLIENTS has OAUTHBEARER, and no keys"),
        ({MINE + URL: " "}, "listener CLIENTS has OAUTHBEARER, and no keys"),
        ({MINE + URL: "http://id.example.org/keys"}, "listener CLIENTS: http: is not secure"),
        ({MINE + URL: "http://127.0.0.1/keys"}, "listener CLIENTS: http: is not secure"),
        ({MINE + URL: "https://u:hidden@host/"}, "listener CLIENTS: neither a user"),
        ({MINE + URL: "ftp://host/"}, "listener CLIENTS: expected file: or https:"),
        ({MINE + "sasl.jaas.config": "com.example.Krb5LoginModule required;"}, "is not OAuth"),
        (
            {MINE + "sasl.jaas.config": f'{MODULE} required unsecuredLoginStringClaim_sub="a";'},
            "unsecuredLoginStringClaim_sub is not served",
        ),
        (
            {
                MINE + "sasl.jaas.config": f"{MODULE} required"
                ' ssl.truststore.location="/nowhere.pem";'
            },
            "nowhere.pem",
        ),
        (
            {
                MINE + "sasl.jaas.config": f"{MODULE} required"
                ' ssl.truststore.location="/x.jks" ssl.truststore.type="JKS";'
            },
            "only PEM",
        ),
        (
            {MINE + "sasl.server.callback.handler.class": "com.example.Mine"},
            "com.example.Mine is not served; OAuthBearerValidatorCallbackHandler is",
        ),
        (
            {
                MINE + "sasl.server.callback.handler.class": f"{PACKAGE}.internals.unsecured"
                ".OAuthBearerUnsecuredValidatorCallbackHandler"
            },
            "Unsecured.*is not served",
        ),
        ({MINE + "sasl.oauthbearer.jwt.validator.class": "Mine"}, "Mine is not served"),
        ({"sasl.server.callback.handler.class": "Mine"}, "cannot be kept"),
        ({"sasl.oauthbearer.assertion.file": "/x"}, "cannot be kept"),
        ({"sasl.oauthbearer.sub.claim.name": ""}, r"sub\.claim\.name: empty"),
        ({MINE + "sasl.oauthbearer.clock.skew.seconds": "-1"}, "the least is 0"),
        ({MINE + "sasl.oauthbearer.jwks.endpoint.refresh.ms": "soon"}, "'soon' is not allowed"),
    ],
)
def test_what_ends_the_start(texts, match):
    with pytest.raises(ConfigError, match=match) as raised:
        made_of(texts)
    assert "hidden" not in str(raised.value)


def test_http_of_this_machine_by_its_switch():
    _, mechanism, _ = made_of(
        {
            MINE + URL: "http://127.0.0.1:8080/keys",
            "quire.sasl.oauthbearer.jwks.allow.loopback.http": "true",
        }
    )
    assert mechanism.source.name == "http://127.0.0.1:8080/keys"


@pytest.mark.parametrize("data", [None, b"", jwks({"kty": "oct"})])
async def test_28_a_file_without_keys_ends_the_start(tmp_path, data):
    """Attack 28, and CVE-2026-110985: without keys nobody's token can be checked."""
    path = tmp_path / "keys.json"
    if data is not None:
        path.write_bytes(data)
    _, _, parts = made_of({MINE + URL: f"file://{path}"})
    with pytest.raises(ConfigError, match=r"oauthbearer\.jwks.*listener CLIENTS: "):
        async with AsyncExitStack() as stack:
            await parts.start(stack)


async def test_28_a_host_that_is_dead_lets_the_rest_start(caplog):
    _, mechanism, parts = made_of(
        {
            MINE + URL: "http://127.0.0.1:9/keys",
            "quire.sasl.oauthbearer.jwks.allow.loopback.http": "true",
        }
    )
    async with AsyncExitStack() as stack:
        await parts.start(stack)
    assert mechanism.source.keys.keys == ()
    assert "nobody_can_log_in" in caplog.text


@pytest.mark.parametrize(
    "location", ["http://169.254.169.254/latest/meta-data", "file:///etc/passwd", "/keys2"]
)
async def test_28_a_redirect_is_not_followed(nursery, caplog, location):
    """Attack 28: neither to where only this machine gets, nor to a file, nor on the same host."""
    asked = []

    async def answer(stream):
        asked.append(bytes(await stream.receive_some(4096)).split()[1])
        head = f"HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n"
        await stream.send_all(head.encode())
        await stream.aclose()

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    nursery.start_soon(trio.serve_listeners, answer, listeners)
    port = listeners[0].socket.getsockname()[1]
    _, mechanism, parts = made_of(
        {
            MINE + URL: f"http://127.0.0.1:{port}/keys",
            "quire.sasl.oauthbearer.jwks.allow.loopback.http": "true",
            "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": "60000",
        }
    )
    async with AsyncExitStack() as stack:
        await parts.start(stack)
    assert mechanism.source.keys.keys == ()
    assert set(asked) == {b"/keys"}
    failed = [each for each in caplog.records if each.msg == "token_keys_failed"]
    assert "redirects are not followed" in failed[0].args["reason"]


async def test_a_file_with_keys(tmp_path):
    path = tmp_path / "keys.json"
    path.write_bytes(jwks(public("ed")))
    _, mechanism, parts = made_of({MINE + URL: f"file://{path}"})
    async with AsyncExitStack() as stack:
        await parts.start(stack)
    assert [key.kid for key in mechanism.source.keys.keys] == ["ed"]


def test_a_server_without_it_does_not_load_it():
    """They take 0.1 s and 10 MB; with OAUTHBEARER they are there before anybody is served."""
    code = (
        "import sys, quire.cli, broker.node.security as parts; print('joserfc.jws' in sys.modules);"
        "from broker.cluster.config import BrokerConfig;"
        "from broker.cluster.config_listener import ListenerSettings;"
        "made = parts.OAuthParts(BrokerConfig(), None);"
        f"made.make(ListenerSettings('CLIENTS', {{{MINE + URL!r}: 'https://host/'}}));"
        "print('joserfc.jws' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["False", "True"]
