"""librdkafka's own tests of logins: those that librdkafka_tests.txt calls `secured`.

Each gets a listener of the kind that it is about, of one server, and what librdkafka's makers give
their runner by environment: a provider of tokens (OIDC).
"""

import functools
import json
import os
import threading
import time
import urllib.parse
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import librdkafka_suite
import pytest
from harness import figures, servers
from harness.certificates import PASSWORD, Authority, openssl
from joserfc import jwt
from joserfc.jwk import RSAKey

WANTED = [test for test in librdkafka_suite.read_list()[0] if "secured" in test.words]
pytestmark = [
    pytest.mark.suite,
    pytest.mark.skipif(
        servers.target() == "control", reason="the control is started with one listener"
    ),
]
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
OAUTH = "org.apache.kafka.common.security.oauthbearer"
ISSUER, AUDIENCE = "https://id.example.org", "logs"
USER, USERS_PASSWORD = "testuser", "test user's"
#: The one of tokens waits for some 150 s, five at a time.
TIMEOUT_S = 400
#: A session's length; librdkafka's test of logins anew takes some twenty of them.
SESSION_MS = 2000
#: Of a token. A client gets its next one when four fifths are over: the last fifth must be longer
#: than a session, or it would log in anew sooner than after a second, which servers refuse.
TOKEN_SECONDS = 20
LISTENERS = {"PASSWORDS": "SASL_SSL", "TOKENS": "SASL_PLAINTEXT"}


