"""Guards against the needs of broker/authorised.py: each asks for what its row says, no more."""

import uuid

import pytest

from broker.api import Api, ConnectionInfo, Request, all_steps
from broker.authorised import AUTHORISED
from broker.authorization import CLUSTER_NAME, Extent
from broker.guards.table import ASKED_BY_HANDLERS, GUARDS, guard_of
from broker.rights import Rights
from tests.broker.rules import Rules
from wire.kafka.api_keys import ApiKey
from wire.kafka.codec import request_class
from wire.kafka.message import Array, fields_of
from wire.kafka.structs import Struct

TOPIC_ID = uuid.UUID(int=7)
#: Whose rows say «all there are»: their answers are filtered.
FILTERED = {ApiKey.LIST_GROUPS, ApiKey.LIST_TRANSACTIONS}
#: Their handlers ask, of what is in the request and in the session.
BY_HANDLERS = ASKED_BY_HANDLERS | {ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE}
VERSIONS = [
    (key, version)
    for key in AUTHORISED
    for version in request_class(key).INFO.versions
    if key not in BY_HANDLERS
]


def test_every_api_that_is_served_has_a_guard():
    assert set(AUTHORISED) <= set(GUARDS)
    with pytest.raises(KeyError):
        guard_of(ApiKey.VOTE)


def sample(kind, **chosen):
    """A message with one element in each list, and a text in each text."""
    values = {}
    for name, spec in fields_of(kind):
        if name in chosen:
            values[name] = chosen[name]
        elif isinstance(spec.kind, Array):
            element = spec.kind.element
            if isinstance(element, type) and issubclass(element, Struct):
                values[name] = [sample(element, **chosen)]
            else:
                values[name] = [_value(element, name)]
        elif isinstance(spec.kind, type) and issubclass(spec.kind, Struct):
            values[name] = sample(spec.kind, **chosen)
        else:
            values[name] = _value(spec.kind, name)
    return kind(**values)


def _value(kind, name):
    return {
        "string": f"of-{name}",
        "uuid": TOPIC_ID,
        "bool": False,
        "boolean": False,
        "bytes": b"",
        "records": None,
        "float64": 0.0,
    }.get(kind.value, 0)


def needed(key, version, body):
    """The row's questions, each with what is as good: [{question, …}]."""
    found = []
    for need in Api(key, 0, version, lambda request: None).authorised_in(version):
        for name in need.named_in(body):
            as_good = {(need.operation.name, need.resource.name, plain(name))}
            if need.instead is not None:
                as_good |= {
                    (need.instead.operation.name, need.instead.resource.name, plain(each))
                    for each in need.instead.named_in(body)
                }
            found.append(as_good)
    return found


def plain(name):
    return "by-id" if name == TOPIC_ID else name


def asked(key, version, body, rules):
    connection = ConnectionInfo("1", "127.0.0.1", "PLAINTEXT")
    request = Request(key, version, 1, "", connection, body)
    outcome = all_steps(guard_of(key)(request, Rights(rules, connection, key.name)))
    return outcome, set(rules.asked)


def bodies(key):
    kind = request_class(key)
    if key is ApiKey.FIND_COORDINATOR:
        return [sample(kind, key_type=each) for each in (0, 1, 2)]
    if key in (ApiKey.DESCRIBE_CONFIGS, ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS):
        return [sample(kind, resource_type=each) for each in (2, 4, 8, 16, 32)]
    if key is ApiKey.INIT_PRODUCER_ID:
        return [sample(kind), sample(kind, transactional_id=None)]
    if key is ApiKey.DELETE_TOPICS:
        return [sample(kind, topic_id=uuid.UUID(int=0)), sample(kind, name=None)]
    return [sample(kind)]


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_a_guard_asks_for_what_its_row_says(key, version):
    """All is asked that may refuse; with everything allowed nothing is refused."""
    for body, again in zip(bodies(key), bodies(key), strict=True):
        needs = needed(key, version, body)
        outcome, questions = asked(
            key, version, body, Rules(everything=True, topics={TOPIC_ID: "by-id"})
        )
        assert outcome is None or callable(outcome), (key, outcome)
        allowed = set().union(*needs) if needs else set()
        # What an answer may show beside it is asked when it is there.
        assert questions <= allowed | {("DELETE", "CLUSTER", CLUSTER_NAME)}
        if key in FILTERED:
            continue
        assert all(as_good & questions for as_good in needs), (needs, questions)
        rules = Rules(topics={TOPIC_ID: "by-id"})
        outcome, questions = asked(key, version, again, rules)
        if needs:
            assert outcome is not None, "somebody without rights is refused"
            assert not callable(outcome), "and nothing reaches the handler"
            assert questions <= allowed


def with_many(body, count):
    """The same with so many elements in each innermost list."""
    for name, spec in fields_of(type(body)):
        value = getattr(body, name)
        if isinstance(value, Struct):
            with_many(value, count)
        elif isinstance(value, list) and isinstance(value[0], Struct) and has_lists(value[0]):
            with_many(value[0], count)
        elif isinstance(spec.kind, Array):
            setattr(body, name, value * count)
    return body


def has_lists(value):
    found = [getattr(value, name) for name, _ in fields_of(type(value))]
    return any(isinstance(each, list) or (isinstance(each, Struct) and has_lists(each))
               for each in found)  # fmt: skip


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_what_is_refused_is_refused_in_steps(key, version):
    """One topic, say, may have all 250,000 elements of a request: who had no rights at all held the
    loop for as long as it took to write an error for each."""
    connection = ConnectionInfo("1", "127.0.0.1", "PLAINTEXT")
    for number, body in enumerate(bodies(key)):
        for refusing in [Rules(), *map(Refusing, needed(key, version, body))]:
            many = with_many(bodies(key)[number], 1000)
            request = Request(key, version, 1, "", connection, many)
            steps = guard_of(key)(request, Rights(refusing, connection, key.name))
            assert max(steps, default=0) <= 10


@pytest.mark.parametrize(("key", "version"), VERSIONS)
def test_each_need_alone_refuses(key, version):
    """Everything is allowed but for one question, and what would be as good as it."""
    for number, body in enumerate(bodies(key)):
        for as_good in needed(key, version, body):
            if key in FILTERED or any(name is Extent.ALL for *_, name in as_good):
                continue
            rules = Refusing(as_good)
            outcome, _ = asked(key, version, bodies(key)[number], rules)
            assert outcome is not None, (key, version, as_good)


class Refusing(Rules):
    def __init__(self, refused):
        super().__init__(everything=True, topics={TOPIC_ID: "by-id"})
        self.refused = refused

    def decide(self, principal, host, operation, resource, name):
        question = (operation.name, resource.name, name)
        self.everything = question not in self.refused
        return super().decide(principal, host, operation, resource, name)
