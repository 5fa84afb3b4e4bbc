"""A key as the protocol names it to find its coordinator: `group:topic id:partition` (Kafka's
SharePartitionKey). The topic id is in base64, as Kafka's tools show it."""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from uuid import UUID

from broker.share.ports import ShareKey

#: A topic id without its padding.
_ID_LENGTH = 22


def coordinator_key(key: ShareKey) -> str:
    """What is hashed to a partition of `__share_group_state`."""
    topic_id = urlsafe_b64encode(key.topic_id.bytes)[:_ID_LENGTH].decode()
    return f"{key.group_id}:{topic_id}:{key.partition}"


def parse_coordinator_key(text: str) -> ShareKey | None:
    """None if it is none. A group's id may have colons."""
    group_id, *rest = text.rsplit(":", 2)
    if len(rest) != 2 or not group_id.strip():
        return None
    topic_id, partition = rest
    try:
        number = int(partition)
        found = urlsafe_b64decode(topic_id.encode("ascii") + b"==")
    except (ValueError, binascii.Error):
        return None
    if len(found) != 16 or len(partition) > 11 or not 0 <= number < 1 << 31:
        return None
    return ShareKey(group_id, UUID(bytes=found), number)


def canonical_key(text: str) -> str | None:
    """As `coordinator_key` would have it; None if it is no key."""
    key = parse_coordinator_key(text)
    return None if key is None else coordinator_key(key)
