"""A server with one listener that asks who a client is, and clients who speak SASL by hand."""

import dataclasses

import pytest

from wire.kafka.messages.security import SaslAuthenticateRequest, SaslHandshakeRequest

JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required"
    ' user_alice="wonder" user_bob="builder";'
)
LISTENER = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS,
}


def plain(user, password, authorization=""):
    return f"{authorization}\0{user}\0{password}".encode()


@pytest.fixture
def start_sasl(start_server):
    async def start(**settings):
        more = {name.replace("_", "."): text for name, text in settings.items()}
        return await start_server({**LISTENER, **more})

    return start


@dataclasses.dataclass
class Speaker:
    """`handshake`, then `authenticate`."""

    client: object

    async def handshake(self, mechanism="PLAIN", version=1):
        return await self.client.call(SaslHandshakeRequest(mechanism), version)

    async def authenticate(self, token, version=2):
        return await self.client.call(SaslAuthenticateRequest(token), version)

    async def login(self, user="alice", password="wonder", version=2):
        assert (await self.handshake()).error_code == 0
        return await self.authenticate(plain(user, password), version)


@pytest.fixture
def speak():
    async def speak(server):
        return Speaker(await server.connect())

    return speak
