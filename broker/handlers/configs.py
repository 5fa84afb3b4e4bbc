"""Settings of topics, brokers, loggers, client-metrics subscriptions and groups.

| key | versions | what |
|--|--|--|
| 32 DescribeConfigs | 1-4 | every setting, with sources and synonyms (KIP-226), docs (KIP-569) |
| 33 AlterConfigs | 0-2 | replaces all settings of a resource |
| 44 IncrementalAlterConfigs | 0-1 | SET, DELETE, APPEND, SUBTRACT (KIP-339) |
| 74 ListConfigResources | 0-1 | names of resources (KIP-1142) |

A change is durable and in force when it is answered. Behaviour was compared with Kafka 4.3.1,
error by error. Known deviations: a broker setting that Kafka does not know is refused with
INVALID_CONFIG (Kafka keeps it for plug-ins); an operation of an unknown number is INVALID_REQUEST
(Kafka: UNKNOWN_SERVER_ERROR); one resource of an unknown type fails alone, not with its whole
request; a resource that a request names twice is INVALID_REQUEST (Kafka 4.3.1 does not answer
AlterConfigs; by DescribeConfigs it is described as often, whatever that costs).
"""

from __future__ import annotations

import enum
import logging
from typing import TYPE_CHECKING, TypeVar

from broker.api import Api, Request, Steps
from broker.cluster.catalog import Topic, check_name
from broker.cluster.config import BROKER_CONFIGS
from broker.cluster.config_group import CLIENT_METRICS_CONFIGS, GROUP_CONFIGS
from broker.cluster.config_listener import is_read
from broker.cluster.config_refusals import RefusedConfigError
from broker.cluster.config_topic import TOPIC_CONFIGS
from broker.cluster.internal_topics import configs_in_force
from broker.cluster.registry import DEFAULT_BROKER, Described, Room
from broker.handlers.config_changes import incremented, replaced
from broker.handlers.loggers import change_loggers, check_loggers, describe_loggers, set_levels
from broker.handlers.topics import caught_up, counted, metadata_failure
from metadata.store import MetadataError
from runtime.config import ConfigError, ConfigTable, ConfigType, UnknownConfigError
from runtime.logs import kv
from runtime.slices import Slices
from wire.kafka.api_keys import ApiKey
from wire.kafka.errors import ErrorCode, KafkaError
from wire.kafka.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    ConfigResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from broker.cluster.catalog import TopicCatalog
    from broker.cluster.registry import ConfigRegistry
    from broker.cluster.view import ClusterView
    from broker.handlers.config_changes import Change
    from wire.kafka.messages.configs import (
        AlterConfigsRequestAlterConfigsResource,
        IncrementalAlterConfigsRequestAlterConfigsResource,
    )

logger = logging.getLogger(__name__)

#: A resource that one of the two requests names.
_Altered = TypeVar(
    "_Altered",
    bound="AlterConfigsRequestAlterConfigsResource"
    " | IncrementalAlterConfigsRequestAlterConfigsResource",
)

#: What a resource costs, and each of its settings, in units of `Steps`.
RESOURCE_UNITS = 5
SETTING_UNITS = 30
ALTERED_SETTINGS_PER_TURN = 500
ALTERED_RESOURCES_PER_TURN = 5


