"""Passwords and master keys: told apart, but only shown when asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wire.bookkeeper.entry import LAC_PACKET_HEADER_SIZE, master_key

if TYPE_CHECKING:
    from wire.buffers import Buffer

#: Of a ledger without a password, as all of quire's are.
NO_PASSWORD_KEY = master_key(b"")


def master_key_text(key: bytes | None, show: bool) -> str | None:
    """A ledger's key lets its holder write and fence."""
    if key is None:
        return None
    if show:
        return key.hex()
    return "no password" if key == NO_PASSWORD_KEY else f"hidden ({len(key)} bytes)"


def lac_packet_text(packet: Buffer | None) -> str | None:
    """The LAC that a WRITE_LAC packet says. Its digest is not checked."""
    if packet is None:
        return None
    if len(packet) < LAC_PACKET_HEADER_SIZE:
        return f"a packet of {len(packet)} bytes"
    return str(int.from_bytes(bytes(packet[8:LAC_PACKET_HEADER_SIZE]), "big", signed=True))
