"""How bookies are reached. With BookKeeper's names of options (ClientConfiguration.java)."""

from __future__ import annotations

from dataclasses import dataclass

from wire.bookkeeper.frames import FRAME_SIZE_MAX_BYTES, SIZE_BYTES


@dataclass(slots=True, frozen=True)
class NetworkConfig:
    #: addEntryTimeoutSec, readEntryTimeoutSec
    add_timeout_ms: int = 5_000
    read_timeout_ms: int = 5_000
    #: clientConnectTimeoutMillis
    connect_timeout_ms: int = 10_000
    #: After a failed connect the bookie is left alone, longer each time.
    reconnect_backoff_ms: int = 50
    reconnect_backoff_max_ms: int = 5_000
    #: nettyMaxFrameSizeBytes, without the size in front
    frame_bytes_max: int = FRAME_SIZE_MAX_BYTES - SIZE_BYTES
    #: Bytes that one batch read asks for at most: the answer has to fit a frame.
    batch_read_size_max_bytes: int = 4 << 20
