"""AuthMessage, which is protobuf in v2 as in v3: one step of an authentication plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from wire.bookkeeper.errors import WireError
from wire.bookkeeper.v3_schema import AuthMessage

if TYPE_CHECKING:
    from wire.buffers import Buffer

#: What a server that asks for no authentication answers to a client that offers some.
DISABLED_PLUGIN_NAME = "AuthDisabledPlugin"
#: Ours, and no authentication: the answer's payload is the bookie's id, in UTF-8. Whoever does not
#: know it (a Java bookie, once it has admitted the connection) answers with DISABLED_PLUGIN_NAME.
IDENTITY_PLUGIN_NAME = "quire.BookieIdentity"


def encode_auth_message(plugin_name: str, payload: bytes) -> bytes:
    encoded: bytes = AuthMessage(authPluginName=plugin_name, payload=payload).SerializeToString()
    return encoded


def parse_auth_message(data: Buffer) -> tuple[str, bytes]:
    """(plugin name, payload). WireError."""
    message = AuthMessage()
    try:
        message.ParseFromString(bytes(data))
    except DecodeError as error:
        raise WireError(f"AUTH: not an AuthMessage: {error}") from error
    missing = message.FindInitializationErrors()
    if missing:
        raise WireError(f"AUTH: AuthMessage without {', '.join(missing)}")
    # What is no UTF-8 comes as bytes, as proto2 has it.
    if not isinstance(message.authPluginName, str):
        raise WireError(f"AUTH: plugin name {message.authPluginName!r} is no UTF-8")
    return message.authPluginName, message.payload
