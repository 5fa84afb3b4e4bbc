"""Where partitions end by their leaders' word: ListOffsets, for a read that is to see the last
acknowledged record.

Only with `kafka.bootstrap.servers`. Who logs in how: leader_login.py.
"""

from __future__ import annotations

import time
from collections import defaultdict
from typing import TYPE_CHECKING

from pyspark_quire.connection import UnreachableError
from pyspark_quire.leader_client import LeaderClient, LeadersRefuseError, NoAnswerError
from pyspark_quire.leader_login import login_of
from runtime.config import ConfigError
from wire.kafka.errors import ErrorCode
from wire.kafka.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from wire.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from broker.security.client_security import ClientSecurity
    from pyspark_quire.leader_client import Address
    from wire.kafka.messages.metadata import MetadataResponse

Place = tuple[str, int]

LATEST = -1
#: A leader that is just another one is asked again after so long.
RETRY_SECONDS = 0.2
_METADATA, _LIST_OFFSETS = 9, 6
_PORT_MAX = 65_535
_REFUSALS = frozenset(
    {ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
)
#: The log has no leader now, or another one; or a topic that was just made is not known there yet.
_PASSING = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.REQUEST_TIMED_OUT,
    }
)  # fmt: skip


def leader_ends(
    settings: Mapping[str, str],
    partitions: Sequence[Place],
    *,
    read_committed: bool,
    timeout_ms: int,
) -> dict[Place, int]:
    """(topic, partition) -> high watermark, or with `read_committed` last stable offset. Blocks,
    for about `timeout_ms` at most. ConfigError, LeadersRefuseError, UnreachableError."""
    if not partitions:
        return {}
    bootstrap = _addresses(settings["bootstrap.servers"])
    security = login_of(settings)
    with LeaderClient(security, seconds=timeout_ms / 1000) as client:
        ends = _Ends(client, security, read_committed=read_committed)
        left, number = set(partitions), 0
        while True:
            address = bootstrap[number % len(bootstrap)]
            number += 1
            try:
                ends.look(address, left)
            except NoAnswerError as error:
                ends.reason = str(error)
            left -= ends.found.keys()
            if not left:
                return ends.found
            if client.seconds_left() <= RETRY_SECONDS:
                break
            time.sleep(RETRY_SECONDS)
    names = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(left))
    raise UnreachableError(
        f"where {names} end is not told within {timeout_ms / 1000:g} s by brokers at"
        f" {settings['bootstrap.servers']}: {ends.reason}"
    )


class _Ends:
    """What was found by now, and why not all was."""

    def __init__(
        self, client: LeaderClient, security: ClientSecurity, *, read_committed: bool
    ) -> None:
        self.found: dict[Place, int] = {}
        self.reason = ""
        self._client = client
        self._security = security
        self._isolation_level = 1 if read_committed else 0

    def look(self, bootstrap: Address, wanted: set[Place]) -> None:
        """Asks one broker for the leaders, and these. NoAnswerError, LeadersRefuseError."""
        names = sorted({topic for topic, _ in wanted})
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=name) for name in names],
            allow_auto_topic_creation=False,
        )
        answer = self._client.ask(bootstrap, request, _METADATA)
        for address, places in self._leaders(answer, wanted).items():
            try:
                self._ask(address, places)
            except NoAnswerError as error:
                self.reason = str(error)

    def _leaders(self, answer: MetadataResponse, wanted: set[Place]) -> dict[Address, list[Place]]:
        brokers = {each.node_id: (each.host, each.port) for each in answer.brokers}
        found: dict[Address, list[Place]] = defaultdict(list)
        for topic in answer.topics:
            self._check(topic.error_code, topic.name or "")
            for each in topic.partitions:
                place = (topic.name or "", each.partition_index)
                if place not in wanted:
                    continue
                if each.leader_id in brokers:
                    found[brokers[each.leader_id]].append(place)
                else:
                    self._check(each.error_code, f"{place[0]}-{place[1]}")
        return found

    def _ask(self, address: Address, places: Sequence[Place]) -> None:
        by_topic: dict[str, list[int]] = defaultdict(list)
        for topic, partition in places:
            by_topic[topic].append(partition)
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=self._isolation_level,
            topics=[
                ListOffsetsTopic(
                    topic, [ListOffsetsPartition(each, timestamp=LATEST) for each in numbers]
                )
                for topic, numbers in by_topic.items()
            ],
        )
        for topic in self._client.ask(address, request, _LIST_OFFSETS).topics:
            for each in topic.partitions:
                self._check(each.error_code, f"{topic.name}-{each.partition_index}")
                if not each.error_code and each.offset >= 0:
                    self.found[topic.name, each.partition_index] = each.offset

    def _check(self, code: int, what: str) -> None:
        """Notes what may pass. LeadersRefuseError for what does not."""
        if not code:
            return
        try:
            name = ErrorCode(code).name
        except ValueError:
            name = f"error {code}"
        if code in _REFUSALS:
            raise LeadersRefuseError(
                f"brokers do not tell {self._security} where {what} ends: {name}"
            )
        if code not in _PASSING:
            raise LeadersRefuseError(f"where {what} ends is not told: {name}")
        self.reason = f"{what}: {name}"


def _addresses(text: str) -> list[Address]:
    """ConfigError."""
    found = []
    for each in filter(None, (part.strip() for part in text.split(","))):
        host, _, port = each.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) <= _PORT_MAX:
            name = "kafka.bootstrap.servers"
            raise ConfigError(name, f"{name}: {each!r}: expected host:port")
        found.append((host.removeprefix("[").removesuffix("]"), int(port)))
    if not found:
        raise ConfigError("kafka.bootstrap.servers", "kafka.bootstrap.servers: names no broker")
    return found
