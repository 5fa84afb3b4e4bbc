"""What a cluster tells of one group by Kafka's APIs: members, what each has, offsets and lag.

The time that a partition is behind is the age of the first record that the group has not committed,
by the clock of this machine and the record's own timestamp: both are taken for right. It is read
from the partition itself, one batch of it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import field
from typing import TYPE_CHECKING

import click

from quire.tools.groups.client import check
from wire.dataclass import dataclass
from wire.kafka.errors import ErrorCode, WireError
from wire.kafka.messages import (
    ConsumerGroupDescribeRequest,
    DescribeGroupsRequest,
    FetchRequest,
    FindCoordinatorRequest,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetFetchRequest,
)
from wire.kafka.messages.fetch import FetchPartition, FetchTopic
from wire.kafka.messages.list_offsets import ListOffsetsPartition, ListOffsetsTopic
from wire.kafka.messages.metadata import MetadataRequestTopic
from wire.kafka.messages.offsets import OffsetFetchRequestGroup
from wire.kafka.records.batch import TimestampType, iter_records, parse_header
from wire.kafka.records.coordinator import decode_assignment

if TYPE_CHECKING:
    from collections.abc import Iterable

    from quire.tools.groups.client import Address, KafkaClient
    from wire.kafka.messages.consumer_groups import DescribedGroup as ConsumerGroup
    from wire.kafka.messages.groups import DescribedGroup as ClassicGroup

#: Versions that Kafka 4.0 and later serve, and every quire.
FIND_COORDINATOR, DESCRIBE_GROUPS, CONSUMER_GROUP_DESCRIBE, OFFSET_FETCH = 4, 6, 0, 8
METADATA, LIST_OFFSETS, FETCH = 12, 7, 12
LATEST = -1
#: Of one batch, which a server sends whole even if it is larger.
FETCH_BYTES = 1 << 20
RECORD_BYTES_MAX = 64 << 20

Partition = tuple[str, int]


@dataclass()
class GroupMember:
    """`assigned`: what it has; `target`: what it is to have, None where nobody tells that."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    epoch: int
    assigned: list[Partition]
    target: list[Partition] | None = None


@dataclass()
class PartitionFacts:
    """None: not known, or there is none. `error`: why it could not be asked."""

    committed: int | None = None
    end: int | None = None
    behind_ms: int | None = None
    error: str | None = None

    @property
    def lag(self) -> int | None:
        if self.committed is None or self.end is None:
            return None
        return max(0, self.end - self.committed)


@dataclass()
class GroupFacts:
    name: str
    coordinator: Address
    kind: str
    state: str
    epoch: int | None
    assignment_epoch: int | None
    assignor: str
    members: list[GroupMember] = field(default_factory=list)
    partitions: dict[Partition, PartitionFacts] = field(default_factory=dict)

    def holder(self, partition: Partition) -> GroupMember | None:
        return next((each for each in self.members if partition in each.assigned), None)


def ask(client: KafkaClient, group_id: str, now_ms: int) -> GroupFacts:
    """ClickException: there is no such group, or its coordinator cannot be asked."""
    answer = client.ask(
        client.bootstrap,
        FindCoordinatorRequest(key_type=0, coordinator_keys=[group_id]),
        FIND_COORDINATOR,
    )
    (found,) = answer.coordinators
    check(found.error_code, f"the coordinator of {group_id}", found.error_message)
    facts = _described(client, (found.host, found.port), group_id)
    for partition, offset in _committed(client, facts).items():
        facts.partitions[partition] = PartitionFacts(committed=offset)
    for member in facts.members:
        for partition in member.assigned:
            facts.partitions.setdefault(partition, PartitionFacts())
    leaders = _leaders(client, facts)
    _ask_ends(client, facts, leaders)
    _ask_times(client, facts, leaders, now_ms)
    return facts


# -- the group -------------------------------------------------------------------------------------


def _described(client: KafkaClient, coordinator: Address, group_id: str) -> GroupFacts:
    """Of whichever kind it is. A server with one kind only says so."""
    answer = client.ask(
        coordinator, ConsumerGroupDescribeRequest(group_ids=[group_id]), CONSUMER_GROUP_DESCRIBE
    )
    (consumers,) = answer.groups
    if not consumers.error_code:
        return _of_consumers(coordinator, consumers)
    if consumers.error_code not in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
        check(consumers.error_code, f"group {group_id}", consumers.error_message)
    answer = client.ask(coordinator, DescribeGroupsRequest(groups=[group_id]), DESCRIBE_GROUPS)
    (classic,) = answer.groups
    if classic.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        raise click.ClickException(f"there is no group {group_id} of consumers")
    check(classic.error_code, f"group {group_id}", classic.error_message)
    return _of_classic(coordinator, classic)


def _of_consumers(coordinator: Address, group: ConsumerGroup) -> GroupFacts:
    facts = GroupFacts(
        group.group_id, coordinator, "consumer", group.group_state, group.group_epoch,
        group.assignment_epoch, group.assignor_name,
    )  # fmt: skip
    for member in group.members:
        assigned, target = (
            [(topic.topic_name, n) for topic in part.topic_partitions for n in topic.partitions]
            for part in (member.assignment, member.target_assignment)
        )
        facts.members.append(
            GroupMember(
                member.member_id, member.instance_id, member.client_id, member.client_host,
                member.member_epoch, assigned, target,
            )
        )  # fmt: skip
    return facts


