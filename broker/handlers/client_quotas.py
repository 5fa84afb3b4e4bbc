"""Client quotas: DescribeClientQuotas, AlterClientQuotas (KIP-546).

| key | versions | what |
|--|--|--|
| 48 DescribeClientQuotas | 0-1 | entities by filter: exact, default, any of a type; strict |
| 49 AlterClientQuotas | 0-1 | sets and removes limits of users, client ids, addresses, defaults |

A change is durable and in force in this broker when it is answered, and in the others when they
have seen it (broker/quotas/quotas.py counts by it). Each entity is changed, or refused with a
reason, for itself. Behaviour and messages were compared with Kafka 4.3.1.
Known deviations: an address must be one, where Kafka looks names of hosts up; a limit that is not a
number is refused (Kafka stores NaN); of an entity that a request names twice nothing is changed
(Kafka changes it, and says that it did not); entities are answered in the order of the request.
"""

from __future__ import annotations

import enum
from collections import Counter
from typing import TYPE_CHECKING

from broker.api import Api, Request, Steps
from broker.cluster.registry import Room
from broker.handlers.topics import metadata_failure
from broker.quotas.entities import (
    CLIENT_ID,
    IP,
    USER,
    check_key,
    check_value,
    entity_named,
    entity_of,
    name_of,
)
from metadata.store import MetadataError
from runtime.slices import Slices
from wire.kafka.api_keys import ApiKey
from wire.kafka.errors import ErrorCode, KafkaError
from wire.kafka.messages.configs import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterClientQuotasResponseEntryData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribeClientQuotasResponseEntryData,
    EntityData,
    ValueData,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from broker.cluster.registry import ConfigRegistry
    from broker.quotas.entities import Entity
    from wire.kafka.messages.configs import (
        AlterClientQuotasRequestEntryData,
        ComponentData,
        OpData,
    )

#: What an entity that is compared costs, and one that is answered, in units of `Steps`.
COMPARED_UNITS = 3
ANSWERED_UNITS = 10
ENTITIES_PER_TURN = 20


class Match(enum.IntEnum):
    """Kafka's `DescribeClientQuotasRequest.MATCH_TYPE_…`."""

    EXACT = 0
    DEFAULT = 1
    SPECIFIED = 2


#: By type: a name, None for the default, or ANY.
_ANY = object()
_Filter = dict[str, object]


