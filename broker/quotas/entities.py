"""Whom a quota is for, which of several is in force, and what may be said: pure.

An entity is a user, a client id, both of them, or an address; each may be the default, None, which
stands for all that have no quota of their own. Its name in metadata is its JSON, {"user": "u"}.

The rules are those of Kafka's ClientQuotaControlManager and DefaultQuotaCallback (KIP-13, 55, 546).
"""

from __future__ import annotations

import json
from ipaddress import ip_address
from typing import TYPE_CHECKING

from wire.kafka.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

USER, CLIENT_ID, IP = "user", "client-id", "ip"
PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE = "producer_byte_rate", "consumer_byte_rate"
REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE = "request_percentage", "controller_mutation_rate"
CONNECTION_CREATION_RATE = "connection_creation_rate"

#: In the order of its types' names: equal ones are equal.
Entity = tuple[tuple[str, str | None], ...]

#: (user, client id) whose requests count together; one that does not matter is "".
Shared = tuple[str, str]

_OF_CLIENTS = (
    PRODUCER_BYTE_RATE,
    CONSUMER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    CONTROLLER_MUTATION_RATE,
)
#: Whose values are whole numbers: the largest, and what Kafka calls the type.
_WHOLE = {
    PRODUCER_BYTE_RATE: ((1 << 63) - 1, "a LONG"),
    CONSUMER_BYTE_RATE: ((1 << 63) - 1, "a LONG"),
    CONNECTION_CREATION_RATE: ((1 << 31) - 1, "an INT"),
}
_EPSILON = 1e-6


def entity_of(parts: Iterable[tuple[str, str | None]]) -> Entity:
    """Of a type that comes twice the last name counts. KafkaError INVALID_REQUEST if it is none."""
    types = dict(parts)
    if not types:
        raise _wrong("Invalid empty client quota entity")
    for kind, name in types.items():
        if kind not in (USER, CLIENT_ID, IP):
            raise _wrong(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise _wrong(f"Empty {kind} not supported")
    if IP in types and len(types) > 1:
        raise _wrong(
            "Invalid quota entity combination, IP entity should not be combined with User or"
            " ClientId"
        )
    address = types.get(IP)
    if address is not None and not _is_address(address):
        raise _wrong(f"{address} is not a valid IP or resolvable host.")
    return tuple(sorted(types.items()))


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def check_key(entity: Entity, key: str) -> None:
    """KafkaError INVALID_REQUEST unless `key` is one of the entity's."""
    keys = (CONNECTION_CREATION_RATE,) if entity[0][0] == IP else _OF_CLIENTS
    if key not in keys:
        raise _wrong(f"Invalid configuration key {key}")


def check_value(key: str, value: float) -> None:
    """KafkaError INVALID_REQUEST unless `value` is above 0, and whole where the key says so."""
    if not value > 0:
        raise _wrong(f"Quota {key} must be greater than 0")
    if key not in _WHOLE:
        return
    most, kind = _WHOLE[key]
    if value > most:
        raise _wrong(f"Proposed value for {key} is too large for {kind}.")
    if abs(int(value + _EPSILON) - value) > _EPSILON:
        raise _wrong(f"{key} cannot be a fractional value.")


def _wrong(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


def name_of(entity: Entity) -> str:
    """Its name among what is stored."""
    return json.dumps(dict(entity), separators=(",", ":"), sort_keys=True)


def entity_named(name: str) -> Entity:
    """The other way round. ValueError."""
    parts = json.loads(name)
    return tuple(sorted(parts.items()))


class QuotaTable:
    """The limits of one key, by entity; which one is in force for a client, strongest first:

    user and client id | user, all clients | user | all users, client id | all users, all clients |
    all users | client id | all client ids

    All connections of a user share the user's quota, each of his clients has its own if the quota
    names clients (Kafka's metric tags)."""

    def __init__(self, limits: Mapping[Entity, float]) -> None:
        self._limits = dict(limits)

    def __bool__(self) -> bool:
        return bool(self._limits)

    def in_force(self, user: str, client_id: str) -> tuple[float, Shared] | None:
        """(the limit, who shares it); None without one."""
        limits = self._limits
        of_user = ((USER, user),)
        of_all: Entity = ((USER, None),)
        both, all_clients = ((CLIENT_ID, client_id),), ((CLIENT_ID, None),)
        each = user, client_id
        for entity, shared in (
            (both + of_user, each),
            (all_clients + of_user, each),
            (of_user, (user, "")),
            (both + of_all, each),
            (all_clients + of_all, each),
            (of_all, (user, "")),
            (both, ("", client_id)),
            (all_clients, ("", client_id)),
        ):
            limit = limits.get(entity)
            if limit is not None:
                return limit, shared
        return None

    def of_address(self, address: str) -> float | None:
        """The limit of an address: its own, else that of all."""
        limit = self._limits.get(((IP, address),))
        return self._limits.get(((IP, None),)) if limit is None else limit