class ResourceType(enum.IntEnum):
    """Kafka's `ConfigResource.Type`."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


_WIRE_TYPES = {
    ConfigType.BOOLEAN: 1,
    ConfigType.STRING: 2,
    ConfigType.INT: 3,
    ConfigType.SHORT: 4,
    ConfigType.LONG: 5,
    ConfigType.SIZE: 5,
    ConfigType.DOUBLE: 6,
    ConfigType.LIST: 7,
    ConfigType.CLASS: 8,
    ConfigType.PASSWORD: 9,
}

#: In the order of Kafka's answer to ListConfigResources.
_LISTED_TYPES = (
    ResourceType.GROUP,
    ResourceType.CLIENT_METRICS,
    ResourceType.BROKER_LOGGER,
    ResourceType.BROKER,
    ResourceType.TOPIC,
)


class ConfigsHandler:
    def __init__(
        self, catalog: TopicCatalog, registry: ConfigRegistry, cluster: ClusterView
    ) -> None:
        self._catalog = catalog
        self._registry = registry
        self._cluster = cluster

    def apis(self) -> list[Api]:
        return [
            Api(ApiKey.DESCRIBE_CONFIGS, 1, 4, self.describe_configs),
            Api(ApiKey.ALTER_CONFIGS, 0, 2, self.alter_configs),
            Api(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, 1, self.incremental_alter_configs),
            Api(ApiKey.LIST_CONFIG_RESOURCES, 0, 1, self.list_config_resources),
        ]

    # -- DescribeConfigs ------------------------------------------------------------------------

    def describe_configs(self, request: Request) -> Steps[DescribeConfigsResponse]:
        body: DescribeConfigsRequest = request.body
        response = DescribeConfigsResponse()
        asked: set[tuple[int, str]] = set()
        for resource in body.resources:
            yield RESOURCE_UNITS
            name = resource.resource_type, resource.resource_name
            result = DescribeConfigsResult(
                error_message="",
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            response.results.append(result)
            try:
                if name in asked:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "the request names it twice")
                asked.add(name)
                described = self._describe(resource)
            except KafkaError as error:
                result.error_code, result.error_message = int(error.code), error.message
                continue
            # An empty list of keys means all of them, as null does.
            keys = set(resource.configuration_keys or ())
            for one in described:
                yield SETTING_UNITS
                if not keys or one.key.name in keys:
                    result.configs.append(_described(one, body))
        return response

    def _describe(self, resource: DescribeConfigsResource) -> Iterable[Described]:
        kind, name = _resource_type(resource.resource_type), resource.resource_name
        if kind is ResourceType.TOPIC:
            check_name(name)
            return self._registry.describe_topic(configs_in_force(self._topic(name)))
        if kind is ResourceType.BROKER:
            if self._broker_name(name) == DEFAULT_BROKER:
                return self._registry.describe_broker_default()
            return self._registry.describe_broker()
        if kind is ResourceType.BROKER_LOGGER:
            self._check_this_broker(name)
            return describe_loggers()
        return self._registry.describe_named(_named_room(kind, name), name)

    # -- AlterConfigs and IncrementalAlterConfigs -------------------------------------------------

    async def alter_configs(self, request: Request) -> AlterConfigsResponse:
        body: AlterConfigsRequest = request.body

        def change_of(resource: AlterConfigsRequestAlterConfigsResource) -> Change:
            pairs = [(config.name, config.value) for config in resource.configs]
            return _replacement(resource.resource_type, pairs)

        responses = await self._alter(body.resources, change_of, validate_only=body.validate_only)
        return AlterConfigsResponse(responses=responses)

    async def incremental_alter_configs(self, request: Request) -> IncrementalAlterConfigsResponse:
        body: IncrementalAlterConfigsRequest = request.body

        def change_of(resource: IncrementalAlterConfigsRequestAlterConfigsResource) -> Change:
            operations = [
                (config.name, config.config_operation, config.value) for config in resource.configs
            ]
            return self._increment(resource.resource_type, resource.resource_name, operations)

        responses = await self._alter(body.resources, change_of, validate_only=body.validate_only)
        return IncrementalAlterConfigsResponse(responses=responses)

    async def _alter(
        self,
        resources: Sequence[_Altered],
        change_of: Callable[[_Altered], Change],
        *,
        validate_only: bool,
    ) -> list[AlterConfigsResourceResponse]:
        changes = []
        slices = Slices(ALTERED_SETTINGS_PER_TURN)
        for resource in resources:
            if slices.due(1 + len(resource.configs)):
                await slices.turn()
            change = change_of(resource)
            changes.append((resource.resource_type, resource.resource_name, change))
        return await self._change_all(changes, validate_only=validate_only)

    async def _change_all(
        self, changes: list[tuple[int, str, Change]], *, validate_only: bool
    ) -> list[AlterConfigsResourceResponse]:
        often = await counted((kind, name) for kind, name, _ in changes)
        responses = []
        slices = Slices(ALTERED_RESOURCES_PER_TURN)
        changes.reverse()
        while changes:
            if slices.due():
                await slices.turn()
            kind, name, change = changes.pop()  # at the end all would be freed at once
            response = AlterConfigsResourceResponse(
                error_message=None, resource_type=kind, resource_name=name
            )
            responses.append(response)
            try:
                if often[kind, name] > 1:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "the request names it twice")
                await self._change(kind, name, change, validate_only=validate_only)
            except KafkaError as error:
                response.error_code, response.error_message = int(error.code), error.message
            except MetadataError as error:
                failure = metadata_failure(error)
                response.error_code, response.error_message = int(failure.code), failure.message
        return responses

    async def _change(
        self, kind_number: int, name: str, change: Change, *, validate_only: bool
    ) -> None:
        kind = _resource_type(kind_number)
        if kind is ResourceType.TOPIC:
            await self._change_topic(name, change, validate_only=validate_only)
        elif kind is ResourceType.BROKER_LOGGER:
            self._check_this_broker(name)
            texts = change(set_levels())
            check_loggers(texts)
            if not validate_only:
                change_loggers(texts)
        elif kind is ResourceType.BROKER:
            broker_name = self._broker_name(name)
            checked = self._checked_broker(broker_name, change)
            await self._try_listeners(broker_name, checked)
            await self._change_stored(Room.BROKERS, broker_name, checked, validate_only)
        else:
            room = _named_room(kind, name)
            await self._change_stored(room, name, self._checked_named(room, change), validate_only)

    async def _change_topic(self, name: str, change: Change, *, validate_only: bool) -> None:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a topic must be named")
        check_name(name)  # before it is looked for, as in Kafka
        if self._catalog.get(name) is None and (away := await caught_up(self._catalog)):
            raise away
        self._topic(name)
        if validate_only:
            self._catalog.check_configs(name, change(self._topic(name).configs))
        else:
            await self._catalog.change_configs(name, lambda topic: change(topic.configs))

    async def _change_stored(
        self, room: Room, name: str, change: Change, validate_only: bool
    ) -> None:
        before = self._registry.stored(room, name)
        if validate_only:
            change(before)
            return
        await self._registry.change(room, name, change)
        after = self._registry.stored(room, name)
        table = _ROOM_TABLES[room]
        idle = [
            setting
            for setting, text in after.items()
            if before.get(setting) != text
            and table.knows_without_meaning(setting)
            and not is_read(setting)
        ]
        if idle:
            owner = f"{room.value}/{name}"
            logger.warning("setting_without_effect", kv(owner=owner, settings=",".join(idle)))

    def _checked_broker(self, name: str, change: Change) -> Change:
        def checked(before: Mapping[str, str]) -> dict[str, str]:
            after = change(before)
            changed = {
                setting
                for setting in before.keys() | after.keys()
                if before.get(setting) != after.get(setting)
            }
            try:
                self._registry.check_broker(name, after, changed)
            except (UnknownConfigError, RefusedConfigError) as error:
                raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None
            except ConfigError as error:
                raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from None
            return after

        return checked

    async def _try_listeners(self, broker_name: str, checked: Change) -> None:
        """KafkaError: a listener could not be served as it would be set."""
        if broker_name == DEFAULT_BROKER:
            return
        try:
            await self._registry.try_listeners(
                checked(self._registry.stored(Room.BROKERS, broker_name))
            )
        except ConfigError as error:
            raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from None

    def _checked_named(self, room: Room, change: Change) -> Change:
        def checked(before: Mapping[str, str]) -> dict[str, str]:
            after = change(before)
            try:
                self._registry.check_named(room, after)
            except ConfigError as error:
                # Kafka answers a subscription's wrong interval or name as a wrong request.
                subscription = room is Room.CLIENT_METRICS and error.name != "match"
                code = ErrorCode.INVALID_REQUEST if subscription else ErrorCode.INVALID_CONFIG
                raise KafkaError(code, str(error)) from None
            return after

        return checked

    def _increment(
        self, number: int, name: str, operations: Sequence[tuple[str, int, str | None]]
    ) -> Change:
        def change(before: Mapping[str, str]) -> dict[str, str]:
            kind = ResourceType(number)
            return incremented(
                before, operations, _TABLES[kind], lambda: self._in_force(kind, name)
            )

        return change

    def _in_force(self, kind: ResourceType, name: str) -> Iterable[Described]:
        if kind is ResourceType.TOPIC:
            return self._registry.describe_topic({})
        if kind is ResourceType.BROKER:
            return self._registry.describe_broker()
        return self._registry.describe_named(_named_room(kind, name), name)

    # -- ListConfigResources ----------------------------------------------------------------------

    def list_config_resources(self, request: Request) -> Steps[ListConfigResourcesResponse]:
        body: ListConfigResourcesRequest = request.body
        asked = set(body.resource_types) if request.version else {int(ResourceType.CLIENT_METRICS)}
        if asked - set(_LISTED_TYPES):
            return ListConfigResourcesResponse(error_code=int(ErrorCode.UNSUPPORTED_VERSION))
        response = ListConfigResourcesResponse()
        for kind in _LISTED_TYPES:
            if asked and kind not in asked:
                continue
            for name in self._names(kind):
                yield 1
                response.config_resources.append(
                    ConfigResource(resource_name=name, resource_type=int(kind))
                )
        return response

    def _names(self, kind: ResourceType) -> Iterable[str]:
        if kind is ResourceType.TOPIC:
            return (topic.name for topic in self._catalog.all())
        if kind in (ResourceType.BROKER, ResourceType.BROKER_LOGGER):
            return map(str, self._cluster.broker_ids())
        return self._registry.stored_names(_ROOMS[kind])

    # -- resources --------------------------------------------------------------------------------

    def _topic(self, name: str) -> Topic:
        topic = self._catalog.get(name)
        if topic is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist."
            )
        return topic

    def _broker_name(self, name: str) -> str:
        if not name:
            return DEFAULT_BROKER
        self._check_this_broker(name)
        return str(self._cluster.node_id)

    def _check_this_broker(self, name: str) -> None:
        expected = self._cluster.node_id
        if not name.isascii() or not name.isdigit() or int(name[:12]) != expected:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"this is broker {expected}, and not {name!r}"
            )


_ROOMS = {ResourceType.GROUP: Room.GROUPS, ResourceType.CLIENT_METRICS: Room.CLIENT_METRICS}
_TABLES = {
    ResourceType.TOPIC: TOPIC_CONFIGS,
    ResourceType.BROKER: BROKER_CONFIGS,
    ResourceType.BROKER_LOGGER: ConfigTable("a logger", []),
    ResourceType.CLIENT_METRICS: CLIENT_METRICS_CONFIGS,
    ResourceType.GROUP: GROUP_CONFIGS,
}


_ROOM_TABLES = {
    Room.BROKERS: BROKER_CONFIGS,
    Room.GROUPS: GROUP_CONFIGS,
    Room.CLIENT_METRICS: CLIENT_METRICS_CONFIGS,
}


def _resource_type(number: int) -> ResourceType:
    try:
        return ResourceType(number)
    except ValueError:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"there are no resources of type {number}"
        ) from None


def _named_room(kind: ResourceType, name: str) -> Room:
    if not name:
        what = "a group" if kind is ResourceType.GROUP else "a client-metrics subscription"
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{what} must be named")
    return _ROOMS[kind]


def _replacement(kind: int, pairs: Sequence[tuple[str, str | None]]) -> Change:
    def change(_before: Mapping[str, str]) -> dict[str, str]:
        if kind == ResourceType.BROKER_LOGGER:
            # Kafka's AlterConfigs does not know loggers; it would reset all that are not named.
            raise KafkaError(ErrorCode.INVALID_REQUEST, "loggers are changed one by one")
        return replaced(pairs)

    return change


def _described(one: Described, body: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=one.key.name,
        value=one.value,
        read_only=one.read_only,
        config_source=int(one.source),
        is_sensitive=one.key.sensitive,
        synonyms=[
            DescribeConfigsSynonym(name=s.name, value=s.value, source=int(s.source))
            for s in one.synonyms
        ]
        if body.include_synonyms
        else [],
        config_type=_WIRE_TYPES[one.key.type],
        documentation=one.key.doc if body.include_documentation else None,
    )
