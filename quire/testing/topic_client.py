"""Makes topics as any client does: a CreateTopics request over a connection of its own.

No simulation ever runs this, so it takes trio's sockets and not `Env.net`, which belongs to the
server.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import trio

from wire.kafka.api_keys import ApiKey
from wire.kafka.errors import ErrorCode, KafkaError
from wire.kafka.headers import decode_response, encode_request
from wire.kafka.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_VERSION = 7
_SIZE = struct.Struct(">i")
_DEFAULT_REPLICATION = -1
_CLIENT_ID = "quire-testing"


async def create_topics(
    address: tuple[str, int],
    topics: Mapping[str, int],
    configs: Mapping[str, str],
    *,
    exist_ok: bool = False,
) -> None:
    """Topics with so many partitions each. Returns when they are durable and can be used.

    KafkaError with the server's code for the first one that is refused; OSError if the server
    cannot be reached. `exist_ok`: one that is there already is left as it is."""
    request = CreateTopicsRequest(
        topics=[
            CreatableTopic(
                name=name,
                num_partitions=count,
                replication_factor=_DEFAULT_REPLICATION,
                configs=[CreatableTopicConfig(*pair) for pair in configs.items()],
            )
            for name, count in topics.items()
        ]
    )
    sock = trio.socket.socket()
    try:
        await sock.connect(address)
        async with trio.SocketStream(sock) as stream:
            await stream.send_all(encode_request(request, _VERSION, 0, _CLIENT_ID))
            (size,) = _SIZE.unpack(await _receive(stream, _SIZE.size))
            frame = await _receive(stream, size)
    finally:
        sock.close()
    _, response = decode_response(ApiKey.CREATE_TOPICS, _VERSION, frame)
    assert isinstance(response, CreateTopicsResponse)
    for result in response.topics:
        code = ErrorCode(result.error_code)
        if code is ErrorCode.NONE or (exist_ok and code is ErrorCode.TOPIC_ALREADY_EXISTS):
            continue
        raise KafkaError(code, f"topic {result.name!r}: {result.error_message or 'refused'}")


async def _receive(stream: trio.SocketStream, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        some = await stream.receive_some(size - len(received))
        if not some:
            raise ConnectionResetError("the server closed the connection before it answered")
        received += some
    return bytes(received)
