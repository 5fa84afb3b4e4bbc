"""What may be said on a SASL listener before, while and after somebody logs in."""

import random
import struct

import pytest
import trio

from broker.security.sasl.front import FRAME_BYTES_MAX
from tests.broker.security.sasl.conftest import plain
from wire.kafka.errors import ErrorCode
from wire.kafka.messages import (
    AlterClientQuotasRequest,
    ApiVersionsRequest,
    DescribeClusterRequest,
    MetadataRequest,
)
from wire.kafka.messages.configs import AlterClientQuotasRequestEntryData, EntityData, OpData
from wire.kafka.messages.security import SaslAuthenticateRequest, SaslHandshakeRequest

VERSIONS = ApiVersionsRequest(client_software_name="t", client_software_version="1")
FAILED = int(ErrorCode.SASL_AUTHENTICATION_FAILED)


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_plain_by_each_version(start_sasl, speak, version):
    speaker = await speak(await start_sasl())
    assert (await speaker.client.call(VERSIONS)).error_code == 0
    answer = await speaker.handshake()
    assert (answer.error_code, answer.mechanisms) == (0, ["PLAIN"])
    answer = await speaker.authenticate(plain("alice", "wonder"), version)
    assert (answer.error_code, answer.auth_bytes, answer.session_lifetime_ms) == (0, b"", 0)
    assert (await speaker.client.call(MetadataRequest(topics=[]))).cluster_id


async def test_raw_tokens_after_handshake_0(start_sasl, speak):
    speaker = await speak(await start_sasl())
    assert (await speaker.handshake(version=0)).error_code == 0
    token = plain("bob", "builder")
    await speaker.client.stream.send_all(struct.pack(">i", len(token)) + token)
    assert await speaker.client.receive_frame() == b""
    assert (await speaker.client.call(MetadataRequest(topics=[]))).cluster_id


async def test_a_frame_with_a_header_after_handshake_0_is_no_token(start_sasl, speak):
    """Attack 8."""
    speaker = await speak(await start_sasl())
    await speaker.handshake(version=0)
    await speaker.client.send(SaslAuthenticateRequest(plain("alice", "wonder")))
    assert await speaker.client.is_closed()


@pytest.mark.parametrize(
    ("user", "password"), [("alice", "wrong"), ("nobody", "wonder"), ("bob", "wonder")]
)
async def test_a_wrong_login_tells_nothing_and_closes(start_sasl, speak, user, password):
    server = await start_sasl()
    speaker = await speak(server)
    before = trio.current_time()
    answer = await speaker.login(user, password)
    assert trio.current_time() - before >= 0.1
    assert answer.error_code == FAILED
    assert answer.error_message == (
        "Authentication failed: invalid credentials with SASL mechanism PLAIN"
    )
    assert await speaker.client.is_closed()


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"\0\0",
        b"\0alice\0",
        b"\0\0wonder",
        b"alice\0wonder",
        b"\0alice\0wonder\0",
        b"bob\0alice\0wonder",
        b"\0alice\0" + b"x" * 500_000,
        b"\0\xff\0wonder",
    ],
)
async def test_plain_malformed(start_sasl, speak, token):
    """Attack 11."""
    speaker = await speak(await start_sasl())
    await speaker.handshake()
    assert (await speaker.authenticate(token)).error_code == FAILED
    assert await speaker.client.is_closed()


@pytest.mark.parametrize(
    "request_",
    [MetadataRequest(topics=[]), DescribeClusterRequest(), SaslAuthenticateRequest(b"\0a\0b")],
)
async def test_others_before_a_login_close(start_sasl, speak, request_):
    """Attacks 4 and 6."""
    speaker = await speak(await start_sasl())
    await speaker.client.send(request_)
    assert await speaker.client.is_closed()


async def test_api_versions_once(start_sasl, speak):
    """Attack 5; of a version that is not known it is answered, and may come again."""
    speaker = await speak(await start_sasl())
    await speaker.client.call(VERSIONS)
    await speaker.client.send(VERSIONS)
    assert await speaker.client.is_closed()


async def test_handshake_twice_closes(start_sasl, speak):
    speaker = await speak(await start_sasl())
    await speaker.handshake()
    await speaker.client.send(SaslHandshakeRequest("PLAIN"))
    assert await speaker.client.is_closed()


async def test_a_mechanism_that_is_not_enabled(start_sasl, speak):
    """Attack 7."""
    speaker = await speak(await start_sasl())
    answer = await speaker.handshake("SCRAM-SHA-256")
    assert answer.error_code == int(ErrorCode.UNSUPPORTED_SASL_MECHANISM)
    assert answer.mechanisms == ["PLAIN"]
    assert await speaker.client.is_closed()


@pytest.mark.parametrize("size", [524_289, -1, (1 << 31) - 1])
async def test_large_frames_of_strangers_close(start_sasl, speak, size):
    """Attack 1."""
    speaker = await speak(await start_sasl())
    await speaker.client.stream.send_all(struct.pack(">ihh", size, 36, 2) + bytes(64))
    assert await speaker.client.is_closed()


async def test_very_many_tags_close(start_sasl, speak):
    """Attack 3."""
    speaker = await speak(await start_sasl())
    await speaker.handshake()
    tags = b"".join(bytes([n % 128, 0]) for n in range(100_000))
    frame = struct.pack(">hhihB", 36, 2, 1, 0, 0xFF) + b"\x7f" + tags
    await speaker.client.stream.send_all(struct.pack(">i", len(frame)) + frame)
    assert await speaker.client.is_closed()