class ClientQuotasHandler:
    def __init__(self, registry: ConfigRegistry) -> None:
        self._registry = registry

    def apis(self) -> list[Api]:
        return [
            Api(ApiKey.DESCRIBE_CLIENT_QUOTAS, 0, 1, self.describe_client_quotas),
            Api(ApiKey.ALTER_CLIENT_QUOTAS, 0, 1, self.alter_client_quotas),
        ]

    # -- DescribeClientQuotas ---------------------------------------------------------------------

    def describe_client_quotas(self, request: Request) -> Steps[DescribeClientQuotasResponse]:
        body: DescribeClientQuotasRequest = request.body
        try:
            wanted = yield from _filter(body.components)
        except KafkaError as error:
            return DescribeClientQuotasResponse(
                error_code=int(error.code), error_message=error.message, entries=None
            )
        response = DescribeClientQuotasResponse(entries=[])
        assert response.entries is not None
        if body.strict and not wanted:
            return response
        for name in self._registry.stored_names(Room.QUOTAS):
            yield COMPARED_UNITS
            limits = self._registry.stored(Room.QUOTAS, name)
            entity = entity_named(name)
            if not limits or not _matches(entity, wanted, is_strict=body.strict):
                continue
            yield ANSWERED_UNITS
            response.entries.append(
                DescribeClientQuotasResponseEntryData(
                    entity=[EntityData(kind, part) for kind, part in entity],
                    values=[ValueData(key, float(text)) for key, text in limits.items()],
                )
            )
        return response

    # -- AlterClientQuotas ------------------------------------------------------------------------

    async def alter_client_quotas(self, request: Request) -> AlterClientQuotasResponse:
        body: AlterClientQuotasRequest = request.body
        slices = Slices(ENTITIES_PER_TURN)
        response = AlterClientQuotasResponse()
        named = []
        for entry in body.entries:
            if slices.due(1 + len(entry.entity)):
                await slices.turn()
            named.append(tuple(sorted((e.entity_type, e.entity_name or "") for e in entry.entity)))
        often = Counter(named)
        for entry, name in zip(body.entries, named, strict=True):
            if slices.due(1 + len(entry.ops)):
                await slices.turn()
            if often[name] == 0:
                continue  # answered with the first of its name
            result = AlterClientQuotasResponseEntryData(
                error_message=None,
                entity=[EntityData(each.entity_type, each.entity_name) for each in entry.entity],
            )
            response.entries.append(result)
            try:
                if often[name] > 1:
                    often[name] = 0
                    raise _twice(entry)
                await self._alter(entry, validate_only=body.validate_only)
            except KafkaError as error:
                result.error_code, result.error_message = int(error.code), error.message
            except MetadataError as error:
                failure = metadata_failure(error)
                result.error_code, result.error_message = int(failure.code), failure.message
        return response

    async def _alter(
        self, entry: AlterClientQuotasRequestEntryData, *, validate_only: bool
    ) -> None:
        """KafkaError, MetadataError."""
        if len({op.key for op in entry.ops}) < len(entry.ops):
            raise _twice(entry)
        entity = entity_of((each.entity_type, each.entity_name) for each in entry.entity)
        name = name_of(entity)
        _changed(entity, self._registry.stored(Room.QUOTAS, name), entry.ops)
        if not validate_only:
            await self._registry.change(
                Room.QUOTAS, name, lambda before: _changed(entity, before, entry.ops)
            )


def _twice(entry: AlterClientQuotasRequestEntryData) -> KafkaError:
    shown = ", ".join(f"{each.entity_type}={each.entity_name}" for each in entry.entity)
    return KafkaError(
        ErrorCode.INVALID_REQUEST,
        f"Ignoring duplicate entity ClientQuotaEntity(entries={{{shown}}})",
    )


def _changed(entity: Entity, before: Mapping[str, str], ops: Sequence[OpData]) -> dict[str, str]:
    """The limits as they are to be stored. KafkaError."""
    after = dict(before)
    for op in ops:
        if op.remove:
            after.pop(op.key, None)
            continue
        check_key(entity, op.key)
        check_value(op.key, op.value)
        after[op.key] = repr(float(op.value))
    return after


def _filter(components: Sequence[ComponentData]) -> Steps[_Filter]:
    """KafkaError: INVALID_REQUEST, UNSUPPORTED_VERSION."""
    wanted: _Filter = {}
    for component in components:
        yield 1
        kind = component.entity_type
        if not kind:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid empty entity type.")
        if kind in wanted:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Entity type {kind} cannot appear more than once in the filter.",
            )
        if kind not in (USER, CLIENT_ID, IP):
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        wanted[kind] = _wanted_name(component)
    if IP in wanted and len(wanted) > 1:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "Invalid entity filter component combination. IP filter component should not be used"
            " with user or clientId filter component.",
        )
    return wanted


def _wanted_name(component: ComponentData) -> object:
    if component.match_type == Match.EXACT:
        if component.match is None:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                "Request specified MATCH_TYPE_EXACT, but set match string to null.",
            )
        return component.match
    if component.match_type not in (Match.DEFAULT, Match.SPECIFIED):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown match type {component.match_type}")
    match = Match(component.match_type)
    if component.match is not None:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Request specified MATCH_TYPE_{match.name}, but also specified a match string.",
        )
    return None if match is Match.DEFAULT else _ANY


def _matches(entity: Entity, wanted: _Filter, *, is_strict: bool) -> bool:
    """All parts that the filter names are there; strict: and no others."""
    if is_strict and len(entity) != len(wanted):
        return False
    parts = dict(entity)
    return all(
        kind in parts and (name is _ANY or parts[kind] == name) for kind, name in wanted.items()
    )
