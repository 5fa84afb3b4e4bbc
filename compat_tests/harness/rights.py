"""A request of every API, for a resource that is there or is not, and what an answer comes to."""

import uuid

import click

from broker.security.sasl.outgoing import Account
from quire.tools.groups.client import KafkaClient
from quire.tools.groups.security import ClientSecurity
from wire.kafka.api_keys import ApiKey
from wire.kafka.codec import request_class
from wire.kafka.errors import ErrorCode
from wire.kafka.message import Array, fields_of
from wire.kafka.structs import Struct

#: A request's fields with a meaning that a made-up value would not have.
CHOSEN = {
    "resource_type": 2, "key_type": 0, "acks": -1, "replica_id": -1, "member_epoch": 0,
    "session_id": 0, "session_epoch": -1, "max_wait_ms": 0, "cursor": None,
    "resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1,
    "replication_factor": 1, "num_partitions": 1, "timeout_ms": 5000, "validate_only": False,
    "session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000, "transaction_timeout_ms": 10_000,
}  # fmt: skip
NOTHING = uuid.UUID(int=0)


def made(key: ApiKey, name: str, topic_id: uuid.UUID):
    """One element in each list, and `name` wherever there is a text."""
    return _made(request_class(key), name, topic_id)


def _made(kind, name, topic_id):
    values = {}
    for field, spec in fields_of(kind):
        if field in CHOSEN:
            values[field] = CHOSEN[field]
        elif isinstance(spec.kind, Array):
            values[field] = [_one(spec.kind.element, name, topic_id)]
        else:
            values[field] = _one(spec.kind, name, topic_id)
    return kind(**values)


def _one(kind, name, topic_id):
    if isinstance(kind, type) and issubclass(kind, Struct):
        return _made(kind, name, topic_id)
    return {
        "string": name, "uuid": topic_id, "bool": False, "boolean": False, "bytes": b"",
        "records": None, "float64": 0.0,
    }.get(kind.value, 0)  # fmt: skip


def codes(answer) -> list[str]:
    """Every error of an answer, once, by name."""
    found: set[str] = set()
    _collect(answer, found)
    return sorted(found - {"NONE"})


def _collect(value, found):
    for field, _ in fields_of(type(value)):
        inner = getattr(value, field)
        if field.endswith("error_code"):
            found.add(ErrorCode(inner).name)
        for one in inner if isinstance(inner, list) else [inner]:
            if isinstance(one, Struct):
                _collect(one, found)


def asked(address: tuple[str, int], user: str, key: ApiKey, body) -> list[str]:
    """What a user whose password is his name is told, on a connection of its own."""
    account = Account("PLAIN", user, user)
    with KafkaClient(address, ClientSecurity(None, account)) as client:
        try:
            return codes(client.ask(address, body, max(body.INFO.versions)))
        except click.ClickException as error:
            if isinstance(error.__cause__, (EOFError, ConnectionError)):
                return ["(closed)"]
            raise AssertionError(f"{key.name} of {user}: {error.message}") from error
