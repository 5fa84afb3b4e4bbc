"""Names of the topics and groups that clients of a world use."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.history import Partition

TOPIC = "log"
#: A topic of which old records go by themselves.
SHORT_TOPIC = "short"
#: A topic that is compacted.
KEYED_TOPIC = "keyed"
KEYED_PARTITION: Partition = (KEYED_TOPIC, 0)
#: What only transactions write to.
TXN_TOPIC = "txn"
TXN_PARTITIONS = 2
#: A topic with optimistic locks.
BANK_TOPIC = "bank"
BANK_PARTITION: Partition = (BANK_TOPIC, 0)

SHARE_GROUP = "group-share"
#: It goes from one protocol to the other and back.
MIGRATING_GROUP = "group-migrating"
