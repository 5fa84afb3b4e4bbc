"""Guards of groups of every kind, and of what they have committed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.authorization import AclOperation, ResourceType
from broker.guards import refusals
from broker.guards.tools import (
    CODES,
    NOT_ASKED,
    QUESTION_UNITS,
    All,
    Each,
    One,
    Refused,
    at_the_top,
    chained,
    may_by_id,
    only,
    split,
    told_each,
    words,
)
from wire.kafka.messages import consumer_groups, groups, offsets, share_groups, streams_groups

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from broker.api import Request, Steps
    from broker.guards.tools import Finish, Guard
    from broker.rights import Rights
    from wire.kafka.errors import ErrorCode

GROUP, TOPIC = ResourceType.GROUP, ResourceType.TOPIC
TRANSACTIONAL_ID = ResourceType.TRANSACTIONAL_ID
READ, DELETE, DESCRIBE = AclOperation.READ, AclOperation.DELETE, AclOperation.DESCRIBE
_REFUSED, _TOPIC_REFUSED = CODES[GROUP], CODES[TOPIC]
_IDS_FROM = 10
_SEVERAL_GROUPS_FROM = 8
_NULL_PROTOCOL_FROM = 7
#: Kafka's words of a group that shows a topic (`KafkaApis.handleConsumerGroupDescribe`).
_HAS_FORBIDDEN = "The group has described topic(s) that the client is not authorized to describe."

reads_group = One(GROUP, READ, "group_id")


def _no_join(request: Request, code: ErrorCode) -> Steps[groups.JoinGroupResponse]:
    """From version 7 on no protocol has no name."""
    yield 1
    name = None if request.version >= _NULL_PROTOCOL_FROM else ""
    return groups.JoinGroupResponse(error_code=int(code), protocol_name=name)


joins_group = One(GROUP, READ, "group_id", _no_join)

# -- committed offsets ----------------------------------------------------------------------------

commit = All(
    One(GROUP, READ, "group_id", refusals.all_commits),
    Each(TOPIC, READ, "topics", "name", "topics", refusals.commit_topic, ids_from=_IDS_FROM),
)

delete_offsets = All(
    One(GROUP, DELETE, "group_id"),
    Each(
        TOPIC,
        READ,
        "topics",
        "name",
        "topics",
        Refused(offsets.OffsetDeleteResponseTopic, offsets.OffsetDeleteResponsePartition),
    ),
)

_UNKNOWN = {"committed_offset": -1, "committed_leader_epoch": -1, "metadata": ""}
_fetched_topic = Refused(
    offsets.OffsetFetchResponseTopics,
    offsets.OffsetFetchResponsePartitions,
    same=("name", "topic_id"),
    more=_UNKNOWN,
    numbers=lambda topic: topic.partition_indexes,
)
_fetched_topic_alone = Refused(
    offsets.OffsetFetchResponseTopic,
    offsets.OffsetFetchResponsePartition,
    more=_UNKNOWN,
    numbers=lambda topic: topic.partition_indexes,
)


def fetch_offsets(request: Request, rights: Rights) -> Steps[Any]:
    """What is not named, but committed, is left out where the client may not describe it."""
    if request.version < _SEVERAL_GROUPS_FROM:
        return (yield from _fetch_of_one(request, rights))
    body: offsets.OffsetFetchRequest = request.body
    refused = yield from split(
        body.groups, lambda group: rights.allows(DESCRIBE, GROUP, group.group_id), "group_id"
    )
    beside = yield from told_each(
        refused,
        _REFUSED,
        lambda group, code: offsets.OffsetFetchResponseGroup(group.group_id, [], int(code)),
    )
    if refused and not body.groups:
        return offsets.OffsetFetchResponse(groups=beside)
    #: By group, of those that name topics.
    forbidden: dict[str, list[Any]] = {}
    everything: set[str] = set()
    for group in body.groups:
        yield 1
        if group.topics is None:
            everything.add(group.group_id)
        else:
            topics = yield from split(group.topics, _may_describe(request, rights), "name")
            if topics:
                told = yield from told_each(topics, _TOPIC_REFUSED, _fetched_topic)
                forbidden[group.group_id] = told

    def finish(response: offsets.OffsetFetchResponse) -> Steps[None]:
        for group in response.groups:
            if group.group_id in everything:
                group.topics = yield from _described(rights, group.topics)
            elif not group.error_code:
                group.topics.extend(forbidden.get(group.group_id, ()))
            yield 1
        response.groups.extend(beside)

    return finish


def _fetch_of_one(request: Request, rights: Rights) -> Steps[Any]:
    body: offsets.OffsetFetchRequest = request.body
    yield QUESTION_UNITS
    if not rights.allows(DESCRIBE, GROUP, body.group_id):
        return (yield from _group_refused(request))
    if body.topics is None:

        def leave_out(response: offsets.OffsetFetchResponse) -> Steps[None]:
            response.topics = yield from _described(rights, response.topics)

        return leave_out
    topics = yield from split(body.topics, _may_describe(request, rights), "name")
    if not topics:
        return None
    beside = yield from told_each(topics, _TOPIC_REFUSED, _fetched_topic_alone)

    def finish(response: offsets.OffsetFetchResponse) -> Steps[None]:
        yield 1
        if not response.error_code:
            response.topics.extend(beside)

    return finish


def _group_refused(request: Request) -> Steps[Any]:
    """Version 1 has a place for it in the partitions only."""
    if request.version >= 2:
        return (yield from at_the_top(request, _REFUSED))
    topics = request.body.topics or ()
    refused = yield from told_each(topics, _REFUSED, _fetched_topic_alone)
    return offsets.OffsetFetchResponse(topics=refused)


def _may_describe(request: Request, rights: Rights) -> Callable[[Any], bool]:
    if request.version >= _IDS_FROM:
        return lambda topic: may_by_id(rights, DESCRIBE, topic.topic_id)
    return lambda topic: rights.allows(DESCRIBE, TOPIC, topic.name)


def _described(rights: Rights, topics: list[Any]) -> Steps[list[Any]]:
    """Those that the client may see. From version 10 on they have ids and names, here."""
    kept = []
    for topic in topics:
        yield QUESTION_UNITS
        if rights.describes_topic(topic.name):
            kept.append(topic)
    return kept


# -- coordinators ---------------------------------------------------------------------------------

_KEY_TYPES = {
    0: (GROUP, DESCRIBE),
    1: (TRANSACTIONAL_ID, DESCRIBE),
}
_SHARE = 2
_KEYS_FROM = 4


def find_coordinator(request: Request, rights: Rights) -> Steps[Any]:
    """Of share partitions brokers ask one another. A type that nobody coordinates is the handler's
    to refuse."""
    body: groups.FindCoordinatorRequest = request.body
    if body.key_type == _SHARE:
        resource = ResourceType.CLUSTER
        yield QUESTION_UNITS
        is_broker = rights.allows_cluster(AclOperation.CLUSTER_ACTION)

        def is_allowed(key: str) -> bool:  # as below
            return is_broker

    elif body.key_type in _KEY_TYPES:
        resource, operation = _KEY_TYPES[body.key_type]

        def is_allowed(key: str) -> bool:
            return rights.allows(operation, resource, key)

    else:
        return None
    code = CODES[resource]
    if request.version < _KEYS_FROM:
        yield QUESTION_UNITS
        if is_allowed(body.key):
            return None
        return groups.FindCoordinatorResponse(
            error_code=int(code), error_message=words(code), node_id=-1, host="", port=-1
        )
    refused = yield from split(body.coordinator_keys, is_allowed, "")
    if not refused:
        return None
    beside = []
    for key in refused:
        yield 1
        beside.append(groups.Coordinator(key, -1, "", -1, int(code), words(code)))
    if not body.coordinator_keys:
        return groups.FindCoordinatorResponse(coordinators=beside)

    def finish(response: groups.FindCoordinatorResponse) -> Steps[None]:
        yield 1
        response.coordinators.extend(beside)

    return finish


# -- descriptions ---------------------------------------------------------------------------------


def _operations(rights: Rights) -> Finish:
    """What the client may do with the groups, if it asked."""

    def finish(response: Any) -> Steps[None]:  # noqa: ANN401  # one of several
        for group in response.groups:
            yield 1
            if group.authorized_operations != NOT_ASKED:
                yield 20
                group.authorized_operations = rights.operations(GROUP, group.group_id)

    return finish


def _without_forbidden(
    rights: Rights, topics_of: Callable[[Any], Iterable[str]], kind: type[Any]
) -> Finish:
    """A group that shows a topic which the client may not describe is refused, whole."""

    def finish(response: Any) -> Steps[None]:  # noqa: ANN401  # one of several
        for number, group in enumerate(response.groups):
            seen: set[str] = set()
            for topic in topics_of(group):
                yield 1
                if topic in seen:
                    continue
                seen.add(topic)
                yield QUESTION_UNITS
                if not rights.describes_topic(topic):
                    response.groups[number] = kind(
                        group_id=group.group_id,
                        error_code=int(_TOPIC_REFUSED),
                        error_message=_HAS_FORBIDDEN,
                    )
                    break

    return finish


def _describing(
    kind: type[Any],
    items: str,
    topics_of: Callable[[Any], Iterable[str]] | None = None,
) -> Guard:
    each = Each(
        GROUP,
        DESCRIBE,
        items,
        "",
        "groups",
        lambda group_id, code: kind(
            group_id=group_id, error_code=int(code), error_message=words(code)
        ),
    )

    def guard(request: Request, rights: Rights) -> Steps[Any]:
        outcome = yield from each(request, rights)
        if outcome is not None and not callable(outcome):
            return outcome
        shows = None if topics_of is None else _without_forbidden(rights, topics_of, kind)
        return chained(shows, _operations(rights), outcome)

    return guard


def _consumer_topics(group: consumer_groups.DescribedGroup) -> Iterable[str]:
    for member in group.members:
        yield from member.subscribed_topic_names
        for assignment in (member.assignment, member.target_assignment):
            for topic in assignment.topic_partitions:
                yield topic.topic_name


def _share_topics(group: share_groups.DescribedGroup) -> Iterable[str]:
    for member in group.members:
        yield from member.subscribed_topic_names
        for topic in member.assignment.topic_partitions:
            yield topic.topic_name


def _streams_topics(group: streams_groups.DescribedGroup) -> Iterable[str]:
    for each in () if group.topology is None else group.topology.subtopologies or ():
        yield from each.source_topics
        yield from each.repartition_sink_topics
        for topic in (*each.repartition_source_topics, *each.state_changelog_topics):
            yield topic.name


describe_classic = _describing(groups.DescribedGroup, "groups")
describe_consumer = _describing(consumer_groups.DescribedGroup, "group_ids", _consumer_topics)
describe_share = _describing(share_groups.DescribedGroup, "group_ids", _share_topics)
describe_streams = _describing(streams_groups.DescribedGroup, "group_ids", _streams_topics)

delete_groups = Each(
    GROUP,
    DELETE,
    "groups_names",
    "",
    "results",
    lambda group_id, code: groups.DeletableGroupResult(group_id, int(code)),
)

_seen = only("groups", DESCRIBE, GROUP, "group_id")


def list_groups(request: Request, rights: Rights) -> Steps[Any]:  # as every guard
    """All, if the cluster may be described, else those that may."""
    yield QUESTION_UNITS
    if rights.allows_cluster(DESCRIBE, is_told=False):
        return None
    return _seen(rights)


# -- heartbeats -----------------------------------------------------------------------------------


def _subscribed(names_of: Callable[[Any], Iterable[str]]) -> Guard:
    def guard(request: Request, rights: Rights) -> Steps[Any]:
        for name in names_of(request.body):
            yield QUESTION_UNITS
            if not rights.allows(DESCRIBE, TOPIC, name):
                return (yield from at_the_top(request, _TOPIC_REFUSED))
        return None

    return guard


def _topology_topics(body: streams_groups.StreamsGroupHeartbeatRequest) -> Iterable[str]:
    for each in () if body.topology is None else body.topology.subtopologies:
        yield from each.source_topics
        yield from each.repartition_sink_topics
        for topic in (*each.repartition_source_topics, *each.state_changelog_topics):
            yield topic.name


heartbeat_with_names = All(reads_group, _subscribed(lambda body: body.subscribed_topic_names or ()))
heartbeat_with_topology = All(reads_group, _subscribed(_topology_topics))

# -- share groups ---------------------------------------------------------------------------------

_altered_topic = Refused(
    share_groups.AlterShareGroupOffsetsResponseTopic,
    share_groups.AlterShareGroupOffsetsResponsePartition,
    same=("topic_name",),
)
alter_share_offsets = All(
    reads_group,
    Each(TOPIC, READ, "topics", "topic_name", "responses", _altered_topic),
)
delete_share_offsets = All(
    One(GROUP, DELETE, "group_id"),
    Each(
        TOPIC,
        READ,
        "topics",
        "topic_name",
        "responses",
        lambda topic, code: share_groups.DeleteShareGroupOffsetsResponseTopic(
            topic_name=topic.topic_name, error_code=int(code), error_message=words(code)
        ),
    ),
)
_described_topic = Refused(
    share_groups.DescribeShareGroupOffsetsResponseTopic,
    share_groups.DescribeShareGroupOffsetsResponsePartition,
    same=("topic_name",),
    more={"start_offset": -1},
    numbers=lambda topic: topic.partitions,
)


def describe_share_offsets(request: Request, rights: Rights) -> Steps[Any]:
    """As of OffsetFetch."""
    body: share_groups.DescribeShareGroupOffsetsRequest = request.body
    refused = yield from split(
        body.groups, lambda group: rights.allows(DESCRIBE, GROUP, group.group_id), "group_id"
    )
    beside = yield from told_each(
        refused,
        _REFUSED,
        lambda group, code: share_groups.DescribeShareGroupOffsetsResponseGroup(
            group_id=group.group_id, error_code=int(code), error_message=words(code)
        ),
    )
    if refused and not body.groups:
        return share_groups.DescribeShareGroupOffsetsResponse(groups=beside)
    forbidden: dict[str, list[Any]] = {}
    everything: set[str] = set()
    for group in body.groups:
        yield 1
        if group.topics is None:
            everything.add(group.group_id)
            continue
        topics = yield from split(
            group.topics,
            lambda topic: rights.allows(DESCRIBE, TOPIC, topic.topic_name),
            "topic_name",
        )
        told = yield from told_each(topics, _TOPIC_REFUSED, _described_topic)
        forbidden[group.group_id] = told

    def finish(response: share_groups.DescribeShareGroupOffsetsResponse) -> Steps[None]:
        for group in response.groups:
            yield 1
            if group.group_id in everything:
                kept = []
                for topic in group.topics:
                    yield QUESTION_UNITS
                    if rights.describes_topic(topic.topic_name):
                        kept.append(topic)
                group.topics = kept
            elif not group.error_code:
                group.topics.extend(forbidden.get(group.group_id, ()))
        response.groups.extend(beside)

    return finish