@pytest.mark.parametrize(("ask", "version"), [(VERSIONS, 3), (SaslHandshakeRequest("PLAIN"), 1)])
async def test_what_needs_no_room_has_none_before_a_login(start_sasl, speak, ask, version):
    """Attack 1: nothing but a token may be large."""
    client = (await speak(await start_sasl())).client
    await client.stream.send_all(client.frame(ask, version, "x" * 2000))
    await client.receive_frame()
    client = (await speak(client.server)).client
    await client.stream.send_all(client.frame(ask, version, "x" * FRAME_BYTES_MAX))
    assert await client.is_closed()


async def test_who_only_waits_is_closed(start_sasl, speak):
    """Attack 2: in time, and first when there are too many; somebody else still logs in."""
    server = await start_sasl(quire_sasl_timeout_ms="300", quire_sasl_connections_max="3")
    idle = [await speak(server) for _ in range(5)]
    speaker = await speak(server)
    assert (await speaker.login()).error_code == 0
    for each in idle:
        assert await each.client.is_closed()
    await trio.sleep(0.4)
    assert (await speaker.client.call(MetadataRequest(topics=[]))).cluster_id


async def test_who_comes_too_often_from_an_address_takes_nobodys_place(start_sasl, speak):
    """Before a login only those are counted that may come."""
    server = await start_sasl(quire_sasl_connections_max="20")
    admin = await speak(server)
    await admin.login()
    rate = OpData("connection_creation_rate", 1.0, remove=False)
    entry = AlterClientQuotasRequestEntryData([EntityData("ip", "127.0.0.2")], [rate])
    answer = await admin.client.call(AlterClientQuotasRequest([entry]))
    assert [one.error_code for one in answer.entries] == [0]
    slow = await speak(server)
    assert (await slow.handshake()).error_code == 0
    kafka = server.parts["KafkaServer"]
    crowd = [
        await trio.open_tcp_stream(*server.address, local_address="127.0.0.2") for _ in range(40)
    ]
    while kafka.throttled_count < 25:
        await trio.sleep(0.01)
    assert (await slow.authenticate(plain("alice", "wonder"))).error_code == 0
    for one in crowd:
        await one.aclose()


async def test_what_follows_a_failed_login_is_not_served(start_sasl, speak):
    """Attack 32, at the first login: of what was sent behind it nothing is answered."""
    speaker = await speak(await start_sasl())
    await speaker.handshake()
    await speaker.client.send(SaslAuthenticateRequest(plain("alice", "no")), version=2)
    await speaker.client.send(MetadataRequest(topics=[]))
    assert (await speaker.client.receive()).error_code == FAILED
    assert await speaker.client.is_closed()


async def test_any_bytes_are_answered_or_closed(start_sasl, speak):
    server = await start_sasl(connection_failed_authentication_delay_ms="0")
    rng = random.Random(18)
    for round_ in range(120):
        speaker = await speak(server)
        if round_ % 3:
            await speaker.handshake(version=round_ % 3 - 1)
        if round_ % 2:
            frame = struct.pack(">hhi", rng.choice((17, 18, 36)), rng.randrange(5), 7)
            frame += rng.randbytes(rng.randrange(60))
        else:
            frame = rng.randbytes(rng.randrange(80))
        await speaker.client.stream.send_all(struct.pack(">i", len(frame)) + frame)
        await speaker.client.stream.send_all(struct.pack(">i", 0))
        with trio.fail_after(5):
            while await speaker.client.receive_frame() is not None:
                pass
    speaker = await speak(server)
    assert (await speaker.login()).error_code == 0


# -- re-authentication ---------------------------------------------------------------------------


async def test_a_login_anew(start_sasl, speak):
    """And a second within the second is refused, not begun (attack 30)."""
    speaker = await speak(await start_sasl(connections_max_reauth_ms="60000"))
    assert (await speaker.login(version=1)).session_lifetime_ms == 60_000
    assert (await speaker.login()).session_lifetime_ms == 60_000
    answer = await speaker.handshake()
    assert answer.error_code == int(ErrorCode.ILLEGAL_SASL_STATE)
    assert (await speaker.client.call(MetadataRequest(topics=[]))).cluster_id


async def test_as_somebody_else_it_closes(start_sasl, speak):
    """Attack 29."""
    speaker = await speak(await start_sasl())
    await speaker.login()
    answer = await speaker.login("bob", "builder")
    assert answer.error_code == FAILED
    assert await speaker.client.is_closed()


async def test_a_session_that_ended_closes_at_the_next_request(start_sasl, speak):
    """Attack 31."""
    speaker = await speak(await start_sasl(connections_max_reauth_ms="200"))
    await speaker.login(version=0)
    assert (await speaker.client.call(MetadataRequest(topics=[]))).cluster_id
    await trio.sleep(0.25)
    await speaker.client.send(MetadataRequest(topics=[]))
    assert await speaker.client.is_closed()


async def test_a_negative_largest_session_is_none(start_sasl, speak):
    """As Kafka: `connections.max.reauth.ms` counts if it is above 0."""
    speaker = await speak(await start_sasl(connections_max_reauth_ms="-1"))
    assert (await speaker.login()).session_lifetime_ms == 0
    assert (await speaker.client.call(MetadataRequest(topics=[]))).cluster_id


async def test_without_a_session_s_end_nobody_is_closed(start_sasl, speak):
    speaker = await speak(await start_sasl())
    await speaker.login()
    for version in (0, 1, 2):
        answer = await speaker.authenticate(b"", version)
        assert answer.error_code == int(ErrorCode.ILLEGAL_SASL_STATE)
