"""What a login is not to be got round by: other APIs, other listeners, and what is sent while
somebody logs in anew."""

import struct
from functools import partial
from types import SimpleNamespace

import pytest
import trio

from tests.broker.conftest import produce_request
from tests.broker.security.sasl.conftest import JAAS, plain
from wire.kafka.api_keys import ApiKey
from wire.kafka.errors import ErrorCode
from wire.kafka.messages import MetadataRequest
from wire.kafka.messages.security import SaslAuthenticateRequest, SaslHandshakeRequest

FAILED = int(ErrorCode.SASL_AUTHENTICATION_FAILED)
SCRAM = "SCRAM-SHA-256"


def begun(key, version):
    """A request's head, and bytes that might be its body."""
    frame = struct.pack(">hhih", key, version, 1, -1) + bytes(40)
    return struct.pack(">i", len(frame)) + frame


@pytest.mark.parametrize("says_hello", [False, True])
@pytest.mark.parametrize(
    ("key", "version"),
    [
        (ApiKey.PRODUCE, 9),
        (ApiKey.FETCH, 12),
        (ApiKey.ENVELOPE, 0),
        (ApiKey.INITIALIZE_SHARE_GROUP_STATE, 0),
        (ApiKey.WRITE_TXN_MARKERS, 1),
        (ApiKey.CREATE_ACLS, 3),
        (ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0),
        (999, 0),
    ],
)
async def test_attack_4_whatever_is_asked_before_a_login_closes(
    start_sasl, speak, key, version, says_hello
):
    """Also between the handshake and the login."""
    speaker = await speak(await start_sasl())
    if says_hello:
        await speaker.handshake()
    await speaker.client.stream.send_all(begun(key, version))
    assert await speaker.client.is_closed()


@pytest.mark.parametrize("size", [0, -(1 << 31), 524_289])
async def test_attack_1_sizes_after_a_handshake_close(start_sasl, speak, size):
    server = await start_sasl()
    for version in (0, 1):
        speaker = await speak(server)
        await speaker.handshake(version=version)
        await speaker.client.stream.send_all(struct.pack(">i", size))
        assert await speaker.client.is_closed()


@pytest.fixture
async def two_listeners(start_server, connect):
    """{the mechanism of a listener: connect to it}"""
    with trio.socket.socket() as one, trio.socket.socket() as two:
        for each in (one, two):
            await each.bind(("127.0.0.1", 0))
        ports = [each.getsockname()[1] for each in (one, two)]
    await start_server(
        {
            "listeners": f"ONE://127.0.0.1:{ports[0]},TWO://127.0.0.1:{ports[1]}",
            "listener.security.protocol.map": "ONE:SASL_PLAINTEXT,TWO:SASL_PLAINTEXT",
            "listener.name.one.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.one.plain.sasl.jaas.config": JAAS,
            "listener.name.two.sasl.enabled.mechanisms": SCRAM,
        }
    )

    places = [SimpleNamespace(address=("127.0.0.1", port)) for port in ports]
    return dict(zip(("PLAIN", SCRAM), (partial(connect, one) for one in places), strict=True))


async def test_attack_7_what_another_listener_enables_is_not_enabled_here(two_listeners):
    for own, other in (("PLAIN", SCRAM), (SCRAM, "PLAIN")):
        client = await two_listeners[own]()
        answer = await client.call(SaslHandshakeRequest(other))
        assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert answer.mechanisms == [own]
        assert await client.is_closed()
        assert (await (await two_listeners[own]()).call(SaslHandshakeRequest(own))).error_code == 0


# -- re-authentication ---------------------------------------------------------------------------


async def test_attack_29_by_another_mechanism_it_closes(start_sasl, speak):
    """Though the listener has it, and whoever it would be."""
    speaker = await speak(await start_sasl(sasl_enabled_mechanisms=f"PLAIN,{SCRAM}"))
    await speaker.login()
    await speaker.client.send(SaslHandshakeRequest(SCRAM))
    assert await speaker.client.is_closed()


async def test_attack_30_every_ten_milliseconds(start_sasl, speak):
    speaker = await speak(await start_sasl())
    await speaker.login()
    for _ in range(20):
        answer = await speaker.handshake()
        assert answer.error_code in (0, int(ErrorCode.ILLEGAL_SASL_STATE))
        if answer.error_code == 0:
            await speaker.authenticate(plain("alice", "wonder"))
            break
        await trio.sleep(0.01)
    assert (await speaker.client.call(MetadataRequest(topics=[]))).cluster_id


@pytest.mark.parametrize("waits", [True, False])
async def test_attack_31_a_fetch_that_waits_does_not_keep_a_session(
    start_sasl, speak, requests, waits
):
    """It is answered, as it was asked for in time. What comes behind it, or meanwhile, is not."""
    server = await start_sasl(connections_max_reauth_ms="300")
    speaker = await speak(server)
    await speaker.login()
    client = speaker.client
    await client.create_topic("t")
    await client.send(
        requests.fetch(("t", 0, 0), max_wait_ms=1000 if waits else 10_000), version=12
    )
    await trio.sleep(0.4)
    if waits:
        assert (await client.receive()).responses[0].partitions[0].error_code == 0
    await client.send(MetadataRequest(topics=[]))
    assert await client.is_closed()


async def test_attack_32_what_follows_a_failed_login_anew_is_not_served(start_sasl, speak):
    """Not under the old name, which was good until then; of both, only what came before counts."""
    server = await start_sasl()
    speaker, other = await speak(server), await speak(server)
    await speaker.login()
    await other.login("bob", "builder")
    client = speaker.client
    await client.create_topic("t")
    await client.send(produce_request(("t", 0, [b"before"])), version=9)
    await client.send(SaslHandshakeRequest("PLAIN"), version=1)
    await client.send(SaslAuthenticateRequest(plain("alice", "no")), version=2)
    await client.send(produce_request(("t", 0, [b"behind"])), version=9)
    assert (await client.receive()).responses[0].partition_responses[0].error_code == 0
    assert (await client.receive()).error_code == 0
    assert (await client.receive()).error_code == FAILED
    assert await client.is_closed()
    assert (await other.client.fetch("t", 0)).high_watermark == 1