class Provider:
    """Gives tokens to whoever posts to /valid, and tokens of the past at /expired (RFC 6749, 4.4);
    «jwt-bearer» (RFC 7523) with the assertion's signature checked, as a provider does. Who gets
    /valid is asked for what a virtual machine's metadata service wants to know (Azure's)."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._key = RSAKey.generate_key(2048, parameters={"kid": "one"})
        self.keys = folder / "keys.json"
        public = {**self._key.as_dict(private=False), "use": "sig", "alg": "RS256"}
        self.keys.write_text(json.dumps({"keys": [public]}))
        self.client_key = folder / "client.key"
        self.client_key_encrypted = folder / "client-encrypted.key"
        openssl("genrsa", "-out", str(self.client_key), "2048")
        openssl(
            *("rsa", "-in", str(self.client_key), "-aes256", "-passout", f"pass:{PASSWORD}"),
            *("-out", str(self.client_key_encrypted)),
        )
        self._client = RSAKey.import_key(self.client_key.read_text())
        self._server = ThreadingHTTPServer((servers.HOST, 0), self._handler())
        self.url = f"http://{servers.HOST}:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def answer(self, path: str, form: dict[str, str]) -> tuple[int, dict]:
        grant, scope = form.get("grant_type", ""), form.get("scope", "")
        if scope == "invalid_scope":
            return 400, {"error": "invalid_scope", "error_description": "no such scope"}
        if grant.endswith("jwt-bearer"):
            try:
                jwt.decode(form["assertion"], self._client, algorithms=["RS256"])
            except Exception as error:  # whatever is wrong with it
                return 400, {"error": "invalid_grant", "error_description": str(error)}
        return 200, self.tokens(path)

    def metadata_answer(self, query: dict[str, str]) -> tuple[int, dict]:
        missing = [name for name in ("api-version", "resource", "client_id") if name not in query]
        if missing:
            return 400, {"error": "invalid_request", "error_description": f"without {missing}"}
        return 200, self.tokens("/valid")

    def tokens(self, path: str) -> dict:
        seconds = -3600 if path == "/expired" else TOKEN_SECONDS
        now = int(time.time())
        claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": USER, "client_id": USER, "scope": "all"}
        claims |= {"iat": min(now, now + seconds - 60), "exp": now + seconds}
        token = jwt.encode({"alg": "RS256", "kid": "one"}, claims, self._key)
        return {"access_token": token, "token_type": "Bearer", "expires_in": seconds}

    def _handler(provider):  # `self` is the handler
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
                self._send(*provider.answer(self.path, dict(urllib.parse.parse_qsl(body))))

            def do_GET(self):
                query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query))
                self._send(*provider.metadata_answer(query))

            def _send(self, status, said):
                answer = json.dumps(said).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_):
                pass

        return Handler

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@dataclass(frozen=True, slots=True)
class Secured:
    server: servers.Server
    addresses: dict[str, str]
    authority: Authority
    provider: Provider


@pytest.fixture(scope="module")
def secured(scratch):
    authority = Authority(scratch / "authority")
    pem = authority.signed("server", "/CN=server")
    provider = Provider(scratch / "provider")
    one = servers.make_server(scratch / "librdkafka-secured")
    addresses = {name: f"{servers.HOST}:{servers.free_port()}" for name in LISTENERS}
    listeners = [f"PLAINTEXT://{one.bootstrap}", *(f"{a}://{b}" for a, b in addresses.items())]
    tokens = "listener.name.tokens.oauthbearer"
    one.settings |= {
        "listeners": ",".join(listeners),
        "advertised.listeners": ",".join(listeners),
        "listener.security.protocol.map": ",".join(
            f"{a}:{b}" for a, b in {"PLAINTEXT": "PLAINTEXT", **LISTENERS}.items()
        ),
        "connections.max.reauth.ms": str(SESSION_MS),
        "quire.clip.replication.factor": "true",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(pem),
        "listener.name.passwords.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.passwords.plain.sasl.jaas.config": (
            f'{PLAIN} required user_{USER}="{USERS_PASSWORD}";'
        ),
        "listener.name.tokens.sasl.enabled.mechanisms": "OAUTHBEARER",
        f"{tokens}.sasl.oauthbearer.jwks.endpoint.url": provider.keys.as_uri(),
        f"{tokens}.sasl.oauthbearer.expected.issuer": ISSUER,
        f"{tokens}.sasl.oauthbearer.expected.audience": AUDIENCE,
        f"{tokens}.sasl.server.callback.handler.class": (
            f"{OAUTH}.OAuthBearerValidatorCallbackHandler"
        ),
        f"{tokens}.sasl.jaas.config": f"{OAUTH}.OAuthBearerLoginModule required;",
    }
    one.start()
    yield Secured(one, addresses, authority, provider)
    one.discard()
    provider.stop()


def passwords(secured: Secured) -> tuple[dict[str, str], dict[str, str]]:
    properties = {
        "security.protocol": "sasl_ssl",
        "ssl.ca.location": str(secured.authority.pem),
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "sasl.password": USERS_PASSWORD,
    }
    return properties, {}


def tokens(secured: Secured) -> tuple[dict[str, str], dict[str, str]]:
    provider = secured.provider
    properties = {
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": USER,
        "sasl.oauthbearer.client.secret": USERS_PASSWORD,
        "sasl.oauthbearer.token.endpoint.url": f"{provider.url}/valid",
        "sasl.oauthbearer.scope": "test",
    }
    environment = {
        "VALID_OIDC_URL": f"{provider.url}/valid",
        "EXPIRED_TOKEN_OIDC_URL": f"{provider.url}/expired",
        # Nobody is there.
        "INVALID_OIDC_URL": f"http://{servers.HOST}:{servers.free_port()}/none",
        "OAUTHBEARER_CLIENT_PRIVATE_KEY": str(provider.client_key),
        "OAUTHBEARER_CLIENT_PRIVATE_KEY_ENCRYPTED": str(provider.client_key_encrypted),
        "OAUTHBEARER_CLIENT_PRIVATE_KEY_PASSWORD": PASSWORD,
    }
    return properties, environment


#: By test, or a part of one: the listeners that it is run against, each with what its clients are
#: told. A part skips itself where it has nothing to do with the mechanism.
BOTH = {"PASSWORDS": passwords, "TOKENS": tokens}
RUNS = {
    "0126_oauthbearer_oidc": {"TOKENS": tokens},
    "0135_sasl_credentials": {"PASSWORDS": passwords},
    "0142_reauthentication/producer": BOTH,
    "0142_reauthentication/share": BOTH,
    "0142_reauthentication/do_test_oauthbearer": {"TOKENS": tokens},
    "0142_reauthentication/do_test_reauth_failure": {"PASSWORDS": passwords},
}


def runs(test):
    return RUNS[f"{test.name}/{test.part}" if test.part else test.name]


SUITE = os.environ.get("QUIRE_SUITE", "core")
CASES = [
    (test, listener)
    for test in WANTED
    if SUITE != "slow" or "slow" in test.words
    for listener in runs(test)
]


def case(test, listener):
    marks = []
    if "slow" in test.words and SUITE == "core":
        marks.append(pytest.mark.skip(reason="slow: only with QUIRE_SUITE=all or slow"))
    return pytest.param(test, listener, id=f"{test}-{listener.lower()}", marks=marks)


@pytest.mark.timeout(2 * TIMEOUT_S + 60)
@pytest.mark.parametrize(("test", "listener"), [case(*one) for one in CASES])
def test_librdkafka_secured(test, listener, secured, tmp_path):
    properties, environment = runs(test)[listener](secured)
    run = functools.partial(
        librdkafka_suite.run_test,
        test,
        secured.addresses[listener],
        tmp_path,
        properties=properties,
        environment=environment,
        timeout_s=TIMEOUT_S,
    )
    outcome = run()
    if not outcome.passed:  # as test_librdkafka.py does: it has time limits of its own
        figures.add(f"librdkafka: {outcome.name} failed at the first try")
        print("\n".join(outcome.output.splitlines()[-60:]))
        outcome = run()
    figures.add(f"librdkafka: {outcome.name} over {listener.lower()}, {outcome.seconds:.0f} s")
    if not outcome.passed:
        print("\n".join(outcome.output.splitlines()[-120:]))
    assert outcome.verdict == "PASSED"
