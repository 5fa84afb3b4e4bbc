"""How bookies are reached. With BookKeeper's names of options (ClientConfiguration.java)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runtime.config import ConfigType, at_least
from runtime.settings import from_seconds, setting
from wire.bookkeeper.frames import FRAME_SIZE_MAX_BYTES, SIZE_BYTES
from wire.dataclass import dataclass

if TYPE_CHECKING:
    import ssl

    from ledger.network.auth import SaslLogin
    from runtime.renewed_tls import RenewedTls

INT = ConfigType.INT


@dataclass(slots=True, frozen=True)
class NetworkConfig:
    add_timeout_ms: int = setting(
        "addEntryTimeoutSec",
        INT,
        "5",
        at_least(1),
        doc="Then the bookie has failed.",
        convert=from_seconds,
    )
    read_timeout_ms: int = setting(
        "readEntryTimeoutSec",
        INT,
        "5",
        at_least(1),
        doc="Then another is asked.",
        convert=from_seconds,
    )
    connect_timeout_ms: int = setting(
        "clientConnectTimeoutMillis", INT, "10000", at_least(1), doc="Of a connection."
    )
    #: After a failed connect the bookie is left alone, longer each time.
    reconnect_backoff_ms: int = 50
    reconnect_backoff_max_ms: int = 5_000
    #: A bookie that answers nothing between two looks while more than this waits to be sent to it
    #: hangs, and its connection is closed. More than writers have in flight, else a disk that
    #: is slow for all would look so.
    unsent_bytes_max: int = 128 << 20
    #: START_TLS before anything else; None: nothing is encrypted. Every bookie has to have it then.
    tls: ssl.SSLContext | RenewedTls | None = None
    #: AUTH, behind START_TLS if there is any; None: none. A bookie that asks for none is fine.
    sasl: SaslLogin | None = None
    #: nettyMaxFrameSizeBytes, without the size in front
    frame_bytes_max: int = FRAME_SIZE_MAX_BYTES - SIZE_BYTES
    #: Bytes that one batch read asks for at most: the answer has to fit a frame.
    batch_read_size_max_bytes: int = 4 << 20
