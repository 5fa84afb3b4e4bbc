"""Which topics a member of a group of consumers reads, by its metadata for a protocol."""

from __future__ import annotations

import struct

_VERSION_AND_COUNT = struct.Struct(">hi")
_LENGTH = struct.Struct(">h")


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics that one member subscribes to; None if the metadata is not a subscription.

    Layout (`ConsumerProtocolSubscription` version 0, which every later one starts with): version
    i16, then topics as i32 count of (i16 length, UTF-8 bytes). What follows is not looked at: user
    data, owned partitions (KIP-429), generation, rack.

    A member may put anything into its metadata, so bad bytes are no error: the coordinator then
    does not know the subscription, and treats every topic as subscribed."""
    try:
        version, count = _VERSION_AND_COUNT.unpack_from(metadata)
        if version < 0 or count < 0:
            return None
        at = _VERSION_AND_COUNT.size
        topics = []
        for _ in range(count):
            (size,) = _LENGTH.unpack_from(metadata, at)
            at += _LENGTH.size
            if size < 0 or at + size > len(metadata):
                return None
            topics.append(metadata[at : at + size].decode())
            at += size
    except (struct.error, UnicodeDecodeError):
        return None
    return frozenset(topics)
