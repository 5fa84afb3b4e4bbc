"""Where partitions end by their leaders' word: ListOffsets, for a read that is to see the last
acknowledged record.

Only with `kafka.bootstrap.servers`. By kafka-python, which is a part of the extra `spark`, and is
imported when it is needed. Options are named as in Java's client and handed over under
kafka-python's names; what a login needs beyond them is not here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Java's name -> kafka-python's.
_SETTINGS = {
    "bootstrap.servers": "bootstrap_servers",
    "client.id": "client_id",
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.plain.username": "sasl_plain_username",
    "sasl.plain.password": "sasl_plain_password",
    "ssl.truststore.location": "ssl_cafile",
    "ssl.keystore.location": "ssl_certfile",
}


def leader_ends(
    settings: Mapping[str, str],
    partitions: Sequence[tuple[str, int]],
    *,
    read_committed: bool,
    timeout_ms: int,
) -> dict[tuple[str, int], int]:
    """(topic, partition) -> high watermark, or with `read_committed` last stable offset. Blocks.
    KafkaError of kafka-python."""
    if not partitions:
        return {}
    from kafka import KafkaAdminClient, TopicPartition
    from kafka.admin import OffsetSpec
    from kafka.protocol.consumer import IsolationLevel

    given = {_SETTINGS[name]: text for name, text in settings.items() if name in _SETTINGS}
    client = KafkaAdminClient(**{"client_id": "pyspark_quire", **given})
    level = IsolationLevel.READ_COMMITTED if read_committed else IsolationLevel.READ_UNCOMMITTED
    try:
        found = client.list_partition_offsets(
            {TopicPartition(*each): OffsetSpec.LATEST for each in partitions},
            isolation_level=level,
            timeout_ms=timeout_ms,
        )
    finally:
        client.close()
    return {(each.topic, each.partition): place.offset for each, place in found.items()}