def _of_classic(coordinator: Address, group: ClassicGroup) -> GroupFacts:
    facts = GroupFacts(
        group.group_id, coordinator, "classic", group.group_state, None, None, group.protocol_data
    )
    for member in group.members:
        assigned: list[Partition] = []
        if group.protocol_type == "consumer" and member.member_assignment:
            parsed = decode_assignment(member.member_assignment)
            assigned = [
                (each.topic, number)
                for each in parsed.assigned_partitions
                for number in each.partitions
            ]
        facts.members.append(
            GroupMember(
                member.member_id, member.group_instance_id, member.client_id, member.client_host,
                -1, assigned,
            )
        )  # fmt: skip
    return facts


def _committed(client: KafkaClient, facts: GroupFacts) -> dict[Partition, int]:
    asked = OffsetFetchRequestGroup(group_id=facts.name, topics=None)
    answer = client.ask(facts.coordinator, OffsetFetchRequest(groups=[asked]), OFFSET_FETCH)
    (group,) = answer.groups
    check(group.error_code, f"offsets of {facts.name}")
    return {
        (topic.name, each.partition_index): each.committed_offset
        for topic in group.topics
        for each in topic.partitions
        if each.committed_offset >= 0
    }


# -- the partitions --------------------------------------------------------------------------------


def _leaders(client: KafkaClient, facts: GroupFacts) -> dict[Partition, Address]:
    """Of those that have one; the others are told why not."""
    names = sorted({topic for topic, _ in facts.partitions})
    if not names:
        return {}
    body = MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=False
    )
    answer = client.ask(client.bootstrap, body, METADATA)
    brokers = {each.node_id: (each.host, each.port) for each in answer.brokers}
    leaders = {
        (topic.name, each.partition_index): brokers[each.leader_id]
        for topic in answer.topics
        for each in topic.partitions
        if each.leader_id in brokers
    }
    for partition in facts.partitions.keys() - leaders.keys():
        facts.partitions[partition].error = "it has no leader, or is gone"
    return leaders


def _by_leader(
    partitions: Iterable[Partition], leaders: dict[Partition, Address]
) -> dict[Address, dict[str, list[int]]]:
    found: dict[Address, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for partition in sorted(partitions):
        if partition in leaders:
            found[leaders[partition]][partition[0]].append(partition[1])
    return found


def _ask_ends(client: KafkaClient, facts: GroupFacts, leaders: dict[Partition, Address]) -> None:
    """Where the records end that any reader may see."""
    for address, topics in _by_leader(facts.partitions, leaders).items():
        body = ListOffsetsRequest(
            replica_id=-1,
            topics=[
                ListOffsetsTopic(
                    name, [ListOffsetsPartition(number, timestamp=LATEST) for number in numbers]
                )
                for name, numbers in topics.items()
            ],
        )
        for topic in client.ask(address, body, LIST_OFFSETS).topics:
            for each in topic.partitions:
                partition = facts.partitions[topic.name, each.partition_index]
                if each.error_code:
                    partition.error = ErrorCode(each.error_code).name
                else:
                    partition.end = each.offset


def _ask_times(
    client: KafkaClient, facts: GroupFacts, leaders: dict[Partition, Address], now_ms: int
) -> None:
    """How old the first record is that is not committed; one partition at a time: a batch may be
    large, and only the first is looked at."""
    for key, partition in sorted(facts.partitions.items()):
        if not partition.lag or key not in leaders:
            continue
        assert partition.committed is not None
        wanted = FetchPartition(
            key[1], fetch_offset=partition.committed, partition_max_bytes=FETCH_BYTES
        )
        body = FetchRequest(
            max_wait_ms=0, min_bytes=1, max_bytes=FETCH_BYTES, topics=[FetchTopic(key[0])]
        )
        body.topics[0].partitions.append(wanted)
        answer = client.ask(leaders[key], body, FETCH)
        for topic in answer.responses:
            for each in topic.partitions:
                if each.error_code:
                    partition.error = ErrorCode(each.error_code).name
                elif each.records:
                    at_ms = _timestamp(each.records, partition.committed)
                    if at_ms is not None:
                        partition.behind_ms = max(0, now_ms - at_ms)


def _timestamp(records: bytes, offset: int) -> int | None:
    """Of the first record from there on; None: what was sent has none of these. A server may cut
    the last batch short."""
    position = 0
    while position < len(records):
        try:
            header = parse_header(records, position)
            view = memoryview(records)[position : position + header.size]
            position += header.size
            if header.is_control or header.last_offset < offset:
                continue
            for record in iter_records(view, header, size_max=RECORD_BYTES_MAX):
                if header.base_offset + record.offset_delta >= offset:
                    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
                        return header.max_timestamp
                    return header.base_timestamp + record.timestamp_delta
        except WireError:
            return None
    return None
