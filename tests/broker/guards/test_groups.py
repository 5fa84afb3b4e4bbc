"""What a described group shows: wherever a topic is in it, who may not describe it is refused."""

import pytest

from broker.api import all_steps
from tests.broker.guards.test_table import Refusing, asked, sample
from wire.kafka.api_keys import ApiKey
from wire.kafka.codec import request_class, response_class
from wire.kafka.errors import ErrorCode

HIDDEN = "hidden"
REFUSED = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
CONSUMER, SHARE = ApiKey.CONSUMER_GROUP_DESCRIBE, ApiKey.SHARE_GROUP_DESCRIBE
STREAMS = ApiKey.STREAMS_GROUP_DESCRIBE
PLACES = [
    (CONSUMER, "members.subscribed_topic_names"),
    (CONSUMER, "members.assignment.topic_partitions.topic_name"),
    (CONSUMER, "members.target_assignment.topic_partitions.topic_name"),
    (SHARE, "members.subscribed_topic_names"),
    (SHARE, "members.assignment.topic_partitions.topic_name"),
    (STREAMS, "topology.subtopologies.source_topics"),
    (STREAMS, "topology.subtopologies.repartition_sink_topics"),
    (STREAMS, "topology.subtopologies.repartition_source_topics.name"),
    (STREAMS, "topology.subtopologies.state_changelog_topics.name"),
]


def put(group, path):
    """HIDDEN where `path` leads."""
    *way, last = path.split(".")
    for name in way:
        found = getattr(group, name)
        group = found[0] if isinstance(found, list) else found
    setattr(group, last, [HIDDEN] if isinstance(getattr(group, last), list) else HIDDEN)


def told(key, path=None):
    """The error of a group that has HIDDEN there."""
    version = max(request_class(key).INFO.versions)
    body = sample(request_class(key))
    finish, _ = asked(key, version, body, Refusing({("DESCRIBE", "TOPIC", HIDDEN)}))
    answer = sample(response_class(key), error_code=0)
    if path is not None:
        put(answer.groups[0], path)
    all_steps(finish(answer))
    (group,) = answer.groups
    assert bool(group.error_code) == (group.members == [])
    assert HIDDEN not in repr(group)
    return group.error_code


@pytest.mark.parametrize(("key", "path"), PLACES)
def test_a_forbidden_topic_anywhere_in_a_group_refuses_it_whole(key, path):
    assert told(key) == 0
    assert told(key, path) == REFUSED
